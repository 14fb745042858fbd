r"""Piecewise definitions: `\begin{cases} x^2 & x < 7 \\ 4x & x \ge 7 \end{cases}`, which clean writes as `… if …`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gtpo.rewards.equality.answers import Answer, Kind, Part, Same, Words, one_to_one
from gtpo.rewards.equality.reading.grammar import split_top

_IF = "\\text{ if }"
_TYPED = re.compile(
    r"[,\s]*(?:\\text\s*\{\s*)?(?<![a-zA-Z])(?:(?:if|for|when)(?![a-zA-Z])|(?=otherwise|else(?![a-z])))(?:\s*\})?\s*"
)
_OTHERS = re.compile(r"\s*(?:otherwise|else)?\W*")


@dataclass(frozen=True)
class Piecewise(Kind):
    """Values, each with its condition; their order says nothing."""

    marks = re.compile(rf"{re.escape(_IF)}|(?:{_TYPED.pattern}.*){{2}}")
    pieces: tuple[tuple[Answer, Answer | None], ...]  # No condition is every other case

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return the pieces of a text, without the name of the function."""
        text = re.sub(r"^[a-zA-Z]\s*(?:\([a-z]\))?\s*=\s*", "", _TYPED.sub(lambda _: _IF, text))
        pieces = [piece.split(_IF) for _, piece in split_top(text, re.compile(rf"[;,]|and(?=[^;,]*{re.escape(_IF)})"))]
        if len(pieces) < 2 or not all(len(piece) == 2 for piece in pieces):
            return None
        found = tuple((part(value), None if _OTHERS.fullmatch(case) else part(case)) for value, case in pieces)
        return None if any(isinstance(each, Words) for piece in found for each in piece) else cls(found)

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Same, problem: Any) -> bool:
        """Return whether each piece has its own on the other side."""
        if not (isinstance(p, Piecewise) and isinstance(g, Piecewise) and len(p.pieces) == len(g.pieces)):
            return False
        first, second = (sorted(each.pieces, key=lambda piece: piece[1] is None) for each in (p, g))

        def fits(piece: tuple[Answer, Answer | None], other: tuple[Answer, Answer | None]) -> bool:
            ours, theirs = piece[1], other[1]
            return equal(piece[0], other[0]) and (ours is None or theirs is None or equal(ours, theirs))

        return one_to_one(first, second, fits)

    def parts(self) -> Sequence[Answer]:
        """Return the values and the conditions."""
        return [answer for piece in self.pieces for answer in piece if answer is not None]
