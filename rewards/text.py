"""Small text tools that extraction and verification share."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set: how this package writes its tables."""
    return frozenset(text.split())


_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")


def without_spaces(text: str) -> str:
    """Drop all spaces but those between two digits: `2 3` is not 23."""
    return _SPACE.sub("", text.strip())


AnswerText = str | Real | Decimal | None
"""An answer or gold as data sets hold it: text, or a number of Python or NumPy."""


def as_text(value: object) -> str:
    """Return an answer or gold as text: numbers of Python and NumPy as written, "" for what is neither."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return ""
    if isinstance(value, Integral | Fraction):
        return str(value)
    return str(value) if math.isfinite(value) else ""  # NaN: what a table holds where nothing was given
