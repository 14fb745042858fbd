"""Every key of the schema with its type, range and documentation: what flags, errors and the reference print."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gtpo.common.errors import did_you_mean
from gtpo.config.schema import PassedOn, TrainConfig
from gtpo.presets import PRESETS, bounds_of

# Type -> what it takes, in words.
WORDS: dict[type, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path", list: "a list",
    dict: "a mapping",
}  # fmt: skip

# The short flags of the published README, and those that `gtpo eval` has too -> the key they set.
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


class Origin(NamedTuple):
    """Where a key was set and how the user typed it. As text, the start of an error message."""

    place: str
    """`file:line`; empty for a flag."""
    typed: str
    """The key in the file's dialect, or the flag with its dashes."""

    def __str__(self) -> str:
        return f"{self.place}: {self.typed}" if self.place else self.typed

    @property
    def is_flag(self) -> bool:
        """Return whether the key was set on the command line."""
        return self.typed.startswith("--")


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


def alternatives(annotation: Any) -> list[Any]:
    """Return the types that an annotation takes: the parts of a union, else the annotation itself."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return [inner for part in typing.get_args(annotation) for inner in alternatives(part)]
    return [annotation]


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section class that an annotation (also `Section | None`) names, if it does."""
    kinds = (kind for kind in alternatives(annotation) if isinstance(kind, type))
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def _key(name: str, info: FieldInfo) -> ConfigKey:
    kinds = alternatives(info.annotation)
    # A second one is None, or the long form of a value, as of a reward with arguments.
    kind = kinds[0]
    if many := typing.get_origin(kind) is list:
        kind = alternatives(typing.get_args(kind)[0])[0]
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    default = None if info.is_required() else info.get_default(call_default_factory=True)
    doc = " ".join((info.description or "").split())
    return ConfigKey(
        name, str if choices else kind, choices, many, type(None) in kinds, tuple(bounds_of(info)), default, doc
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
    fields = {
        f"{section}.{name}".lstrip("."): info
        for section, model in sections().items()
        for name, info in model.model_fields.items()
        if not _section_of(info.annotation)
    }
    return {name: _key(name, info) for name, info in fields.items()}


def full_name(flag: str) -> str:
    """Return the dotted key that a flag (without its dashes) sets; an unknown flag is returned as it is."""
    name = SHORTCUTS.get(flag, flag)
    return name if name in keys() or name.replace("-", "_") not in keys() else name.replace("-", "_")


def is_passed_on(name: str) -> bool:
    """Return whether a dotted key is a library's own: in a section that takes them, and not one of ours."""
    section, _, inside = name.partition(".")
    own = f"{section}.{inside.partition('.')[0]}" in keys()
    return bool(inside) and issubclass(sections().get(section, BaseModel), PassedOn) and not own


def unknown_key(origin: Origin, likely: Iterable[str] = ()) -> str:
    """Name an unknown key or flag, where it was set, and the nearest known one; `likely` are compared first."""
    name = origin.typed.removeprefix("--")
    section, _, leaf = name.rpartition(".")
    # A right name in a wrong section is the most frequent mistake.
    same = [key for key in keys() if key.rpartition(".")[2] == leaf.replace("-", "_")]
    if name in keys() and section and not origin.is_flag:
        hint = f' A file nests its keys: put "{leaf}:" under "{section}:" (with dots it is a flag, --{name}).'
    elif same:
        hint = f' Did you mean "{same[0]}"?'
    else:
        near = did_you_mean(name, likely) or did_you_mean(name, (*SHORTCUTS, *keys()))
        hint = near or " gtpo train --help-config lists the keys."
    if origin.is_flag:
        return f'unknown flag "{origin.typed}".' + hint.replace('mean "', 'mean "--')
    return f'{origin.place}: unknown key "{origin.typed}".{hint}'


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
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if value is None or value == "":
        return '""' if value == "" else "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def by_section() -> Iterator[tuple[str, str, list[ConfigKey]]]:
    """Yield (section, its documentation, its own keys)."""
    for name, section in sections().items():
        own = [key for key in keys().values() if key.name.rpartition(".")[0] == name]
        if own or issubclass(section, PassedOn):
            yield name, " ".join((section.__doc__ or "").split()), own


def print_reference() -> None:
    """Print every key as plain text, unwrapped: one block per key."""
    for name, doc, own in by_section():
        print(f"\n{name or 'top level'}: {doc}")
        for key in own:
            print(f"  --{key.name}\n      {key.expects}; default {default_of(key)}\n      {key.doc}")
    print("\nshort flags")
    for flag, name in SHORTCUTS.items():
        print(f"  --{flag:20} --{name}")
