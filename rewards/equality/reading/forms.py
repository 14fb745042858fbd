"""How a number is written: as a number, or as an expression that is still to be computed.

A number is an integer, decimal, fraction, mixed number, power, surd, or a multiple of those with pi, e or i: at most
one rational coefficient (over one denominator) and one root above and below. Scientific notation is a number too. Sums,
products of numbers, quotients of quotients, functions and bound forms (sums, integrals, limits) are operations.
"""

from __future__ import annotations

import enum
import math
from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import Term, contains, symbols


class Form(enum.Flag):
    """Marks of a written number. None of them: an integer, decimal, reduced fraction, power, irrational root."""

    NUMBER = 0
    OPERATION = enum.auto()
    """An operation between numbers is still to be carried out."""
    REDUCIBLE = enum.auto()
    """A fraction of integers not in lowest terms, or the root of a perfect power: `84/2`, `\\sqrt{144}`."""
    ROOT = enum.auto()
    """A root that could be written with a smaller radicand or an integer denominator: `\\sqrt{8}`, `1/\\sqrt{2}`."""
    SYMBOLIC = enum.auto()
    """It has variables: what is still to be done says nothing here."""


def written_form(term: Term) -> Form:
    """Return the marks of an expression as it is written."""
    if symbols(term) or contains(term, "opaque"):
        return Form.SYMBOLIC
    if term[0] == "mat":
        form = Form.NUMBER
        for row in term[1]:
            for cell in row:
                form |= written_form(cell)
        return form
    if term[0] == "neg":
        return Form.OPERATION if term[1][0] == "neg" else written_form(term[1])
    above: list[Term] = []
    below: list[Term] = []
    if not _factors(term, above, below) or not all(_is_factor(factor) for factor in above + below):
        return Form.OPERATION
    tens = [f for f in above if _is_power_of_ten(f)]
    if len(tens) == 1 and len(above) > 1 and not below:  # scientific notation
        above.remove(tens[0])
    numerators, denominators = ([f for f in side if _is_rational(f)] for side in (above, below))
    roots = [[f for f in side if _is_root(f)] for side in (above, below)]
    if max(len(numerators), len(denominators), *map(len, roots)) > 1:
        return Form.OPERATION
    form = Form.NUMBER
    if denominators:
        top = numerators[0] if numerators else ("num", Fraction(1))
        if not (_is_integer(top) and _is_integer(denominators[0])):
            powers = "pow" in (top[0], denominators[0][0]) and "fn" not in (top[0], denominators[0][0])
            return Form.NUMBER if powers else Form.OPERATION  # 3/2^5; but 0.5/2
        if math.gcd(int(top[1]), int(denominators[0][1])) != 1:
            form |= Form.REDUCIBLE
    for root in (*roots[0], *roots[1]):
        form |= _root_form(root)
    return form | Form.ROOT if roots[1] else form


def _factors(term: Term, above: list[Term], below: list[Term]) -> bool:
    """Collect the factors of a product or quotient; False for a quotient within the denominator."""
    if term[0] == "mul":
        return all(_factors(part, above, below) for part in term[1:])
    if term[0] == "div":
        return _factors(term[1], above, below) and _factors(term[2], below, [])
    if term[0] == "neg":
        return _factors(term[1], above, below)
    above.append(term)
    return True


def _is_integer(term: Term) -> bool:
    return bool(term[0] == "num" and term[1].denominator == 1)


def _is_fraction(term: Term) -> bool:
    if term[0] == "neg":
        return _is_fraction(term[1])
    return term[0] == "num" or (term[0] == "div" and term[1][0] == "num" and term[2][0] == "num")


def _is_root(term: Term) -> bool:
    if term[0] == "fn":
        return term[1] in ("sqrt", "root")
    return bool(term[0] == "pow" and _is_fraction(term[1]) and not _is_integer(_positive(term[2])))


def _positive(term: Term) -> Term:
    return term[1] if term[0] == "neg" else term


def _is_rational(term: Term) -> bool:
    if term[0] == "pow":
        return not _is_root(term) and term[1][0] != "const"
    return term[0] == "num" or term[:2] == ("fn", "mixed")


def _is_power_of_ten(term: Term) -> bool:
    return term[0] == "pow" and term[1] == ("num", Fraction(10)) and _is_integer(_positive(term[2]))


def _is_factor(term: Term) -> bool:
    if term[0] in ("num", "const"):
        return True
    if term[0] == "pow":
        if term[2][0] == "num" and term[2][1] in (0, 1) and not _is_power_of_ten(term):
            return False  # 2^1 is only copied, from the first term of a sum
        base = _positive(term[1])
        return (base[0] == "const" or _is_fraction(base) or _is_root(base)) and _is_fraction(term[2])
    if term[0] == "fn" and term[1] == "mixed":
        return True
    if term[0] == "fn" and term[1] == "exp":
        return _is_fraction(term[2])
    return term[0] == "fn" and term[1] in ("sqrt", "root") and all(_is_fraction(part) for part in term[2:])


def _root_form(root: Term) -> Form:
    """Say whether a root is rational, or has a factor that could stand before it."""
    degree = root[3] if root[:2] == ("fn", "root") else ("num", Fraction(2))
    radicand = root[2] if root[0] == "fn" else root[1]
    if not _is_integer(degree) or not _is_integer(_positive(radicand)):
        return Form.ROOT
    index, number = int(degree[1]), abs(int(_positive(radicand)[1]))
    if not 2 <= index <= 64 or number > 10**12:
        return Form.NUMBER
    base = round(number ** (1 / index))
    if any(n >= 0 and n**index == number for n in (base - 1, base, base + 1)):
        return Form.REDUCIBLE
    return Form.ROOT if any(number % n**index == 0 for n in range(2, min(base + 2, 1000))) else Form.NUMBER
