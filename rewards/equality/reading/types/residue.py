"""Residues: `x \\equiv 3 \\pmod 5`. The modulus is a part of the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gtpo.rewards.equality.answers import Answer, Kind, Listing, Named, Part, Same, Scalar
from gtpo.rewards.equality.arithmetic import Term, constant_value, integer
from gtpo.rewards.equality.reading.grammar import NotMathematics, parse

# What clean makes of every spelling of the modulus.
_MODULUS = re.compile(r"\s*\\text\s*\{ mod ([^{}]+)\}\s*$")


@dataclass(frozen=True)
class Residue(Kind):
    """A class of integers: `3 \\pmod 5` is `8 \\pmod 5`, and not 3."""

    marks = _MODULUS
    value: Scalar
    modulus: Term

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return the residue, or the several or the named ones (`x = 1, 3 \\pmod 5`), that a text ends in."""
        match = _MODULUS.search(text)
        if match is None or " mod " in text[: match.start()]:
            return None
        try:
            modulus = parse(match[1])
        except NotMathematics:
            return None
        return _within(part(text[: match.start()]), modulus)

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Same, problem: Any) -> bool:
        """Return whether two residues are one class, or a residue the number that the gold is."""
        if isinstance(p, Residue) and isinstance(g, Residue):
            return equal(Scalar(p.modulus), Scalar(g.modulus)) and (equal(p.value, g.value) or _congruent(p, g))
        moduli = problem.contract.moduli
        spoken = not moduli or str(_whole(p.modulus)) in moduli if isinstance(p, Residue) else False
        return isinstance(p, Residue) and spoken and equal(p.value, g)

    def parts(self) -> Sequence[Answer]:
        """Return its number, as a remainder to be taken if it is none yet."""
        value, modulus = _whole(self.value.term), _whole(self.modulus)
        if value is None or modulus is None or abs(value) < modulus:
            return [self.value]
        return [replace(self.value, term=("fn", "mod", self.value.term, self.modulus))]


def _within(answer: Answer, modulus: Term) -> Answer | None:
    if isinstance(answer, Named):
        value = _within(answer.value, modulus)
        return None if value is None else Named(answer.name, value, None, answer.variables, answer.contradicted)
    if isinstance(answer, Listing) and answer.kind in ("list", "set"):
        items = tuple(_within(item, modulus) for item in answer.items)
        return None if None in items else replace(answer, items=tuple(item for item in items if item is not None))
    return Residue(answer, modulus) if isinstance(answer, Scalar) else None


def _whole(term: Term) -> int | None:
    return integer(constant_value(term))


def _congruent(p: Residue, g: Residue) -> bool:
    ours, theirs, modulus = _whole(p.value.term), _whole(g.value.term), _whole(g.modulus)
    return ours is not None and theirs is not None and bool(modulus) and (ours - theirs) % (modulus or 1) == 0
