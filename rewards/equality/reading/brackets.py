"""Brackets at the top level of a text: where it may be split, and whether one pair holds all of it."""

from __future__ import annotations

import re

_OPEN, _CLOSE = "([{", ")]}"


def split_top(text: str, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Split at the matches of `pattern` outside all brackets: (separator before the part, part), in order."""
    parts, depth, start, separator, position = [], 0, 0, "", 0
    while position < len(text):
        character = text[position]
        if depth == 0 and (match := pattern.match(text, position)) is not None and match.end() > position:
            parts.append((separator, text[start:position]))
            separator, start, position = match.group().strip(), match.end(), match.end()
            continue
        if character == "\\":
            following = text[position + 1 : position + 2]
            if following == "{":
                depth += 1
            elif following == "}":
                depth -= 1
            elif text.startswith("\\begin", position):
                depth += 1
            elif text.startswith("\\end", position):
                depth -= 1
            position += 2
            continue
        if character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
        position += 1
    parts.append((separator, text[start:]))
    return parts


def closes_first(text: str, skip: int, width: int) -> bool:
    """Return whether the bracket that opens the text is the one that closes it."""
    level, position = 1, skip
    while position < len(text) - width:
        if text[position] == "\\":
            following = text[position + 1 : position + 2]
            level += (following == "{") - (following == "}")
            level += text.startswith("\\begin", position) - text.startswith("\\end", position)
            position += 2
        else:
            level += (text[position] in _OPEN) - (text[position] in _CLOSE)
            position += 1
        if level == 0:
            return False
    return level == 1
