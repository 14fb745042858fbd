r"""Boxes, `\boxed{…}`, `\fbox{…}` and `\boxed 5`: those that form one answer together, and those that are none."""

from __future__ import annotations

import re

from gtpo.rewards.limits import BOX_REACH, BRACE_REACH, MAX_JOINED, MAX_OPEN_BOXES, MAX_TEXT

_BOX = re.compile(r"(?<!\\)\\+(?:boxed|fbox)(?![a-zA-Z])\s*")
_BOX_TOKEN = re.compile(r"[^\s$\\{}]+|\\[a-zA-Z]+")
# Between boxes that together form one answer: no words, `y =`, or a short phrase that ends in "and" or "or".
_JOINT = re.compile(
    r"(?:[^a-zA-Z0-9\\.=]|\\[()\[\],;: ]|\\q?quad|\\\\|\band\b|\bor\b"
    r"|\\(?:text|mbox|textrm)\s*\{[\s,]*(?:and|or)?[\s,]*\}"
    r"|[a-zA-Z](?:_\{?\w{1,4}\}?)?\s*=)*"
    r"|\s*(?:\\text\s*\{)?[a-z() ,]{1,22}\b(?:and|or)\s*\}?[\s$]*"
)


def match_brace(text: str, start: int) -> int:
    r"""Return the index of the `}` that closes the `{` at `start`, or -1. `\{` and `\}` do not count.

    A group longer than 10,000 characters is taken for one that never closes.
    """
    depth = 0
    position = start
    end = min(len(text), start + BRACE_REACH)
    while position < end:
        character = text[position]
        if character == "\\":
            position += 2
            continue
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return -1


Box = tuple[int, int, str]


def last_boxes(text: str) -> list[Box]:
    """Return the boxes near the last one; all of them if none there is complete. Long texts are not scanned whole."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return []
    while True:
        reach = max(0, start - BOX_REACH)
        before = max(text.rfind("\\boxed", reach, start), text.rfind("\\fbox", reach, start))
        if before < 0:
            break
        start = before
    start = len(text[:start].rstrip("\\"))  # `\\\\boxed`: escaped once too often
    return _boxes(text, start) or _boxes(text, 0)


def _boxes(text: str, position: int) -> list[Box]:
    r"""Return (start, end, content) of every complete outermost `\boxed{…}`, `\fbox{…}` or `\boxed 5`."""
    found: list[Box] = []
    never_closed = 0
    while never_closed < MAX_OPEN_BOXES and (match := _BOX.search(text, position)) is not None:
        inside = match.end()
        position = inside + 1
        if text[inside : inside + 1] == "{":
            end = match_brace(text, inside)
            if end < 0:  # never closed: a cut-off or malformed box is no answer; a later one may be
                never_closed += 1
            else:
                found.append((match.start(), end + 1, text[inside + 1 : end].strip()))
                position = end + 1
        elif (token := _BOX_TOKEN.match(text, inside)) is not None:
            found.append((match.start(), token.end(), token.group().rstrip(".,;")))
            position = token.end()
    return found


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{…}` (or `\fbox{…}`, `\boxed 5`), braces balanced, or None."""
    boxes = last_boxes(text[-MAX_TEXT:])
    return boxes[-1][2] if boxes else None


def boxed_together(text: str) -> list[str]:
    r"""Return the contents of the last box and of those that stand with it, in order; empty if there is none.

    Boxes stand together if nothing but separators is between them (`\boxed{1}, \boxed{2}`, `\boxed{1} and
    \boxed{2}`) or a short phrase that ends in "and" or "or"; a box after other words stands alone.
    """
    tail = text[-MAX_TEXT:]
    return together(last_boxes(tail), tail)


def together(boxes: list[Box], text: str) -> list[str]:
    """Return the contents of the last box and of those that form one answer with it; boxes: of this text."""
    contents = [boxes[-1][2]] if boxes else []
    for (_, end, content), (start, _, _) in zip(boxes[-2:-MAX_JOINED:-1], boxes[: -MAX_JOINED + 1 : -1], strict=False):
        if _JOINT.fullmatch(text, end, start) is None:
            break
        contents.insert(0, content)
    return list(dict.fromkeys(contents))


def rejoined(contents: list[str]) -> str:
    """Return several contents as boxes with commas between, one as it is."""
    return ", ".join(f"\\boxed{{{content}}}" for content in contents) if len(contents) > 1 else contents[0]


_TAG = re.compile(r"</?[a-zA-Z]+>")
_WORD = re.compile(r"[a-zA-Z]{2,}")
_BETWEEN = r"(?:[-+*/^÷×]|\\(?:cdot|times|div)(?![a-zA-Z])|minus\b|plus\b|times\b)"
_WRAPPED = re.compile(r"\\math(?:bin|rel|ord|op)\s*\{([^{}]*)\}")
_NO_PROSE = re.compile(
    r"\\(?:begin|end|operatorname\*?)\s*\{[^{}]*\}|\\[a-zA-Z]+|\b(?:minus|plus|times|zero|one|two|three|d[a-z])\b"
)
_OPERATED_AFTER = re.compile(
    rf"\s*{_BETWEEN}\s*(?:\\left)?\s*(?:[\d({{\[|]|\\(?!text|mbox|mathrm|quad))|\s*\\[dt]?frac(?![a-z])"
)
_OPERATED_BEFORE = re.compile(
    rf"[\d)}}\]]\s*{_BETWEEN}\s*(?:\\left\s*)?[({{]*\s*$"
    r"|(?:\\sqrt(?:\s*\[[^\]]*\])?|\\[cdt]?frac(?:\s*\{[^{}]*\})?|[\^_])\s*\{\s*$"  # below a root, in a fraction
    r"|\\sqrt\s*\[\s*$"
)
_FACTOR = re.compile(r"(?:(?<![a-zA-Z\\])[a-zA-Z]|[\d})\]])\s*(?:\\left\s*)?$")


def _in_a_factor(before: str) -> bool:
    """Return whether a text ends within a bracket that something is multiplied by, or that holds an argument."""
    opened = []
    for at, character in enumerate(before):
        if character == "(":
            opened.append(at)
        elif character == ")" and opened:
            opened.pop()
    return bool(opened) and _FACTOR.search(before[max(0, opened[-1] - 40) : opened[-1]]) is not None


def without_operand_box(text: str) -> str | None:
    r"""Return the text without its box where that is an operand, as in `\boxed{8} - 1`: else None.

    What such a box holds is no answer. Words behind a box make it one that prose goes on from, and so do words before
    it, unless it is taken from or added to.
    """
    boxes = last_boxes(text)
    if not boxes:
        return None
    start, end, _ = boxes[-1]
    before, after = (_WRAPPED.sub(r"\1", _TAG.sub("", part)) for part in (text[:start], text[end:]))
    if _WORD.search(_NO_PROSE.sub(" ", after)):
        return None
    led = _WORD.search(_NO_PROSE.sub(" ", before)) is not None
    if not _OPERATED_AFTER.match(after) and (led or not (_OPERATED_BEFORE.search(before) or _in_a_factor(before))):
        return None
    return text.replace("\\boxed", "").replace("\\fbox", "")
