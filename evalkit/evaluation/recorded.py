"""`gtpo eval --completions FILE`: score what a model wrote elsewhere, without model or GPU.

A row holds `id`, `completion` or `completions` (a list), and `gold` unless the id is one of a known benchmark's.
Rows with the same id are further samples of it. `label` or `labels` (the owner's verdicts) are compared with ours.
The file is read twice, row by row: once to check all of it, once to score it in bounded memory.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gtpo.evalkit.engines.base import Generation, Prompt, Task
from gtpo.evalkit.evaluation.benchmarks import (
    BENCHMARKS,
    Benchmark,
    check_questions,
    find_benchmarks,
    load_problems,
    select_problems,
)
from gtpo.evalkit.evaluation.record import Asked, drop_unverifiable
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.results.record import EngineRecord, ModelRecord, PromptRecord, SamplingRecord
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.data.problems import data_folder, parse_level
from gtpo.rewards.verify import Verifier

from gtpo.common.errors import UserError
from gtpo.common.files import read_jsonl
from gtpo.common.log import LOG
from gtpo.common.provenance import file_hash

CHUNK = 512


@dataclass(slots=True)
class Recorded:
    """What the first reading of a file found."""

    golds: dict[str, str] = field(default_factory=dict)
    """id -> gold, for rows that bring one."""
    problems: dict[str, Problem] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """id -> samples."""
    labels: dict[tuple[str, int], bool] = field(default_factory=dict)
    """(id, sample) -> the owner's verdict."""
    without_gold: tuple[int, str] | None = None
    """(line, id) of the first row that has no gold."""


def _completions(row: dict[str, Any], where: str) -> list[str]:
    if ("completion" in row) == ("completions" in row):
        raise UserError(f'{where}: expected either "completion" or "completions"; fields here: {", ".join(row)}')
    found = row["completions"] if "completions" in row else [row["completion"]]
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise UserError(f"{where}: completions must be text")
    if not found:
        raise UserError(f"{where}: completions is empty")
    return found


def _identifier(row: dict[str, Any], where: str) -> str:
    if not isinstance(row.get("id"), str | int):
        raise UserError(f'{where}: field "id" must be text, fields here: {", ".join(row)}')
    return str(row["id"])


def read_recorded(path: Path) -> Recorded:
    """Check every row of a file. UserError with file and line on the first that is wrong."""
    found = Recorded()
    for number, row in read_jsonl(path):
        where = f"{path}:{number}"
        identifier = _identifier(row, where)
        completions = _completions(row, where)
        first = found.counts.get(identifier, 0)
        found.counts[identifier] = first + len(completions)
        gold = row.get("gold", row.get("answer"))
        if gold is None:
            found.without_gold = found.without_gold or (number, identifier)
        elif not isinstance(gold, str | int | float) or isinstance(gold, bool):
            raise UserError(f"{where}: gold must be text, found {type(gold).__name__}")
        elif isinstance(gold, float) and not math.isfinite(gold):
            raise UserError(f"{where}: gold must be a number or text, found {gold}")
        elif found.golds.setdefault(identifier, str(gold)) != str(gold):
            raise UserError(f'{where}: id "{identifier}" had the gold "{found.golds[identifier]}" before, now "{gold}"')
        if first == 0 and gold is not None:
            found.problems[identifier] = Problem(
                identifier,
                str(row.get("problem") or ""),
                str(gold).strip(),
                subject=str(row.get("subject") or ""),
                level=parse_level(row.get("level")),
            )
        labels = row.get("labels", [row["label"]] if "label" in row else [])
        if labels:
            if not isinstance(labels, list):
                raise UserError(f"{where}: labels must be a list, found {type(labels).__name__}")
            if len(labels) != len(completions):
                raise UserError(f"{where}: {len(completions)} completions but {len(labels)} labels")
            for i, label in enumerate(labels):
                if not isinstance(label, bool | int | float) or label not in (0, 1):
                    raise UserError(f"{where}: a label must be true or false (or 1 or 0), found {label!r:.40}")
                found.labels[identifier, first + i] = bool(label)
    return found


def _recognise(ids: Sequence[str]) -> Benchmark | None:
    """Return the benchmark whose ids these are."""
    for benchmark in BENCHMARKS.values():
        if benchmark.ids and all(re.fullmatch(benchmark.ids, identifier) for identifier in ids):
            return benchmark
    return None


def _identify(settings: EvalSettings, path: Path, found: Recorded) -> tuple[str, str, dict[str, Problem]]:
    """Return (benchmark name, source, id -> problem): whose golds count, and under which name."""
    stem = _stem(path)
    if settings.benchmarks:
        asked = find_benchmarks(settings.benchmarks)
        if len(asked) != 1:
            raise UserError(f"--completions scores one benchmark at a time, found --benchmarks {settings.benchmarks}")
        benchmark: Benchmark | None = asked[0]
    else:
        benchmark = _recognise(list(found.counts))
    complete = found.without_gold is None
    if benchmark is None:
        if not complete:
            line, identifier = found.without_gold or (0, "")
            raise UserError(
                f'{path}:{line}: no gold, and "{identifier}" is no id of a known benchmark; '
                "add gold to the rows, or name the benchmark with --benchmarks"
            )
        return stem, str(path), found.problems
    if complete and not settings.benchmarks and benchmark.local and data_folder(settings.data_dir) is None:
        return benchmark.name, str(path), found.problems  # its own golds will do; no download for a name
    known = {p.id: p for p in load_problems(benchmark, settings.data_dir)}
    unknown = next((identifier for identifier in found.counts if identifier not in known), None)
    others = sum(gold.strip() != known[i].answer for i, gold in found.golds.items() if i in known)
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


class RecordedFile:
    """A checked file: what it asks to be scored. Raises UserError with file and line on the first mistake.

    name: of the run's folder. labels: (question, sample) -> the owner's verdict.
    """

    def __init__(self, settings: EvalSettings, verifier: Verifier) -> None:
        path = settings.completions
        assert path is not None
        found = read_recorded(path)
        benchmark, source, known = _identify(settings, path, found)
        every = [known[identifier] for identifier in found.counts]
        check_questions({benchmark: every}, settings.questions)
        chosen = select_problems(every, settings.limit, settings.questions, settings.shard_of())
        if not chosen:
            raise UserError(f"{path}: no question of its {len(every)} is in --shard {settings.shard}")
        fewest = min(found.counts[p.id] for p in chosen)
        if settings.k > fewest:
            short = next(p.id for p in chosen if found.counts[p.id] == fewest)
            raise UserError(
                f'--k {settings.k} needs {settings.k} samples of every question; {path} has {fewest} of "{short}"'
            )
        kept, entry = drop_unverifiable(benchmark, source, chosen, verifier)
        self.name = settings.model or _stem(path)
        self.labels = found.labels
        self.tasks = [Task(benchmark, p.id, Prompt([]), tuple(range(found.counts[p.id]))) for p in kept]
        self.asked = Asked(
            model=ModelRecord(source=str(path), adapter=None, fingerprint=file_hash(path)),
            engine=EngineRecord(name=RecordedEngine.name, versions={}, hardware=None),
            sampling=SamplingRecord(n=min(found.counts[p.id] for p in kept)),
            prompt=PromptRecord(),
            benchmarks={benchmark: entry},
            problems={benchmark: kept},
        )


class RecordedEngine:
    """Gives the completions of a file in place of sampling them."""

    name = "recorded"

    def __init__(self, path: Path) -> None:
        self._path, self._stopped = path, False

    def describe(self) -> dict[str, Any]:
        """Return the name; what sampled is not known."""
        return {"name": self.name, "versions": {}, "hardware": None}

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield the missing samples in the order of the file, CHUNK at a time."""
        wanted = {(task.question_id, index): task.benchmark for task in tasks for index in task.missing}
        counts: Counter[str] = Counter()
        chunk: list[Generation] = []
        for _, row in read_jsonl(self._path):
            identifier = str(row["id"])
            for text in row["completions"] if "completions" in row else [row["completion"]]:
                key = identifier, counts[identifier]
                counts[identifier] += 1
                if key in wanted:
                    chunk.append(Generation(wanted[key], *key, text, None, None, None))
            if len(chunk) >= CHUNK:
                yield chunk
                chunk = []
            if self._stopped:
                return
        yield chunk

    def throughput(self) -> tuple[()]:
        """Return nothing: there is one file."""
        return ()

    def running(self) -> tuple[()]:
        """Return nothing: what is read is there."""
        return ()

    def stop(self, grace_s: float) -> None:
        """Read no further."""
        self._stopped = True

    def close(self) -> None:
        """Do nothing: the file is open only while it is read."""


def _stem(path: Path) -> str:
    return re.sub(r"\.jsonl(\.gz)?$", "", path.name)
