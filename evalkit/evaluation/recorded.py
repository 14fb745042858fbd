"""`gtpo eval --completions FILE`: score what a model wrote elsewhere, without model or GPU.

The file is read twice, row by row (`readers`): once to check all of it, once to score it in bounded memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import file_hash
from gtpo.evalkit.engines.base import Engine, Generation, Reading, Task
from gtpo.evalkit.evaluation.benchmarks import (
    BENCHMARKS,
    Benchmark,
    check_questions,
    find_benchmarks,
    load_problems,
    select_problems,
)
from gtpo.evalkit.evaluation.engine import Rendered
from gtpo.evalkit.evaluation.protocol import Protocol
from gtpo.evalkit.evaluation.readers import read_completions
from gtpo.evalkit.evaluation.record import Plan, drop_unverifiable
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.data.problems import data_folder
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_record import EngineRecord, EvalRecord, ModelRecord, PromptRecord, SamplingRecord

CHUNK = 512


@dataclass(slots=True)
class Recorded:
    """What the first reading of a file found."""

    problems: dict[str, Problem] = field(default_factory=dict)  # id -> problem with its gold, for rows that bring one
    counts: dict[str, int] = field(default_factory=dict)  # id -> samples
    labels: dict[tuple[str, int], bool] = field(default_factory=dict)  # (id, sample) -> the owner's verdict
    without_gold: tuple[str, str] | None = None  # (place, id) of the first row that has no gold and does not say so
    no_gold: set[str] = field(default_factory=set)  # Questions whose rows say that there is no gold


def read_recorded(path: Path, fields: Mapping[str, str]) -> Recorded:
    """Check every row of a file (`read_completions`). UserError with file and line on the first that is wrong."""
    found = Recorded()
    for row in read_completions(path, fields):
        first = found.counts.get(row.id, 0)
        found.counts[row.id] = first + len(row.samples)
        if row.problem is None and row.no_gold:
            found.no_gold.add(row.id)
        elif row.problem is None:
            found.without_gold = found.without_gold or (row.where, row.id)
        elif (before := found.problems.setdefault(row.id, row.problem).answer) != (gold := row.problem.answer):
            raise UserError(f'{row.where}: id "{row.id}" had the gold "{before}" before, now "{gold}"')
        found.labels |= {(row.id, first + i): label for i, label in enumerate(row.labels)}
    return found


def scored_by_content(settings: EvalSettings) -> EvalSettings:
    """Return settings whose headline scoring is strict if a completion has an answer tag, else lenient."""
    assert settings.completions is not None
    rows = read_completions(settings.completions, settings.field_names())
    tagged = any("<answer>" in sample.text for row in rows for sample in row.samples)
    if not tagged:
        LOG.info("scoring: lenient, since no completion has an <answer> tag; --scoring chooses")
    return settings.filled({"scoring": "strict" if tagged else "lenient"})


def _identify(settings: EvalSettings, path: Path, found: Recorded) -> tuple[str, str, dict[str, Problem]]:
    """Return (benchmark name, source, id -> problem): whose golds count, and under which name."""
    stem = _stem(path)
    if settings.benchmarks:
        asked = find_benchmarks(settings.benchmarks)
        if len(asked) != 1:
            raise UserError(f"--completions scores one benchmark at a time, found --benchmarks {settings.benchmarks}")
        benchmark: Benchmark | None = asked[0]
    else:
        by_ids = (b for b in BENCHMARKS.values() if b.ids and all(re.fullmatch(b.ids, i) for i in found.counts))
        benchmark = next(by_ids, None)
    complete = found.without_gold is None and (benchmark is None or not found.no_gold)
    if benchmark is None:
        if not complete:
            where, identifier = found.without_gold or ("", "")
            raise UserError(
                f'{where}: no gold, and "{identifier}" is no id of a known benchmark; '
                "add gold to the rows, or name the benchmark with gtpo eval --benchmarks"
            )
        return stem, str(path), found.problems
    if complete and not settings.benchmarks and benchmark.local and data_folder(settings.data_dir) is None:
        # Its own golds are enough: no download for a name.
        return benchmark.name, str(path), found.problems
    known = {p.id: p for p in load_problems(benchmark, settings.data_dir)}
    unknown = next((identifier for identifier in found.counts if identifier not in known), None)
    others = sum(p.answer != known[i].answer for i, p in found.problems.items() if i in known)
    if (unknown is not None or others) and complete and not settings.benchmarks:
        what = f'id "{unknown}" is unknown to it' if unknown is not None else f"{others} golds are others"
        LOG.warning("%s has ids like %s's, but %s: scored as %s, by its own golds", path, benchmark.name, what, stem)
        return stem, str(path), found.problems
    if unknown is not None:
        raise UserError(f'{path}: benchmark {benchmark.name} has no question "{unknown}"')
    if others:
        LOG.warning(
            "%d golds of %s are written differently in %s; the benchmark's are used", others, path, benchmark.name
        )
    return benchmark.name, benchmark.source, {identifier: known[identifier] for identifier in found.counts}


def plan_recorded(settings: EvalSettings, protocol: Protocol, verifier: Verifier) -> tuple[Plan, RecordedEngine]:
    """Check a file; return what is asked, and what gives the completions. Raises UserError with file and line on the
    first mistake.
    """
    path = settings.completions
    assert path is not None
    found = read_recorded(path, settings.field_names())
    benchmark, source, known = _identify(settings, path, found)
    every = [known[identifier] for identifier in found.counts if identifier in known]
    lacking = sorted(found.no_gold - known.keys())
    if lacking:
        LOG.warning("%s: %d questions have no gold and are left out (first: %s)", path, len(lacking), lacking[0])
    if not every:
        raise UserError(f"{path}: no question has a gold")
    check_questions({benchmark: every}, settings.questions)
    chosen = select_problems(every, settings.limit, settings.questions)
    fewest = min(found.counts[p.id] for p in chosen)
    if settings.k > fewest:
        short = next(p.id for p in chosen if found.counts[p.id] == fewest)
        raise UserError(
            f'--k {settings.k} needs {settings.k} samples of every question; {path} has {fewest} of "{short}"'
        )
    kept, entry = drop_unverifiable(benchmark, source, chosen, verifier)
    entry.excluded = [*entry.excluded, *lacking]
    prompt = PromptRecord(
        protocol=protocol.name, **protocol.model_dump(include={"thoughts", "begins_in_thought"}, exclude_defaults=True)
    )
    record = EvalRecord(
        model=ModelRecord(source=str(path), adapter=None, fingerprint=file_hash(path)),
        engine=EngineRecord(name=RecordedEngine.name, versions={}, hardware=None),
        sampling=SamplingRecord(n=min(found.counts[p.id] for p in kept), stop=list(protocol.stop)),
        prompt=prompt,
        benchmarks={benchmark: entry},
    )
    plan = Plan(
        settings.model or _stem(path),
        record,
        {benchmark: kept},
        {(benchmark, p.id): found.counts[p.id] for p in kept},
        protocol,
        Rendered({}, prompt, Reading(tuple(protocol.stop), tuple(protocol.thoughts))),
        labels=found.labels,
    )
    return plan, RecordedEngine(path, settings.field_names())


class RecordedEngine(Engine):
    """Gives the completions of a file in place of sampling them."""

    name = "recorded"

    def __init__(self, path: Path, fields: Mapping[str, str]) -> None:
        self._path, self._fields = path, fields

    def describe(self) -> dict[str, Any]:
        """Return the name; what sampled is not known."""
        return {"name": self.name, "versions": {}, "hardware": None}

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield the missing samples in the order of the file, CHUNK at a time."""
        wanted = {(task.question_id, index): task.benchmark for task in tasks for index in task.missing}
        counts: Counter[str] = Counter()
        chunk: list[Generation] = []
        for row in read_completions(self._path, self._fields):
            for sample in row.samples:
                key = row.id, counts[row.id]
                counts[row.id] += 1
                if key in wanted:
                    reason = "error" if sample.error else sample.finish_reason
                    chunk.append(Generation(wanted[key], *key, sample.text, sample.tokens, reason, None, sample.error))
            if len(chunk) >= CHUNK:
                yield chunk
                chunk = []
            if self._stop_at is not None:
                return
        yield chunk


def _stem(path: Path) -> str:
    return re.sub(r"\.(jsonl(\.gz)?|json|eval)$", "", path.name)
