"""What every evaluation does around its samples: begin the record, merge what is stored, write the results."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtpo.evalkit.evaluation.benchmarks import checksum, content_checksum
from gtpo.evalkit.evaluation.progress import Progress
from gtpo.evalkit.evaluation.scoring import RULES_VERSION, Votes
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.stored import verify_stored
from gtpo.evalkit.evaluation.summary import QuestionSamples, read_samples, summarise
from gtpo.evalkit.results.record import EVAL_SCHEMA_VERSION, BenchmarkRecord, EvalRecord, VerifierRecord, check_identity
from gtpo.evalkit.results.store import EvalFolder, Key, QuestionKey
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.golds import find_unverifiable
from gtpo.rewards.verify import Verifier

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import command_line, git_commit, now

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
    record = EvalRecord(
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
    for entry in record.benchmarks.values():
        entry.n_asked, entry.finish_with = record.sampling.n, record.command
    return record


def previous_record(folder: EvalFolder) -> EvalRecord | None:
    """Return what earlier sessions recorded; None where they stored no completion, so that any setting may change."""
    old = folder.record()
    if old is not None and not folder.keys():
        folder.drop_failed(folder.keys(failed=True))
        return None
    return old


def merge_previous(session: EvalSession, old: EvalRecord) -> None:
    """Carry over what earlier sessions recorded, and verify what has no verdict by today's rules.

    Metrics stay in the record until better ones are known: a raise of k that stops leaves those of the smaller k.
    UserError where their settings were others.
    """
    folder, record = session.folder, session.record
    stored = folder.problems()
    for name, entry in old.benchmarks.items():
        if entry.content_checksum is None and name in stored:  # an older version wrote it
            entry.content_checksum = content_checksum(stored[name])
    check_identity(folder.path, old, record)
    changed = old.verifier.version != RULES_VERSION
    _settle_n(folder, old)
    kept = dict(old.benchmarks)
    if changed or old.scoring != record.scoring:  # its metrics are of other rules, or of another headline
        kept = {name: entry.before_samples().model_copy(update={"n": entry.n}) for name, entry in kept.items()}
    for name, entry in record.benchmarks.items():
        if name in kept:
            asked = max(entry.n_asked or 0, kept[name].n or 0)
            kept[name] = kept[name].model_copy(update={"n_asked": asked, "finish_with": entry.finish_with})
    record.created = old.created or record.created
    record.benchmarks = {**kept, **{name: e for name, e in record.benchmarks.items() if name not in kept}}
    record.sampling.n = max(entry.n_asked or 0 for entry in record.benchmarks.values())
    record.benchmark_seconds = dict(old.benchmark_seconds)
    record.engine.dtype = old.engine.dtype  # `auto`, where what it came to is now asked for by name
    if old.engine.rows is not None:
        record.engine.rows = old.engine.rows
    if changed:
        LOG.warning("the rules of scoring have changed: the stored completions are verified again")
    problems = {(name, p.id): p for name, chosen in stored.items() for p in chosen}
    deque(verify_stored(folder, {**problems, **session.asked}, session.verifier, everything=changed), maxlen=0)


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
    """Compute the metrics of what is stored; write questions.parquet and eval.json.

    A benchmark is summarised by the first n samples of each of its questions: all that were asked for, or, while these
    are not all there, the n of its last summary. More would be those that came first, which are the short ones. Without
    any n it has no metrics; the run is complete when every benchmark has all that was asked for.

    votes: what is known already of the votes on a question's samples, by scoring.
    """
    _settle_n(folder, record)
    problems, stored = folder.problems(), read_samples(folder)
    counted: dict[str, int] = {}
    for name, entry in record.benchmarks.items():
        if name not in problems:
            raise UserError(f"{folder.path}/problems.parquet has no problems of {name}: run with --benchmarks {name}")
        reached = _reached(name, problems[name], stored)
        counted[name] = next((n for n in (entry.n_asked, entry.n) if n and n <= reached), 0)
    if record.engine.name != "recorded":  # a file may hold more completions of some questions than of others
        further = _further(stored, counted)
        for name, number in further.items():
            LOG.info("%s: %d samples beyond the first %d of each question are stored and not counted; a larger --k "
                     "goes on from them", name, number, counted[name])  # fmt: skip
        stored = read_samples(folder, counted) if further else stored
    for key, known in (votes or {}).items():
        if key in stored and all(votes_on.total == len(stored[key].indices) for votes_on in known.values()):
            stored[key].votes = dict(known)
    rows: list[dict[str, Any]] = []
    unscorable: UserError | None = None
    for name, entry in record.benchmarks.items():
        n = counted[name] or None
        try:
            if n is not None:
                found, of_benchmark = summarise(name, entry, problems[name], stored, record.scoring, verifier)
                rows += of_benchmark
        except UserError as error:
            unscorable, n = error, None
        if n is None:
            found = entry.before_samples()
        found.n = n
        found.finish_with = None if n == entry.n_asked else entry.finish_with or record.command
        record.benchmarks[name] = found
    if unscorable is not None and not rows:
        raise unscorable
    record.verifier = VerifierRecord(version=RULES_VERSION, timeout_s=verifier.timeout_s)
    left = [entry.finish_with for entry in record.benchmarks.values() if entry.finish_with is not None]
    record.status, record.command = ("incomplete", left[0]) if left else ("complete", record.command)
    record.sampling.n = max((entry.n or 0 for entry in record.benchmarks.values()), default=0) or record.sampling.n
    folder.write_questions(rows)
    record.write(folder.path)
    return record


def _reached(name: str, problems: Sequence[Problem], stored: Mapping[QuestionKey, QuestionSamples]) -> int:
    """Return the largest n for which every question has its samples 0 to n - 1, completed or failed."""
    return min(stored[name, p.id].reached if (name, p.id) in stored else 0 for p in problems)


def _further(stored: Mapping[QuestionKey, QuestionSamples], counted: Mapping[str, int]) -> dict[str, int]:
    """Return benchmark -> stored samples beyond those that are counted, where it is summarised and has any."""
    found: Counter[str] = Counter()
    for (name, _), samples in stored.items():
        if limit := counted.get(name):
            found[name] += sum(i >= limit for i in (*samples.indices, *samples.errors))
    return {name: number for name, number in found.items() if number}


def _settle_n(folder: EvalFolder, record: EvalRecord) -> None:
    """Fill in the n of benchmarks that a version before recorded without: it wrote the largest n of all for each."""
    older = {name: entry for name, entry in record.benchmarks.items() if entry.n_asked is None}
    if not older:
        return
    problems, stored = folder.problems(), read_samples(folder)
    for name, entry in older.items():
        reached = _reached(name, problems.get(name, []), stored) if entry.pass_at_k and name in problems else 0
        entry.n = min(reached, record.sampling.n) or None
        entry.n_asked, entry.finish_with = entry.n or record.sampling.n, None if entry.n else record.command


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
        source=source,
        questions=len(kept),
        checksum=checksum(kept),
        content_checksum=content_checksum(kept),
        excluded=[failure.id for failure in failures],
    )
    return kept, record
