"""Plain numbers and equal texts, decided exactly and in the caller."""

from __future__ import annotations

import re
from fractions import Fraction

from gtpo.rewards.text import without_spaces

_NUMBER = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)?(?:\.\d+)?")
_SIZE = re.compile(r"\\(?:left|right)(?![a-zA-Z])")


def plain_number(text: str) -> Fraction | None:
    """Return the value of an integer or decimal, with or without thousands commas; None for anything else."""
    bare = text.strip()
    if not (bare.isascii() and bare.isdigit()):  # most answers are, and need no more
        bare = bare.replace("\u2212", "-")
        if not bare.isascii() or not any(c.isdigit() for c in bare) or _NUMBER.fullmatch(bare) is None:
            return None
        bare = bare.replace(",", "")
    return Fraction(bare) if "." in bare else Fraction(int(bare))


def decide_exactly(prediction: str, gold: str) -> bool | None:
    """Return whether the two are equal where plain arithmetic or equal text tells, else None."""
    a, b = plain_number(prediction), plain_number(gold)
    if a is not None and b is not None:
        # Decimals that differ in a late digit may still agree under the policy on rounding: not decided here.
        near = ("." in prediction or "." in gold) and 0 < abs(a - b) < abs(b) / 100
        return None if near else a == b
    if without_spaces(_SIZE.sub(" ", prediction)) == without_spaces(_SIZE.sub(" ", gold)):
        return True
    return None
