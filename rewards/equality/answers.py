"""What an answer is once it is read: a number, a list, an interval, a named value, words, made of terms.

Nothing is computed here; `arithmetic` gives terms their values. A term is a tuple: `("num", Fraction)`,
`("const", name)`, `("sym", name)`, `("add", a, b, …)`, `("mul", a, b, …)`, `("div", a, b)`, `("pow", a, b)`,
`("neg", a)`, `("fn", name, a, …)`, `("pm", sign, a)`, `("mat", rows)`, `("bind", head, variable, body, low, high)` and
`("opaque", head, a, …)`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

# -- terms ------------------------------------------------------------------------------------------------------------
Term = tuple[Any, ...]
ZERO: Term = ("num", Fraction(0))
ONE: Term = ("num", Fraction(1))
MINUS_ONE: Term = ("num", Fraction(-1))
# What `\log x` is divided by: 10 or e, by the author's habit.
NO_BASE: Term = ("opaque", "the base of log")


def symbols(term: Term) -> set[str]:
    """Return the free variables of a term."""
    if term[0] == "sym":
        return {term[1]}
    if term[0] == "bind":
        _, _, variable, body, low, high = term
        ends = set().union(*(symbols(end) for end in (low, high) if end is not None))
        return (symbols(body) - {variable}) | ends
    return set().union(*map(symbols, parts(term)))


def parts(term: Term) -> Iterator[Term]:
    """Yield the operands of a term, the cells of a matrix."""
    return (part for part in (chain(*term[1]) if term[0] == "mat" else term[1:]) if isinstance(part, tuple))


def subterms(term: Term) -> Iterator[Term]:
    """Yield a term and every term within it."""
    yield term
    for part in parts(term):
        yield from subterms(part)


def contains(term: Term, *marks: Any) -> bool:
    """Return whether some part of a term is tagged or named so: `contains(t, "pm")`, `contains(t, "const", "i")`."""
    return any(part[: len(marks)] == marks for part in subterms(term))


def substitute(term: Any, table: Mapping[str, Term]) -> Any:
    """Return a term with the terms of the table in place of the variables that it names."""
    if isinstance(term, tuple):
        if len(term) == 2 and term[0] == "sym":
            return table.get(term[1], term)
        return tuple(substitute(part, table) for part in term)
    return term


def is_literal(term: Term) -> bool:
    """Return whether a term is one number or name, with or without its sign: nothing in it can be computed."""
    if term[0] == "neg" or (term[0] == "mul" and len(term) == 3 and term[1] == MINUS_ONE):
        return is_literal(term[-1])
    return term[0] in ("num", "sym", "const")


def canonical(term: Term) -> Term:
    """Return a term with signs, quotients and roots as factors and powers, operands in order, 0 and 1 left out."""
    kind = term[0]
    if kind in ("num", "sym", "const"):
        return term
    if kind == "neg":
        return _product([MINUS_ONE, canonical(term[1])])
    if kind == "add":
        parts = [part for each in term[1:] for part in _operands(canonical(each), "add")]
        # Any order does that is the same for both sides.
        parts = sorted((part for part in parts if part != ZERO), key=repr)
        return ("add", *parts) if len(parts) > 1 else parts[0] if parts else ZERO
    if kind == "mul":
        return _product([canonical(part) for part in term[1:]])
    if kind == "div":
        return _product([canonical(term[1]), _power(canonical(term[2]), MINUS_ONE)])
    if kind == "pow":
        return _power(canonical(term[1]), canonical(term[2]))
    if term[:2] == ("fn", "sqrt"):
        return _power(canonical(term[2]), ("num", Fraction(1, 2)))
    if kind == "mat":
        return ("mat", tuple(tuple(canonical(cell) for cell in row) for row in term[1]))
    return tuple(canonical(part) if isinstance(part, tuple) else part for part in term)


def _operands(term: Term, kind: str) -> tuple[Term, ...]:
    return term[1:] if term[0] == kind else (term,)


def _power(base: Term, exponent: Term) -> Term:
    if exponent == ONE:
        return base
    if base[0] == "pow" and exponent == MINUS_ONE:
        return ("pow", base[1], _product([MINUS_ONE, base[2]]))
    return ONE if base == ONE else ("pow", base, exponent)


def _product(factors: list[Term]) -> Term:
    parts: list[Term] = []
    sign = 1
    for factor in factors:
        for part in _operands(factor, "mul"):
            if part[0] == "num" and part[1] < 0:
                sign, part = -sign, ("num", -part[1])
            if part != ONE:
                parts.append(part)
    merged: list[Term] = []
    for part, count in Counter(parts).items():
        if part[0] == "num":
            # Numbers stay side by side: `5 * 5` of a problem is not the `5^2` of an answer.
            merged += [part] * count
        else:
            merged.append(_power(part, ("num", Fraction(count))))
    merged.sort(key=repr)
    if sign < 0:
        if len(merged) < 2 and (not merged or merged[0][0] == "num"):
            return ("num", -(merged[0][1] if merged else 1))
        merged.insert(0, MINUS_ONE)
    return ("mul", *merged) if len(merged) > 1 else merged[0] if merged else ONE


# -- answers ----------------------------------------------------------------------------------------------------------
class Unit(NamedTuple):
    """What follows a number: a measure of the tables, and words that count as a unit under a condition."""

    name: str = ""  # `centimeter^2`, `mile/hour`; empty if no measure is named
    nouns: frozenset[str] = frozenset()  # Words of no table, in the singular: units if the problem uses them
    # Words that say an amount themselves (`pairs`, `more`), in the singular: units if the problem asks how many.
    amounts: frozenset[str] = frozenset()
    # Nouns of the table that are counted (`apple`): no measures, but those of a problem may not be mixed up.
    things: frozenset[str] = frozenset()


NO_UNIT = Unit()


@dataclass(frozen=True)
class Scalar:
    """One expression, with what stood around it."""

    term: Term
    digits: int = 0  # Significant digits if it is a decimal literal (`2.50` has 3), else 0
    places: int = 0  # Digits after its point
    unit: Unit = NO_UNIT
    percent: bool = False
    # The term without its words of scale: what it is if the problem asks how many `millions`.
    unscaled: Term | None = None
    scales: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """Several answers: `tuple` is ordered, `set` and `list` are not, `ratio` is ordered up to a factor."""

    kind: str
    items: tuple[Answer, ...]
    brackets: str = "()"
    joint: str = ""  # `and` or `or` if a list was joined by only one of the words


@dataclass(frozen=True)
class Union:
    r"""A set of reals put together by `\cup`, `\cap` or `\setminus`: (operation, part), the first with `\cup`."""

    parts: tuple[tuple[str, Answer], ...]


@dataclass(frozen=True)
class Relation:
    """A chain `terms[0] ops[0] terms[1] …` of = < > <= >= !=."""

    ops: tuple[str, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Named:
    """`x = 5`, `f(x) = 2x`, `(p, q) = (3, 2)`, `x \\in S`: a value with the name it is given to."""

    name: str
    value: Answer
    relation: Relation | None = None  # The same as an equation, if both sides are expressions
    variables: tuple[str, ...] = ()
    contradicted: bool = False  # It closes a chain with another number in it: `x = 41 = 42`


@dataclass(frozen=True)
class Words:
    """An answer in words, or text that is not understood: compared as text."""

    text: str


@dataclass(frozen=True)
class Based:
    """A numeral with its base."""

    digits: str
    base: int


class Kind:
    """A type of answer that is one file of `types`: how it is known, read and compared, and what work it leaves.

    The reader, the comparison and the count of work run over the table of types; none of them knows a type by name.
    """

    marks: re.Pattern[str]  # What each text of this type has somewhere

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return what a cleaned text is, None if it is none of this type; `part` reads a text within it."""
        raise NotImplementedError

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Same, problem: Any) -> bool:
        """Return whether prediction `p` equals gold `g`, one of which is of this type; `equal` compares parts."""
        return p == g

    def parts(self) -> Sequence[Answer]:
        """Return the answers within it, whose work is its work."""
        return ()


Answer = Scalar | Listing | Union | Relation | Named | Words | Based | Kind
Part = Callable[[str], Answer]
Same = Callable[[Answer, Answer], bool]


def parts_of(answer: Answer | None) -> Sequence[Answer]:
    """Return the answers directly within an answer."""
    if isinstance(answer, Named):
        return [answer.value]
    if isinstance(answer, Listing):
        return answer.items
    if isinstance(answer, Union):
        return [part for _, part in answer.parts]
    return answer.parts() if isinstance(answer, Kind) else []


def one_to_one(first: Sequence[Any], second: Sequence[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Return whether each item has a partner of its own among the others, and none is left over."""
    left = list(second)
    for item in first:
        match = next((i for i, other in enumerate(left) if same(item, other)), None)
        if match is None:
            return False
        del left[match]
    return not left


def leaves(answer: Answer | None, divided: bool = False) -> Iterator[Scalar]:
    """Yield the expressions that an answer is made of, without names and units; `divided`: a ratio is a division."""
    if isinstance(answer, Scalar):
        # A matrix is looked at entry by entry, as a list is.
        if answer.term[0] == "mat":
            yield from (Scalar(cell) for row in answer.term[1] for cell in row)
        else:
            yield answer
    elif isinstance(answer, Relation):
        yield from map(Scalar, answer.terms)
    elif divided and (quotient := quotient_of(answer)) is not None:
        yield quotient
    else:
        for part in parts_of(answer):
            yield from leaves(part, divided)


def ratios(answer: Answer) -> Iterator[Listing]:
    """Yield the ratios in an answer."""
    if isinstance(answer, Listing) and answer.kind == "ratio":
        yield answer
    else:
        for part in parts_of(answer):
            yield from ratios(part)


def quotient_of(answer: Answer | None) -> Scalar | None:
    """Return the division that a ratio of two is, its first number if the second is 1; None for anything else."""
    if not isinstance(answer, Listing) or answer.kind != "ratio" or len(answer.items) != 2:
        return None
    first, second = answer.items
    if not (isinstance(first, Scalar) and isinstance(second, Scalar)):
        return None
    return first if second.term == ONE else Scalar(("div", first.term, second.term))


def symbols_of(answer: Answer) -> set[str]:
    """Return the variables of an answer's expressions."""
    return set().union(*(symbols(leaf.term) for leaf in leaves(answer)))
