"""Plain numbers and equal texts, decided exactly and in the caller."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")
_SPACE = re.compile(r"\s+|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])")


def plain_number(text: str) -> Fraction | None:
    """Return the value of an integer or decimal, with or without thousands commas; None for anything else."""
    bare = text.strip().replace("\u2212", "-")
    if not bare.isascii() or not any(c.isdigit() for c in bare) or _NUMBER.fullmatch(bare) is None:
        return None
    return Fraction(bare.replace(",", ""))


def settle(prediction: str, gold: str, percent: str) -> bool | None:
    """Return whether the two are equal where plain arithmetic or equal text tells, else None."""
    a, b = plain_number(prediction), plain_number(gold)
    if a is not None and b is not None:
        return a == b
    if _SPACE.sub("", prediction) == _SPACE.sub("", gold):
        return True
    return None
