"""Equality of answers in words."""

from __future__ import annotations

import re

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
    """Compare an answer with a name, letter by letter: neither case nor what wraps it counts."""
    bare = re.sub(r"\\[a-zA-Z]+\s*\{|[\s{}$*\"'`.,;:!()]+$|^[\s{}$*\"'`(]+", "", prediction)
    bare = re.sub(r"^(?:it is|it's|it was|on)\s+", "", bare, flags=re.IGNORECASE)
    return bare.strip("{}() ").casefold() == name.strip().casefold()


def same_words(first: str, second: str) -> bool:
    """Compare two texts without their spaces; words also without case and punctuation."""
    bare = bare_text(first)
    if bare and bare == bare_text(second):
        return True
    worded = _worded(first)
    return worded is not None and worded == _worded(second)
