"""Every key of the schema with its type, range and documentation: what flags, errors and the reference print."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gtpo.config.schema import TrainConfig
from gtpo.presets import PRESETS, bounds_of

WORDS: dict[type, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path", list: "a list",
    dict: "a mapping",
}  # fmt: skip
"""Type -> what it takes, in words."""
PASSED_ON = ("training", "lora", "rollout")
"""Sections that take the fields of a library's own configuration too (`gtpo.config.passed_on`)."""

SHORTCUTS: dict[str, str] = {
    "model": "model.model_name",
    "data": "dataset.name",
    "model-name": "model.model_name",
    "dataset-name": "dataset.name",
    "dataset-subset": "dataset.subsets",
    "dataset-split": "dataset.split",
    "data-dir": "dataset.data_dir",
    "cuda": "env.CUDA_VISIBLE_DEVICES",
    "run-name": "run_name",
    "max-tokens": "training.max_completion_length",
    "fields": "dataset.fields",
}
"""The short flags of the published README, and those that `gtpo eval` has too -> the key they set."""


@dataclass(frozen=True)
class ConfigKey:
    """One key of the config."""

    name: str
    """Dotted, as in a flag."""
    scalar: type
    """bool, int, float, str or Path."""
    choices: tuple[str, ...]
    many: bool
    """Whether it is a list of `scalar`."""
    optional: bool
    bounds: tuple[str, ...]
    default: Any
    doc: str

    @property
    def expects(self) -> str:
        """Say in words what the key takes."""
        what = f"one of {', '.join(self.choices)}" if self.choices else WORDS[self.scalar]
        if self.bounds:
            what += " " + " and ".join(self.bounds)
        return f"a list, each {what}" if self.many else what


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section class that an annotation (also `Section | None`) names, if it does."""
    for part in (annotation, *typing.get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _key(name: str, info: FieldInfo) -> ConfigKey:
    annotation = info.annotation
    optional = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    if optional:
        (annotation,) = (part for part in typing.get_args(annotation) if part is not type(None))
    many = typing.get_origin(annotation) is list
    if many:
        (annotation,) = typing.get_args(annotation)
        if isinstance(annotation, types.UnionType):  # a reward by its name, or with arguments
            annotation = typing.get_args(annotation)[0]
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
    return ConfigKey(
        name=name,
        scalar=str if choices else typing.cast("type", annotation),
        choices=choices,
        many=many,
        optional=optional,
        bounds=tuple(bounds_of(info)),
        default=None if info.is_required() else info.get_default(call_default_factory=True),
        doc=" ".join((info.description or "").split()),
    )


@functools.cache
def sections() -> dict[str, type[BaseModel]]:
    """Return every section class by its dotted name, in the schema's order; the root is the empty name."""

    def walk(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
        for name, info in section.model_fields.items():
            if inner := _section_of(info.annotation):
                yield prefix + name, inner
                yield from walk(inner, f"{prefix}{name}.")

    return {"": TrainConfig, **dict(walk(TrainConfig, ""))}


@functools.cache
def keys() -> dict[str, ConfigKey]:
    """Return every key by its dotted name, section by section in the schema's order."""
    fields = (
        (f"{section}.{name}".lstrip("."), info)
        for section, model in sections().items()
        for name, info in model.model_fields.items()
    )
    return {name: _key(name, info) for name, info in fields if not _section_of(info.annotation)}


def full_name(flag: str) -> str:
    """Return the dotted key that a flag (without its dashes) sets; an unknown flag is returned as it is."""
    name = SHORTCUTS.get(flag, flag)
    return name if name in keys() or name.replace("-", "_") not in keys() else name.replace("-", "_")


def is_passed_on(name: str) -> bool:
    """Return whether a dotted key is a library's own: in such a section, and not one of ours."""
    section, dot, inside = name.partition(".")
    return section in PASSED_ON and bool(dot) and f"{section}.{inside.partition('.')[0]}" not in keys()


# -- the reference: `gtpo train --help-config` and docs/config.md ------------------------------------------------------


def default_of(key: ConfigKey) -> str:
    """Return a key's default as a word."""
    if key.name == "run_name":
        return "the file's name"
    if key.name == "dataset.system_instruction":
        return "the published prompt"
    section, _, field = key.name.rpartition(".")
    if section == "objective" and field != "preset":
        return f"the preset's; gtpo: {_word(getattr(PRESETS['gtpo'], field))}"
    return _word(key.default)


def _word(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value != "" else '""'


def by_section() -> Iterator[tuple[str, str, list[ConfigKey]]]:
    """Yield (section, its documentation, its own keys)."""
    for name, section in sections().items():
        own = [key for key in keys().values() if key.name.rpartition(".")[0] == name]
        if own or name in PASSED_ON:
            yield name, " ".join((section.__doc__ or "").split()), own


def print_reference() -> None:
    """Print every key as plain text, unwrapped: one block per key."""
    for name, doc, own in by_section():
        print(f"\n{name or 'top level'}: {doc}")
        for key in own:
            print(f"  --{key.name}\n      {key.expects}; default {default_of(key)}")
            if key.doc:
                print(f"      {key.doc}")
    print("\nshort flags")
    for flag, name in SHORTCUTS.items():
        print(f"  --{flag:20} --{name}")
