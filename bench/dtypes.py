"""The same evaluation in float32 and in bfloat16: `python -m bench.dtypes NAME MODEL --out FILE -- EVAL ARGUMENTS`.

FILE gets one row per model and data type: accuracy, and what it cost in processor seconds, which other work on the
machine moves less than it moves the time. Loading is counted in both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gtpo.common.processor import cpu_model, has_bfloat16

TYPES = ("float32", "bfloat16")


def measure(name: str, model: Path, dtype: str, arguments: list[str]) -> dict[str, Any]:
    """Evaluate a model in one data type."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "gtpo", "eval", str(model), *arguments, "--dtype", dtype]
        process = subprocess.Popen([*command, "--quiet", "--out", str(out)], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"gtpo eval ended with status {os.waitstatus_to_exitcode(status)}")
        record = json.loads((out / "eval.json").read_text())
    (entry,) = record["benchmarks"].values()
    return {
        "model": name,
        "dtype": dtype,
        "command": " ".join(
            ["gtpo eval MODEL", *("DIR" if Path(a).is_dir() else a for a in arguments), "--dtype", dtype]
        ),
        "engine": record["engine"]["name"],
        "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "questions": entry["questions"],
        "samples": entry["samples"],
        "completion_tokens": entry["completion_tokens"],
        "pass@1": entry["lenient"]["pass@k"]["1"],
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "sampling_seconds": sum(record["benchmark_seconds"].values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("arguments", nargs="+", metavar="EVAL ARGUMENTS")
    asked = parser.parse_args()
    before = json.loads(asked.out.read_text())["rows"] if asked.out.exists() else []
    rows = [row for row in before if row["model"] != asked.name]
    for dtype in TYPES:
        rows.append(measure(asked.name, asked.model, dtype, asked.arguments))
        print(json.dumps(rows[-1]), flush=True)
    found = {"processor": cpu_model(), "multiplies_bfloat16": has_bfloat16(), "rows": rows}
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
