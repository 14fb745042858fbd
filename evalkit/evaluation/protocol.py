"""How a model is asked: user template, examples, system prompt, thoughts, API and sampling, declared in one place.

`--protocol NAME` takes one of protocols.yaml, `--protocol FILE.yaml` one's own, which may extend another by name. What
a protocol says of an option (system prompt, sampling, scoring) is that option's default: a flag wins.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.yaml_file import read_yaml, validate_yaml
from gtpo.evalkit.engines.base import Prompt, Reading
from gtpo.evalkit.evaluation.settings import EvalSettings, SamplingName
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.data.problems import load_source

_PRESETS = Path(__file__).with_name("protocols.yaml")
_known = cache(lambda: read_yaml(_PRESETS)[0])


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FewShot(_Section):
    """Worked examples before the question, from a training split of the user's data."""

    data: str  # A source as in --data-dir (gsm8k_train), or a .jsonl or .parquet file with problem, answer and solution
    count: int = Field(ge=1)
    # random: drawn anew for each question of the benchmark in its order, by Python's random.Random(seed).sample.
    choice: Literal["first", "random"] = "first"
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
    # Delimiters of thoughts beside those in use (`gtpo.rewards.thoughts`); stored completions have <think> instead.
    thoughts: list[Annotated[tuple[str, str], Strict(False)]] = []  # YAML has lists for pairs
    # Whether the model's template opens a thought. Counts if a server does not show the rendered prompt.
    begins_in_thought: bool = False
    stop: list[str] = []  # A completion ends before the first of them behind its thoughts
    chat_template_kwargs: dict[str, Any] | None = None
    sampling: dict[Literal[SamplingName, "max_tokens"], float] = {}  # Defaults of the flags of the same names
    scoring: Literal["strict", "lenient"] | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if "{problem}" not in self.user:
            raise ValueError("user: the template must hold {problem}")
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
        if self.api == "completions":
            between = self.fewshot.between if self.fewshot else "\n\n"
            shown = [_fill(self.user, example) + _fill(self._answer, example) for example in examples]
            return Prompt([], between.join([*([system] if system else []), *shown, _fill(self.user, problem)]))
        turns: list[tuple[str, str]] = [(self.system_role, system)] if system else []
        for example in examples:
            turns += [("user", _fill(self.user, example)), ("assistant", _fill(self._answer, example).strip())]
        turns.append(("user", _fill(self.user, problem)))
        return Prompt([{"role": role, "content": content} for role, content in turns])

    @property
    def _answer(self) -> str:
        return self.fewshot.answer if self.fewshot else ""

    def examples(self, problems: Sequence[Problem], data_dir: Path | None) -> dict[str, list[Problem]]:
        """Return the examples of each question of a benchmark, by its id. problems: all of them, in their order."""
        if self.fewshot is None:
            return {p.id: [] for p in problems}
        pool = load_source(self.fewshot.data, data_dir=data_dir)
        if len(pool) < self.fewshot.count:
            raise UserError(f"protocol {self.name}: {self.fewshot.data} has only {len(pool)} examples")
        if "{solution}" in self._answer and not all(p.solution for p in pool):
            raise UserError(f"protocol {self.name}: {self.fewshot.data} has problems without a solution to show")
        if asked := {p.problem for p in problems} & {p.problem for p in pool}:
            raise UserError(
                f"protocol {self.name}: {len(asked)} questions of the benchmark are among its examples in "
                f"{self.fewshot.data}; take a training split"
            )
        if self.fewshot.choice == "first":
            return {p.id: pool[: self.fewshot.count] for p in problems}
        # One generator for all questions in their order, as lm-eval draws.
        draw = random.Random(self.fewshot.seed)
        return {p.id: draw.sample(pool, self.fewshot.count) for p in problems}


def _fill(template: str, problem: Problem) -> str:
    # In one pass: the text of a field may hold the braces of another.
    return re.sub(r"\{(problem|answer|solution)\}", lambda found: str(getattr(problem, found[1])), template)


@cache
def presets() -> dict[str, Protocol]:
    """Return the protocols that come with gtpo eval."""
    return {name: _resolve(_PRESETS, {"name": name, **found}) for name, found in _known().items()}


def find_protocol(name: str) -> Protocol:
    """Return a protocol by its name or file. UserError with the nearest name, or with the line of a mistake."""
    if not name.endswith((".yaml", ".yml")):
        if name not in presets():
            raise UserError(
                f'--protocol: there is no "{name}".{did_you_mean(name, presets())} Known: {", ".join(presets())}; your '
                "own: a .yaml file"
            )
        return presets()[name]
    path = Path(name)
    values, lines = read_yaml(path)
    return _resolve(path, {"name": path.stem, **values}, lines)


def _resolve(path: Path, values: dict[str, Any], lines: dict[tuple[str, ...], int] | None = None) -> Protocol:
    known, base = _known(), values.get("extends")
    if base is not None and base not in known:
        line = (lines or {})["extends",]
        raise UserError(f'{path}:{line}: extends: there is no protocol "{base}"; known: {", ".join(known)}')
    below = {key: value for key, value in known[base].items() if key not in ("title", "source")} if base else {}
    return validate_yaml(Protocol, path, {**below, **values}, lines)
