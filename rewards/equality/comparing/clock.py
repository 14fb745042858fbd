"""Times of day, which look like ratios: 7:30 is not 14:60."""

from __future__ import annotations

import re

from gtpo.rewards.equality.reading.answers import Answer, Listing, Scalar, Words
from gtpo.rewards.equality.reading.words import bare_text


def is_clock(text: str) -> bool:
    """Return whether a ratio is written as a time of day is."""
    return re.fullmatch(r"\d{1,2}:\d{2}", text) is not None


def time_of_day(answer: Answer) -> tuple[str, str] | None:
    """Return a time of day as (`h:mm`, `a` or `p` or empty), or None."""
    if isinstance(answer, Scalar) and answer.unit.name in ("am", "pm") and answer.term[0] == "num":
        return f"{answer.term[1]}:00", answer.unit.name[0]
    text = answer.text if isinstance(answer, Words) else answer.brackets if isinstance(answer, Listing) else ""
    match = re.fullmatch(r"0?(\d{1,2}:\d{2})\s*(?:([ap])\.?\s*m\.?)?", bare_text(text).lower())
    return (match[1], match[2] or "") if match else None


def same_time(a: tuple[str, str], b: tuple[str, str]) -> bool:
    """Compare two times of day; one that does not say morning or afternoon fits both."""
    return a[0] == b[0] and (a[1] == b[1] or "" in (a[1], b[1]))
