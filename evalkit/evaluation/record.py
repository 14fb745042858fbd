"""What every evaluation does around its samples: begin the record, merge what is stored, write the results."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.evaluation.benchmarks import checksum
from evalkit.evaluation.progress import Progress
from evalkit.evaluation.scoring import RULES_VERSION, Votes
from evalkit.evaluation.settings import EvalSettings
from evalkit.evaluation.stored import verify_stored
from evalkit.evaluation.summary import read_samples, summarise
from evalkit.results.record import EVAL_SCHEMA_VERSION, BenchmarkRecord, EvalRecord, VerifierRecord, check_identity
from evalkit.results.store import EvalFolder, Key, QuestionKey
from rewards.data.problem import Problem
from rewards.golds import find_unverifiable
from rewards.support.errors import UserError
from rewards.support.log import LOG
from rewards.support.provenance import command_line, git_commit, now
from rewards.verify import Verifier

EVAL_RUNS = Path("results/eval")

Problems = dict[str, list[Problem]]
"""benchmark -> the problems that are evaluated, in order"""


@dataclass(slots=True)
class EvalSession:
    """One command at work on one run folder."""

    settings: EvalSettings
    folder: EvalFolder
    record: EvalRecord
    problems: Problems
    verifier: Verifier
    progress: Progress

    @property
    def asked(self) -> dict[QuestionKey, Problem]:
        """(benchmark, question id) -> problem."""
        return {(name, p.id): p for name, chosen in self.problems.items() for p in chosen}


def default_folder(name: str, settings: EvalSettings) -> Path:
    """Return results/eval/<name>, with the shard where there is one."""
    shard = settings.shard_of()
    return EVAL_RUNS / (f"{name}-shard-{shard.part}-of-{shard.parts}" if shard else name)


def new_record(folder: EvalFolder, settings: EvalSettings, **blocks: Any) -> EvalRecord:
    """Return the record of a run that begins: its blocks (model, engine, ...), the rest from the settings."""
    return EvalRecord(
        schema_version=EVAL_SCHEMA_VERSION,
        status="incomplete",
        name=folder.path.resolve().name,
        scoring=settings.scoring,
        shard=settings.shard,
        verifier=VerifierRecord(version=RULES_VERSION),
        created=now(),
        wall_seconds=None,
        command=command_line(),
        git_commit=git_commit(),
        **blocks,
    )


def previous_record(folder: EvalFolder) -> EvalRecord | None:
    """Return what earlier sessions recorded; None where they stored no completion, so that any setting may change."""
    old = folder.record()
    if old is not None and not folder.keys():
        folder.drop_failed(folder.keys(failed=True))
        return None
    return old


def merge_previous(session: EvalSession, old: EvalRecord) -> None:
    """Carry over what earlier sessions recorded, and verify what has no verdict by today's rules.

    UserError where their settings were others.
    """
    folder, record = session.folder, session.record
    check_identity(folder.path, old, record)
    record.created = old.created or record.created
    record.sampling.n = max(record.sampling.n, old.sampling.n)
    record.benchmarks = {**old.benchmarks, **record.benchmarks}
    record.benchmark_seconds = dict(old.benchmark_seconds)
    if old.engine.rows is not None:
        record.engine.rows = old.engine.rows
    changed = old.verifier.version != RULES_VERSION
    if changed:
        LOG.warning("the rules of scoring have changed: the stored completions are verified again")
    stored = {(name, p.id): p for name, chosen in folder.problems().items() for p in chosen}
    deque(verify_stored(folder, {**stored, **session.asked}, session.verifier, everything=changed), maxlen=0)


def start_progress(session: EvalSession, have: set[Key], wanted: Mapping[QuestionKey, int]) -> None:
    """Say what is kept of earlier sessions and add each benchmark to the progress. wanted: samples per question."""
    kept = 0
    for name, chosen in session.problems.items():
        done = sum((name, p.id, i) in have for p in chosen for i in range(wanted[name, p.id]))
        kept += done
        session.progress.add(name, sum(wanted[name, p.id] for p in chosen), done)
    if kept:
        LOG.info("%s: keeping %d stored samples", session.folder.path, kept)
    session.progress.start()


def write_results(
    folder: EvalFolder,
    record: EvalRecord,
    verifier: Verifier,
    votes: Mapping[QuestionKey, Mapping[str, Votes]] | None = None,
) -> EvalRecord:
    """Compute the metrics of everything stored; write questions.parquet and eval.json, complete.

    votes: what is known already of the votes on a question's samples, by scoring.
    """
    stored = read_samples(folder)
    for key, known in (votes or {}).items():
        if all(counted.total == len(stored[key].indices) for counted in known.values()):
            stored[key].votes = dict(known)
    rows: list[dict[str, Any]] = []
    problems = folder.problems()
    for name, entry in record.benchmarks.items():
        if name not in problems:
            raise UserError(f"{folder.path}/problems.parquet has no problems of {name}: run with --benchmarks {name}")
        record.benchmarks[name], of_benchmark = summarise(name, entry, problems[name], stored, record.scoring, verifier)
        rows += of_benchmark
    record.verifier = VerifierRecord(version=RULES_VERSION, timeout_s=verifier.timeout_s)
    record.status = "complete"
    folder.write_questions(rows)
    record.write(folder.path)
    return record


def drop_unverifiable(
    name: str, source: str, chosen: Sequence[Problem], verifier: Verifier
) -> tuple[list[Problem], BenchmarkRecord]:
    """Leave out problems whose gold does not verify against itself; return the rest and the benchmark's record."""
    failures = find_unverifiable([(p.id, p.answer) for p in chosen], verifier)
    excluded = {failure.id for failure in failures}
    for failure in failures[:5]:
        LOG.warning("%s %s is left out: %s", name, failure.id, failure.reason)
    if len(failures) > 5:
        LOG.warning("%s: %d problems are left out in all (ids in eval.json)", name, len(failures))
    kept = [p for p in chosen if p.id not in excluded]
    if not kept:
        raise UserError(f"{name}: no problem is left to evaluate")
    record = BenchmarkRecord(
        source=source, questions=len(kept), checksum=checksum(kept), excluded=[failure.id for failure in failures]
    )
    return kept, record
