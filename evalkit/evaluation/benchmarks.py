"""Benchmarks: one small declaration each, and how users add their own.

A benchmark is named on the command line by one of `BENCHMARKS`, by a .jsonl/.parquet file with the fields problem
and answer, by a .yaml declaration (`YamlBenchmark`), or by a dotted path `package.module:NAME` to a `Benchmark` or to a
function that returns a list of `gtpo.rewards.data.problems.Problem`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import json
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.log import LOG
from gtpo.common.yaml_file import read_yaml, validate_yaml
from gtpo.evalkit.evaluation.settings import Shard
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.data.problems import (
    SOURCES,
    HubSource,
    load_hub,
    load_source,
    math_gold,
    parse_level,
    plain_integer,
    read_rows,
)
from gtpo.rewards.extract import gsm8k_gold


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named set of problems with a gold answer each."""

    name: str
    title: str
    load: Callable[[str | Path | None], list[Problem]]
    """(data folder or None) -> problems, in a fixed order."""
    source: str
    """Where the problems come from, for the reader."""
    count: int | None = None
    checksum: str | None = None
    """`checksum` of the set that published numbers refer to; another set is evaluated too, with a warning. None where
    it has not been compared with the published set."""
    local: str = ""
    """Name of its file in the data folder, without the ending; empty where it needs none."""
    ids: str | None = None
    """Regular expression that every id matches: how recorded completions are recognised."""


def checksum(problems: Iterable[Problem]) -> str:
    """Return 16 hex digits that stand for the ids and golds of a set, whatever their order."""
    lines = sorted(f"{p.id}\t{p.answer}" for p in problems)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def content_checksum(problems: Sequence[Problem]) -> str | None:
    """Return 16 hex digits that stand for the texts of a set too, and how its answers are compared.

    None where a text is not known: recorded completions need not bring it.
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


Field = Literal["id", "problem", "answer", "solution", "subject", "level"]


class YamlBenchmark(BaseModel):
    """A user's benchmark declaration. Exactly one of `file` and `hub` says where the problems lie."""

    model_config = ConfigDict(extra="forbid")

    name: str
    title: str = ""
    file: str | None = None
    """A .jsonl or .parquet file, relative to the declaration."""
    hub: str | None = None
    config: str = "default"
    split: str = "test"
    fields: dict[Field, str] = {}
    """Our field -> the field in the data, where the names differ."""
    gold: Literal["plain", "boxed", "hashes"] = "plain"
    r"""How the gold stands in the answer field: bare, in the last \boxed, or after ####."""
    answers: Literal["mathematics", "text"] = "mathematics"
    """`text`: golds are compared as text, without case and outer space, and never as mathematics."""
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

    def field(row: dict[str, Any], ours: Field, where: str) -> Any:
        theirs = spec.fields.get(ours, ours)
        needed = ours in spec.fields or ours in ("problem", "answer")
        value = row.get(theirs)
        if needed and (theirs not in row or (ours in ("problem", "answer") and not _is_text(value))):
            found = (str(value) if isinstance(value, float) else type(value).__name__) if theirs in row else "missing"
            raise UserError(
                f'{where}: field "{theirs}" ({ours}) must be text, found {found}; fields here: {", ".join(row)}'
            )
        return value

    def parse(row: dict[str, Any], position: int, where: str) -> Problem:
        identifier = field(row, "id", where)
        gold = _GOLD[spec.gold](str(field(row, "answer", where)))
        if not gold.strip() and spec.gold != "plain":
            form = "\\boxed{}" if spec.gold == "boxed" else "####"
            theirs = spec.fields.get("answer", "answer")
            raise UserError(f'{where}: field "{theirs}" holds no {form}, where gold: {spec.gold} looks for the answer')
        return Problem(
            id=f"{spec.name}/{position}" if identifier is None else str(identifier),
            problem=str(field(row, "problem", where)),
            answer=gold,
            solution=str(field(row, "solution", where) or ""),
            subject=str(field(row, "subject", where) or ""),
            level=parse_level(field(row, "level", where)),
            answers=spec.answers,
        )

    if spec.file is not None:
        file = path.parent / spec.file
        source = spec.file

        def load(folder: str | Path | None) -> list[Problem]:
            return [parse(row, i, where) for i, (where, row) in enumerate(read_rows(file))]

    else:
        assert spec.hub is not None
        source = f"{spec.hub} ({spec.split})"

        def parse_row(row: dict[str, Any], position: int) -> Problem:
            return parse(row, position, f"{spec.hub}, row {position + 1}")

        hub = HubSource(spec.hub, spec.split, spec.count or 0, "", (spec.config,))

        def load(folder: str | Path | None) -> list[Problem]:
            return load_hub(spec.name, hub, parse_row)

    return Benchmark(spec.name, spec.title or spec.name, load, source, spec.count, spec.checksum)


def _is_text(value: Any) -> bool:
    finite = not isinstance(value, float) or math.isfinite(value)
    return isinstance(value, str | int | float) and not isinstance(value, bool) and finite


def _from_dotted(path: str) -> Benchmark:
    module_name, _, attribute = path.partition(":")
    if not attribute or "" in module_name.split("."):
        raise UserError(f'benchmark "{path}": expected package.module:NAME')
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises
        raise UserError(f'benchmark "{path}": cannot import {module_name} ({_what(error)})') from error
    found = getattr(module, attribute, None)
    if isinstance(found, Benchmark):
        return found
    if not callable(found):
        raise UserError(f'benchmark "{path}": {module_name} has no Benchmark and no function "{attribute}"')
    with contextlib.suppress(ValueError):  # it has no signature
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise UserError(f'benchmark "{path}": {attribute} is called without arguments, but {error}') from None

    def load(folder: str | Path | None) -> list[Problem]:
        try:
            return found()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f'benchmark "{path}": {attribute} failed ({_what(error)})') from error

    return Benchmark(attribute, attribute, load, path)


def _what(error: Exception) -> str:
    """Say what the user's code raised, and on which line."""
    if isinstance(error, ImportError):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{place.filename}:{place.lineno}: {type(error).__name__}: {error}"


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark a name, file, declaration or dotted path stands for. UserError with the nearest name."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if name.endswith((".yaml", ".yml")):
        return _from_yaml(Path(name))
    if name.endswith((".jsonl", ".jsonl.gz", ".parquet")):
        stem = re.sub(r"\.(jsonl|jsonl\.gz|parquet)$", "", Path(name).name)
        return Benchmark(stem, stem, lambda folder: load_source(name), name)
    if ":" in name:
        return _from_dotted(name)
    raise UserError(
        f'unknown benchmark "{name}".{did_you_mean(name, BENCHMARKS)} Known: {", ".join(BENCHMARKS)}; '
        "your own: a .jsonl, .parquet or .yaml file, or package.module:NAME"
    )


def find_benchmarks(names: str) -> list[Benchmark]:
    """Return the benchmarks of a comma-separated list. UserError where it is empty or names one twice."""
    found = [find_benchmark(name.strip()) for name in names.split(",") if name.strip()]
    if not found:
        raise UserError("--benchmarks names no benchmark")
    for i, benchmark in enumerate(found):
        if benchmark.name in {other.name for other in found[:i]}:
            raise UserError(f'two of the benchmarks are called "{benchmark.name}"')
    return found


def load_problems(benchmark: Benchmark, data_dir: str | Path | None) -> list[Problem]:
    """Load a benchmark's problems; UserError on a repeated id or an empty set."""
    problems = benchmark.load(data_dir)
    if not isinstance(problems, Sequence) or not problems or not all(isinstance(p, Problem) for p in problems):
        raise UserError(f"benchmark {benchmark.name}: expected a non-empty list of problems")
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise UserError(f'benchmark {benchmark.name}: two problems have the id "{problem.id}"')
        seen.add(problem.id)
    return problems if benchmark.name in BENCHMARKS else _without_repeats(benchmark.name, problems)


def _without_repeats(name: str, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems without those whose text and gold an earlier one has."""
    first = {(" ".join(p.problem.split()), p.answer): p for p in reversed(problems)}
    if len(first) < len(problems):
        LOG.warning(
            "%s: %d of %d rows repeat the problem and the gold of another: each is asked once, --k times", name,
            len(problems) - len(first), len(problems),
        )  # fmt: skip
    kept = {p.id for p in first.values()}
    return [p for p in problems if p.id in kept]


def check_questions(problems: Mapping[str, Sequence[Problem]], questions: Sequence[str] | None) -> None:
    """Raise UserError for an id of --question that none of the benchmarks has."""
    known = {p.id for chosen in problems.values() for p in chosen}
    for missing in dict.fromkeys(questions or ()):
        if missing not in known:
            where = f"benchmark {next(iter(problems))} has" if len(problems) == 1 else f"{', '.join(problems)} have"
            raise UserError(f'{where} no question "{missing}".{did_you_mean(missing, known)}')


def select_problems(
    problems: Sequence[Problem], limit: int | None, questions: Sequence[str] | None, shard: Shard | None
) -> list[Problem]:
    """Apply --question, then --limit (the first ones), then --shard."""
    wanted = set(questions or ())
    chosen = [p for p in problems if not wanted or p.id in wanted][:limit]
    return chosen[shard.part - 1 :: shard.parts] if shard else chosen
