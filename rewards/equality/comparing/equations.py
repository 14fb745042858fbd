"""Equations and inequalities as they stand, solved for one letter, and as the chains that give a value."""

from __future__ import annotations

import math
from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import Term, evaluate, substitute, symbols
from gtpo.rewards.equality.comparing.numeric import equal_terms
from gtpo.rewards.equality.reading.answers import Named, Relation, Scalar
from gtpo.rewards.equality.reading.expressions import canonical
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
