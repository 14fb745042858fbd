"""Small text tools that extraction and verification share."""

from __future__ import annotations

import re


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set: how this package writes its tables."""
    return frozenset(text.split())


_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")


def without_spaces(text: str) -> str:
    """Drop all spaces but those between two digits: `2 3` is not 23."""
    return _SPACE.sub("", text.strip())
