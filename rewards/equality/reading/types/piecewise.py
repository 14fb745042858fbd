r"""Piecewise definitions: `\begin{cases} x^2 & x < 7 \\ 4x & x \ge 7 \end{cases}`, which clean writes as `… if …`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gtpo.rewards.equality.answers import Answer, Kind, Named, Part, Same, Union, Words, one_to_one
from gtpo.rewards.equality.reading.grammar import split_top

_IF = "\\text{ if }"
_TYPED = re.compile(r"[,\s]*(?:\\text\s*\{\s*)?(?<![a-zA-Z])(?:if|for|when|otherwise|else)(?![a-zA-Z])(?:\s*\})?\s*")


@dataclass(frozen=True)
class Piecewise(Kind):
    """Values, each with its condition; their order says nothing."""

    marks = re.compile(rf"{re.escape(_IF)}|(?:{_TYPED.pattern}.*){{2}}")
    pieces: tuple[tuple[Answer, Answer], ...]

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return the pieces of a text, without the name of the function."""
        text = re.sub(r"^[a-zA-Z]\s*(?:\([a-z]\))?\s*=\s*", "", _TYPED.sub(lambda _: _IF, text))
        pieces = [piece.split(_IF) for _, piece in split_top(text, re.compile(rf"[;,]|and(?=[^;,]*{re.escape(_IF)})"))]
        if len(pieces) < 2 or not all(len(piece) == 2 for piece in pieces):
            return None
        found = [(part(value), _condition(part(case))) for value, case in pieces if re.search(r"\w", case)]
        others = [part(value) for value, case in pieces if not re.search(r"\w", case)]
        if len(others) > 1 or any(isinstance(each, Words) for each in [*others, *sum(found, ())]):
            return None
        rest = Union((("cup", part("\\reals")), *(("setminus", case) for _, case in found)))  # otherwise
        return cls((*found, *((value, rest) for value in others)))

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Same, problem: Any) -> bool:
        """Return whether each piece has its own on the other side."""
        if not (isinstance(p, Piecewise) and isinstance(g, Piecewise) and len(p.pieces) == len(g.pieces)):
            return False
        return one_to_one(p.pieces, g.pieces, lambda ours, theirs: all(map(equal, ours, theirs)))

    def parts(self) -> Sequence[Answer]:
        """Return the values and the conditions."""
        return [answer for piece in self.pieces for answer in piece]


def _condition(answer: Answer) -> Answer:
    """Return a condition; of `x = 3` the equation, for the letter counts too."""
    return (answer.relation or answer) if isinstance(answer, Named) else answer
