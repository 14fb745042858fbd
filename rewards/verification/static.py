"""What is decided before any parser sees a text: static limits, beyond which a verdict is REJECTED, plain numbers and
equal texts, exactly.
"""

from __future__ import annotations

import re
from fractions import Fraction

from gtpo.rewards.limits import MAX_CHARACTERS, MAX_DIGITS, MAX_NESTING, MAX_TOKENS
from gtpo.rewards.text import without_spaces

_EXPONENT = re.compile(r"(?:\^|(?<=[\w)}\]])\*\*)\s*\{?\s*[-+]?\d{7,}|\d[eE][-+]?\d{5,}")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONG_DIGITS = re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}")
_TOKEN = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]+|[0-9.]+|[^\s]")


def reject_reason(text: str) -> str | None:
    """Return why a text is beyond the limits, or None. Linear in the text's length."""
    if len(text) > MAX_CHARACTERS:
        return f"{len(text)} characters, more than {MAX_CHARACTERS}"
    if _CONTROL.search(text):
        return "control or bidirectional characters"
    if _LONG_DIGITS.search(text):
        return f"more than {MAX_DIGITS} digits in a run"
    if _EXPONENT.search(text):
        return "an exponent of a million or more"
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth = max(0, depth - 1)
    if deepest > MAX_NESTING:
        return f"brackets nested {deepest} deep, more than {MAX_NESTING}"
    tokens = len(_TOKEN.findall(text))
    return f"{tokens} tokens, more than {MAX_TOKENS}" if tokens > MAX_TOKENS else None


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
