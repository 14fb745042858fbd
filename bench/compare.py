"""`gtpo compare` at full size: 8 runs x 5 benchmarks (1319, 5000, 30, 30, 40 questions, n = 64), from files.

The command runs as a user runs it, in a process of its own, start-up and reading included; beside it, as the
yardstick of this machine, an interpreter that only imports numpy. Expected: the table of 8 runs in at most 1.5 s and
their page in at most 6 s; the page of 30 runs (6 methods x 5 seeds) of at most 1.5 MB; that of two runs with 5,000 x 64
completions (640,000 rows) in at most 60 s and of at most 3 MB.

    python -m bench.compare [--rounds N] [--out FILE]

The fastest of the rounds counts; a page is made once.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import parser, save, table
from gtpo.evalkit.metrics import maj_at_all_k, pass_at_all_k
from gtpo.evalkit.statistics import mean_interval
from gtpo.runs.eval_folder import EvalFolder, Sample
from gtpo.runs.eval_record import EvalRecord
from gtpo.runs.train_run import TrainFolder

N = 64
ENDS = ("mean", "low", "high")
SIZES = {"gsm8k": 1319, "math": 5000, "aime24": 30, "aime25": 30, "amc": 40}
METHODS = (None, "sft", "grpo", "grpo-filtered", "gtpo", "gtpo-published", "gtpo-eq7", "gtpo-no-filter")
CHUNK = 20_000


def write_train(folder: Path, method: str, seed: int) -> None:
    """Write one finished train run: its config with its seed, and 300 steps of made-up metrics."""
    run, kind = TrainFolder(folder), method if method in ("sft", "grpo") else "gtpo"
    run.update_run(run_name=folder.name, method=kind, preset=method, seed=seed, status="finished")
    run.config_yaml.write_text(f"run_name: {folder.name}\nmethod: {method}\nmodel:\n  random_seed: {seed}\n")
    for t, (a, b, c) in enumerate(np.random.default_rng(seed).normal(0, 0.3, (300, 3)).tolist()):
        row = {"reward/accuracy": 5 + t / 100 + a, "entropy/mean": 0.5 - t / 900 + b / 10}
        run.append_metrics({"step": t + 1, **row, "completions/length": 200 + 10 * c})


def write_run(path: Path, method: str | None, seed: int, samples_of: str | None, train_run: str | None = None) -> None:
    """Write one complete eval run of made-up verdicts, with the completions of one benchmark where asked."""
    document: dict[str, Any] = {
        "status": "complete", "name": path.name, "engine": {"name": "none"},
        "model": {"source": "none", "method": method, "preset": method, "train_run": train_run},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 2048, "n": N, "seed": 0},
        "prompt": {"system": "", "chat_template_hash": None, "hash": ""},
        "scoring": "strict", "verifier": {"version": 1}, "benchmarks": {},
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    with EvalFolder(path) as folder:
        for benchmark, count in SIZES.items():
            difficulty = np.random.default_rng(count).normal(0.0, 2.0, count)
            rng = np.random.default_rng([seed, count])
            right = rng.binomial(N, 1 / (1 + np.exp(-difficulty - 0.1 * seed))).tolist()
            votes = [[v for v in (w - w // 2, w // 4, w // 4) if v] for w in (N - c for c in right)]
            silent = [N - c - sum(v) for c, v in zip(right, votes, strict=True)]
            passes, majority = pass_at_all_k([N] * count, right), maj_at_all_k(votes, right, silent)
            scored = {
                metric: {str(k): dict(zip(ENDS, mean_interval(found[:, k - 1]), strict=False)) for k in range(1, N + 1)}
                for metric, found in (("pass@k", passes), ("maj@k", majority))
            }
            entry = {"source": "made up", "questions": count, "samples": N * count, "n": N, "checksum": "x"}
            document["benchmarks"][benchmark] = {**entry, **scored, "strict": scored, "lenient": scored}
            columns = {
                "correct": right, "abstentions": silent, "votes": votes, "pass_at_k": passes, "maj_at_k": majority,
                "format_ok": rng.binomial(N, 0.95, count).tolist(),
            }  # fmt: skip
            alike = {"benchmark": benchmark, "n": N, "truncated": 0, "mean_tokens": 200.0}
            for i, values in enumerate(zip(*columns.values(), strict=True)):
                row = alike | {"question_id": f"{benchmark}/{i}"} | dict(zip(columns, values, strict=True))
                rows += [row | {"scoring": scoring} for scoring in ("strict", "lenient")]
            if benchmark == samples_of:
                for samples in made_up_samples(benchmark, right):
                    folder.append(samples)
        folder.write_questions(rows)
        EvalRecord.model_validate(document).write(path)


def made_up_samples(benchmark: str, right: list[int]) -> Iterator[list[Sample]]:
    """Yield 64 completions of about 700 characters of each question, in parts."""
    words = np.random.default_rng(0).choice(["first", "add", "then", "x = 3", "so", "hence", "12", "we find"], 4000)
    part: list[Sample] = []
    for (q, correct), j in itertools.product(enumerate(right), range(N)):
        text, verdict = " ".join(words[(7 * q + 13 * j) % 3800 :][:140]), "CORRECT" if j < correct else "INCORRECT"
        scores = ("12", verdict, "12", verdict, True, 200, "stop", j)
        part.append(Sample(benchmark, f"{benchmark}/{q}", j, text, *scores, unfinished=False))
        if len(part) == CHUNK or (q, j) == (len(right) - 1, N - 1):
            yield part
            part = []


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
