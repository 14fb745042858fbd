"""What an answer is once it is read: a number, a list, an interval, a named value, words."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gtpo.rewards.equality.arithmetic import ONE, Term, symbols


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


class Kind(ABC):
    """A type of answer that is one file of `types`: how it is known, read and compared, and what work it leaves.

    The reader, the comparison and the count of work run over the table of types; none of them knows a type by name.
    """

    marks: re.Pattern[str]  # What each text of this type has somewhere

    @classmethod
    @abstractmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return what a cleaned text is, None if it is none of this type; `part` reads a text within it."""

    @classmethod
    @abstractmethod
    def same(cls, p: Answer, g: Answer, equal: Same, problem: Any) -> bool:
        """Return whether prediction `p` equals gold `g`, one of which is of this type; `equal` compares parts."""

    @abstractmethod
    def parts(self) -> Sequence[Answer]:
        """Return the answers within it, whose work is its work."""


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
    if len(first) != len(second):
        return False
    left = list(second)
    for item in first:
        match = next((i for i, other in enumerate(left) if same(item, other)), None)
        if match is None:
            return False
        del left[match]
    return True


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
