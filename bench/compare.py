"""`gtpo compare` at full size: 8 runs x 5 benchmarks (1319, 5000, 30, 30, 40 questions, n = 64), from files.

The command runs as a user runs it, in a process of its own, start-up and reading included; beside it, as the
yardstick of this machine, an interpreter that only imports numpy. Expected: the table of 8 runs in at most 1.5 s and
their page in at most 6 s; the page of 30 runs (6 methods x 5 seeds) of at most 1.5 MB; that of two runs with 5,000 x 64
completions (640,000 rows) in at most 60 s and of at most 3 MB.

    python -m bench.compare [--rounds N] [--out FILE]

The fastest of the rounds counts; a page is made once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.common import parser, save, table
from gtpo.common.files import write_json
from gtpo.evalkit.metrics import maj_at_all_k, pass_at_all_k
from gtpo.evalkit.statistics import mean_interval
from gtpo.runs.eval_folder import EVAL_SCHEMA_VERSION, QUESTION_SCHEMA, SAMPLE_SCHEMA

N = 64
SIZES = {"gsm8k": 1319, "math": 5000, "aime24": 30, "aime25": 30, "amc": 40}
METHODS = (None, "sft", "grpo", "grpo-filtered", "gtpo", "gtpo-published", "gtpo-eq7", "gtpo-no-filter")
CHUNK = 20_000


def write_train(folder: Path, method: str, seed: int) -> None:
    """Write one finished train run: its config with its seed, and 300 steps of made-up metrics."""
    folder.mkdir(parents=True)
    preset = None if method == "sft" else method
    kind = method if method in ("sft", "grpo") else "gtpo"
    write_json(folder / "run.json", {"schema_version": 1, "run_name": folder.name, "method": kind, "preset": preset,
                                     "seed": seed, "status": "finished"})  # fmt: skip
    (folder / "config.yaml").write_text(f"run_name: {folder.name}\nmethod: {method}\nmodel:\n  random_seed: {seed}\n")
    noise = np.random.default_rng(seed).normal(0, 0.3, (300, 3))
    rows = [
        {"step": t + 1, "reward/accuracy": 5 + t / 100 + a, "entropy/mean": 0.5 - t / 900 + b / 10,
         "completions/length": 200 + 10 * c}
        for t, (a, b, c) in enumerate(noise.tolist())
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def made_up(schema: pa.Schema, count: int, columns: dict[str, Any]) -> pa.Table:
    """Return rows; a single value stands for a column of it, and a column that is not there is empty."""
    values = (columns.get(name) for name in schema.names)
    return pa.table([each if isinstance(each, list) else [each] * count for each in values], schema=schema)


def write_run(
    folder: Path, method: str | None, seed: int, samples_of: str | None, train_run: str | None = None
) -> None:
    """Write one complete eval run of made-up verdicts, with the completions of one benchmark where asked."""
    folder.mkdir(parents=True)
    document: dict[str, Any] = {
        "schema_version": EVAL_SCHEMA_VERSION, "status": "complete", "name": folder.name, "engine": {"name": "none"},
        "model": {"source": "none", "method": method, "preset": method, "train_run": train_run},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 2048, "n": N, "seed": 0},
        "prompt": {"system": "", "chat_template_hash": None, "hash": ""},
        "scoring": "strict", "verifier": {"version": 1}, "benchmarks": {},
    }  # fmt: skip
    tables = []
    for benchmark, count in SIZES.items():
        difficulty = np.random.default_rng(count).normal(0.0, 2.0, count)
        rng = np.random.default_rng([seed, count])
        right = rng.binomial(N, 1 / (1 + np.exp(-difficulty - 0.1 * seed)))
        votes = [[v for v in (w - w // 2, w // 4, w // 4) if v] for w in (N - right).tolist()]
        silent = [N - int(c) - sum(v) for c, v in zip(right, votes, strict=True)]
        passes, majority = pass_at_all_k([N] * count, right.tolist()), maj_at_all_k(votes, right.tolist(), silent)
        scored = {
            metric: {str(k): mean_interval(found[:, k - 1])._asdict() for k in range(1, N + 1)}
            for metric, found in (("pass@k", passes), ("maj@k", majority))
        }
        entry = {"source": "made up", "questions": count, "samples": N * count, "n": N, "checksum": "x"}
        document["benchmarks"][benchmark] = {**entry, **scored, "strict": scored, "lenient": scored}
        values = {
            "benchmark": benchmark, "question_id": [f"{benchmark}/{i}" for i in range(count)], "n": N, "truncated": 0,
            "correct": right.tolist(), "abstentions": silent, "votes": votes, "pass_at_k": list(passes),
            "maj_at_k": list(majority), "format_ok": rng.binomial(N, 0.95, count).tolist(), "mean_tokens": 200.0,
        }  # fmt: skip
        tables += [made_up(QUESTION_SCHEMA, count, {**values, "scoring": each}) for each in ("strict", "lenient")]
        if benchmark == samples_of:
            write_samples(folder / "samples", benchmark, right)
    write_json(folder / "eval.json", document)
    pq.write_table(pa.concat_tables(tables), folder / "questions.parquet", compression="zstd")


def write_samples(folder: Path, benchmark: str, right: np.ndarray) -> None:
    """Write right.size x 64 completions of about 700 characters, in parts."""
    folder.mkdir()
    words = np.random.default_rng(0).choice(["first", "add", "then", "x = 3", "so", "hence", "12", "we find"], 4000)
    keys = [(q, j) for q in range(right.size) for j in range(N)]
    for part, start in enumerate(range(0, len(keys), CHUNK)):
        chosen = keys[start : start + CHUNK]
        verdicts, indices = ["CORRECT" if j < right[q] else "INCORRECT" for q, j in chosen], [j for _, j in chosen]
        rows = made_up(SAMPLE_SCHEMA, len(chosen), {
            "benchmark": benchmark, "question_id": [f"{benchmark}/{q}" for q, _ in chosen], "sample_index": indices,
            "completion": [" ".join(words[(7 * q + 13 * j) % 3800 :][:140]) for q, j in chosen], "seed": indices,
            "answer_strict": "12", "answer_lenient": "12", "verdict_strict": verdicts, "verdict_lenient": verdicts,
            "format_ok": True, "tokens": 200, "finish_reason": "stop", "unfinished": False,
        })  # fmt: skip
        pq.write_table(rows, folder / f"part-{part:06d}.parquet", compression="zstd")


def fastest(command: list[str], rounds: int, cwd: Path) -> dict[str, float]:
    """Least of `rounds` wall and processor times of a command; the second hardly depends on the load."""
    root = Path(__file__).resolve().parent.parent
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    times = []
    for _ in range(rounds):
        start, before = time.perf_counter(), os.times()
        subprocess.run(command, check=True, cwd=cwd, env=environment, capture_output=True)
        now = os.times()
        used = now.children_user + now.children_system - before.children_user - before.children_system
        times.append((time.perf_counter() - start, used))
    seconds, processor = map(min, zip(*times, strict=True))
    return {"seconds": seconds, "cpu_seconds": processor}


def main() -> None:
    arguments = parser(__doc__, rounds=3, out=Path("results/bench/compare.json")).parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        evals, trains = home / "results" / "eval", home / "results" / "train"
        single = [f"run-{method or 'base'}" for method in METHODS]
        for seed, (name, method) in enumerate(zip(single, METHODS, strict=True)):
            write_run(evals / name, method, seed, "math" if method in ("grpo", "gtpo") else None)
        seeded = [f"{method}-s{seed}" for method in METHODS[1:7] for seed in range(5)]
        for i, name in enumerate(seeded):
            method, seed = str(METHODS[1 + i // 5]), i % 5
            write_train(trains / name, method, seed)
            write_run(evals / f"{name}-eval", method, 10 + 10 * (i // 5) + seed, None, train_run=name)
        gtpo, page = [sys.executable, "-m", "gtpo", "compare"], home / "page.html"
        chosen = {
            "2 runs x 5 benchmarks": ["run-grpo", "run-gtpo"], "8 runs x 5 benchmarks": single,
            "30 runs (6 methods x 5 seeds)": seeded, "page, 8 runs": single,
            "page, 30 runs (6 methods x 5 seeds)": seeded,
            "page, 2 runs, 5,000 x 64 completions": ["run-grpo", "run-gtpo"],
        }  # fmt: skip
        bare = fastest([sys.executable, "-c", "import numpy"], arguments.rounds, home)
        rows: list[dict[str, Any]] = [{"what": "python -c 'import numpy'"} | bare]
        for what, runs in chosen.items():
            if what.startswith("page"):
                row = fastest([*gtpo, *runs, "--html", str(page)], 1, home) | {"bytes": page.stat().st_size}
            else:
                row = fastest([*gtpo, *runs], arguments.rounds, home)
            rows.append({"what": what} | row)
    columns = dict.fromkeys(key for row in rows for key in row)
    print(table(columns, ([row.get(column, "") for column in columns] for row in rows)))
    save(arguments.out, {"rounds": arguments.rounds, "rows": rows})


if __name__ == "__main__":
    main()
