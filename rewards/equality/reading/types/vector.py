r"""Sums of vectors: `4\mathbf{i} - 10\mathbf{j}`, `5i - 9j + 2k`, `(3, 6, 7) + t(6, 2, 3)`: the tuples they are."""

from __future__ import annotations

import re

from gtpo.rewards.equality.answers import Answer, Kind, Listing, Part, Scalar
from gtpo.rewards.equality.arithmetic import ONE, Term, addends
from gtpo.rewards.equality.reading.grammar import NotMathematics, parse
from gtpo.rewards.equality.reading.units import mixed

_APART, _ENDS = r"(?<![a-zA-Z\\{_^])", r"(?![a-zA-Z}(])"
_LETTERS = re.compile(f"{_APART}i{_ENDS}.*{_APART}j{_ENDS}")
_SUM = re.compile(r"\\unitvector|[)}]\s*[-+]|[-+][^()]*\(.*,|[-+].*\\begin")
_NOTHING: Term = ("num", 0)


class Vector(Kind):
    """A sum of multiples of unit vectors, tuples or columns; its normal form is a tuple, which others compare."""

    marks = re.compile(f"{_SUM.pattern}|{_LETTERS.pattern}")

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return the tuple that a sum is."""
        if _LETTERS.search(text) and "," not in text:
            text = re.sub(f"{_APART}([ijk]){_ENDS}", r"\\unitvector{\1}", text)
        if _SUM.search(text) is None or "=" in text:
            return None
        try:
            vectors = [_components(addend) for addend in addends(parse(mixed(text)))]
        except NotMathematics:
            return None
        size = max((len(vector) for vector in vectors), default=0)
        unit = "unitvector" in text
        uneven = len(vectors) < 2 or any(len(vector) < size for vector in vectors)
        if size < 2 or not all(vectors) or (uneven and not unit):
            return None
        items = []
        for at in range(size):
            terms = [vector[at] for vector in vectors if at < len(vector) and vector[at] != _NOTHING]
            items.append(Scalar(("add", *terms) if len(terms) > 1 else terms[0] if terms else _NOTHING))
        return Listing("tuple", tuple(items), "()")


def _components(addend: Term) -> list[Term]:
    """Return the components of a multiple of one vector, none if it is none."""
    if addend[0] == "neg":
        return [part if part == _NOTHING else ("neg", part) for part in _components(addend[1])]
    if addend[0] in ("mul", "div"):
        for vector, other in ((addend[1], addend[2]), (addend[2], addend[1]))[: 2 if addend[0] == "mul" else 1]:
            if found := _components(vector):
                return [p if p == _NOTHING else other if p == ONE else (addend[0], p, other) for p in found]
        return []
    if addend[0] == "sym" and addend[1] in ("vector i", "vector j", "vector k"):
        at = "ijk".index(addend[1][-1])
        return [ONE if index == at else _NOTHING for index in range(max(2, at + 1))]
    if addend[0] == "opaque" and addend[1] == "tuple(":
        return list(addend[2:])
    if addend[0] == "mat" and all(len(row) == 1 for row in addend[1]):
        return [row[0] for row in addend[1]]
    return []
