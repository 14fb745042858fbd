"""What a chain of equations says of the expression on its left: `m + n = 12 + 19 = 31`, `(x+1)^2 = x^2 + 2x + 1`."""

from __future__ import annotations

from gtpo.rewards.equality.arithmetic.terms import Term, symbols
from gtpo.rewards.equality.comparing.numeric import equal_terms
from gtpo.rewards.equality.reading.answers import Relation
from gtpo.rewards.equality.reading.expressions import canonical
from gtpo.rewards.equality.reading.problem import ProblemText


def value_of_chain(chain: Relation, problem: ProblemText | None) -> Term | None:
    """Return the last term of a chain that gives an expression its value; None where it is an equation.

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
