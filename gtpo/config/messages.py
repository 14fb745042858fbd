"""One sentence for each fault of a config: place, key, what is expected, what was found, the nearest name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gtpo.config.document import Document, Key
from gtpo.config.keys import leaves, sections
from rewards.support.errors import did_you_mean


def unknown_key(document: Document, loc: Key) -> str:
    """Name an unknown key, its place and the nearest known one."""
    dotted, parent = ".".join(loc), ".".join(loc[:-1])
    where = document.place(loc)
    siblings = (
        [f"{parent}.{name}".lstrip(".") for name in sections()[parent].model_fields] if parent in sections() else []
    )
    hint = did_you_mean(dotted, siblings) or did_you_mean(dotted, leaves())
    if not hint:
        same = [key for key in leaves() if key.rpartition(".")[2] == loc[-1]]
        hint = f' Did you mean "{same[0]}"?' if same else " gtpo train --help-config lists the keys."
    return f'{where}: unknown key "{dotted}".{hint}'


def error_message(document: Document, error: Mapping[str, Any]) -> str:
    """Turn one pydantic error into one sentence: place, key, what is expected, what was found."""
    loc = tuple(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return unknown_key(document, loc)
    names = [part for part in loc if not part.isdigit()]
    dotted, place = ".".join(names), document.place(loc)
    where = f"{place}: " if place and not place.startswith("--") else ""  # a flag's place is the key itself
    if error["type"] == "missing":
        return f'{where}the key "{dotted}" is missing'
    leaf = leaves().get(dotted)
    if leaf is None:
        if dotted in sections():
            return f"{where}{dotted} must be a mapping, found {error['input']!r}"
        return f"{where}{dotted}: {error['msg'].removeprefix('Value error, ')}"
    if error["type"] == "string_pattern_mismatch":
        expects = "a name that starts with a letter, digit or _ and has no slash (it becomes a folder)"
    else:
        expects = leaf.expects + (" or null" if leaf.optional and error["input"] is None else "")
    hint = did_you_mean(str(error["input"]), leaf.choices) if leaf.choices else ""
    return f"{where}{dotted} must be {expects}; found {error['input']!r}.{hint}"
