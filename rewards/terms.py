"""Terms and their values: the numbers behind an answer, at a point of its variables, in exact or 60-digit arithmetic.

A term is a tuple: `("num", Fraction)`, `("const", name)`, `("sym", name)`, `("add", a, b, …)`, `("mul", a, b, …)`,
`("div", a, b)`, `("pow", a, b)`, `("neg", a)`, `("fn", name, a, …)`, `("pm", sign, a)`, `("mat", rows)`,
`("bind", head, variable, body, low, high)` and `("opaque", head, a, …)`.

Values are `Fraction` as long as the arithmetic is exact, then mpmath numbers. What has no value of its own (an
unknown function, an integral) gets a pseudo-random one, drawn from its name and the values of its arguments: equal
terms then have equal values, and unequal ones do not by chance. Arithmetic that would outgrow the machine raises
TooBig before it starts; SymPy plays no part, so nothing is evaluated that has not been bounded here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath
from mpmath import mp

Term = tuple[Any, ...]
Value = Any  # Fraction | mpf | mpc | Matrix

DIGITS = 60
MAX_EXACT_BITS = 20_000
MAX_MAGNITUDE_BITS = 2_000_000
MAX_FACTORIAL = 3_000

mp.dps = DIGITS


class TooBig(Exception):
    """The value is beyond what is worth computing: towers of powers, factorials of millions."""


class NoValue(Exception):
    """The term has no value at this point: a pole, a matrix of the wrong shape, an unbound variable."""


class Matrix(tuple[tuple[Any, ...], ...]):
    """A tuple of rows of values."""

    __slots__ = ()


def _is_real(value: Value) -> bool:
    return not isinstance(value, mpmath.mpc) or value.imag == 0


def _mp(value: Value) -> Any:
    if isinstance(value, Fraction):
        return mp.mpf(value.numerator) / value.denominator
    if isinstance(value, Matrix):
        raise NoValue
    return value


def noise(*key: object) -> Fraction:
    """Return a fraction in (0.3, 2.9) that depends on the key and on nothing else."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=6).digest()
    return Fraction(3, 10) + Fraction(int.from_bytes(digest, "big") % 1_000_003, 1_000_003) * Fraction(26, 10)


def fingerprint(value: Value) -> str:
    """Return a text that is the same for values that agree to 25 digits."""
    if isinstance(value, Matrix):
        return ";".join(",".join(map(fingerprint, row)) for row in value)
    number = _mp(value)
    if isinstance(number, mpmath.mpc) and abs(number.imag) < mp.mpf(10) ** -40 * (1 + abs(number.real)):
        number = number.real
    if abs(number) < mp.mpf(10) ** -40:
        return "0"
    return str(mpmath.nstr(number, 25))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _integer(value: Value) -> int | None:
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else None
    return None


def _add(a: Value, b: Value) -> Value:
    if isinstance(a, Matrix) or isinstance(b, Matrix):
        if not (isinstance(a, Matrix) and isinstance(b, Matrix)) or [len(r) for r in a] != [len(r) for r in b]:
            raise NoValue
        return Matrix(tuple(_add(x, y) for x, y in zip(p, q, strict=True)) for p, q in zip(a, b, strict=True))
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        if _bits(a) + _bits(b) > 2 * MAX_EXACT_BITS:
            return _mp(a) + _mp(b)
        return a + b
    return _mp(a) + _mp(b)


def _multiply(a: Value, b: Value) -> Value:
    if isinstance(a, Matrix) and isinstance(b, Matrix):
        columns = list(zip(*b, strict=True))
        if any(len(row) != len(b) for row in a):
            raise NoValue
        return Matrix(
            tuple(_total([_multiply(x, y) for x, y in zip(row, c, strict=True)]) for c in columns) for row in a
        )
    if isinstance(a, Matrix):
        return Matrix(tuple(_multiply(x, b) for x in row) for row in a)
    if isinstance(b, Matrix):
        return _multiply(b, a)
    if isinstance(a, Fraction) and isinstance(b, Fraction) and _bits(a) + _bits(b) <= 2 * MAX_EXACT_BITS:
        return a * b
    return _mp(a) * _mp(b)


def _total(values: list[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = _add(total, value)
    return total


def _divide(a: Value, b: Value) -> Value:
    if isinstance(b, Matrix):
        raise NoValue
    if b == 0:
        raise NoValue
    if isinstance(b, Fraction):
        return _multiply(a, 1 / b)
    return _multiply(a, 1 / b)


def _root(value: int, degree: int) -> int | None:
    """Return the exact integer root of a non-negative integer, or None."""
    if degree == 2:
        root = math.isqrt(value)
    else:
        root = round(value ** (1 / degree)) if value.bit_length() < 900 else int(mpmath.root(value, degree))
        root = next((r for r in (root - 1, root, root + 1) if r >= 0 and r**degree == value), -1)
    return root if root >= 0 and root**degree == value else None


def _power(a: Value, b: Value) -> Value:
    exponent = _integer(b)
    if isinstance(a, Matrix):
        if exponent is None or not 1 <= exponent <= 64:
            raise NoValue
        result: Value = a
        for _ in range(exponent - 1):
            result = _multiply(result, a)
        return result
    if isinstance(b, Matrix):
        raise NoValue
    if a == 0:
        if isinstance(b, Fraction) and b > 0:
            return Fraction(0)
        if b == 0:
            return Fraction(1)
        raise NoValue
    if isinstance(a, Fraction) and exponent is not None and _bits(a) * abs(exponent) <= MAX_EXACT_BITS:
        return a**exponent
    if isinstance(a, Fraction) and isinstance(b, Fraction) and a > 0 and b.denominator <= 12 and _bits(a) < 2000:
        top, bottom = _root(a.numerator, b.denominator), _root(a.denominator, b.denominator)
        if top is not None and bottom is not None and _bits(a) * abs(b.numerator) <= MAX_EXACT_BITS:
            return Fraction(top, bottom) ** b.numerator
    base, power = _mp(a), _mp(b)
    if mpmath.isinf(base) or mpmath.isinf(power):
        raise NoValue
    if abs(power) * (abs(mpmath.log(abs(base), 2)) + 5) > MAX_MAGNITUDE_BITS:
        raise TooBig
    return mpmath.power(base, power)


def _exponential(value: Value) -> Value:
    if value == 0:
        return Fraction(1)
    number = _mp(value)
    if abs(number) > MAX_MAGNITUDE_BITS:
        raise TooBig
    return mpmath.exp(number)


def _bounded(function: Callable[[Any], Any]) -> Callable[[Value], Value]:
    """Trigonometry of huge arguments needs as many digits as they have: refuse."""

    def apply(value: Value) -> Value:
        number = _mp(value)
        if abs(number) > mp.mpf(10) ** 60:
            raise TooBig
        return function(number)

    return apply


def _factorial(value: Value) -> Value:
    number = _integer(value)
    if number is not None:
        if number < 0:
            raise NoValue
        if number > MAX_FACTORIAL:
            raise TooBig
        return Fraction(math.factorial(number))
    if abs(_mp(value)) > MAX_FACTORIAL:
        raise TooBig
    return mpmath.gamma(_mp(value) + 1)


def _binomial(n: Value, k: Value) -> Value:
    top, bottom = _integer(n), _integer(k)
    if top is not None and bottom is not None:
        if not 0 <= top <= 100_000 or not 0 <= bottom <= MAX_FACTORIAL:
            raise TooBig
        return Fraction(math.comb(top, bottom))
    if max(abs(_mp(n)), abs(_mp(k))) > MAX_FACTORIAL:
        raise TooBig
    return mpmath.binomial(_mp(n), _mp(k))


def _log(value: Value, base: Value | None = None) -> Value:
    if value == 0 or (base is not None and base in (0, 1)):
        raise NoValue
    result = mpmath.log(_mp(value))
    return result if base is None else result / mpmath.log(_mp(base))


def _absolute(value: Value) -> Value:
    if isinstance(value, Matrix):
        return _determinant(value)
    return abs(value)


def _determinant(matrix: Matrix) -> Value:
    size = len(matrix)
    if any(len(row) != size for row in matrix) or size > 6:
        raise NoValue
    if size == 1:
        return matrix[0][0]
    total: Value = Fraction(0)
    for column in range(size):
        minor = Matrix(tuple(row[:column] + row[column + 1 :]) for row in matrix[1:])
        signed = _multiply(Fraction((-1) ** column), _multiply(matrix[0][column], _determinant(minor)))
        total = _add(total, signed)
    return total


def _floor(value: Value) -> Value:
    if not _is_real(value):
        raise NoValue
    if isinstance(value, Fraction):
        return Fraction(math.floor(value))
    number = mpmath.re(value)
    if abs(number) > mp.mpf(10) ** 40:
        raise TooBig
    nearest = mpmath.nint(number)
    # An integer that rounding left a hair below itself is that integer.
    whole = nearest if abs(number - nearest) < mp.mpf(10) ** -40 else mpmath.floor(number)
    return Fraction(int(whole))


def _cube_root_style(value: Value, degree: Value) -> Value:
    index = _integer(degree)
    if index is None or index == 0:
        return _power(value, _divide(Fraction(1), degree))
    if index % 2 == 1 and _is_real(value) and not isinstance(value, Matrix) and mpmath.re(_mp(value)) < 0:
        return _multiply(Fraction(-1), _power(_multiply(Fraction(-1), value), Fraction(1, index)))
    return _power(value, Fraction(1, index))


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sin": _bounded(mpmath.sin),
    "cos": _bounded(mpmath.cos),
    "tan": _bounded(mpmath.tan),
    "cot": _bounded(mpmath.cot),
    "sec": _bounded(mpmath.sec),
    "csc": _bounded(mpmath.csc),
    "arcsin": _bounded(mpmath.asin),
    "arccos": _bounded(mpmath.acos),
    "arctan": _bounded(mpmath.atan),
    "arccot": _bounded(lambda x: mpmath.pi / 2 - mpmath.atan(x)),
    "sinh": lambda x: _divide(
        _add(_exponential(x), _multiply(Fraction(-1), _exponential(_multiply(Fraction(-1), x)))), Fraction(2)
    ),
    "cosh": lambda x: _divide(_add(_exponential(x), _exponential(_multiply(Fraction(-1), x))), Fraction(2)),
    "tanh": _bounded(mpmath.tanh),
    "exp": _exponential,
    "ln": _log,
    "log": _log,
    "sqrt": lambda x: _power(x, Fraction(1, 2)),
    "root": _cube_root_style,
    "abs": _absolute,
    "factorial": _factorial,
    "binomial": _binomial,
    "floor": _floor,
    "ceil": lambda x: _multiply(Fraction(-1), _floor(_multiply(Fraction(-1), x))),
    "det": lambda x: _determinant(x) if isinstance(x, Matrix) else x,
    "gcd": lambda *v: _whole(math.gcd, v),
    "lcm": lambda *v: _whole(math.lcm, v),
    "max": lambda *v: max(v, key=lambda x: mpmath.re(_mp(x))),
    "min": lambda *v: min(v, key=lambda x: mpmath.re(_mp(x))),
}


def _whole(function: Callable[..., int], values: tuple[Value, ...]) -> Value:
    integers = [_integer(value) for value in values]
    if None in integers:
        raise NoValue
    return Fraction(function(*integers))


class Budget:
    """Counts visited terms, so that sums within sums end; one per process, refilled for every comparison."""

    visits = 0
    limit = 300_000

    @classmethod
    def refill(cls) -> None:
        """Start counting anew."""
        cls.visits = 0

    @classmethod
    def spend(cls) -> None:
        """Count one visit. Raises TooBig when the budget is spent."""
        cls.visits += 1
        if cls.visits > cls.limit:
            raise TooBig


def evaluate(term: Term, point: Mapping[str, Value], sign: int = 1) -> Value:
    """Return the value of a term where each variable has the value `point` gives it; `±` takes `sign`.

    Raises NoValue (a pole, an unbound name, shapes that do not fit) or TooBig.
    """
    Budget.spend()
    kind = term[0]
    if kind == "num":
        return term[1]
    if kind == "sym":
        try:
            return point[term[1]]
        except KeyError:
            raise NoValue from None
    if kind == "const":
        return _constant(term[1], point)
    if kind == "bind":
        return _bound(term, point, sign)
    if kind == "mat":
        return Matrix(tuple(evaluate(cell, point, sign) for cell in row) for row in term[1])
    if kind == "fn" or kind == "opaque":
        values = [evaluate(argument, point, sign) for argument in term[2:]]
        if kind == "opaque":
            return noise("opaque", term[1], *map(fingerprint, values))
        try:
            return FUNCTIONS[term[1]](*values)
        except (ValueError, ZeroDivisionError, TypeError, OverflowError):
            raise NoValue from None
    if kind == "pm":
        value = evaluate(term[2], point, sign)
        return value if term[1] * sign > 0 else _multiply(Fraction(-1), value)
    values = [evaluate(argument, point, sign) for argument in term[1:]]
    try:
        if kind == "neg":
            return _multiply(Fraction(-1), values[0])
        if kind == "add":
            return _total(values)
        if kind == "mul":
            product = values[0]
            for value in values[1:]:
                product = _multiply(product, value)
            return product
        return _divide(*values) if kind == "div" else _power(*values)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise NoValue from None


def _constant(name: str, point: Mapping[str, Value]) -> Value:
    if name in point:  # a bound variable that happens to be called e or i
        return point[name]
    if name == "pi":
        return +mp.pi
    if name == "e":
        return +mp.e
    if name == "i":
        return mp.mpc(0, 1)
    return mp.inf


def _bound(term: Term, point: Mapping[str, Value], sign: int) -> Value:
    """Add up sums and products over a short whole range; hash other bound forms with the variable hidden."""
    _, head, variable, body, low, high = term
    ends = [None if end is None else evaluate(end, point, sign) for end in (low, high)]
    first, last = (None if end is None else _integer(end) for end in ends)
    if head in ("sum", "prod") and first is not None and last is not None and 0 <= last - first < 500:
        total: Value = Fraction(0 if head == "sum" else 1)
        for index in range(first, last + 1):
            value = evaluate(body, {**point, variable: Fraction(index)}, sign)
            total = _add(total, value) if head == "sum" else _multiply(total, value)
        return total
    hidden = evaluate(body, {**point, variable: noise("bound", head)}, sign)
    return noise(head, fingerprint(hidden), *("" if end is None else fingerprint(end) for end in ends))


def symbols(term: Term) -> set[str]:
    """Return the free variables of a term."""
    if term[0] == "sym":
        return {term[1]}
    if term[0] == "mat":
        return set().union(*(symbols(cell) for row in term[1] for cell in row))
    if term[0] == "bind":
        _, _, variable, body, low, high = term
        ends = set().union(*(symbols(end) for end in (low, high) if end is not None))
        return (symbols(body) - {variable}) | ends
    found: set[str] = set()
    for part in term[1:]:
        if isinstance(part, tuple):
            found |= symbols(part)
    return found


def contains(term: Term, *marks: Any) -> bool:
    """Say whether some part of a term is tagged or named so: `contains(t, "pm")`, `contains(t, "const", "i")`."""
    if term[: len(marks)] == marks:
        return True
    if term[0] == "mat":
        return any(contains(cell, *marks) for row in term[1] for cell in row)
    return any(contains(part, *marks) for part in term[1:] if isinstance(part, tuple))
