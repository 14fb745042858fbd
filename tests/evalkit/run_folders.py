"""Eval and train runs on disk for tests: completions made up here, scored and stored by what `gtpo eval` uses."""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gtpo.evalkit.evaluation.evaluate import write_results
from gtpo.evalkit.evaluation.scoring import Tally, score
from gtpo.evalkit.evaluation.tasks import checksum
from gtpo.evalkit.metrics import pass_at_all_k
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import EvalFolder, Sample
from gtpo.runs.eval_record import EVAL_SCHEMA_VERSION, EvalRecord
from gtpo.runs.train_run import TrainFolder


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Write a JSON document a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def samples(run: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return (benchmark, question, index) -> row of what a run has stored; the same sample never twice."""
    rows = [row for part in sorted(run.glob("samples/part-*.parquet")) for row in pq.read_table(part).to_pylist()]
    found = {(row["benchmark"], row["question_id"], row["sample_index"]): row for row in rows}
    assert len(found) == len(rows), "a sample is stored twice"
    return found


# Those of the fixture `page_home`.
RUNS = ("base", "grpo", "gtpo", "<b>x</b>")
HOSTILE = "</script><script>window.hostile = true</script><img src=x onerror='window.hostile = true'>"


def write_eval(
    folder: Path,
    *,
    skill: float = 0.0,
    benchmarks: dict[str, int] | None = None,
    n: int = 8,
    seed: int = 0,
    method: str | None = "gtpo",
    train_run: str | None = None,
    subjects: tuple[str, ...] = (),
    hostile: bool = False,
    skip: int = 0,
    golds_from: int = 1,
    failed: tuple[tuple[int, int], ...] = (),
    seen: int | None = None,
    **settings: Any,
) -> Path:
    """Write a complete eval run whose model solves question q with chance sigmoid(difficulty_q + skill).

    failed: (question, sample) pairs that a server answered with an error. seen: questions it was trained on.
    """
    document: dict[str, Any] = {
        "schema_version": EVAL_SCHEMA_VERSION, "status": "complete", "name": folder.name, "scoring": "strict",
        "model": {"source": "tiny", "adapter": None, "train_run": train_run, "method": method, "preset": method},
        "engine": {"name": "transformers", "versions": {}, "hardware": "cpu"},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 64, "n": n, "seed": seed},
        "prompt": {"system": "Solve.", "chat_template_hash": "c0", "hash": "p0"},
        "verifier": {"version": "1", "timeout_s": 5}, "created": "2026-11-21T10:00:00Z", "wall_seconds": 1.0,
        "command": f"gtpo eval tiny --out {folder.name}", "git_commit": None, "benchmarks": {},
    }  # fmt: skip
    for dotted, value in settings.items():
        *path, last = dotted.split("__")
        place = document
        for part in path:
            place = place[part]
        place[last] = value
    if not hasattr(write_eval, "verifier"):
        write_eval.verifier = Verifier(workers=1).__enter__()
        atexit.register(write_eval.verifier.__exit__, None, None, None)
    with EvalFolder(folder) as run:
        for benchmark, count in (benchmarks or {"arithmetic": 60}).items():
            difficulty = np.random.default_rng([7, count]).normal(0.3, 1.8, size=count)
            rng = np.random.default_rng([seed, count])
            problems = [
                Problem(f"{benchmark}/{i:05d}", f"What is ${i} + \\frac{{{2 * golds_from}}}{{2}}$?",
                        str(i + golds_from), subject=subjects[i % len(subjects)] if subjects else "")
                for i in range(skip, skip + count)
            ]  # fmt: skip
            right = rng.random((count, n)) < 1 / (1 + np.exp(-difficulty - skill))[:, None]
            form = rng.random((count, n)) < 0.9
            slip = rng.integers(1, 4, size=(count, n))
            rows = []
            for q, problem in enumerate(problems):
                for j in range(n):
                    answer = int(problem.answer) + (0 if right[q, j] else slip[q, j])
                    text = f"<reasoning>\n{folder.name} works on it.\n</reasoning>\n<answer>{answer}</answer>"
                    if not form[q, j]:
                        text = f"I think the answer is {answer}"
                    if hostile and q == 0 and j == 0:
                        text = HOSTILE + text
                    if (q, j) in failed:
                        rows.append(Sample(benchmark, problem.id, j, "", seed=j, error="HTTP 500"))
                        continue
                    rows.append(Sample(benchmark, problem.id, j, text, tokens=20 + j, finish_reason="stop", seed=j))
            score(rows, {(benchmark, p.id): p for p in problems}, write_eval.verifier)
            run.append(rows)
            run.add_problems({benchmark: problems})
            run.add_prompts({(benchmark, p.id): ([], f"Q: {p.problem}", [1, 2]) for p in problems})
            document["benchmarks"][benchmark] = {
                "source": "generated", "questions": count, "checksum": checksum(problems), "excluded": [],
                "n_asked": n, "trained_on": seen,
            }  # fmt: skip
        tally = Tally(run, write_eval.verifier)
        record = write_results(EvalRecord.model_validate(document), tally)
        # What a test asks for instead of what a finished run says.
        asked = {key: document[key] for key in ("status", "verifier", "schema_version")}
        (folder / "eval.json").write_text(json.dumps(record.as_json() | asked))
    return folder


# Metric of a train run -> where it begins, what training adds to it, and how far its steps lie apart.
COURSE = {
    "loss": (0, 0, 0.04), "reward/accuracy": (3, 4, 0.4), "reward/format": (7, 2, 0.1),
    "entropy/mean": (0.52, -0.25, 0.02), "entropy/above_ln2": (0.1, -0.05, 0.01), "gate/kept": (0.9, 0.06, 0.01),
    "conflict/fraction": (0.3, 0.2, 0.02), "groups/zero_variance": (0.2, 0.3, 0.02),
    "completions/length": (24, -4, 0.4),
}  # fmt: skip


def write_train(folder: Path, *, method: str = "gtpo", steps: int = 300, seed: int = 0, **fields: Any) -> Path:
    """Write a finished train run: run.json, config.yaml, metrics.jsonl, a logged group every 50 steps (not for sft)."""
    rng = np.random.default_rng(seed)
    TrainFolder(folder).update_run(**{
        "run_name": folder.name, "method": "gtpo" if method.startswith("gtpo") else method,
        "preset": None if method == "sft" else method, "seed": seed, "status": "finished",
        "initial_entropy": {"nats": 0.52, "samples": 100},
        "gate": {"filter": "auto", "active": True, "scope": "all"},
    } | fields)  # fmt: skip
    config = {"run_name": folder.name, "method": method, "model": {"random_seed": seed}, "training": {}}
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    logged = {
        name: start + gain * np.arange(1, steps + 1) / steps + spread * rng.normal(size=steps)
        for name, (start, gain, spread) in COURSE.items()
        if name == "loss" or (method != "sft" and (name != "gate/kept" or method.startswith("gtpo")))
    }
    rows = zip(*logged.values(), strict=True)
    write_lines(
        folder / "metrics.jsonl", ({"step": i, **dict(zip(logged, row, strict=True))} for i, row in enumerate(rows, 1))
    )
    if method != "sft":
        (folder / "completions").mkdir()
        for step in range(50, steps + 1, 50):
            pq.write_table(_logged_group(rng, step), folder / "completions" / f"step-{step:06d}.parquet")
    return folder


def _logged_group(rng: np.random.Generator, step: int) -> pa.Table:
    rows, group = [], 8
    right = rng.random(group) < 0.5
    right[0], right[-1] = True, False
    rewards = np.where(right, 20.0, 10.0)
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
    for i in range(group):
        a, b = rng.integers(2, 50, size=2)
        tokens = ["<reasoning>", "\n", "Add ", f"{a}", " and ", f"{b}", ".", "\n", "</reasoning>", HOSTILE, "<answer>"]
        tokens += [*str(a + b + (not right[i])), "</answer>", "<eos>"]
        span = {0, 1, 2, len(tokens) - 1, len(tokens) - 2}
        entropy = float(rng.gamma(4, 0.12))
        rows.append({
            "step": step, "group": 0, "completion_index": i, "prompt": f"What is {a} + {b}?", "tokens": tokens,
            "weight": [(2.0 if right[i] else 0.0) if t in span else 1.0 for t in range(len(tokens))],
            "advantage": float(advantages[i]), "entropy": entropy, "kept": entropy <= 0.6931,
            "reward_final_reward": float(rewards[i]),
        })  # fmt: skip
    return pa.Table.from_pylist(rows)


def write_counts(
    folder: Path,
    correct: np.ndarray,
    n: int,
    *,
    train: Path | None = None,
    checkpoint: str | None = None,
    texts: list[str] | None = None,
    **model: Any,
) -> Path:
    """Write a complete eval run by its right samples of each question [Q], without completions: in milliseconds.

    train: the folder of its train run; it is written if it is not there, with its name as its seed.
    """
    by_k = pass_at_all_k(np.full(n + 1, n), np.arange(n + 1))[correct]
    ids = [f"q{i:04d}" for i in range(len(correct))]
    rows = [
        {"benchmark": "b", "question_id": name, "scoring": scoring, "n": n, "correct": int(right), "votes": [],
         "pass_at_k": of.tolist(), "maj_at_k": of.tolist(), "format_ok": n, "truncated": 0}
        for scoring in ("strict", "lenient") for name, right, of in zip(ids, correct, by_k, strict=True)
    ]  # fmt: skip
    if train is not None and not train.is_dir():
        TrainFolder(train).update_run(run_name=train.name, preset="gtpo", seed=train.name, status="finished")
        (train / "config.yaml").write_text(json.dumps({"method": "gtpo", "model": {"random_seed": train.name}}))
    means = {str(k + 1): {"mean": mean, "low": 0, "high": 1} for k, mean in enumerate(by_k.mean(axis=0))}
    entry = {"source": "a file", "questions": len(ids), "n": n, "samples": n * len(ids), "truncation_rate": 0.0,
             "pass@k": means}  # fmt: skip
    record = EvalRecord.model_validate({
        "status": "complete", "name": folder.name, "scoring": "strict",
        "model": {"source": "tiny", "train_run": train and str(train), "checkpoint": checkpoint, **model},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 64, "n": n}, "verifier": {"version": 1},
        "benchmarks": {"b": entry},
    })  # fmt: skip
    with EvalFolder(folder) as run:
        run.write_questions(rows)
        run.add_problems({"b": [Problem(name, text, "1") for name, text in zip(ids, texts or ids, strict=True)]})
        record.write(folder)
    return folder
