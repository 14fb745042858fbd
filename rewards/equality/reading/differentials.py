"""Differentials as they are written: the `d` of a derivative's fraction and the `dx` that closes an integrand."""

from __future__ import annotations

from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import Term
from gtpo.rewards.equality.reading.tokens import NotMathematics


def is_differential(term: Term) -> bool:
    """Return whether a side of a fraction is `d`, `dx`, `d^2 y` or the like with a curly d."""
    while term[0] in ("mul", "pow"):
        term = term[1]
    return term in (("sym", "d"), ("sym", "partial"))


def without_differential(body: Term) -> tuple[Term, str]:
    """Take the trailing `d x` off an integrand."""
    factors: list[Term] = []

    def flatten(term: Term) -> None:
        if term[0] == "mul":
            for part in term[1:]:
                flatten(part)
        else:
            factors.append(term)

    flatten(body)
    if len(factors) < 2 or factors[-2] != ("sym", "d") or factors[-1][0] != "sym":
        raise NotMathematics("an integral without its differential")
    rest = factors[:-2] or [("num", Fraction(1))]
    return (("mul", *rest) if len(rest) > 1 else rest[0]), factors[-1][1]
