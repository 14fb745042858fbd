r"""Piecewise definitions: `\begin{cases} x^2 & x < 7 \\ 4x & x \ge 7 \end{cases}`, which clean writes as `… if …`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gtpo.rewards.equality.answers import Answer, Kind, Words
from gtpo.rewards.equality.reading.grammar import split_top

_IF = "\\text{ if }"


@dataclass(frozen=True)
class Piecewise(Kind):
    """Values, each with its condition; their order says nothing."""

    pieces: tuple[tuple[Answer, Answer], ...]

    @classmethod
    def read(cls, text: str, part: Callable[[str], Answer]) -> Answer | None:
        """Return the pieces of a text, without the name of the function."""
        if text.count(_IF) < 2:
            return None
        text = re.sub(r"^[a-zA-Z]\s*(?:\([a-z]\))?\s*=\s*", "", text)
        pieces = [piece.split(_IF) for _, piece in split_top(text, re.compile(";"))]
        if not all(len(piece) == 2 for piece in pieces):
            return None
        found = tuple((part(value), part(condition)) for value, condition in pieces)
        return None if any(isinstance(value, Words) for value, _ in found) else cls(found)

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Callable[[Answer, Answer], bool], problem: Any) -> bool:
        """Return whether each piece has its own on the other side."""
        if not (isinstance(p, Piecewise) and isinstance(g, Piecewise) and len(p.pieces) == len(g.pieces)):
            return False
        left = list(g.pieces)
        for piece in p.pieces:
            match = next((other for other in left if all(map(equal, piece, other))), None)
            if match is None:
                return False
            left.remove(match)
        return True

    def parts(self) -> Sequence[Answer]:
        """Return the values and the conditions."""
        return [answer for piece in self.pieces for answer in piece]
