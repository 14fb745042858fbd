"""The committed record of a run: config, provenance, thinned curves, counts per question, log-probability of the tags.

One JSON file of about 10 kB per run, written once. Everything in docs/results.md is computed from these files.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.claims.plan import EVAL_RUNS, TRAIN_RUNS, Plan, Run
from gtpo.common.errors import UserError
from gtpo.common.files import read_json, write_text
from gtpo.evalkit.comparison.training_curves import read_curves
from gtpo.evalkit.results.find import read_eval_run, read_train_run
from gtpo.evalkit.results.questions import load_questions

SCHEMA_VERSION = 1
POINTS = 80
"""Blocks of steps that the curves are averaged over."""
CURVES = ("loss", "grad_norm", "reward/accuracy", "reward/format", "entropy/mean", "entropy/above_ln2", "gate/kept",
          "conflict/fraction", "groups/zero_variance", "completions/length", "completions/truncated",
          "completions/repeated", "kl/untrained", "clipped", "validation/pass@1")  # fmt: skip
PROVENANCE = ("method", "preset", "parameters", "packages", "hardware", "git_commit", "started", "status", "step",
              "stopped_because", "initial_entropy", "gate", "wall_time_s", "peak_memory_bytes")  # fmt: skip


def write_record(plan: Plan, run: Run, tags: dict[str, Any] | None, seconds: float, **further: Any) -> None:
    """Write the record of a run that has ended.

    seconds: of training and evaluation together. further: more of its fields.
    UserError where a signal has stopped the run: what it would have become is not known.
    """
    folder = TRAIN_RUNS / run.name
    train = read_train_run(folder)
    if not train.complete:
        raise UserError(f"{folder} is {train.document.get('status')}: only a run that has ended is recorded")
    record = {
        "schema_version": SCHEMA_VERSION,
        "run": run.name,
        "regime": run.regime,
        "method": run.method,
        "seed": run.seed,
        "base": run.base.name if run.base else None,
        "train": {key: train.document[key] for key in PROVENANCE if train.document.get(key) is not None},
        "seconds": round(seconds, 1),
        "config": yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")),
        "curves": thinned(folder, POINTS // 2 if plan.thin else POINTS),
        "tags": tags,
        "evaluation": evaluation(EVAL_RUNS / run.name) if run.evaluate else None,
        **further,
    }
    write_text(plan.record(run), one_line(record))


def one_line(value: Any) -> str:
    """JSON on one line: indented, the records take a tenth more, and the evidence has 15 MB in all."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def read_record(path: Path) -> dict[str, Any]:
    """Read a record. UserError where it is of another schema."""
    record: dict[str, Any] = read_json(path)
    if record.get("schema_version") != SCHEMA_VERSION:
        raise UserError(f"{path}: schema_version {record.get('schema_version')}, expected {SCHEMA_VERSION}")
    return record


def packed_records(plan: Plan) -> dict[str, dict[str, Any]]:
    """Run -> record, of those in the plan's packs; empty for a plan without."""
    packs = sorted(plan.packed.glob("*.jsonl.gz")) if plan.packed else []
    return {row["run"]: row for pack in packs for row in _unpacked(pack, pack.stat().st_mtime_ns)}


@cache
def _unpacked(pack: Path, changed: int) -> list[dict[str, Any]]:
    """The rows of a pack. changed: when, so that a file that is written again is read again."""
    return [json.loads(line) for line in gzip.decompress(pack.read_bytes()).splitlines()]


def find_record(plan: Plan, run: Run) -> dict[str, Any] | None:
    """The record of a run: its own file, or its row of a pack; None where it has not been run."""
    path = plan.record(run)
    return read_record(path) if path.is_file() else packed_records(plan).get(run.name)


def pack(plan: Plan) -> dict[str, int]:
    """Write all records of a plan into one file a regime, in the order of the plan. Returns regime -> records."""
    assert plan.packed is not None
    found: dict[str, list[dict[str, Any]]] = {}
    for run in plan.runs:
        record = find_record(plan, run)
        if record is not None:
            found.setdefault(run.regime, []).append(record)
    plan.packed.mkdir(parents=True, exist_ok=True)
    for regime, rows in found.items():
        text = "".join(map(one_line, rows))
        (plan.packed / f"{regime}.jsonl.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return {regime: len(rows) for regime, rows in found.items()}


def thinned(folder: Path, points: int = POINTS) -> dict[str, Any]:
    """The curves of a train run: per metric the mean of each block of steps, and its least and largest value."""
    found = {key: curve for key, curve in read_curves(read_train_run(folder)).items() if key in CURVES}
    last = int(max((curve.steps[-1] for curve in found.values()), default=0))
    edges = np.unique(np.linspace(0, last, min(points, last) + 1).astype(int))
    out: dict[str, Any] = {"last_step_of_block": edges[1:].tolist(), "metrics": {}}
    for key, curve in found.items():
        block = np.searchsorted(edges[1:], curve.steps)
        values = [curve.values[block == i] for i in range(edges.size - 1)]
        out["metrics"][key] = {
            "least": _short(curve.values.min()),
            "largest": _short(curve.values.max()),
            "mean": [_short(part.mean()) if part.size else None for part in values],
        }
    return out


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def evaluation(folder: Path) -> dict[str, Any]:
    """Per question of each benchmark, strict scoring: samples, correct, in format, maj@n."""
    run = read_eval_run(folder)
    out: dict[str, Any] = {}
    for benchmark in run.benchmarks:
        questions = load_questions(run, benchmark, "strict")
        out[benchmark] = {
            "checksum": run.record.benchmarks[benchmark].checksum,
            "n": int(questions.n.min()),
            "correct": questions.correct.tolist(),
            "format_ok": questions.format_ok.tolist(),
            "maj": [_short(value) for value in questions.maj_at_k[:, -1]],
        }
    return out
