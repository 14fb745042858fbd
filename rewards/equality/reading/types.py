"""Types of answer beside expressions, lists and words, one class each: how it is read, compared, what work it leaves.

A new type is a subclass of `Kind` and its name in `TYPES`, in which the first that reads a text has it: no other line
of code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from itertools import pairwise
from typing import Any

from gtpo.rewards.equality.answers import Answer, Kind, Listing, Named, Part, Same, Scalar, Union, Words, one_to_one
from gtpo.rewards.equality.arithmetic import ONE, Term, addends, constant_value, integer
from gtpo.rewards.equality.reading import SAYS, TABLES
from gtpo.rewards.equality.reading.grammar import NotMathematics, parse, split_top
from gtpo.rewards.equality.reading.units import mixed, read_unit

# -- dates ------------------------------------------------------------------------------------------------------------
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)(?![a-z])\.?"
)
_DAY, _YEAR = r"(?:the\s+)?(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?:\s*,?\s*(?P<year>\d{4}))?"
_WEEKDAY = r"^(?:on\s+)?(?:(?P<weekday>(?:mon|tues|wednes|thurs|fri|satur|sun)day),?\s+)?"
_FORMS = [
    re.compile(rf"{_WEEKDAY}{_MONTH}\s+{_DAY}{_YEAR}$", re.IGNORECASE),
    re.compile(rf"{_WEEKDAY}{_DAY}\s+(?:of\s+)?{_MONTH}{_YEAR}$", re.IGNORECASE),
    re.compile(r"^(?P<weekday>)(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)$"),
]


@dataclass(frozen=True)
class Date(Kind):
    """A day of the calendar, without a year of any: `Monday, 2 May 1966`, `the 2nd of May, 1966`, `1966-05-02`."""

    marks = re.compile(rf"(?i)(?<![a-z]){_MONTH}|\d{{4}}-\d\d-\d\d")
    day: int
    month: int
    year: str
    weekday: str

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return the date that a text is."""
        plain = SAYS.text.sub(r"\1", text).strip(" .")
        match = next(filter(None, (form.match(plain) for form in _FORMS)), None)
        if match is None:
            return None
        word = match["month"].lower()
        month = int(word) if word.isdigit() else _MONTHS.index(word[:3]) + 1
        with suppress(ValueError):  # February 30; the 29th is in some years
            day = date(int(match["year"] or 2000), month, int(match["day"]))
            return cls(day.day, month, match["year"] or "", (match["weekday"] or "").lower())
        return None

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Same, problem: Any) -> bool:
        """Return whether two dates are one day; only what the problem says of the gold's may be left out."""
        if not (isinstance(p, Date) and isinstance(g, Date)) or (p.day, p.month) != (g.day, g.month):
            return False
        known = {"", *problem.tokens, *problem.vocabulary}
        parts = ((p.year, g.year), (p.weekday, g.weekday))
        return all(wanted in ("", ours) or (not ours and wanted in known) for ours, wanted in parts)

    def parts(self) -> Sequence[Answer]:
        """Return nothing: a date leaves no work."""
        return ()


# -- quantities in several units of one measure -----------------------------------------------------------------------
_PART = r"(\d+(?:\.\d+)?)\s*(?:\\text\s*\{\s*)?(\^\\circ|''|'|[a-zA-Z]+)\.?(?:\s*\})?"
_SIGNS = {"^\\circ": "degree", "'": "minute", "''": "second"}


@dataclass(frozen=True)
class MixedUnits(Kind):
    """`2 hours 30 minutes`, `35^\\circ 20'`: the amount in each measure that has these units, in its smallest one."""

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
        first, second = (
            each.amounts
            if isinstance(each, MixedUnits)
            else _amounts([each.term[1]], [each.unit.name])
            if isinstance(each, Scalar) and each.term[0] == "num"
            else frozenset()
            for each in (p, g)
        )
        return not first.isdisjoint(second)

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


# -- answers to the parts of a problem ---------------------------------------------------------------------------------
_LABEL = re.compile(r"(?:^|(?<=[\s,;.]))(?:\\text\s*\{\s*)?(?:Part\s+)?\(?([a-f]|i{1,3}v?|[1-6])\)[:.]?(?:\s*\})?\s*")


@dataclass(frozen=True)
class NamedParts(Kind):
    """The answer to each part, in their order: `(a) 5, (b) x + 1`. Each is compared with its own."""

    marks = re.compile(r"^(?:\\text\s*\{\s*)?(?:Part\s+)?\(?(?:[a-f]|i{1,3}v?|[1-6])\)")
    answers: tuple[Answer, ...]

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return the parts of a text that begins with a label and has each of the first ones, joined by no `or`."""
        labels = list(_LABEL.finditer(text))
        ends = [*(after.start() for _, after in pairwise(labels)), len(text)]
        texts = {m[1]: text[m.end() : end].strip(" ,;.") for m, end in zip(labels, ends, strict=False)}
        orders = (list("abcdef"), list("123456"), ["i", "ii", "iii", "iv"])
        order = next((known[: len(labels)] for known in orders if known[: len(labels)] == sorted(texts)), [])
        if len(order) < 2 or labels[0].start() or any(re.search(r"\bor\s*\}?$", each) for each in texts.values()):
            return None
        return cls(tuple(part(re.sub(r"[\s,;]*(?:\\text\s*\{\s*)?and\s*\}?$", "", texts[name])) for name in order))

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Same, problem: Any) -> bool:
        """Return whether each part equals the gold's; a list in the same order has its parts without labels."""
        first, second = (
            each.answers if isinstance(each, NamedParts) else each.items
            if isinstance(each, Listing) and each.kind == "list" and each.joint != "or" else ()
            for each in (p, g)
        )  # fmt: skip
        return len(first) == len(second) > 1 and all(map(equal, first, second))

    def parts(self) -> Sequence[Answer]:
        """Return the answers."""
        return self.answers


# -- piecewise definitions ---------------------------------------------------------------------------------------------
_IF = "\\text{ if }"
_TYPED = re.compile(r"[,\s]*(?:\\text\s*\{\s*)?(?<![a-zA-Z])(?:if|for|when|otherwise|else)(?![a-zA-Z])(?:\s*\})?\s*")


@dataclass(frozen=True)
class Piecewise(Kind):
    """Values, each with its condition, as clean writes an environment of cases: `… if …`; their order says nothing."""

    marks = re.compile(rf"{re.escape(_IF)}|(?:{_TYPED.pattern}.*){{2}}")
    pieces: tuple[tuple[Answer, Answer], ...]

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return the pieces of a text, without the name of the function."""

        def condition(text: str) -> Answer:
            answer = part(text)  # of `x = 3` the equation, for the letter counts too
            return (answer.relation or answer) if isinstance(answer, Named) else answer

        text = re.sub(r"^[a-zA-Z]\s*(?:\([a-z]\))?\s*=\s*", "", _TYPED.sub(lambda _: _IF, text))
        pieces = [piece.split(_IF) for _, piece in split_top(text, re.compile(rf"[;,]|and(?=[^;,]*{re.escape(_IF)})"))]
        if len(pieces) < 2 or not all(len(piece) == 2 for piece in pieces):
            return None
        found = [(part(value), condition(case)) for value, case in pieces if re.search(r"\w", case)]
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


# -- residues: what clean makes of every spelling of the modulus -------------------------------------------------------
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
        if not isinstance(p, Residue):
            return False
        if isinstance(g, Residue):
            return equal(Scalar(p.modulus), Scalar(g.modulus)) and (equal(p.value, g.value) or _congruent(p, g))
        moduli = problem.contract.moduli
        return (not moduli or str(_whole(p.modulus)) in moduli) and equal(p.value, g)

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


# -- sums of vectors ---------------------------------------------------------------------------------------------------
_APART, _ENDS = r"(?<![a-zA-Z\\{_^])", r"(?![a-zA-Z}(])"
_LETTERS = re.compile(f"{_APART}i{_ENDS}.*{_APART}j{_ENDS}")
_SUM = re.compile(r"\\unitvector|[)}]\s*[-+]|[-+][^()]*\(.*,|[-+].*\\begin")


class Vector(Kind):
    r"""A sum of multiples of unit vectors, tuples, columns: `5i - 9j`, `4\mathbf{i} + \mathbf{j}`, `(3, 6) + t(6, 2)`.

    Its normal form is a tuple, which others compare.
    """

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
        sizes = set(map(len, vectors))
        size = max(sizes)
        # Of unit vectors one will do, and not each names the last of them.
        if size < 2 or 0 in sizes or ("unitvector" not in text and (len(vectors) < 2 or len(sizes) > 1)):
            return None
        items = []
        for at in range(size):
            terms = [vector[at] for vector in vectors if at < len(vector) and vector[at] != _NOTHING]
            items.append(Scalar(("add", *terms) if len(terms) > 1 else terms[0] if terms else _NOTHING))
        return Listing("tuple", tuple(items), "()")


_NOTHING: Term = ("num", 0)


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


TYPES: tuple[type[Kind], ...] = (Date, MixedUnits, NamedParts, Piecewise, Residue, Vector)
