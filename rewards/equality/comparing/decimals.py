"""Decimals, which may be rounded: when one stands for a number with more digits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from mpmath import mp

from gtpo.rewards.equality.arithmetic.terms import evaluate
from gtpo.rewards.equality.arithmetic.values import Matrix, number_of
from gtpo.rewards.equality.comparing.numeric import is_real_value, terminates
from gtpo.rewards.equality.reading.answers import Scalar
from gtpo.rewards.equality.reading.contract import Contract


def hundredth(answer: Scalar) -> Scalar:
    """Return the value of a percentage."""
    term = ("div", answer.term, ("num", Fraction(100)))
    return replace(answer, term=term, places=answer.places and answer.places + 2, percent=False)


def agree_as_decimals(p: Scalar, g: Scalar, contract: Contract | None) -> bool:
    """Apply the policy on decimals: the fewer digits are written, the more exactly they must be meant.

    `contract` is that of a known problem: one that speaks of no rounding has an exact answer.
    """
    x, y = evaluate(p.term, {}), evaluate(g.term, {})
    if isinstance(x, Matrix) or isinstance(y, Matrix) or not (is_real_value(x) and is_real_value(y)):
        return False
    gap = abs(number_of(x) - number_of(y))
    if g.digits:
        half = mp.mpf(5) * mp.mpf(10) ** (-g.places - 1)
        if p.digits:  # both decimals: the prediction only says more digits of the gold
            return (
                (contract is None or contract.rounded) and g.digits >= 4 and p.places > g.places and bool(gap <= half)
            )
        return g.digits >= 3 and not terminates(x) and bool(gap <= half)
    # An exact gold: a decimal with 5 digits, 4 of them after the point, may stand for a fraction without an end.
    if contract is not None and contract.rounded and contract.places is not None and p.places == contract.places:
        return bool(gap <= mp.mpf(5) * mp.mpf(10) ** (-p.places - 1))
    endless = isinstance(y, Fraction) and not terminates(y)
    return endless and p.digits >= 5 and p.places >= 4 and bool(gap < mp.mpf(10) ** -p.places)
