"""Every key of the schema with its type, range and documentation: what flags, errors and the reference print."""

from __future__ import annotations

import functools
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from gtpo.config.schema import TrainConfig

_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


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
        what = f"one of {', '.join(self.choices)}" if self.choices else _WORDS[self.scalar]
        if self.bounds:
            what += " " + " and ".join(self.bounds)
        return f"a list, each {what}" if self.many else what


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section class that an annotation (also `Section | None`) names, if it does."""
    for part in (annotation, *typing.get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _walk(section: type[BaseModel], prefix: str) -> typing.Iterator[ConfigKey]:
    for name, info in section.model_fields.items():
        annotation = info.annotation
        if inner := _section_of(annotation):
            yield from _walk(inner, f"{prefix}{name}.")
            continue
        optional = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
        if optional:
            (annotation,) = (part for part in typing.get_args(annotation) if part is not type(None))
        many = typing.get_origin(annotation) is list
        if many:
            (annotation,) = typing.get_args(annotation)
        choices = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
        yield ConfigKey(
            name=prefix + name,
            scalar=str if choices else typing.cast("type", annotation),
            choices=choices,
            many=many,
            optional=optional,
            bounds=tuple(
                f"{sign} {getattr(rule, bound)}"
                for rule in info.metadata
                for bound, sign in _BOUNDS
                if getattr(rule, bound, None) is not None
            ),
            default=None if info.is_required() else info.get_default(call_default_factory=True),
            doc=" ".join((info.description or "").split()),
        )


@functools.cache
def keys() -> dict[str, ConfigKey]:
    """Return every key by its dotted name, in the schema's order."""
    return {key.name: key for key in _walk(TrainConfig, "")}


@functools.cache
def sections() -> dict[str, type[BaseModel]]:
    """Return every section class by its dotted name, in the schema's order; the root is the empty name."""

    def walk(section: type[BaseModel], prefix: str) -> typing.Iterator[tuple[str, type[BaseModel]]]:
        for name, info in section.model_fields.items():
            if inner := _section_of(info.annotation):
                yield prefix + name, inner
                yield from walk(inner, f"{prefix}{name}.")

    return {"": TrainConfig, **dict(walk(TrainConfig, ""))}


def value_of(config: TrainConfig, name: str) -> Any:
    """Return the value of a dotted key, None where its section is absent."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
