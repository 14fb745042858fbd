"""Equations and inequalities as they stand, and solved for one letter."""

from __future__ import annotations

import math
from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import Term, evaluate, substitute, symbols
from gtpo.rewards.equality.comparing.numeric import equal_terms
from gtpo.rewards.equality.reading.answers import Named, Relation, Scalar

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
        return substitute(left, name, term)

    zero: Term = ("num", Fraction(0))
    at_minus_one, at_zero, at_one, at_two = (at(("num", Fraction(n))) for n in (-1, 0, 1, 2))
    bends = [("add", a, ("mul", ("num", Fraction(-2)), b), c)
             for a, b, c in ((at_minus_one, at_zero, at_one), (at_zero, at_one, at_two))]  # fmt: skip
    linear = all(equal_terms(bend, zero) for bend in bends) and not equal_terms(at_one, at_zero)
    return linear and equal_terms(at(value), zero) and not _share_factor(("add", at_one, ("neg", at_zero)), at_zero)


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
