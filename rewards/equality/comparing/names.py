"""Answers with names: `x = 1, y = 2`, `(x, y) = (1, 2)`, `f(t) = t^2`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gtpo.rewards.equality.arithmetic.terms import rename as rename_symbols
from gtpo.rewards.equality.reading.answers import Answer, Listing, Named, Scalar


def same_quantity(first: str, second: str) -> bool:
    r"""Return whether two names are of one quantity: `AB` and `|AB|`, `\angle A` and `m\angle A`; `x^2` is not `x`."""
    return _plain(first) == _plain(second)


def _plain(name: str) -> str:
    marked = re.fullmatch(r"\|(?P<a>[A-Z]{2})\||\\overline(?P<b>[A-Z]{2})|m(?P<c>\\angle[A-Z]{1,3})", name)
    return name if marked is None else next(part for part in marked.groups() if part)


def rename(p: Named, g: Named) -> Named:
    """Rename the argument of `f(t) = …` to the other's."""
    table = dict(zip(p.variables, g.variables, strict=True))

    value = p.value
    if isinstance(value, Scalar):
        value = Scalar(rename_symbols(value.term, table), value.digits, value.places, value.unit, value.percent)
    return Named(g.name, value, None, g.variables)


def assigned(answer: Answer) -> dict[str, Answer] | None:
    """Return name -> value of `(x, y) = (1, 2)` and of `x = 1, y = 2`, where there are two names or more."""
    if isinstance(answer, Named) and answer.name.startswith("(") and isinstance(answer.value, Listing):
        names = answer.name.strip("()").split(",")
        same = len(names) == len(answer.value.items) == len(set(names))
        return dict(zip(names, answer.value.items, strict=True)) if same and answer.value.kind == "tuple" else None
    if not isinstance(answer, Listing) or answer.kind != "list" or answer.joint == "or":
        return None
    if distinct_names(answer.items) is not None:
        named = {item.name: item.value for item in answer.items if isinstance(item, Named)}
        return None if indexed(list(named)) else named
    return None


def distinct_names(items: Sequence[Answer]) -> list[str] | None:
    """Return the names of a list in which every item has one of its own, else None."""
    names = [item.name for item in items if isinstance(item, Named)]
    return names if len(names) == len(items) and len(set(names)) == len(names) else None


def indexed(names: Sequence[str]) -> bool:
    """Return whether names are one letter with different indices: `x_1, x_2`, whose order says nothing."""
    return len({re.sub(r"_.*|\d+$", "", name) for name in names}) == 1


def strip_names(items: Sequence[Answer]) -> list[Answer]:
    """Return the values of named items."""
    return [item.value if isinstance(item, Named) else item for item in items]
