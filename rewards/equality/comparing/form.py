"""The form of an answer: what its problem asks for (factored, expanded, simplified, a decimal, one fraction), and parts
that compute nothing: `(x+1)^2 (\\sin^2 x + \\cos^2 x)`, `\\ln e^x`, `x + y - y`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import (
    ONE,
    Budget,
    Term,
    canonical,
    contains,
    evaluate,
    is_literal,
    parts,
    subterms,
    symbols,
)
from gtpo.rewards.equality.arithmetic.values import NoValue, Value, add, divide, multiply, negative, noise
from gtpo.rewards.equality.comparing.numeric import close, one_to_one
from gtpo.rewards.equality.comparing.work import addends, factors
from gtpo.rewards.equality.reading.answers import Scalar

Values = tuple[Value, ...]
"""Of one term, at each point."""


def in_form(written: Sequence[Scalar], wanted: Sequence[Scalar], forms: frozenset[str]) -> bool:
    """Return whether an answer has each of the forms that its problem asks for and its gold has (`Contract.forms`)."""
    if len(written) != 1 or len(wanted) != 1:
        return True
    p, g = written[0].term, wanted[0].term
    if "factored" in forms and not _is_factored_as(p, g):
        return False
    if "expanded" in forms and has_product_of_sums(p) and not has_product_of_sums(g):
        return False
    if "a decimal" in forms and wanted[0].digits and not (written[0].digits or is_literal(p)):
        return False
    if "one fraction" in forms and p[0] == "add" and g[0] != "add":
        return False
    if "as stated" in forms and not is_literal(g) and _outline(p) != _outline(g):
        return False
    if "simplest" in forms and symbols(g):
        return not (has_product_of_sums(p) or contains(p, "div")) or _sums(p) <= _sums(g)
    return True


def _outline(term: Term) -> str:
    """Return the form of an expression: its operations and letters, without numbers and signs, operands in order."""
    term = canonical(term)

    def outline(part: Term) -> str:
        if part[0] == "num":
            return "n"
        if part[0] in ("sym", "const"):
            return str(part[1])
        head = f"{part[0]} {part[1]}" if isinstance(part[1], str) else part[0]
        within = [outline(each) for each in parts(part)]
        if part[0] == "mul":
            within = [each for each in within if each != "n"]
            if len(within) < 2:
                return within[0] if within else "n"
        return f"{head}({', '.join(sorted(within))})"

    return outline(term) if term[0] != "mat" else ""


def _sums(term: Term) -> int:
    return sum(len(part) - 2 for part in subterms(term) if part[0] == "add")


def has_product_of_sums(term: Term) -> bool:
    """Return whether a product or power of a sum with variables could be expanded."""
    for part in subterms(term):
        if part[0] == "pow" and part[1][0] == "add" and symbols(part[1]) and part[2][0] == "num":
            return True
        if part[0] == "mul" and any(f[0] == "add" and symbols(f) for f in factors(part)[0]):
            return True
    return False


def _is_factored_as(p: Term, g: Term) -> bool:
    """Return whether a product has the factors of the gold, up to signs; a gold that is no product asks for none."""
    ours, theirs = _all_factors(p), _all_factors(g)
    if len(theirs) < 2:
        return True
    names = symbols(g)
    points = [{name: noise("factor", name, index) for name in names} for index in range(3)]
    try:
        wanted, written = ([tuple(evaluate(f, point) for point in points) for f in side] for side in (theirs, ours))
    except NoValue:
        return False
    return one_to_one(wanted, written, lambda a, b: same_values(a, b) or same_values(a, tuple(map(negative, b))))


def _all_factors(term: Term) -> list[Term]:
    """Return the factors of a product, powers written out, a rational number as one."""
    above, below, *_ = factors(term)
    found: list[Term] = []
    for factor in above + [("pow", f, ("neg", ONE)) for f in below]:
        small = factor[0] == "pow" and factor[2][0] == "num" and factor[2][1] in range(2, 13)
        found += [factor[1]] * int(factor[2][1]) if small else [factor]
    return found


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
    for part in parts(term):
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


def _cancel(added: list[Term], points: Sequence[dict[str, Value]]) -> bool:
    """Return whether some addends in a row add up to 0."""
    values = [tuple(evaluate(part, point) for point in points) for part in added[:40]]
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
