"""Equality of terms: the same values at points drawn for their variables, wherever both are real.

Exact where all is rational, else to 40 of 60 digits, relative to the larger value: no absolute tolerance makes two
small numbers equal. Equal terms never disagree; for unequal ones to agree, random numbers would have to coincide.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
from mpmath import mp

from rewards.equality.arithmetic.terms import Term, contains, evaluate, symbols
from rewards.equality.arithmetic.values import Matrix, NoValue, Value, noise

POINTS_NEEDED, POINTS_TRIED = 4, 24
_TOLERANCE = mp.mpf(10) ** -40
_DEEP = 250


def number_of(value: Value) -> Any:
    """Return a value as an mpmath number."""
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def close(a: Value, b: Value) -> bool:
    """Compare two values: exactly if both are rational, else to 40 digits, relative to the larger."""
    if isinstance(a, Matrix) or isinstance(b, Matrix):
        if not (isinstance(a, Matrix) and isinstance(b, Matrix)) or [len(r) for r in a] != [len(r) for r in b]:
            return False
        return all(close(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    x, y = number_of(a), number_of(b)
    if not (mpmath.isfinite(x) and mpmath.isfinite(y)):
        return bool(x == y)
    return bool(abs(x - y) <= _TOLERANCE * max(abs(x), abs(y)))


def _tiny(value: Value) -> bool:
    if isinstance(value, Matrix):
        return any(_tiny(cell) for row in value for cell in row)
    return not isinstance(value, Fraction) and bool(abs(value) < _TOLERANCE)


def is_real_value(value: Value) -> bool:
    """Say whether a value, or each entry of a matrix, is real to 40 digits."""
    if isinstance(value, Matrix):
        return all(is_real_value(cell) for row in value for cell in row)
    return not isinstance(value, mpmath.mpc) or bool(abs(value.imag) <= _TOLERANCE * (1 + abs(value.real)))


def point_for(names: set[str], index: int) -> dict[str, Value]:
    """Return the index-th point: positive first, then of mixed signs, then smaller and larger numbers."""
    scale = [Fraction(1), Fraction(1), Fraction(1, 4), Fraction(9)][index // 2 % 4]
    signs = [1 if index % 2 == 0 else (-1 if noise("sign", name, index) > Fraction(8, 5) else 1) for name in names]
    return {name: sign * scale * noise("point", name, index) for name, sign in zip(names, signs, strict=True)}


def equal_terms(a: Term, b: Term, sign: int = 1) -> bool:
    """Say whether two terms have the same values wherever both are real. Raises TooBig."""
    if a == b:
        return True
    names = symbols(a) | symbols(b)
    complex_meant = contains(a, "const", "i") or contains(b, "const", "i")
    agreed = undecided = 0
    # A term may hold unknowns that are no symbols (calls of unknown functions): those need one point only.
    tried = POINTS_TRIED if names else 1
    for index in range(tried):
        point = point_for(names, index)
        try:
            x, y = evaluate(a, point, sign), evaluate(b, point, sign)
        except NoValue:
            continue
        same = close(x, y)
        if not same and (_tiny(x) or _tiny(y)):
            same = _close_at_depth(a, b, point, sign)
        if same:
            agreed += 1
        elif complex_meant or (is_real_value(x) and is_real_value(y)) or not names:
            return False
        else:
            undecided += 1  # outside the common real domain
        if agreed >= (POINTS_NEEDED if names else 1):
            return True
    return agreed > 0 and undecided <= agreed


def _close_at_depth(a: Term, b: Term, point: dict[str, Value], sign: int) -> bool:
    """Decide between zero and small: what is below 1e-200 at 250 digits is zero."""
    with mp.workdps(_DEEP):
        x, y = evaluate(a, point, sign), evaluate(b, point, sign)
        if isinstance(x, Matrix) or isinstance(y, Matrix):
            if not (isinstance(x, Matrix) and isinstance(y, Matrix)) or [len(r) for r in x] != [len(r) for r in y]:
                return False
            cells = [(u, v) for p, q in zip(x, y, strict=True) for u, v in zip(p, q, strict=True)]
        else:
            cells = [(x, y)]
        return all(
            close(u, v) or bool(max(abs(number_of(u)), abs(number_of(v))) < mp.mpf(10) ** -200) for u, v in cells
        )


def proportional(a: Term, b: Term, positive: bool) -> bool:
    """Say whether a = c b for a constant c != 0 (c > 0 if `positive`): then a = 0 and b = 0 say the same."""
    names = symbols(a) | symbols(b)
    if symbols(a) != symbols(b) and not (contains(a, "opaque") or contains(b, "opaque")):
        return equal_terms(a, b)
    first: tuple[Value, Value] | None = None
    agreed = 0
    for index in range(POINTS_TRIED):
        try:
            point = point_for(names, index)
            x, y = evaluate(a, point), evaluate(b, point)
            if not (is_real_value(x) and is_real_value(y)) or isinstance(x, Matrix) or isinstance(y, Matrix):
                continue
            if x == 0 or y == 0 or _tiny(x) or _tiny(y):
                if (x == 0) != (y == 0) and not (_tiny(x) and _tiny(y)):
                    return False
                continue
        except NoValue:
            continue
        if first is None:
            first = (x, y)
            ratio = number_of(x) / number_of(y)
            if positive and not mpmath.re(ratio) > 0:
                return False
        elif not close(_product(x, first[1]), _product(first[0], y)):
            return False
        agreed += 1
        if agreed > POINTS_NEEDED:
            return True
    return agreed > 1 or (agreed == 1 and not names)


def _product(x: Value, y: Value) -> Value:
    return x * y if isinstance(x, Fraction) and isinstance(y, Fraction) else number_of(x) * number_of(y)


def terminates(value: Value) -> bool:
    """Say whether a value is a fraction whose decimals end."""
    if not isinstance(value, Fraction):
        return False
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1
