"""The options of a command, each declared once: its flag, help, type and range.

The command line, the messages for values out of range and docs/cli.md are made from the declarations. `gtpo --help`
imports this module, so it takes no library.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_args, get_origin, get_type_hints

from gtpo.common.errors import UserError, did_you_mean

_LIMITS = {
    "gt": (operator.gt, "above {:g}"),
    "ge": (operator.ge, "{:g} or more"),
    "lt": (operator.lt, "below {:g}"),
    "le": (operator.le, "at most {:g}"),
}


class Option(NamedTuple):
    """One option of a command."""

    default: Any
    """`...` if it must be given."""
    help: str
    flags: tuple[str, ...]
    """As the user types them."""
    limits: dict[str, float]
    """gt, ge, lt, le -> the bound."""
    about: dict[str, Any]
    """What else is declared of it."""
    type: Any = None
    """The annotation of its field."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it may have, if they are listed."""
        parts = get_args(self.type)
        return tuple(word for part in parts for word in (part, *get_args(part)) if isinstance(word, str))

    @property
    def is_object(self) -> bool:
        """Whether it is typed as a JSON object."""
        return any(get_origin(part) is dict for part in get_args(self.type))

    def checked(self, value: Any) -> Any:
        """Return a value in the option's type. UserError that says what the option takes and what was found."""
        flag, types = self.flags[0], get_args(self.type) or (self.type,)
        if self.choices and value is not None and value not in self.choices:
            near = did_you_mean(str(value), self.choices)
            raise UserError(f'{flag} is {either(self.choices)}, found "{value}".{near}')
        if Path in types and isinstance(value, str):
            return Path(value)
        if self.is_object and isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise UserError(f"{flag} is not valid JSON ({error})") from None
            if not isinstance(value, dict):
                raise UserError(f"{flag} must be a JSON object")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        finite = math.isfinite(value)
        if not finite or not all(_LIMITS[key][0](value, bound) for key, bound in self.limits.items()):
            words = [_LIMITS[key][1].format(bound) for key, bound in self.limits.items()]
            unit = f" {self.about['unit']}" if "unit" in self.about else ""
            raise UserError(
                f"{flag} must be {' and '.join(words)}{unit}{'' if finite else ' and finite'}, found {value:g}"
            )
        if int in types and value != int(value):
            raise UserError(f"{flag} must be a whole number, found {value:g}")
        return int(value) if int in types else float(value)


def option(default: Any, help: str, *flags: str, about: dict[str, Any] | None = None, **limits: float) -> Any:
    """Declare an option. flags: if they are not --the-name; about: what else is to be known of it.

    `unit` in `about` is named with the range.
    """
    return Option(default, help, flags, limits, about or {})


class Options:
    """The options of one command. Raises UserError that names the flag."""

    COMMAND: ClassVar[str]
    """As it is typed: `gtpo eval`."""
    ARGUMENT: ClassVar[str]
    """The field that is typed without a flag."""
    options: ClassVar[dict[str, Option]]
    """Name -> declaration, in order."""
    given: frozenset[str]
    """Names of the options that were given a value."""

    def __init_subclass__(cls) -> None:
        types = get_type_hints(cls)
        cls.options = {
            name: found._replace(flags=found.flags or (f"--{name.replace('_', '-')}",), type=types[name])
            for name, found in vars(cls).items()
            if isinstance(found, Option)
        }

    def __init__(self, **given: Any) -> None:
        values = {name: found.default for name, found in self.options.items()}
        for name, value in given.items():
            if name not in values:
                raise UserError(f'{self.COMMAND} has no option "{name}".{did_you_mean(name, values)}')
            values[name] = self.options[name].checked(value)
        vars(self).update(values, given=frozenset(given))
        self._fit_together()

    def _fit_together(self) -> None:
        """Check what more than one option decides."""


def either(words: Sequence[str]) -> str:
    """Return `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
