"""Every leaf of the schema with its type, range and documentation: what flags, errors and the reference print."""

from __future__ import annotations

import functools
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from gtpo.config.schema import TrainConfig

_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


@dataclass(frozen=True)
class Leaf:
    """One key of the config."""

    key: str
    """Dotted, as in a flag."""
    scalar: type | None
    """bool, int, float, str or Path; None for a mapping."""
    choices: tuple[str, ...]
    many: bool
    """A list of `scalar`."""
    optional: bool
    bounds: tuple[str, ...]
    default: Any
    required: bool
    doc: str

    @property
    def expects(self) -> str:
        """Say in words what the key takes."""
        if self.scalar is None:
            return "a mapping"
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


def _walk(section: type[BaseModel], prefix: str) -> typing.Iterator[Leaf]:
    for name, info in section.model_fields.items():
        key, annotation = prefix + name, info.annotation
        if inner := _section_of(annotation):
            yield from _walk(inner, key + ".")
            continue
        optional = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
        if optional:
            (annotation,) = (part for part in typing.get_args(annotation) if part is not type(None))
        many = typing.get_origin(annotation) is list
        if many:
            (annotation,) = typing.get_args(annotation)
        choices = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
        scalar = str if choices else annotation
        yield Leaf(
            key=key,
            scalar=scalar if scalar in _WORDS else None,
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
            required=info.is_required() or info.default is PydanticUndefined,
            doc=" ".join((info.description or "").split()),
        )


@functools.cache
def leaves() -> dict[str, Leaf]:
    """Return every leaf by its dotted key, in the schema's order."""
    return {leaf.key: leaf for leaf in _walk(TrainConfig, "")}


@functools.cache
def sections() -> dict[str, type[BaseModel]]:
    """Return every section class by its dotted key, in the schema's order; the root is the empty key."""
    found: dict[str, type[BaseModel]] = {"": TrainConfig}

    def visit(section: type[BaseModel], prefix: str) -> None:
        for name, info in section.model_fields.items():
            if inner := _section_of(info.annotation):
                found[prefix + name] = inner
                visit(inner, f"{prefix}{name}.")

    visit(TrainConfig, "")
    return found
