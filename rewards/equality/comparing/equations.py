"""Equations and inequalities as they stand, solved for one letter, as chains that give a value, and as names of values:
`x = 1, y = 2`, `(x, y) = (1, 2)`, `f(t) = t^2`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import ZERO, Term, canonical, evaluate, substitute, symbols
from gtpo.rewards.equality.comparing.numeric import equal_terms
from gtpo.rewards.equality.reading.answers import Answer, Listing, Named, Relation, Scalar
from gtpo.rewards.equality.reading.problem import ProblemText

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!=", "~": "~"}


def difference(relation: Relation) -> tuple[str, Term]:
    """Bring a relation to `term op 0` with op one of = != > >=."""
    op, (left, right) = relation.ops[0], relation.terms
    if op in ("<", "<="):
        return FLIPPED[op], ("add", right, ("neg", left))
    return op, ("add", left, ("neg", right))


def is_graph(named: Named, equation: Relation) -> bool:
    """Return whether an equation linear in y, such as x y = 1, has the solution y = 1/x."""
    if equation.ops != ("=",) or not isinstance(named.value, Scalar) or len(named.name) != 1:
        return False
    value, name = named.value.term, named.name
    _, left = difference(equation)
    if name in symbols(value) or name not in symbols(left):
        return False

    def at(term: Term) -> Term:
        return substitute(left, {name: term})

    at_minus_one, at_zero, at_one, at_two = (at(("num", Fraction(n))) for n in (-1, 0, 1, 2))
    bends = [("add", a, ("mul", ("num", Fraction(-2)), b), c)
             for a, b, c in ((at_minus_one, at_zero, at_one), (at_zero, at_one, at_two))]  # fmt: skip
    linear = all(equal_terms(bend, ZERO) for bend in bends) and not equal_terms(at_one, at_zero)
    return linear and equal_terms(at(value), ZERO) and not _share_factor(("add", at_one, ("neg", at_zero)), at_zero)


def _share_factor(first: Term, second: Term) -> bool:
    """Return whether two terms have a factor with variables in common: their values then do, at large integers."""
    names = sorted(symbols(first) | symbols(second))
    if not names or not symbols(first):
        return False
    common = []
    for start in (10**6 + 3, 10**7 + 19, 10**8 + 7):
        point = {name: Fraction(start + 1_009 * index) for index, name in enumerate(names)}
        values = [evaluate(term, point) for term in (first, second)]
        if not all(isinstance(value, Fraction) for value in values):
            return False
        common.append(math.gcd(*(value.numerator for value in values)))
    return min(common) > 10**5


def value_of_chain(chain: Relation, problem: ProblemText | None) -> Term | None:
    """Return the last term of a chain that gives an expression its value, as `m + n = 12 + 19 = 31` does, else None.

    It gives one if all its terms are equal, or if its first is a sum of names or what the problem asks for, and the
    others are one number.
    """
    first, *others = chain.terms
    last = others[-1]
    if set(chain.ops) != {"="} or not all(equal_terms(term, last) for term in others[:-1]):
        return None
    if not any(map(symbols, others)):
        names = first[0] == "add" and all(part[0] == "sym" for part in first[1:])
        asked = problem is not None and canonical(first) in problem.asked
        computed = not symbols(first) and equal_terms(first, last)
        return last if names or asked or computed else None
    return last if equal_terms(first, last) else None


def same_quantity(first: str, second: str) -> bool:
    r"""Return whether two names are of one quantity: `AB` and `|AB|`, `\angle A` and `m\angle A`; `x^2` is not `x`."""
    return _plain(first) == _plain(second)


def _plain(name: str) -> str:
    marked = re.fullmatch(r"\|(?P<a>[A-Z]{2})\||\\overline(?P<b>[A-Z]{2})|m(?P<c>\\angle[A-Z]{1,3})", name)
    return name if marked is None else next(part for part in marked.groups() if part)


def rename(p: Named, g: Named) -> Named:
    """Rename the argument of `f(t) = …` to the other's."""
    return Named(g.name, renamed(p.value, dict(zip(p.variables, g.variables, strict=True))), None, g.variables)


def renamed(answer: Answer, names: Mapping[str, str]) -> Answer:
    """Return an answer with other names of its letters, and without its equation."""
    if isinstance(answer, Scalar):
        return replace(answer, term=substitute(answer.term, {old: ("sym", new) for old, new in names.items()}))
    if isinstance(answer, Named):
        return replace(answer, value=renamed(answer.value, names), relation=None)
    if isinstance(answer, Listing):
        return replace(answer, items=tuple(renamed(item, names) for item in answer.items))
    return answer


def assigned(answer: Answer) -> dict[str, Answer] | None:
    """Return name -> value of `(x, y) = (1, 2)` and of `x = 1, y = 2`, where there are two names or more."""
    if isinstance(answer, Named) and answer.name.startswith("(") and isinstance(answer.value, Listing):
        names = [re.sub(r"\([a-z]$|\([a-z]\)$", "", name) for name in answer.name[1:-1].split(",")]
        same = len(names) == len(answer.value.items) == len(set(names))
        return dict(zip(names, answer.value.items, strict=True)) if same and answer.value.kind == "tuple" else None
    if not isinstance(answer, Listing) or answer.kind != "list" or answer.joint == "or":
        return None
    if distinct_names(answer.items) is not None:
        named = {item.name: item.value for item in answer.items if isinstance(item, Named)}
        return None if indexed(list(named)) else named
    return None


def distinct_names(items: Sequence[Answer]) -> list[str] | None:
    """Return the names of a list in which every item has one of its own, else None."""
    names = [item.name for item in items if isinstance(item, Named)]
    return names if len(names) == len(items) and len(set(names)) == len(names) else None


def indexed(names: Sequence[str]) -> bool:
    """Return whether names are one letter with different indices: `x_1, x_2`, whose order says nothing."""
    return len({re.sub(r"_.*|\d+$", "", name) for name in names}) == 1
