"""What every evaluation does around its samples: begin a run's record, take up an earlier session's, finish it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalkit.evaluation.benchmarks import checksum
from evalkit.evaluation.progress import Progress
from evalkit.evaluation.scoring import RULES_VERSION, Votes
from evalkit.evaluation.settings import EvalSettings
from evalkit.evaluation.summary import read_samples, summarise
from evalkit.results.schema import EVAL_SCHEMA_VERSION
from evalkit.results.store import QuestionKey, RunFolder, check_identity
from rewards.data.problem import Problem
from rewards.golds import find_unverifiable
from rewards.support.errors import UserError
from rewards.support.provenance import command_line, git_commit, now
from rewards.verify import Verifier

EVAL_RUNS = Path("results/eval")


Record = dict[str, Any]


Problems = dict[str, list[Problem]]
"""benchmark -> the problems that are evaluated, in order"""


def default_folder(name: str, settings: EvalSettings) -> Path:
    """Return results/eval/<name>, with the shard where there is one."""
    shard = settings.shard_of()
    return EVAL_RUNS / (f"{name}-shard-{shard.part}-of-{shard.parts}" if shard else name)


def header(folder: RunFolder, settings: EvalSettings) -> Record:
    """Return the fields of eval.json that every run starts with."""
    return {
        "schema_version": EVAL_SCHEMA_VERSION,
        "status": "incomplete",
        "name": folder.path.resolve().name,
        "scoring": settings.scoring,
        "shard": settings.shard,
        "verifier": {"version": RULES_VERSION},
        "created": now(),
        "wall_seconds": None,
        "command": command_line(),
        "git_commit": git_commit(),
    }


def adopt(folder: RunFolder, record: Record, old: Record) -> None:
    """Carry over what an earlier session of the run recorded. UserError where its settings were others."""
    check_identity(folder.path, old, record)
    record["created"] = old.get("created", record["created"])
    record["sampling"]["n"] = max(record["sampling"]["n"], old["sampling"]["n"])
    record["benchmarks"] = {**old.get("benchmarks", {}), **record["benchmarks"]}
    rows = old["engine"].get("rows")
    if rows is not None:
        record["engine"]["rows"] = rows


def announce(
    folder: RunFolder, progress: Progress, problems: Problems, n: int, have: set[tuple[str, str, int]]
) -> None:
    """Say what is kept of earlier sessions and open a progress line for each benchmark."""
    kept = 0
    for name, chosen in problems.items():
        done = sum(n - len(lacking(have, name, p.id, n)) for p in chosen)
        kept += done
        progress.add(name, n * len(chosen), done)
    if kept:
        progress.note(f"{folder.path}: keeping {kept} stored samples")


def finish(
    folder: RunFolder,
    record: Record,
    scoring: str,
    verifier: Verifier,
    votes: Mapping[QuestionKey, dict[str, Votes]] | None = None,
) -> Record:
    """Work out the metrics of everything stored and write questions.parquet and eval.json, complete.

    votes: what is known already of the votes on a question's samples, by scoring.
    """
    stored = read_samples(folder)
    for key, known in (votes or {}).items():
        if all(counted.total == len(stored[key].indices) for counted in known.values()):
            stored[key].votes = known
    rows: list[dict[str, Any]] = []
    problems = folder.problems()
    for name in list(record["benchmarks"]):
        summary, of_benchmark = summarise(name, problems[name], stored, scoring, verifier)
        record["benchmarks"][name] = {**record["benchmarks"][name], **summary}
        rows += of_benchmark
    record["scoring"] = scoring
    record["verifier"] = {"version": RULES_VERSION, "timeout_s": verifier.timeout_s}
    record["status"] = "complete"
    folder.write_questions(rows)
    folder.write_record(record)
    return record


def lacking(have: set[tuple[str, str, int]], benchmark: str, question: str, n: int) -> tuple[int, ...]:
    """Return the sample indices below n that a question still lacks."""
    return tuple(i for i in range(n) if (benchmark, question, i) not in have)


def usable(
    name: str, source: str, chosen: Sequence[Problem], verifier: Verifier, progress: Progress
) -> tuple[list[Problem], Record]:
    """Leave out problems whose gold does not verify against itself; return the rest and the benchmark's entry."""
    failures = find_unverifiable([(p.id, p.answer) for p in chosen], verifier)
    excluded = {failure.id for failure in failures}
    for failure in failures[:5]:
        progress.note(f"note: {name} {failure.id} is left out: {failure.reason}")
    if len(failures) > 5:
        progress.note(f"note: {name}: {len(failures)} problems are left out in all (ids in eval.json)")
    kept = [p for p in chosen if p.id not in excluded]
    if not kept:
        raise UserError(f"{name}: no problem is left to evaluate")
    entry = {
        "source": source,
        "questions": len(kept),
        "checksum": checksum(kept),
        "excluded": [failure.id for failure in failures],
    }
    return kept, entry
