"""Terms, which are what an expression is once it is read, and their values.

A term is a tuple: `("num", Fraction)`, `("const", name)`, `("sym", name)`, `("add", a, b, …)`, `("mul", a, b, …)`,
`("div", a, b)`, `("pow", a, b)`, `("neg", a)`, `("fn", name, a, …)`, `("pm", sign, a)`, `("mat", rows)`,
`("bind", head, variable, body, low, high)` and `("opaque", head, a, …)`.

A value is a `Fraction` as long as that is exact, else an mpmath number of 60 digits, or a `Matrix` of those; what would
outgrow the machine is refused (TooBig). What has no value of its own (an unknown function, an integral) gets a
pseudo-random one, drawn from its name and the values of its arguments: equal terms then have equal values, and unequal
ones do not by chance. Nothing is evaluated that has not been bounded here: SymPy plays no part.

Terms are equal if they have the same values at points drawn for their variables, wherever both are real: exact if all
is rational, else to 40 of 60 digits, relative to the larger value. If numbers on the way differ so much in size that 60
digits could hide one behind another (1 + e^-1000), all is done again with as many digits as it takes. Equal terms never
disagree; for unequal ones to agree, random numbers would have to coincide.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import reduce
from itertools import chain, pairwise
from typing import Any

import mpmath
from mpmath import mp

from gtpo.rewards.limits import COMPARISON_DIGITS, DIGITS, MAX_EXACT_BITS, MAX_FACTORIAL, MAX_MAGNITUDE_BITS

# -- terms ------------------------------------------------------------------------------------------------------------
Term = tuple[Any, ...]
ZERO: Term = ("num", Fraction(0))
ONE: Term = ("num", Fraction(1))
MINUS_ONE: Term = ("num", Fraction(-1))
# What `\log x` is divided by: 10 or e, by the author's habit.
NO_BASE: Term = ("opaque", "the base of log")


def symbols(term: Term) -> set[str]:
    """Return the free variables of a term."""
    if term[0] == "sym":
        return {term[1]}
    if term[0] == "bind":
        return (symbols(term[3]) - {term[2]}).union(*(symbols(end) for end in term[4:] if end is not None))
    return set().union(*map(symbols, parts(term)))


def parts(term: Term) -> Iterator[Term]:
    """Yield the operands of a term, the cells of a matrix."""
    return (part for part in (chain(*term[1]) if term[0] == "mat" else term[1:]) if isinstance(part, tuple))


def subterms(term: Term) -> Iterator[Term]:
    """Yield a term and every term within it."""
    yield term
    for part in parts(term):
        yield from subterms(part)


def addends(term: Term) -> Iterator[Term]:
    """Yield the terms of a sum, those of sums within it too, each with its sign."""
    if term[0] == "add":
        yield from chain.from_iterable(map(addends, term[1:]))
    elif term[0] == "neg" and term[1][0] == "add":
        yield from (("neg", part) for part in addends(term[1]))
    else:
        yield term


def contains(term: Term, *marks: Any) -> bool:
    """Return whether some part of a term is tagged or named so: `contains(t, "pm")`, `contains(t, "const", "i")`."""
    return any(part[: len(marks)] == marks for part in subterms(term))


def substitute(term: Any, table: Mapping[str, Term]) -> Any:
    """Return a term with the terms of the table in place of the variables that it names."""
    if isinstance(term, tuple):
        if len(term) == 2 and term[0] == "sym":
            return table.get(term[1], term)
        return tuple(substitute(part, table) for part in term)
    return term


def is_literal(term: Term) -> bool:
    """Return whether a term is one number or name, with or without its sign: nothing in it can be computed."""
    if term[0] == "neg" or (term[0] == "mul" and len(term) == 3 and term[1] == MINUS_ONE):
        return is_literal(term[-1])
    return term[0] in ("num", "sym", "const")


def canonical(term: Term) -> Term:
    """Return a term with signs, quotients and roots as factors and powers, operands in order, 0 and 1 left out."""
    kind = term[0]
    if kind in ("num", "sym", "const"):
        return term
    if kind == "neg":
        return _product([MINUS_ONE, canonical(term[1])])
    if kind == "add":
        each = (part for added in term[1:] for part in _operands(canonical(added), "add") if part != ZERO)
        # Any order does that is the same for both sides.
        return _joined("add", sorted(each, key=repr), ZERO)
    if kind == "mul":
        return _product([canonical(part) for part in term[1:]])
    if kind == "div":
        return _product([canonical(term[1]), _power(canonical(term[2]), MINUS_ONE)])
    if kind == "pow":
        return _power(canonical(term[1]), canonical(term[2]))
    if term[:2] == ("fn", "sqrt"):
        return _power(canonical(term[2]), ("num", Fraction(1, 2)))
    if kind == "mat":
        return ("mat", tuple(tuple(canonical(cell) for cell in row) for row in term[1]))
    return tuple(canonical(part) if isinstance(part, tuple) else part for part in term)


def _operands(term: Term, kind: str) -> tuple[Term, ...]:
    return term[1:] if term[0] == kind else (term,)


def _joined(kind: str, terms: Sequence[Term], empty: Term) -> Term:
    return (kind, *terms) if len(terms) > 1 else terms[0] if terms else empty


def _power(base: Term, exponent: Term) -> Term:
    if exponent == ONE:
        return base
    if base[0] == "pow" and exponent == MINUS_ONE:
        return ("pow", base[1], _product([MINUS_ONE, base[2]]))
    return ONE if base == ONE else ("pow", base, exponent)


def _product(factors: list[Term]) -> Term:
    counts: Counter[Term] = Counter()
    negative = False
    for part in (part for factor in factors for part in _operands(factor, "mul")):
        if part[0] == "num" and part[1] < 0:
            negative, part = not negative, ("num", -part[1])
        counts[part] += part != ONE
    merged: list[Term] = []
    for part, count in counts.items():
        # Numbers stay side by side: `5 * 5` of a problem is not the `5^2` of an answer.
        merged += [part] * count if part[0] == "num" else [_power(part, ("num", Fraction(count)))]
    merged.sort(key=repr)
    if negative and [part[0] for part in merged] in ([], ["num"]):
        return ("num", -(merged[0][1] if merged else 1))
    return _joined("mul", [MINUS_ONE] * negative + merged, ONE)


# -- values -----------------------------------------------------------------------------------------------------------
Value = Any  # Fraction | mpf | mpc | Matrix

mp.dps = DIGITS


class TooBig(Exception):
    """The value is beyond what is worth computing: towers of powers, factorials of millions."""


class NoValue(Exception):
    """The term has no value at this point: a pole, a matrix of the wrong shape, an unbound variable."""


class Matrix(tuple[tuple[Any, ...], ...]):
    """A tuple of rows of values."""

    __slots__ = ()


class Budget:
    """What one comparison has visited, so that sums within sums end, and the sizes it has met; one per process.

    What an answer may cost is counted in work and not in seconds: a verdict does not depend on how busy the machine is.
    """

    visits = 0
    limit = 100_000
    price = 1  # Of a visit: more while arithmetic has more digits
    low = high = 0  # The smallest and the largest size among its values, as powers of two

    @classmethod
    def refill(cls) -> None:
        """Start counting visits anew."""
        cls.visits = 0

    @classmethod
    def spend(cls) -> None:
        """Count one visit. Raises TooBig when the budget is spent."""
        cls.visits += cls.price
        if cls.visits > cls.limit:
            raise TooBig

    @classmethod
    def note(cls, value: Value) -> None:
        """Take notice of the size of a value; 0, infinities and matrices have none."""
        if isinstance(value, mpmath.mpc):
            cls.note(value.real)
            value = value.imag
        if isinstance(value, Fraction):
            size = value.numerator.bit_length() - value.denominator.bit_length() if value else 0
        elif isinstance(value, mpmath.mpf):
            size = value._mpf_[2] + value._mpf_[3] if value._mpf_[1] else 0
        else:
            return
        if size > cls.high:
            cls.high = size
        elif size < cls.low:
            cls.low = size


def is_real(value: Value) -> bool:
    """Return whether a value has no imaginary part."""
    return not isinstance(value, mpmath.mpc) or value.imag == 0


def number_of(value: Value) -> Any:
    """Return a value as an mpmath number. Raises NoValue for a matrix."""
    if isinstance(value, Fraction):
        return mp.mpf(value.numerator) / value.denominator
    if isinstance(value, Matrix):
        raise NoValue
    return value


def noise(*key: object) -> Fraction:
    """Return a fraction in (0.3, 2.9) that depends on the key and on nothing else."""
    # Not hash(), which differs from process to process; and a fraction, so that sums and products stay exact.
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=6).digest()
    return Fraction(3, 10) + Fraction(int.from_bytes(digest, "big") % 1_000_003, 1_000_003) * Fraction(26, 10)


def fingerprint(value: Value) -> str:
    """Return a text that is the same for values that agree to 25 digits."""
    if isinstance(value, Matrix):
        return ";".join(",".join(map(fingerprint, row)) for row in value)
    number = number_of(value)
    if isinstance(number, mpmath.mpc) and abs(number.imag) < mp.mpf(10) ** -40 * (1 + abs(number.real)):
        number = number.real
    if abs(number) < mp.mpf(10) ** -40:
        return "0"
    # Of 60 digits: two ways to compute one value differ in the last ones.
    return str(mpmath.nstr(number, 25))


def bits(value: Fraction) -> int:
    """Return the binary digits of the longer of numerator and denominator."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def integer(value: Value) -> int | None:
    """Return a value as an int if it is a whole fraction, else None."""
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else None


def _shape(value: Value) -> list[int] | None:
    return [len(row) for row in value] if isinstance(value, Matrix) else None


def _both_exact(a: Value, b: Value) -> bool:
    return isinstance(a, Fraction) and isinstance(b, Fraction) and bits(a) + bits(b) <= 2 * MAX_EXACT_BITS


def add(a: Value, b: Value) -> Value:
    """Return a + b. Raises NoValue for matrices of different shapes."""
    if _shape(a) != _shape(b):
        raise NoValue
    if isinstance(a, Matrix):
        return Matrix(tuple(map(add, p, q)) for p, q in zip(a, b, strict=True))
    return a + b if _both_exact(a, b) else number_of(a) + number_of(b)


def multiply(a: Value, b: Value) -> Value:
    """Return a b, for numbers and matrices. Raises NoValue if shapes do not fit."""
    if isinstance(a, Matrix) and isinstance(b, Matrix):
        columns = list(zip(*b, strict=True))
        if any(len(row) != len(b) for row in a):
            raise NoValue
        return Matrix(tuple(reduce(add, map(multiply, row, c)) for c in columns) for row in a)
    if isinstance(a, Matrix):
        return Matrix(tuple(multiply(x, b) for x in row) for row in a)
    if isinstance(b, Matrix):
        return multiply(b, a)
    return a * b if _both_exact(a, b) else number_of(a) * number_of(b)


def negative(value: Value) -> Value:
    """Return -value."""
    return multiply(Fraction(-1), value)


def divide(a: Value, b: Value) -> Value:
    """Return a / b. Raises NoValue for b = 0."""
    if isinstance(b, Matrix) or b == 0:
        raise NoValue
    return multiply(a, 1 / b)


def whole_root(value: int, degree: int) -> int | None:
    """Return the exact integer root of a non-negative integer, or None."""
    if degree == 2:
        root = math.isqrt(value)
    else:
        root = round(value ** (1 / degree)) if value.bit_length() < 900 else int(mpmath.root(value, degree))
    return next((r for r in (root, root - 1, root + 1) if r >= 0 and r**degree == value), None)


def power(a: Value, b: Value) -> Value:
    """Return a to the b: exact if it is rational and small. Raises TooBig for towers."""
    exponent = integer(b)
    if isinstance(a, Matrix):
        if exponent is None or not 1 <= exponent <= 64:
            raise NoValue
        return reduce(multiply, [a] * exponent)
    if isinstance(b, Matrix):
        raise NoValue
    if a == 0:
        if isinstance(b, Fraction) and b > 0:
            return Fraction(0)
        if b == 0:
            return Fraction(1)
        raise NoValue
    if isinstance(a, Fraction) and exponent is not None and bits(a) * abs(exponent) <= MAX_EXACT_BITS:
        return a**exponent
    # 27^(2/3) is 9, exactly.
    if isinstance(a, Fraction) and isinstance(b, Fraction) and a > 0 and b.denominator <= 12 and bits(a) < 2000:
        top, bottom = whole_root(a.numerator, b.denominator), whole_root(a.denominator, b.denominator)
        if top is not None and bottom is not None and bits(a) * abs(b.numerator) <= MAX_EXACT_BITS:
            return Fraction(top, bottom) ** b.numerator
    base, raised = number_of(a), number_of(b)
    if mpmath.isinf(base) or mpmath.isinf(raised):
        raise NoValue
    # About the binary digits that the result has: 9^(9^9) is refused before it is computed.
    if abs(raised) * (abs(mpmath.log(abs(base), 2)) + 5) > MAX_MAGNITUDE_BITS:
        raise TooBig
    return mpmath.power(base, raised)


def _exponential(value: Value) -> Value:
    if value == 0:
        return Fraction(1)
    number = number_of(value)
    if abs(number) > MAX_MAGNITUDE_BITS:
        raise TooBig
    return mpmath.exp(number)


def _bounded(function: Callable[[Any], Any]) -> Callable[[Value], Value]:
    """Trigonometry of huge arguments needs as many digits as they have: refuse."""

    def apply(value: Value) -> Value:
        number = number_of(value)
        if abs(number) > mp.mpf(10) ** 60:
            raise TooBig
        return function(number)

    return apply


def _tanh(value: Value) -> Value:
    Budget.note(_exponential(multiply(Fraction(-2), abs(value))))  # how near it comes to 1
    return mpmath.tanh(number_of(value))


def _factorial(value: Value) -> Value:
    number = integer(value)
    if number is not None and number < 0:
        raise NoValue
    if abs(number_of(value)) > MAX_FACTORIAL:
        raise TooBig
    return mpmath.gamma(number_of(value) + 1) if number is None else Fraction(math.factorial(number))


def _binomial(n: Value, k: Value) -> Value:
    top, bottom = integer(n), integer(k)
    if top is not None and bottom is not None:
        if not 0 <= top <= 100_000 or not 0 <= bottom <= MAX_FACTORIAL:
            raise TooBig
        return Fraction(math.comb(top, bottom))
    if max(abs(number_of(n)), abs(number_of(k))) > MAX_FACTORIAL:
        raise TooBig
    return mpmath.binomial(number_of(n), number_of(k))


def _log(value: Value, base: Value | None = None) -> Value:
    if value == 0 or (base is not None and base in (0, 1)):
        raise NoValue
    result = mpmath.log(number_of(value))
    return result if base is None else result / mpmath.log(number_of(base))


def _determinant(matrix: Matrix) -> Value:
    size = len(matrix)
    # By minors, 720 products for six rows, where fractions stay exact.
    if any(len(row) != size for row in matrix) or size > 6:
        raise NoValue
    if size == 1:
        return matrix[0][0]
    minors = (Matrix(tuple(row[:at] + row[at + 1 :]) for row in matrix[1:]) for at in range(size))
    signed = (multiply(Fraction((-1) ** at), multiply(matrix[0][at], _determinant(m))) for at, m in enumerate(minors))
    return reduce(add, signed)


def _floor(value: Value) -> Value:
    if not is_real(value):
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
    index = integer(degree)
    if index is None or index == 0:
        return power(value, divide(Fraction(1), degree))
    # The real root of -8 is what schools mean by its cube root; as a power it would be complex.
    if index % 2 == 1 and is_real(value) and not isinstance(value, Matrix) and mpmath.re(number_of(value)) < 0:
        return negative(power(negative(value), Fraction(1, index)))
    return power(value, Fraction(1, index))


FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: _bounded(getattr(mpmath, name)) for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{f"arc{name}": _bounded(getattr(mpmath, f"a{name}")) for name in ("sin", "cos", "tan")},
    "arccot": _bounded(lambda x: mpmath.pi / 2 - mpmath.atan(x)),
    # By this module's exponential, which refuses what is too large and takes note of how small e^-x becomes.
    "sinh": lambda x: divide(add(_exponential(x), negative(_exponential(negative(x)))), Fraction(2)),
    "cosh": lambda x: divide(add(_exponential(x), _exponential(negative(x))), Fraction(2)),
    "tanh": _tanh,
    "exp": _exponential,
    "ln": _log,
    "log": _log,
    "sqrt": lambda x: power(x, Fraction(1, 2)),
    "root": _cube_root_style,
    "abs": lambda x: _determinant(x) if isinstance(x, Matrix) else abs(x),
    "factorial": _factorial,
    "binomial": _binomial,
    "floor": _floor,
    "ceil": lambda x: negative(_floor(negative(x))),
    "det": lambda x: _determinant(x) if isinstance(x, Matrix) else x,
    "mod": lambda a, b: add(a, negative(multiply(b, _floor(divide(a, b))))),
    "mixed": lambda whole, top, bottom: add(whole, divide(top, bottom)),
    "gcd": lambda *v: _whole(math.gcd, v),
    "lcm": lambda *v: _whole(math.lcm, v),
    "max": lambda *v: max(v, key=lambda x: mpmath.re(number_of(x))),
    "min": lambda *v: min(v, key=lambda x: mpmath.re(number_of(x))),
}
_OPERATIONS = {"add": add, "mul": multiply, "div": divide, "pow": power}


def _whole(function: Callable[..., int], values: tuple[Value, ...]) -> Value:
    integers = [integer(value) for value in values]
    if None in integers:
        raise NoValue
    return Fraction(function(*integers))


# -- values of terms ------------------------------------------------------------------------------------------------
def evaluate(term: Term, point: Mapping[str, Value]) -> Value:
    """Return the value of a term at a point; `±` is plus. Raises NoValue (a pole, an unbound name) or TooBig."""
    Budget.spend()
    value = _value(term, point)
    Budget.note(value)
    return value


def constant_value(term: Term) -> Value | None:
    """Return the value of a term without variables, None if it has variables or no value."""
    with suppress(NoValue):
        return None if symbols(term) else evaluate(term, {})
    return None


def _value(term: Term, point: Mapping[str, Value]) -> Value:
    kind = term[0]
    if kind == "num":
        return term[1]
    if kind in ("sym", "const") and term[1] in point:  # a bound variable may be called e or i
        return point[term[1]]
    if kind == "sym":
        raise NoValue
    if kind == "const":
        return mp.mpc(0, 1) if term[1] == "i" else +getattr(mp, term[1])
    if kind == "bind":
        return _bound(term, point)
    if kind == "mat":
        return Matrix(tuple(evaluate(cell, point) for cell in row) for row in term[1])
    values = [evaluate(part, point) for part in term[1:] if isinstance(part, tuple)]
    if kind == "opaque":
        return noise("opaque", term[1], *map(fingerprint, values))
    if kind in ("neg", "pm"):
        return values[0] if kind == "pm" and term[1] > 0 else negative(values[0])
    try:
        return FUNCTIONS[term[1]](*values) if kind == "fn" else reduce(_OPERATIONS[kind], values)
    except (ValueError, ZeroDivisionError, TypeError, OverflowError):
        raise NoValue from None


def _bound(term: Term, point: Mapping[str, Value]) -> Value:
    """Add up sums and products over a short whole range; hash other bound forms with the variable hidden."""
    _, head, variable, body, low, high = term
    ends = [None if end is None else evaluate(end, point) for end in (low, high)]
    first, last = (None if end is None else integer(end) for end in ends)
    # Longer sums equal only those whose parts are equal: 500 numbers are what an answer is worth.
    if head in ("sum", "prod") and first is not None and last is not None and 0 <= last - first < 500:
        values = (evaluate(body, {**point, variable: Fraction(index)}) for index in range(first, last + 1))
        return reduce(add, values, Fraction(0)) if head == "sum" else reduce(multiply, values, Fraction(1))
    hidden = evaluate(body, {**point, variable: noise("bound", head)})
    return noise(head, fingerprint(hidden), *("" if end is None else fingerprint(end) for end in ends))


# -- equality of terms -----------------------------------------------------------------------------------------------
# A logarithm or a root leaves the reals at half of the points, hence more are tried than are needed.
POINTS_NEEDED, POINTS_TRIED = 4, 24
GUARD_DIGITS = 20
# Sizes of the integers at which terms with steps are compared too.
_WHOLE = (7, 7, 40, 40, 300, 300, 3_000, 3_000)
_STEPS, _EXTREMES = frozenset(("floor", "ceil", "mod", "gcd", "lcm")), frozenset(("max", "min"))


def close(a: Value, b: Value) -> bool:
    """Return whether two values agree: exactly if both are rational, else relative to the larger or up to rounding."""
    if _shape(a) != _shape(b):
        return False
    if isinstance(a, Matrix):
        return all(map(close, chain(*a), chain(*b)))
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    x, y = number_of(a), number_of(b)
    if not (mpmath.isfinite(x) and mpmath.isfinite(y)):
        return bool(x == y)
    larger = max(abs(x), abs(y))
    # What a difference leaves that cancels is as small as the rounding of what went into it.
    return bool(abs(x - y) <= larger * mp.mpf(10) ** (GUARD_DIGITS - mp.dps)) or larger < _rounding()


def _rounding() -> mpmath.mpf:
    """Return the size below which a value may be what rounding left of 0."""
    return mp.mpf(2) ** Budget.high * mp.mpf(10) ** (GUARD_DIGITS - mp.dps)


def _is_zero(value: Value) -> bool:
    return bool(value == 0) if isinstance(value, Fraction) else bool(abs(value) < _rounding())


def stable(decide: Callable[[], bool], literal_digits: int = 0) -> bool:
    """Return whether a comparison finds its sides equal, with digits enough for all its numbers too. Raises TooBig.

    `literal_digits`: of its longest number, which no irrational one equals however many they share.
    """
    Budget.low = Budget.high = 0
    if not decide():
        return False
    spread = max(int((Budget.high - Budget.low) * 0.302), literal_digits)
    # Nearly every comparison ends here: hardly any has numbers of such different sizes.
    if spread < GUARD_DIGITS or mp.dps > 60:
        return True
    digits = 60 + 2 * spread + GUARD_DIGITS
    if digits > COMPARISON_DIGITS:
        raise TooBig
    Budget.low = Budget.high = 0
    Budget.price = digits // 60
    try:
        with mp.workdps(digits):
            return decide()
    finally:
        Budget.price = 1


def is_real_value(value: Value) -> bool:
    """Return whether a value, or each entry of a matrix, is real up to rounding."""
    if isinstance(value, Matrix):
        return all(is_real_value(cell) for row in value for cell in row)
    tolerance = mp.mpf(10) ** (GUARD_DIGITS - mp.dps)
    return not isinstance(value, mpmath.mpc) or bool(abs(value.imag) <= tolerance * (1 + abs(value.real)))


def point_for(names: set[str], index: int) -> dict[str, Value]:
    """Return the index-th point: positive first, then of mixed signs, then smaller and larger numbers."""
    scale = [Fraction(1), Fraction(1), Fraction(1, 4), Fraction(9)][index // 2 % 4]
    signs = [1 if index % 2 == 0 else (-1 if noise("sign", name, index) > Fraction(8, 5) else 1) for name in names]
    return {name: sign * scale * noise("point", name, index) for name, sign in zip(names, signs, strict=True)}


def equal_terms(a: Term, b: Term) -> bool:
    """Return whether two terms have the same values wherever both are real. Raises TooBig."""
    if a == b:
        return True
    longest = max((bits(part[1]) for term in (a, b) for part in subterms(term) if part[0] == "num"), default=0)
    return stable(lambda: _same_values(a, b), int(longest * 0.302))


def _same_values(a: Term, b: Term) -> bool:
    names = symbols(a) | symbols(b)
    if names and _steps_of_one(a, b):
        return False  # max(x, -10^9) is x as far as one looks, and a step can lie anywhere
    complex_meant = contains(a, "const", "i") or contains(b, "const", "i")
    agreed = undecided = 0
    # A term may hold unknowns that are no symbols (calls of unknown functions): those need one point only.
    points: Iterable[dict[str, Value]] = (point_for(names, index) for index in range(POINTS_TRIED if names else 1))
    needed = POINTS_NEEDED if names else 1
    if any(part[:1] == ("fn",) and part[1] in _STEPS and symbols(part) for t in (a, b) for part in subterms(t)):
        # Integers of several sizes, as within a few units nearly all integer parts are 0 or 1, and many in a row, as
        # those of n/11 and (n + 1)/11 differ at every eleventh.
        whole = [{n: Fraction(int(s * noise("whole", n, i))) for n in names} for i, s in enumerate(_WHOLE)]
        whole += [{n: whole[2][n] + i for n in names} for i in range(1, 41)]
        points, needed = chain(whole, points), needed + len(whole)
    for x, y in _values(a, b, points):
        if close(x, y):
            agreed += 1
        elif complex_meant or (is_real_value(x) and is_real_value(y)) or not names:
            return False
        else:
            undecided += 1  # outside the common real domain
        if agreed >= needed:
            break
    if not agreed or undecided > agreed:
        return False
    if not names or complex_meant:
        return True
    between = _values(a, b, _between_kinks(a, b, names))
    return all(close(x, y) or not (is_real_value(x) and is_real_value(y)) for x, y in between)


def equal_as_matrices(a: Term, b: Term) -> bool:
    """Return whether terms are equal if their capital letters are matrices; what has no value then, is."""
    names = sorted(symbols(a) | symbols(b))
    cells = {name: [[noise("cell", name, i, j) for j in range(2)] for i in range(2)] for name in names}
    point = {n: Matrix(map(tuple, cells[n])) if n.isupper() else noise("point", n) for n in names}
    try:
        return close(evaluate(a, point), evaluate(b, point))
    except NoValue:
        return True


def _values(a: Term, b: Term, points: Iterable[dict[str, Value]]) -> Iterator[tuple[Value, Value]]:
    """Yield the values of two terms at each point where both have one."""
    for point in points:
        with suppress(NoValue):
            yield evaluate(a, point), evaluate(b, point)


def _steps_of_one(a: Term, b: Term) -> bool:
    """Return whether a function with steps is taken of variables in one term and none of its kind in the other."""
    first, second = ({part[1] for part in subterms(term) if part[0] == "fn" and symbols(part)} for term in (a, b))
    return any(
        (own & first and not others & second) or (own & second and not others & first)
        for own, others in ((_STEPS, _STEPS), (_EXTREMES, _EXTREMES | {"abs"}))
    )


def _between_kinks(a: Term, b: Term, names: set[str]) -> Iterator[dict[str, Value]]:
    """Yield points between the places where a term may have kinks: |x - 3| + |x - 4| is 1 between 3 and 4."""
    terms = [*subterms(a), *subterms(b)]
    if not any(p[0] == "fn" and p[1] in ("abs", "sqrt", "root", "max", "min") for p in terms):
        return
    base = point_for(names, 0)
    # Where a number of the terms is another one's multiple or square; the bound keeps small what this may cost.
    written = {abs(p[1]) for p in terms if p[0] == "num" and p[1]}
    numbers = sorted(written | {Fraction(1), *(abs(base[name]) for name in sorted(names)[:2])})[:6]
    places = {number_of(p / q) for p in numbers for q in numbers}
    kinks = sorted({sign * place for value in places for place in (value, mpmath.sqrt(value)) for sign in (1, -1)})
    between = [(low + high) / 2 for low, high in pairwise(kinks) if high - low > mp.mpf(10) ** -20]
    for name in sorted(names)[:2]:
        yield from (base | {name: value} for value in (kinks[0] - 1, *between, kinks[-1] + 1))


def proportional(a: Term, b: Term, positive: bool) -> bool:
    """Return whether a = c b for a constant c != 0 (c > 0 if `positive`): then a = 0 and b = 0 say the same."""
    if symbols(a) != symbols(b) and not (contains(a, "opaque") or contains(b, "opaque")):
        return equal_terms(a, b)
    return stable(lambda: _proportional(a, b, positive))


def _proportional(a: Term, b: Term, positive: bool) -> bool:
    names = symbols(a) | symbols(b)
    for x, y in _values(a, b, (point_for(names, index) for index in range(POINTS_TRIED))):
        if not (is_real_value(x) and is_real_value(y)) or isinstance(x, Matrix) or isinstance(y, Matrix):
            continue
        if _is_zero(x) != _is_zero(y):
            return False
        if not _is_zero(x):
            ratio = divide(x, y)
            return (not positive or mpmath.re(number_of(ratio)) > 0) and _same_values(a, ("mul", ("num", ratio), b))
    return False
