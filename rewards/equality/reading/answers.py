"""What an answer is once it is read: a number, a list, an interval, a named value, words …"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gtpo.rewards.equality.arithmetic.terms import Term


class Unit(NamedTuple):
    """What follows a number: a measure of the tables, and words that count as a unit under a condition."""

    name: str = ""
    """`centimeter^2`, `mile/hour`; empty where no measure is named."""
    nouns: frozenset[str] = frozenset()
    """Words of no table, in the singular: units where the problem uses them."""
    amounts: frozenset[str] = frozenset()
    """Words that say an amount themselves (`pairs`, `more`), in the singular: units where the problem asks how many."""
    things: frozenset[str] = frozenset()
    """Nouns of the table that are counted (`apple`): no measures, but those of a problem may not be mixed up."""


NO_UNIT = Unit()


@dataclass(frozen=True)
class Scalar:
    """One expression, with what stood around it."""

    term: Term
    digits: int = 0
    """Significant digits if it is a decimal literal (`2.50` has 3), else 0."""
    places: int = 0
    """Digits after its point."""
    unit: Unit = NO_UNIT
    percent: bool = False
    unscaled: Term | None = None
    """The term without its words of scale: what it is where the problem asks how many `millions`."""
    scales: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """Several answers: `tuple` is ordered, `set` and `list` are not, `ratio` is ordered up to a factor."""

    kind: str
    items: tuple[Answer, ...]
    brackets: str = "()"
    joint: str = ""
    """`and` or `or` where a list was joined by one of the words alone."""


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
    relation: Relation | None = None
    """The same as an equation, where both sides are expressions."""
    variables: tuple[str, ...] = ()
    contradicted: bool = False
    """It closes a chain with another number in it: `x = 41 = 42`."""


@dataclass(frozen=True)
class Words:
    """An answer in words, or text that is not understood: compared as text."""

    text: str


@dataclass(frozen=True)
class Choice:
    """A letter of a multiple-choice question, with the answer beside it if there is one."""

    letter: str
    body: Answer | None
    marked: bool = False
    """Written with parentheses or a point, as choices are: then its case says nothing."""


@dataclass(frozen=True)
class Based:
    """A numeral with its base."""

    digits: str
    base: int


Answer = Scalar | Listing | Union | Relation | Named | Words | Choice | Based


def leaves(answer: Answer | None) -> Iterator[Scalar]:
    """Yield the expressions that an answer is made of, without names and units."""
    if isinstance(answer, Scalar):
        if answer.term[0] == "mat":
            yield from (Scalar(cell) for row in answer.term[1] for cell in row)
        else:
            yield answer
    elif isinstance(answer, Named):
        yield from leaves(answer.value)
    elif isinstance(answer, Relation):
        yield from map(Scalar, answer.terms)
    elif isinstance(answer, (Listing, Union)):
        for part in answer.items if isinstance(answer, Listing) else (part for _, part in answer.parts):
            yield from leaves(part)
