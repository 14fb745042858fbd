"""Benchmarks: one small declaration each, and how users add their own.

A benchmark is named on the command line by one of `BENCHMARKS`, by a .jsonl or .parquet file with the fields problem
and answer (`--fields` if they have other names), or by a .yaml declaration (`YamlBenchmark`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.log import LOG
from gtpo.common.yaml_file import read_yaml, validate_yaml
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.data.problems import (
    FILES,
    SOURCES,
    HubSource,
    load_hub,
    load_source,
    math_gold,
    plain_integer,
    problem_of,
    read_rows,
    renamed,
)
from gtpo.rewards.extract import gsm8k_gold


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named set of problems with a gold answer each."""

    name: str
    title: str
    load: Callable[[str | Path | None], list[Problem]]  # (data folder or None) -> problems, in a fixed order
    source: str  # Where the problems come from, for the reader
    count: int | None = None
    # `checksum` of the set that published numbers refer to; another set is evaluated too, with a warning. None if it
    # has not been compared with the published set.
    checksum: str | None = None
    local: str = ""  # Name of its file in the data folder, without the ending; empty if it needs none
    ids: str | None = None  # Regular expression that every id matches: how recorded completions are recognised


def checksum(problems: Iterable[Problem]) -> str:
    """Return 16 hex digits that stand for the ids and golds of a set, whatever their order."""
    lines = sorted(f"{p.id}\t{p.answer}" for p in problems)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def content_checksum(problems: Sequence[Problem]) -> str | None:
    """Return 16 hex digits that stand for the texts of a set too, and how its answers are compared.

    None if a text is not known: recorded completions need not bring it.
    """
    if not all(p.problem for p in problems):
        return None
    lines = sorted(json.dumps([p.id, p.problem, p.answer, p.answers]) for p in problems)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _built_in(name: str, title: str, source: str, count: int, ids: str, checksum: str | None = None) -> Benchmark:
    hub = SOURCES.get(source)
    where = f"{hub.repository} ({hub.split})" if hub else "generated, embedded"
    local = source if hub else ""
    return Benchmark(
        name, title, lambda folder: load_source(source, data_dir=folder), where, count, checksum, local, ids
    )


_DECLARED, _ = read_yaml(Path(__file__).with_name("benchmarks.yaml"))
BENCHMARKS = {name: _built_in(name, **said) for name, said in _DECLARED.items()}


Field = Literal["id", "problem", "answer", "solution", "subject", "level", "cluster"]


class YamlBenchmark(BaseModel):
    """A user's benchmark declaration. Exactly one of `file` and `hub` says where the problems lie."""

    model_config = ConfigDict(extra="forbid")

    name: str
    title: str = ""
    file: str | None = None  # A .jsonl or .parquet file, relative to the declaration
    hub: str | None = None
    config: str = "default"
    split: str = "test"
    fields: dict[Field, str] = {}  # Our field -> the field in the data, if the names differ
    # How the gold stands in the answer field: bare, in the last \boxed, or after ####.
    gold: Literal["plain", "boxed", "hashes"] = "plain"
    # `text`: golds are compared as text, without case and outer space, and never as mathematics.
    answers: Literal["mathematics", "text"] = "mathematics"
    count: int | None = None
    checksum: str | None = None


_GOLD: dict[str, Callable[[str], str]] = {
    "plain": plain_integer,
    "boxed": math_gold,
    "hashes": lambda text: plain_integer(gsm8k_gold(text) or ""),
}


def _from_yaml(path: Path) -> Benchmark:
    spec = validate_yaml(YamlBenchmark, path, *read_yaml(path))
    if (spec.file is None) == (spec.hub is None):
        raise UserError(f"{path}: give either file or hub, to say where the problems of {spec.name} lie")

    fields = {str(ours): theirs for ours, theirs in spec.fields.items()}

    def parse(row: dict[str, Any], position: int, where: str) -> Problem:
        problem = problem_of(renamed(row, fields, where), position, spec.name, where)
        gold = _GOLD[spec.gold](problem.answer)
        if not gold and problem.answer:
            form = "\\boxed{}" if spec.gold == "boxed" else "####"
            raise UserError(f"{where}: the answer holds no {form}, where gold: {spec.gold} looks for it")
        return replace(problem, answer=gold, answers=spec.answers)

    def load(folder: str | Path | None) -> list[Problem]:
        if spec.file is not None:
            return [parse(row, i, where) for i, (where, row) in enumerate(read_rows(path.parent / spec.file))]
        hub = HubSource(spec.hub or "", spec.split, spec.count or 0, "", (spec.config,))
        return load_hub(spec.name, hub, lambda row, i: parse(row, i, f"{spec.hub}, row {i + 1}"))

    source = spec.file or f"{spec.hub} ({spec.split})"
    return Benchmark(spec.name, spec.title or spec.name, load, source, spec.count, spec.checksum)


def find_benchmark(name: str, fields: Mapping[str, str] | None = None) -> Benchmark:
    """Return the benchmark that a name, file or declaration stands for. UserError with the nearest name.

    fields: of a file, our names for fields that have others.
    """
    if name.endswith(FILES):
        stem = re.sub(r"\.(jsonl|jsonl\.gz|parquet)$", "", Path(name).name)
        return Benchmark(stem, stem, lambda folder: load_source(name, fields=fields), name)
    if fields:
        raise UserError(f"--fields is for .jsonl and .parquet files, and {name} is none")
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if name.endswith((".yaml", ".yml")):
        return _from_yaml(Path(name))
    raise UserError(
        f'unknown benchmark "{name}".{did_you_mean(name, BENCHMARKS)} Known: {", ".join(BENCHMARKS)}; '
        "your own: a .jsonl, .parquet or .yaml file"
    )


def find_benchmarks(names: str, fields: Mapping[str, str] | None = None) -> list[Benchmark]:
    """Return the benchmarks of a comma-separated list. UserError if it is empty or names one twice."""
    found = [find_benchmark(name.strip(), fields) for name in names.split(",") if name.strip()]
    if not found:
        raise UserError("--benchmarks names no benchmark")
    name, count = Counter(benchmark.name for benchmark in found).most_common(1)[0]
    if count > 1:
        raise UserError(f'two of the benchmarks are called "{name}"')
    return found


def load_problems(benchmark: Benchmark, data_dir: str | Path | None) -> list[Problem]:
    """Load a benchmark's problems, of an own file each once. UserError on a repeated id or an empty set."""
    problems = benchmark.load(data_dir)
    if not problems:
        raise UserError(f"benchmark {benchmark.name} has no problems")
    identifier, count = Counter(problem.id for problem in problems).most_common(1)[0]
    if count > 1:
        raise UserError(f'benchmark {benchmark.name}: two problems have the id "{identifier}"')
    first = {(" ".join(p.problem.split()), p.answer): p.id for p in reversed(problems)}
    if benchmark.name in BENCHMARKS or len(first) == len(problems):
        return problems
    LOG.warning(
        "%s: %d of %d rows repeat the problem and the gold of another: each is asked once, --k times", benchmark.name,
        len(problems) - len(first), len(problems),
    )  # fmt: skip
    kept = set(first.values())
    return [p for p in problems if p.id in kept]


def select_problems(
    problems: Mapping[str, Sequence[Problem]], limit: int | None, questions: Sequence[str] | None
) -> dict[str, list[Problem]]:
    """Apply --question, then --limit (the first ones of each benchmark). UserError for an id that no benchmark has."""
    known, wanted = {p.id for every in problems.values() for p in every}, set(questions or ())
    for missing in sorted(wanted - known):
        names, has = ", ".join(problems), "has" if len(problems) == 1 else "have"
        raise UserError(f'{names} {has} no question "{missing}".{did_you_mean(missing, known)}')
    return {name: [p for p in every if not wanted or p.id in wanted][:limit] for name, every in problems.items()}
