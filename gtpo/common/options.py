"""The options of a command as a pydantic model, each declared once: its flag, help, type and range.

The command line, the messages for values out of range and docs/cli.md are made from the declarations. `gtpo --help`
imports this module: pydantic is the heaviest thing that it may load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from gtpo.common.errors import UserError, did_you_mean

_LIMITS = {"gt": "above {}", "ge": "{} or more", "lt": "below {}", "le": "at most {}"}


def option(default: Any, help: str, *flags: str, about: dict[str, Any] | None = None, **limits: Any) -> Any:
    """Declare an option. flags: where they are not --the-name; about: what else is to be known of it (`extra`).

    `unit` in `about` is named with the range.
    """
    if isinstance(next(iter(limits.values()), None), float):
        limits["allow_inf_nan"] = False
    extra: dict[str, Any] = {"flags": flags, **(about or {})}
    return Field(default, description=help, json_schema_extra=extra, **limits)


class Options(BaseModel):
    """The options of one command. Raises UserError that names the flag."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    COMMAND: ClassVar[str]
    """As it is typed: `gtpo eval`."""
    ARGUMENT: ClassVar[str]
    """The field that is typed without a flag."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise self._explained(error) from None

    @classmethod
    def extra(cls, name: str) -> dict[str, Any]:
        """Return what `option` declared of a field beside its range."""
        found = cls.model_fields[name].json_schema_extra
        assert isinstance(found, dict)
        return found

    @classmethod
    def flags_of(cls, name: str) -> Sequence[str]:
        """Return the flags of a field as the user types them."""
        return cls.extra(name)["flags"] or (f"--{name.replace('_', '-')}",)

    @classmethod
    def _explained(cls, error: ValidationError) -> UserError:
        """Say the first mistake: the flag, what it takes, what was found."""
        first = error.errors()[0]
        name, found = str(first["loc"][0]), first["input"]
        if name not in cls.model_fields:
            return UserError(f'{cls.COMMAND} has no option "{name}".{did_you_mean(name, cls.model_fields)}')
        field, flag = cls.model_fields[name], cls.flags_of(name)[0]
        if choices := choices_of(field):
            return UserError(f'{flag} is {either(choices)}, found "{found}".{did_you_mean(str(found), choices)}')
        limits = [
            words.format(f"{getattr(limit, key):g}")
            for key, words in _LIMITS.items() for limit in field.metadata if hasattr(limit, key)
        ]  # fmt: skip
        if not limits or not isinstance(found, int | float):
            return UserError(f"{flag}: {first['msg']}, found {found!r}")
        finite = " and finite" if first["type"] == "finite_number" else ""
        unit = f" {cls.extra(name)['unit']}" if "unit" in cls.extra(name) else ""
        return UserError(f"{flag} must be {' and '.join(limits)}{unit}{finite}, found {found:g}")


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """Return the values that an option may have, where they are listed."""
    found = get_args(field.annotation)
    return tuple(word for part in found for word in (part, *get_args(part)) if isinstance(word, str))


def either(words: Sequence[str]) -> str:
    """Return `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
