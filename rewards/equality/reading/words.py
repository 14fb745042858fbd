"""Equality of answers in words, and of times of day, which look like ratios: 7:30 is not 14:60."""

from __future__ import annotations

import re

from gtpo.rewards.equality.reading.answers import Answer, Listing, Scalar, Words
from gtpo.rewards.text import without_spaces, words

SHORT_WORDS = words(
    "no on yes odd one two six ten all any not non red tie win boy man men day mon tue wed thu fri sat sun jan feb mar "
    "apr may jun jul aug sep oct nov dec am pm is it of to or if in at by an the"
)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_PUNCTUATION = re.compile(r"[\s\"'`.,;:!?~]+|(?<=\w)-(?=\w)")


def bare_text(text: str) -> str:
    """Drop text commands, and all spaces but those between digits."""
    return without_spaces(_TEXT.sub(r"\1", text))


def _worded(text: str) -> str | None:
    """Return a text of words in lower case, without punctuation and a leading article; None if it is no such text.

    A word has three letters or is a known short one: `x-y` and `n!` are none.
    """
    plain = re.sub(
        r"^(?:(?:it is|it's|it was|on)\s+)?(?:(?:the|an?)\s+)?(?=[a-z]{3})",
        "",
        _TEXT.sub(r" \1 ", text).strip("() "),
        flags=re.IGNORECASE,
    )
    if re.fullmatch(r"[A-Za-z\d\s\"'`.,;:!?~/-]+", plain) is None:
        return None
    runs = re.findall(r"[A-Za-z]+", plain)
    if not runs or not all(len(run) > 2 or run.lower() in SHORT_WORDS for run in runs):
        return None
    lowered = plain.lower()
    if re.search(r"\d", lowered):
        return without_spaces(lowered)
    return _PUNCTUATION.sub(" ", lowered).strip()


def same_name(prediction: str, name: str) -> bool:
    """Return whether an answer is a name, letter by letter: neither case nor what wraps it counts."""
    bare = re.sub(r"\\[a-zA-Z]+\s*\{|[\s{}$*\"'`.,;:!()]+$|^[\s{}$*\"'`(]+", "", prediction)
    bare = re.sub(r"^(?:it is|it's|it was|on)\s+", "", bare, flags=re.IGNORECASE)
    return bare.strip("{}() ").casefold() == name.strip().casefold()


def same_words(first: str, second: str) -> bool:
    """Return whether two texts agree without their spaces; words also without case and punctuation."""
    bare = bare_text(first)
    if bare and bare == bare_text(second):
        return True
    worded = _worded(first)
    return worded is not None and worded == _worded(second)


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


def same_time(first: Answer, second: Answer) -> bool | None:
    """Return whether two times of day agree, None where one is no time; without a.m. or p.m. it fits both."""
    a, b = time_of_day(first), time_of_day(second)
    return None if a is None or b is None else a[0] == b[0] and (a[1] == b[1] or "" in (a[1], b[1]))
