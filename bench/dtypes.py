"""The same evaluation in float32 and in bfloat16: `python -m bench.dtypes NAME MODEL --out FILE -- EVAL ARGUMENTS`.

FILE gets one row per model and data type: accuracy, and what it cost in processor seconds, which other work on the
machine moves less than it moves the time. Loading is counted in both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.common import merged, parser, run_timed, save
from gtpo.common.files import read_json
from gtpo.common.hub import has_bfloat16
from gtpo.common.provenance import cpu_model


def measure(name: str, model: Path, dtype: str, arguments: list[str]) -> dict[str, Any]:
    """Evaluate a model in one data type."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "gtpo", "eval", str(model), *arguments, "--dtype", dtype, "--quiet"]
        taken = run_timed([*command, "--out", str(out)], stdout=subprocess.DEVNULL)
        record = read_json(out / "eval.json")
    (entry,) = record["benchmarks"].values()
    words = ("DIR" if Path(word).is_dir() else word for word in arguments)
    return {
        "model": name,
        "dtype": dtype,
        "command": " ".join(["gtpo eval MODEL", *words, "--dtype", dtype]),
        "engine": record["engine"]["name"],
        "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        **{key: entry[key] for key in ("questions", "samples", "completion_tokens")},
        "pass@1": entry["lenient"]["pass@k"]["1"],
        "processor_seconds": round(taken["cpu_seconds"], 1),
        "sampling_seconds": sum(record["benchmark_seconds"].values()),
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("name")
    made.add_argument("model", type=Path)
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("arguments", nargs="+", metavar="EVAL ARGUMENTS")
    asked = made.parse_args()
    rows = [measure(asked.name, asked.model, dtype, asked.arguments) for dtype in ("float32", "bfloat16")]
    for row in rows:
        print(row)
    rows = merged(asked.out, "rows", rows, lambda row: row["model"])
    save(asked.out, {"processor": cpu_model(), "multiplies_bfloat16": has_bfloat16(), "rows": rows})


if __name__ == "__main__":
    main()
