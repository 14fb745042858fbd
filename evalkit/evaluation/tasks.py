"""Tasks: the problems of a benchmark, how a model is asked, and how answers are read and judged, in one entry each.

`--benchmarks` and `--task` take the names of tasks.yaml, files of problems with the fields problem and answer
(`--fields` if they have other names), and .yaml files with an entry of the user's own, which may extend one of ours.
`--protocol` takes a way of asking, by name or as a .yaml file, in place of the task's. What a protocol says of an
option (system prompt, sampling, scoring) is that option's default: a flag wins.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, Strict, model_validator

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.files import Lines, read_yaml
from gtpo.common.log import LOG
from gtpo.common.provenance import text_hash
from gtpo.common.settings import validate_yaml
from gtpo.evalkit.engines.base import Prompt, Reading
from gtpo.evalkit.evaluation.settings import EvalSettings, SamplingName
from gtpo.rewards.data import problems as sources
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.extract import check_rule

_FILE = Path(__file__).with_name("tasks.yaml")
# An empty text stands everywhere.
_Text = Annotated[str, Field(min_length=1)]
_known = cache(lambda: read_yaml(_FILE)[0])


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# -- how a model is asked ----------------------------------------------------------------------------------------------


class FewShot(_Section):
    """Worked examples before the question, from a training split of the user's data."""

    data: str  # A source as in --data-dir (gsm8k_train), or a file with problem, answer and solution
    count: int = Field(ge=1)
    # random: drawn anew for each question of the benchmark in its order, by Python's random.Random(seed).sample. A
    # mapping: the ids of the examples; below each what is spelled otherwise there, as {in the data: in the example}.
    choice: Literal["first", "random"] | dict[str, dict[str, str]] = "first"
    seed: int = 1234
    answer: str = "{solution}"
    between: str = "\n\n"  # Between examples, if they are one text; in a chat each is a turn of user and assistant


class Protocol(_Section):
    """How a model is asked. {problem}, {answer} and {solution} in a template stand for a problem's fields."""

    name: str = "gtpo"
    title: str = ""
    source: str = ""  # Where the facts are from
    extends: str | None = None  # A protocol of ours whose keys hold if this one has none
    system: str | None = None  # '' for none. Absent: that of the train run, else ours
    system_role: Literal["system", "developer"] = "system"
    user: str = "{problem}"
    fewshot: FewShot | None = None
    api: Literal["chat", "completions"] = "chat"  # completions: one text without a chat template, for base models
    # Delimiters of thoughts beside those in use (`gtpo.rewards.completions`); stored completions have <think> instead.
    thoughts: list[Annotated[tuple[_Text, _Text], Strict(False)]] = []  # YAML has lists for pairs
    # Whether the model's template opens a thought. Counts if a server does not show the rendered prompt.
    begins_in_thought: bool = False
    stop: list[_Text] = []  # A completion ends before the first of them behind its thoughts
    chat_template_kwargs: dict[str, Any] | None = None
    sampling: dict[Literal[SamplingName, "max_tokens"], float] = {}  # Defaults of the flags of the same names
    scoring: Literal["strict", "lenient"] | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if "{problem}" not in self.user:
            raise ValueError("user: the template must hold {problem}")
        if gold := next((field for field in ("{answer}", "{solution}") if field in self.user), None):
            raise ValueError(f"user: {gold} would show the model what it is asked for; it belongs to fewshot.answer")
        if self.api == "completions" and self.chat_template_kwargs:
            raise ValueError("chat_template_kwargs have no effect with api: completions")
        return self

    def apply_to(self, settings: EvalSettings) -> EvalSettings:
        """Return settings in which what was not given is as the protocol says. UserError for a value out of range."""
        said = self.model_dump(include={"scoring", "chat_template_kwargs"}) | {"prompt": self.system}
        if settings.sampling == "default":
            said |= {name: value for name, value in self.sampling.items() if name != "max_tokens"}
        modes = {name: EvalSettings.keys()[name].about["modes"] for name in said}
        try:
            EvalSettings.keys()["max_tokens"].checked(self.sampling.get("max_tokens"))
            return settings.filled({name: value for name, value in said.items() if settings.mode in modes[name]})
        except UserError as error:
            raise UserError(f"protocol {self.name}: {error}") from None

    def reading(self, thoughts: tuple[tuple[str, str], ...] = ()) -> Reading:
        """Return how completions are read. thoughts: further delimiters."""
        return Reading(tuple(self.stop), (*self.thoughts, *thoughts), self.begins_in_thought)

    def conversation(self, problem: Problem, examples: Sequence[Problem], system: str) -> Prompt:
        """Return the prompt before any chat template: messages, or the text for a base model."""
        answer = self.fewshot.answer if self.fewshot else ""
        if self.api == "completions":
            between = self.fewshot.between if self.fewshot else "\n\n"
            shown = [_fill(self.user, example) + _fill(answer, example) for example in examples]
            return Prompt([], between.join([*([system] if system else []), *shown, _fill(self.user, problem)]))
        turns: list[tuple[str, str]] = [(self.system_role, system)] if system else []
        for example in examples:
            turns += [("user", _fill(self.user, example)), ("assistant", _fill(answer, example).strip())]
        turns.append(("user", _fill(self.user, problem)))
        return Prompt([{"role": role, "content": content} for role, content in turns])

    def examples(self, problems: Sequence[Problem], data_dir: Path | None) -> dict[str, list[Problem]]:
        """Return the examples of each question of a benchmark, by its id. problems: all of them, in their order."""
        if self.fewshot is None:
            return {p.id: [] for p in problems}
        pool, choice = sources.load_source(self.fewshot.data, data_dir=data_dir), self.fewshot.choice
        if isinstance(choice, dict):
            by_id = {p.id: p for p in pool}
            if absent := [identifier for identifier in choice if identifier not in by_id]:
                raise UserError(f"protocol {self.name}: {self.fewshot.data} has no example {', '.join(absent)}")
            pool = [by_id[identifier] for identifier in choice]
        if len(pool) < self.fewshot.count:
            raise UserError(f"protocol {self.name}: {self.fewshot.data} has only {len(pool)} examples")
        if "{solution}" in self.fewshot.answer and not all(p.solution for p in pool):
            raise UserError(f"protocol {self.name}: {self.fewshot.data} has problems without a solution to show")
        if asked := {p.problem for p in problems} & {p.problem for p in pool}:
            raise UserError(
                f"protocol {self.name}: {len(asked)} questions of the benchmark are among its examples in "
                f"{self.fewshot.data}; take a training split"
            )
        if choice != "random":
            changes = choice if isinstance(choice, dict) else {}
            pool = [_respelled(p, changes.get(p.id, {})) for p in pool[: self.fewshot.count]]
            return {p.id: pool for p in problems}
        # One generator for all questions in their order, as lm-eval draws.
        draw = random.Random(self.fewshot.seed)
        return {p.id: draw.sample(pool, self.fewshot.count) for p in problems}


def _fill(template: str, problem: Problem) -> str:
    # In one pass: the text of a field may hold the braces of another.
    return re.sub(r"\{(problem|answer|solution)\}", lambda found: str(getattr(problem, found[1])), template)


def _respelled(example: Problem, changes: Mapping[str, str]) -> Problem:
    """Return an example in another spelling. Raises UserError for a text that does not stand in it."""
    for here, there in changes.items():
        if here not in example.problem + example.solution:
            raise UserError(f"few-shot example {example.id}: {here!r}, to be spelled {there!r}, does not stand in it")
        problem, solution = (text.replace(here, there) for text in (example.problem, example.solution))
        example = replace(example, problem=problem, solution=solution)
    return example


@cache
def presets() -> dict[str, Protocol]:
    """Return the protocols that come with gtpo eval."""
    return {name: _protocol(_FILE, {"name": name, **values}) for name, values in _known()["protocols"].items()}


def find_protocol(name: str, place: str = "--protocol") -> Protocol:
    """Return a protocol by its name or file. UserError with the nearest name, or with place or line of a mistake."""
    if name.endswith(_YAML):
        return _protocol(*_read(name))
    if name not in presets():
        raise UserError(
            f'{place}: there is no "{name}".{did_you_mean(name, presets())} Known: {", ".join(presets())}; your '
            "own: a .yaml file"
        )
    return presets()[name]


_YAML = (".yaml", ".yml")


def _read(name: str) -> tuple[Path, dict[str, Any], Lines]:
    path = Path(name)
    values, lines = read_yaml(path)
    return path, {"name": path.stem, **values}, lines


def _protocol(path: Path, values: dict[str, Any], lines: Lines | None = None) -> Protocol:
    return validate_yaml(Protocol, path, _extended("protocols", path, values, lines), lines)


def _extended(
    kind: str, path: Path, values: dict[str, Any], lines: Lines | None, above: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the keys of an entry with those of the entry of ours that it extends. above: where it stands in a file."""
    known, base = _known()[kind], values.get("extends")
    if base is None:
        return values
    # YAML may have a list here.
    if str(base) not in known:
        line = f":{lines[*above, 'extends']}" if lines else ""
        raise UserError(f'{path}{line}: extends: there is no {kind[:-1]} "{base}"; known: {", ".join(known)}')
    own = {"title", "source", *(_ABOUT_DATA if _WHERE.intersection(values) else ())}
    below = _extended(kind, _FILE, known[base], None)
    return {key: value for key, value in below.items() if key not in own} | values


# -- what is asked -----------------------------------------------------------------------------------------------------

_WHERE = frozenset(("data", "file", "hub"))
# What rows need that are not a named source's.
_OF_ROWS = frozenset(("config", "split", "fields", "gold", "options"))
# What is of one set. How its rows are read holds for another one too.
_ABOUT_DATA = (*_WHERE, "config", "split", "count", "checksum", "ids")
_Name = Literal["id", "problem", "answer", "solution", "subject", "level", "cluster", "choices"]


class Judge(_Section):
    """How an answer is compared with the gold."""

    # `text`: as text, without case and outer space, and never as mathematics.
    answers: Literal["mathematics", "text"] = "mathematics"


class Benchmark(_Section):
    """A named set of problems with a gold answer each, and what else belongs to asking and judging them.

    One of `data`, `file` and `hub` says where the problems lie.
    """

    name: str
    title: str = ""
    extends: str | None = None  # A task of ours whose keys hold if this one has none
    data: str | None = None  # A source of `gtpo.rewards.data.problems`
    file: str | None = None  # A file of problems, relative to the entry's
    hub: str | None = None
    config: str | list[str] = "default"
    split: str = "test"
    fields: dict[_Name, str] = {}  # Our field -> the field in the data, if the names differ
    # How the gold stands in the answer field: bare, as it is, in the last \boxed, after ####, or a list.
    gold: Literal["plain", "text", "boxed", "hashes", "list"] = "plain"
    # Of multiple choice: how each of the field `choices` stands below the question, as in "{letter}. {text}". The gold
    # becomes a letter, from the number (from 0), the letter or the text of the right one.
    options: str | None = None
    prompt: Protocol | None = None  # How a model is asked: the name of a protocol, or its keys; else as --protocol says
    # How answers are read: a rule's name or a regular expression; else as --scoring says.
    extract: Annotated[str, AfterValidator(check_rule)] = ""
    judge: Judge = Judge()
    hub_id: str | None = None  # Benchmark on the Hub that results are written for, as in openai/gsm8k or NAME/SET:TASK
    count: int | None = None
    # `checksum` of the set that published numbers refer to; another set is evaluated too, with a warning. None if it
    # has not been compared with the published set.
    checksum: str | None = None
    ids: str | None = None  # Regular expression that every id matches: how recorded completions are recognised

    # Problems that are known already, in place of the data.
    _problems: list[Problem] | None = PrivateAttr(None)

    @property
    def source(self) -> str:
        """Where the problems come from, for the reader."""
        if self.hub:
            return f"{self.hub} ({self.split})"
        if source := sources.SOURCES.get(self.data or ""):
            return f"{source.repository} ({source.split})"
        return self.file or ("generated, embedded" if self.data in sources.GENERATED else self.data or "")

    @property
    def local(self) -> str:
        """Name of its file in the data folder, without the ending; empty if it needs none."""
        return self.data or "" if self.data in sources.SOURCES else ""

    @property
    def size(self) -> int | None:
        """How many problems it has, if that is known before they are loaded."""
        return sources.SOURCES[self.local].count if self.local else self.count

    @property
    def judged(self) -> dict[str, Any]:
        """What its problems say of how answers are found and compared."""
        return {"extract": self.extract, "answers": self.judge.answers}

    def entry(self) -> dict[str, Any]:
        """Return what is stored of it with a run: its keys, but for the prompt, of which the run has its own record."""
        return self.model_dump(exclude={"prompt"}, exclude_defaults=True)

    def of(self, problems: list[Problem]) -> Benchmark:
        """Return the benchmark with these problems."""
        same = self.model_copy()
        same._problems = problems
        return same


def checksum(problems: Iterable[Problem]) -> str:
    """Return 16 hex digits that stand for the ids and golds of a set, whatever their order."""
    return text_hash("\n".join(sorted(f"{p.id}\t{p.answer}" for p in problems)))


def content_checksum(problems: Sequence[Problem]) -> str | None:
    """Return 16 hex digits that stand for the texts of a set too, and how its answers are compared.

    None if a text is not known: recorded completions need not bring it.
    """
    if not all(p.problem for p in problems):
        return None
    return text_hash("\n".join(sorted(json.dumps([p.id, p.problem, p.answer, p.answers]) for p in problems)))


def _benchmark(path: Path, values: dict[str, Any], lines: Lines | None = None) -> Benchmark:
    """Return the benchmark of an entry. UserError that names the line of a mistake."""
    values = _extended("tasks", path, values, lines)
    if "answers" in values and "judge" not in values:
        values["judge"] = {"answers": values.pop("answers")}
    if "options" in values:
        values = {"extract": "choice", "judge": {"answers": "text"}} | values
    elif values.get("judge") == {"answers": "text"} and "data" not in values:
        values = {"gold": "text"} | values
    prompt = values.get("prompt")
    if isinstance(prompt, str):
        name = str(path.parent / prompt) if prompt.endswith(_YAML) else prompt
        values["prompt"] = find_protocol(name, f"{path}: prompt")
    elif isinstance(prompt, dict):
        # A task's own words are all that is said: no system prompt of ours before them.
        alone = {"name": values.get("name", path.stem), **({} if "extends" in prompt else {"system": ""})}
        values["prompt"] = _extended("protocols", path, alone | prompt, lines, ("prompt",))
    if isinstance(values.get("file"), str):
        values["file"] = str(path.parent / values["file"])
    found = validate_yaml(Benchmark, path, values, lines)
    if len(_WHERE.intersection(values)) != 1:
        raise UserError(f"{path}: give one of file, hub and data, to say where the problems of {found.name} lie")
    if "data" in values and (idle := sorted(_OF_ROWS.intersection(values))):
        raise UserError(f"{path}: {', '.join(idle)} would have no effect beside data, which names one of our sources")
    if "file" in values and (idle := sorted({"config", "split"}.intersection(values))):
        raise UserError(f"{path}: {', '.join(idle)} would have no effect beside file, which is read whole")
    return found


BENCHMARKS = {name: _benchmark(_FILE, {"name": name, **entry}) for name, entry in _known()["tasks"].items()}


def file_stem(path: Path) -> str:
    """Return what a file of rows is called without its ending."""
    return re.sub(r"\.(jsonl(\.gz)?|csv|parquet)$", "", path.name)


def find_benchmark(name: str, fields: Mapping[str, str] | None = None) -> Benchmark:
    """Return the benchmark that a name, file or entry stands for. UserError with the nearest name.

    fields: of a file, our names for fields that have others.
    """
    if name.endswith(sources.FILES):
        own = {"name": file_stem(Path(name)), "file": name, "gold": "text", "fields": dict(fields or {})}
        return Benchmark.model_validate(own)
    if fields:
        raise UserError(f"--fields is for {', '.join(sources.FILES)} files, and {name} is none")
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if name.endswith(_YAML):
        return _benchmark(*_read(name))
    raise UserError(
        f'unknown benchmark "{name}".{did_you_mean(name, BENCHMARKS)} Known: {", ".join(BENCHMARKS)}; '
        "your own: a .jsonl, .csv, .parquet or .yaml file"
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


def way_of_asking(settings: EvalSettings, benchmarks: Sequence[Benchmark]) -> Protocol:
    """Return --protocol, else how the tasks ask: one run asks in one way. UserError if they differ."""
    default = find_protocol(settings.protocol)
    if "protocol" in settings.model_fields_set or not benchmarks:
        return default
    asked = [benchmark.prompt or default for benchmark in benchmarks]
    ways = [way.model_dump(exclude={"name", "title", "source", "extends"}) for way in asked]
    if other := next((i for i, way in enumerate(ways) if way != ways[0]), None):
        raise UserError(
            f"{benchmarks[0].name} and {benchmarks[other].name} are asked in different ways (protocols {asked[0].name} "
            f"and {asked[other].name}), and a run asks in one: evaluate each with an --out of its own, or choose one "
            "--protocol"
        )
    return asked[0]


def load_problems(benchmark: Benchmark, data_dir: str | Path | None, *, repeats: bool = False) -> list[Problem]:
    """Return a benchmark's problems in a fixed order, of an own file each once unless repeats is true.

    data_dir: of local benchmark files. UserError on a repeated id or an empty set.
    """
    rows: Any = {"fields": benchmark.fields, "gold": benchmark.gold, "options": benchmark.options, **benchmark.judged}
    if benchmark._problems is not None:
        problems = benchmark._problems
    elif benchmark.file is not None:
        problems = sources.load_file(Path(benchmark.file), stem=benchmark.name, **rows)
        if benchmark.count not in (None, len(problems)):
            LOG.warning("%s: %d problems, and its entry says count: %d", benchmark.name, len(problems), benchmark.count)
    elif benchmark.hub is not None:
        configs = [benchmark.config] if isinstance(benchmark.config, str) else benchmark.config
        hub = sources.HubSource(benchmark.hub, benchmark.split, benchmark.count or 0, "", configs)
        name, where, read = benchmark.name, f"{benchmark.hub}, row", sources.problem_of
        problems = sources.load_hub(name, hub, lambda row, i: read(row, i, name, f"{where} {i + 1}", **rows))
    else:
        every = sources.load_source(benchmark.data or "", data_dir=data_dir)
        problems = [replace(p, **benchmark.judged) for p in every]
    if not problems:
        raise UserError(f"benchmark {benchmark.name} has no problems")
    identifier, count = Counter(problem.id for problem in problems).most_common(1)[0]
    if count > 1:
        raise UserError(f'benchmark {benchmark.name}: two problems have the id "{identifier}"')
    first = {(" ".join(p.problem.split()), p.answer): p.id for p in reversed(problems)}
    ours = BENCHMARKS.get(benchmark.name)
    if repeats or (ours is not None and ours.source == benchmark.source) or len(first) == len(problems):
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
