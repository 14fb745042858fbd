"""What a change must leave alone: six training runs and thirty outputs of eval and compare, before and after it.

    python -m bench.unchanged FOLDER                     run everything with this checkout: minutes on one core
    python -m bench.unchanged FOLDER --against BEFORE    the same, then say what differs from another checkout's folder

Metrics and final weights of the training runs must be the same bits; what eval and compare print, the same text. Times,
versions and the commit are left out. `compare` and `--completions` read BEFORE's samples, so that a change of the
sampler shows in the six evaluations only. The null: two folders of one checkout do not differ.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyarrow import parquet

from bench.common import parser

SHORT = ("--training.max_steps", "6", "--training.save_steps", "3", "--training.logging_steps", "1")
BASE = ("train", "demo/base", "--training.max_steps", "300", "--training.save_steps", "300")
TRAINED = {
    "sft": ("demo/sft",),
    "grpo": ("demo/grpo",),
    "gtpo": ("demo/gtpo",),
    "gtpo-published": ("demo/gtpo", "--objective.preset", "gtpo-published"),
    "gtpo-eq7": ("demo/gtpo", "--objective.preset", "gtpo-eq7", "--training.num_iterations", "2"),
}
BENCHMARKS = ("--benchmarks", "arithmetic,arithmetic_hard", "--limit", "12", "--max-tokens", "48")
RUNS = ("base", *TRAINED)
PAIR = ("compare", "grpo", "gtpo")
ALL = ("compare", *RUNS, "--baseline", "base")
OUTPUTS: dict[str, tuple[str, ...]] = {
    **{f"eval-{run}": ("eval", run, *BENCHMARKS, "--k", "4", "--json") for run in RUNS},
    **{f"recorded-{run}": ("eval", "--completions", f"samples-{run}.jsonl", "--k", "4") for run in RUNS},
    "recorded-lenient": (
        "eval",
        "--completions",
        "samples-gtpo.jsonl",
        "--k",
        "2",
        "--scoring",
        "lenient",
        "--out",
        "lenient",
    ),
    "recorded-json": ("eval", "--completions", "samples-grpo.jsonl", "--k", "3", "--json", "--out", "json"),
    "list": ("eval", "--list"),
    "pair": PAIR,
    "pair-details": (*PAIR, "--details"),
    "pair-lenient": (*PAIR, "--scoring", "lenient"),
    "pair-subject": (*PAIR, "--per-subject"),
    "pair-margin": (*PAIR, "--margin", "5"),
    "pair-metric": (*PAIR, "--metric", "maj@4", "--metric", "pass@2"),
    "pair-k": (*PAIR, "--k", "1,2,4", "--details"),
    **{f"pair-{form}": (*PAIR, "--format", form) for form in ("markdown", "latex", "csv", "json")},
    "all": ALL,
    "all-details": (*ALL, "--details"),
    "all-markdown": (*ALL, "--format", "markdown"),
    "all-json": (*ALL, "--format", "json"),
}
OF_THE_MOMENT = re.compile(
    r"time|commit|version|created|began|ended|host|hardware|wall|seconds|per_s|path|folder|command"
)
MOMENTS = re.compile(r"\d+(\.\d+)? ?(s|min|tokens/s|samples/s)\b|\d+:\d\d(:\d\d)?|\d{4}-\d\d-\d\d")


def gtpo(folder: Path, words: tuple[str, ...]) -> str:
    """Run a command in a folder and return its stdout; a failure is a result too."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "gtpo", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else f"exit code {done.returncode}\n{done.stderr}"


def lasting(value: Any) -> Any:
    """Return a JSON value without what differs between two runs of one commit."""
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items() if not OF_THE_MOMENT.search(key)}
    return [lasting(item) for item in value] if isinstance(value, list) else value


def train(folder: Path) -> None:
    for name, words in {"base": BASE, **{run: ("train", *words, *SHORT) for run, words in TRAINED.items()}}.items():
        if (folder / "results/train" / name / "final").is_dir():
            continue
        start = () if name == "base" else ("--model-name", "results/train/base")
        said = gtpo(folder, (*words, "--run-name", name, *start, "--quiet"))
        print(f"train {name}: {said.strip() or 'done'}", flush=True)


def recordings(folder: Path) -> None:
    """Write each evaluation's samples as a user would have recorded them."""
    for run in RUNS:
        evaluated = folder / "results/eval" / run
        golds = {
            (row["benchmark"], row["id"]): row for row in parquet.read_table(evaluated / "problems.parquet").to_pylist()
        }
        rows: dict[str, dict[str, Any]] = {}
        for part in sorted((evaluated / "samples").rglob("*.parquet")):
            for sample in parquet.ParquetFile(part).read().to_pylist():
                question = golds[sample["benchmark"], sample["question_id"]]
                name = f"{sample['benchmark']}-{sample['question_id']}"
                row = {"id": name, "problem": question["problem"], "gold": question["answer"], "completions": []}
                rows.setdefault(name, row)["completions"].append(sample["completion"])
        (folder / f"samples-{run}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows.values()))


def evidence(folder: Path) -> dict[str, Any]:
    """Return what must not change: each run's metrics and weights, and what the commands printed."""
    found: dict[str, Any] = {}
    for run in RUNS:
        trained = folder / "results/train" / run
        lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
        found[f"metrics-{run}"] = [lasting(line) for line in lines]
        weights = sorted((trained / "final").glob("*.safetensors"))
        found[f"weights-{run}"] = [hashlib.sha256(path.read_bytes()).hexdigest() for path in weights]
    for path in sorted((folder / "outputs").iterdir()):
        text = path.read_text()
        try:
            found[path.stem] = lasting(json.loads(text))
        except ValueError:
            found[path.stem] = MOMENTS.sub("", text)
    return found


def main() -> int:
    made = parser(__doc__, against=str)
    made.add_argument("folder", type=Path)
    asked = made.parse_args()
    folder, before = asked.folder.resolve(), Path(asked.against).resolve() if asked.against else None
    (folder / "outputs").mkdir(parents=True, exist_ok=True)
    train(folder)
    for name, words in OUTPUTS.items():
        if name.startswith("recorded") and not (folder / "samples-base.jsonl").exists():
            recordings(before or folder)
            if before:
                for run in RUNS:
                    shutil.copy(before / f"samples-{run}.jsonl", folder)
        where = before if before and words[0] == "compare" else folder
        (folder / "outputs" / f"{name}.txt").write_text(gtpo(where, words))
        print(name, flush=True)
    if before is None:
        return 0
    was, now = evidence(before), evidence(folder)
    different = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    for name in different:
        old, new = (json.dumps(side.get(name), indent=1).splitlines() for side in (was, now))
        print(f"differs: {name}", *list(difflib.unified_diff(old, new, lineterm="", n=0))[2:12], sep="\n  ")
    print(f"{len(was) - len(different)} of {len(was)} are unchanged")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
