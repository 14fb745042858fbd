"""Settings that a config passes on to TRL or peft: known by name, right by type, not decided elsewhere.

No name of theirs is written down here: the library's own class says what it has, so a new version brings its new
settings with it. It is imported by whoever calls, which is why these keys are checked later than ours.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from gtpo.common.errors import UserError, did_you_mean
from gtpo.config.keys import WORDS, alternatives, keys
from gtpo.config.schema import TrainConfig


def checked(config: TrainConfig, section: str, kind: Any, decided: Mapping[str, str]) -> dict[str, Any]:
    """Return what a section passes on to `kind`, each value as the type that its field has.

    section: training or lora. kind: the library's dataclass. decided: fields that a run sets itself -> what the user
    sets instead.

    Raises UserError with a line per key that `kind` does not have, that is decided, or whose value has another type.
    """
    hints = typing.get_type_hints(kind)
    names = [entry.name for entry in fields(kind) if entry.init]
    values, errors = getattr(config, section).passed_on, []
    for name, value in values.items():
        place = config.place(f"{section}.{name}")
        if name in decided:
            errors.append(f"{place}: {decided[name]}")
        elif name not in names:
            own = [key.rpartition(".")[2] for key in keys() if key.startswith(f"{section}.")]
            near = did_you_mean(name, [*own, *names])
            # As the user can type it: a dotted flag, or a key in its section.
            near = near.replace('mean "', f'mean "{"--" * place.startswith("--")}{section}.')
            errors.append(f"{place}: unknown key; neither gtpo nor {kind.__name__} has it.{near}")
        else:
            try:
                values[name] = typed(place, hints[name], value)
            except UserError as error:
                errors.append(str(error))
    if errors:
        raise UserError("\n      ".join(errors))
    return values


def typed(place: str, annotation: Any, value: Any) -> Any:
    """Return a value as the type that a field has. Raises UserError with the place, and what the field takes."""
    kinds = alternatives(annotation)
    names = [member.value for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum) for member in kind]
    # `SchedulerType | str` takes any text; its own check comes later and does not know the key.
    if names:
        annotation = Literal[tuple(names)]
    try:
        return TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        near = did_you_mean(str(value), names)
        raise UserError(f"{place} must be {in_words(annotation)}; found {value!r}.{near}") from None


def in_words(annotation: Any) -> str:
    """Return in words which values a type annotation takes, e.g. "a number or null"."""
    words = []
    for part in alternatives(annotation):
        origin = typing.get_origin(part) or part
        if origin is Literal:
            words.append(f"one of {', '.join(map(str, typing.get_args(part)))}")
        elif part is type(None):
            words.append("null")
        else:
            words.append(WORDS.get(origin, getattr(origin, "__name__", str(origin))))
    return " or ".join(dict.fromkeys(words))
