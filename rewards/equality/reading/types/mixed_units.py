r"""Quantities in several units of one measure: `2 hours 30 minutes`, `35^\circ 20'`, `5 feet 11 inches`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gtpo.rewards.equality.answers import Answer, Kind, Part, Same, Scalar
from gtpo.rewards.equality.reading import TABLES
from gtpo.rewards.equality.reading.units import read_unit

_PART = r"(\d+(?:\.\d+)?)\s*(?:\\text\s*\{\s*)?(\^\\circ|''|'|[a-zA-Z]+)\.?(?:\s*\})?"
_SIGNS = {"^\\circ": "degree", "'": "minute", "''": "second"}


@dataclass(frozen=True)
class MixedUnits(Kind):
    """An amount, whatever units it was written in: of each measure that has these units, in its smallest one."""

    marks = re.compile(rf"^{_PART}(?:\s*,?\s*(?:and\s+|\\text\s*\{{\s*and\s*\}}\s*)?{_PART}){{1,2}}$")
    amounts: frozenset[tuple[str, Fraction]]

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return the amount, if the units belong to one measure and each number is less than one of the unit before."""
        numbers, spoken = zip(*re.findall(_PART, text), strict=True)
        units = [_SIGNS.get(word) or (unit.name if (unit := read_unit(word)) else "") for word in spoken]
        if not {"hour", "second"}.isdisjoint(units):  # `1h 30m`
            units = ["minute" if word == "m" else unit for word, unit in zip(spoken, units, strict=True)]
        amounts = _amounts(list(map(Fraction, numbers)), units)
        return cls(amounts) if amounts else None

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Same, problem: Any) -> bool:
        """Return whether two amounts agree; one in a single unit is converted."""
        amounts = [each.amounts for each in (p, g) if isinstance(each, MixedUnits)]
        single = [each for each in (p, g) if isinstance(each, Scalar) and each.term[0] == "num"]
        amounts += [_amounts([each.term[1]], [each.unit.name]) for each in single]
        return len(amounts) == 2 and not amounts[0].isdisjoint(amounts[1])

    def parts(self) -> Sequence[Answer]:
        """Return nothing: a number of each unit leaves no work."""
        return ()


def _amounts(numbers: Sequence[Fraction], units: Sequence[str]) -> frozenset[tuple[str, Fraction]]:
    found = set()
    for measure, table in TABLES["mixed units"].items():
        parts = [number * table.get(unit, 0) for number, unit in zip(numbers, units, strict=True)]
        factors = [table.get(unit, 0) for unit in units]
        if all(factors) and all(part < before for part, before in zip(parts[1:], factors, strict=False)):
            found.add((measure, sum(parts, Fraction(0))))
    return frozenset(found)
