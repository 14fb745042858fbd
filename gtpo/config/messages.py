"""One sentence for each error in a config: place, key as typed, what is expected, what was found, the nearest name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gtpo.common.errors import UserError, did_you_mean
from gtpo.config.document import Document, Key, Origin
from gtpo.config.keys import keys, sections

OriginOf = Callable[[str], Origin]
"""The read-only map from a dotted key to where it was set."""


@dataclass
class Findings:
    """What loading a config found: all its errors, and what the user should know of a config that is accepted."""

    errors: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def raise_errors(self) -> None:
        """Raise one UserError with a line per error, if there are any."""
        if self.errors:
            raise UserError("\n      ".join(dict.fromkeys(self.errors)))


def unknown_key(origin: Origin, known: Iterable[str] = ()) -> str:
    """Name an unknown key or flag, where it was set, and the nearest known one; `known` are the likeliest."""
    name = origin.typed.removeprefix("--")
    same = [key for key in keys() if key.rpartition(".")[2] == name.rpartition(".")[2].replace("-", "_")]
    section, _, leaf = name.rpartition(".")
    if name in keys() and section and not origin.is_flag:
        hint = f' A file nests its keys: put "{leaf}:" under "{section}:" (with dots it is a flag, --{name}).'
    elif same:
        hint = f' Did you mean "{same[0]}"?'
    else:
        hint = did_you_mean(name, known) or did_you_mean(name, keys()) or " gtpo train --help-config lists the keys."
    if origin.is_flag:
        return f'unknown flag "{origin.typed}".' + hint.replace('mean "', 'mean "--')
    return f'{origin.place}: unknown key "{origin.typed}".{hint}'


def _unknown(document: Document, loc: Key) -> str:
    parent = ".".join(loc[:-1])
    siblings = (
        [f"{parent}.{name}".lstrip(".") for name in sections()[parent].model_fields] if parent in sections() else []
    )
    if loc not in document.origins:  # a section that exists only through a flag
        inside = [origin for key, origin in document.origins.items() if key[: len(loc)] == loc]
        return unknown_key(inside[0] if inside else document.origin(loc))
    return unknown_key(document.origins[loc], siblings)


def _nearest_choice(value: Any, choices: Iterable[str]) -> str:
    """Suggest one of the choices; YAML reads the words off, no, on and yes as booleans."""
    if isinstance(value, bool):
        meant = next((choice for choice in choices if choice in (("always",) if value else ("never", "none"))), None)
        return f' Did you mean "{meant}"? (YAML reads {"on and yes as true" if value else "off and no as false"})' * (
            meant is not None
        )
    return did_you_mean(str(value), choices)


def schema_error(document: Document, error: Mapping[str, Any]) -> str:
    """Turn one pydantic error into one sentence."""
    loc = tuple(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown(document, loc)
    name = ".".join(part for part in loc if not part.isdigit())
    origin = document.origin(name)
    if error["type"] == "missing":
        return f"{origin} is missing"
    key = keys().get(name)
    if key is None:
        if name in sections():
            return f"{origin} must be a mapping, found {error['input']!r}"
        return f"{origin}: {error['msg'].removeprefix('Value error, ')}"
    if error["type"] == "string_pattern_mismatch":
        expects = "a name that starts with a letter, digit or _ and has no slash (it names a folder)"
    else:
        expects = key.expects + (" or null" if key.optional and error["input"] is None else "")
    hint = _nearest_choice(error["input"], key.choices)
    return f"{origin} must be {expects}; found {error['input']!r}.{hint}"
