r"""Quantities in several units of one measure: `2 hours 30 minutes`, `35^\circ 20'`, `5 feet 11 inches`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gtpo.rewards.equality.answers import Answer, Kind, Scalar, Term
from gtpo.rewards.equality.reading import TABLES
from gtpo.rewards.equality.reading.units import read_unit

_FACTORS: dict[str, tuple[str, int]] = {
    unit: (measure, factor) for measure, units in TABLES["mixed units"].items() for unit, factor in units.items()
}
_PART = r"(\d+(?:\.\d+)?)\s*(?:\\text\s*\{\s*)?(\^\\circ|''|'|[a-zA-Z]+)\.?(?:\s*\})?"
_SEVERAL = re.compile(rf"{_PART}(?:\s*,?\s*(?:and\s+|\\text\s*\{{\s*and\s*\}}\s*)?{_PART}){{1,2}}")
_SIGNS = {"^\\circ": "degree", "'": "minute", "''": "second"}


@dataclass(frozen=True)
class MixedUnits(Kind):
    """An amount of one measure, whatever units it was written in."""

    measure: str
    amount: Fraction

    @classmethod
    def read(cls, text: str, part: Callable[[str], Answer]) -> Answer | None:
        """Return the amount, if the units belong to one measure and each is smaller than the one before."""
        if _SEVERAL.fullmatch(text.strip()) is None:
            return None
        amount, last, measures = Fraction(0), 0, set()
        for number, word in re.findall(_PART, text):
            unit = read_unit(word) if word not in _SIGNS else None
            measure, factor = _FACTORS.get(unit.name if unit else _SIGNS.get(word, ""), ("", 0))
            if word in _SIGNS or "\\circ" in text:
                measure, factor = "angle", {"degree": 3600, "minute": 60, "second": 1}.get(_SIGNS.get(word, measure), 0)
            if not factor or (last and factor >= last) or (last and Fraction(number) * factor >= last):
                return None
            amount, last = amount + Fraction(number) * factor, factor
            measures.add(measure)
        return cls(measures.pop(), amount) if len(measures) == 1 else None

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Callable[[Answer, Answer], bool], problem: Any) -> bool:
        """Return whether two amounts agree; one in a single unit is converted."""
        first, second = map(_amount, (p, g))
        return first is not None and first == second

    def parts(self) -> Sequence[Answer]:
        """Return nothing: a number of each unit leaves no work."""
        return []


def _amount(answer: Answer) -> tuple[str, Fraction] | None:
    if isinstance(answer, MixedUnits):
        return answer.measure, answer.amount
    if not isinstance(answer, Scalar) or answer.unit.name not in _FACTORS:
        return None
    measure, factor = _FACTORS[answer.unit.name]
    term: Term = answer.term
    return (measure, term[1] * factor) if term[0] == "num" else None
