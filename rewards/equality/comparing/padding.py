"""What computes nothing within an expression: `(x+1)^2 (\\sin^2 x + \\cos^2 x)`, `\\ln e^x`, `x + y - y`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import Budget, Term, evaluate, symbols
from gtpo.rewards.equality.arithmetic.values import NoValue, Value, add, divide, multiply, noise
from gtpo.rewards.equality.comparing.numeric import close
from gtpo.rewards.equality.comparing.work import addends, factors

Values = tuple[Value, ...]
"""Of one term, at each point."""


def is_padded(term: Term) -> bool:
    """Return whether something in an expression changes nothing.

    A part of it is constant, or equals a part of its own, or some terms of a sum add up to 0, or two factors multiply
    to a number.
    """
    names = sorted(symbols(term))
    if not names:
        return False
    Budget.refill()
    points = [{name: sign * noise("padded", name, sign) for name in names} for sign in (1, -1)]
    return _padding(term, points) is None


def same_values(a: Values, b: Values) -> bool:
    """Return whether values agree point by point."""
    return all(map(close, a, b))


def _padding(term: Term, points: Sequence[dict[str, Value]]) -> list[Values] | None:
    """Return the values of a term and of its parts with variables, its own first; None if some part is padding."""
    if term[0] in ("bind", "mat", "opaque") or not symbols(term):
        return []
    within: list[Values] = []
    for part in term[1:]:
        if isinstance(part, tuple):
            values = _padding(part, points)
            if values is None:
                return None
            within += values
    try:
        own: Values = tuple(evaluate(term, point) for point in points)
        if term[0] != "sym":
            if close(own[0], own[1]) or any(same_values(own, other) for other in within):
                return None
            if (term[0] == "add" and _cancel(list(addends(term)), points)) or (
                term[0] in ("mul", "div") and _divide_out(term, points)
            ):
                return None
    except NoValue:
        return within
    return [own, *within]


def _cancel(parts: list[Term], points: Sequence[dict[str, Value]]) -> bool:
    """Return whether some addends in a row add up to 0."""
    values = [tuple(evaluate(part, point) for point in points) for part in parts[:40]]
    for start in range(len(values)):
        total = values[start]
        for value in values[start + 1 :]:
            total = tuple(map(add, total, value))
            if same_values(total, (Fraction(0), Fraction(0))):
                return True
    return False


def _divide_out(term: Term, points: Sequence[dict[str, Value]]) -> bool:
    """Return whether two factors with variables multiply to a number."""
    above, below, *_ = factors(term)
    sides = [[tuple(evaluate(f, point) for point in points) for f in side if symbols(f)] for side in (above, below)]
    for number, first in enumerate(sides):
        for at, a in enumerate(first):
            for b in first[at + 1 :]:
                if close(*map(multiply, a, b)):
                    return True
            if number == 0 and any(close(*map(divide, a, b)) for b in sides[1]):
                return True
    return False
