"""Equality of answers in words."""

from __future__ import annotations

import re

from rewards.plain import without_spaces


def bare_text(text: str) -> str:
    """Drop text commands and spaces; from words, punctuation too."""
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    if re.fullmatch(r"[^\\^_=+*/<>\d()\[\]|]*", text):
        return re.sub(r"[\s{}\"'`.,;:!?~-]+", "", text)
    return without_spaces(text)


def same_words(first: str, second: str) -> bool:
    """Compare two texts without their spaces; words also without case and punctuation."""
    a, b = bare_text(first), bare_text(second)
    if re.fullmatch(r"[\w:.,/-]*[a-zA-Z]{2}[\w:.,/-]*", a):
        a, b = a.lower(), b.lower()
    if a.isalpha() and len(a) > 1:
        a, b = (re.sub(r"^(?:the|a|an)(?=\s)", "", x.strip(), flags=re.I) for x in (first, second))
        a, b = bare_text(a).lower(), bare_text(b).lower()
    return bool(a) and a == b
