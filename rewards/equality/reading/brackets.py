"""Brackets at the top level of a text: where it may be split, and whether one pair holds all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

_OPEN, _CLOSE = "([{", ")]}"


def _steps(text: str) -> Iterator[tuple[int, int]]:
    """Yield the place of each character, or of a backslash with the next, and by how much it changes the depth."""
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            following = text[position + 1 : position + 2]
            environment = text.startswith("\\begin", position) - text.startswith("\\end", position)
            yield position, (following == "{") - (following == "}") + environment
            position += 1
        else:
            yield position, (character in _OPEN) - (character in _CLOSE)
        position += 1


def split_top(text: str, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Split at the matches of `pattern` outside all brackets: (separator before the part, part), in order."""
    parts, depth, start, separator = [], 0, 0, ""
    for position, change in _steps(text):
        if position < start:
            continue
        if depth == 0 and (match := pattern.match(text, position)) is not None and match.end() > position:
            parts.append((separator, text[start:position]))
            separator, start = match.group().strip(), match.end()
        else:
            depth += change
    return [*parts, (separator, text[start:])]


def closes_first(text: str, width: int) -> bool:
    """Return whether the bracket of `width` characters that opens the text is the one that closes it."""
    levels = list(accumulate((change for _, change in _steps(text[width:-width])), initial=1))
    return 0 not in levels and levels[-1] == 1
