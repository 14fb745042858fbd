"""Equality of terms: the same values at points drawn for their variables, wherever both are real.

Exact if all is rational, else to 40 of 60 digits, relative to the larger value. If the numbers on the way differ
so much in size that 60 digits could hide one behind another (1 + e^-1000), all is done again with as many digits as it
takes. Equal terms never disagree; for unequal ones to agree, random numbers would have to coincide. Decimals may be
rounded: the last functions say when one stands for a number with more digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import chain, pairwise
from typing import Any

import mpmath
from mpmath import mp

from gtpo.rewards.equality.answers import Answer, Listing, Named, Relation, Scalar, Union
from gtpo.rewards.equality.arithmetic import (
    Budget,
    Magnitudes,
    Matrix,
    NoValue,
    Term,
    TooBig,
    Value,
    bits,
    contains,
    divide,
    evaluate,
    integer,
    noise,
    number_of,
    subterms,
    symbols,
)
from gtpo.rewards.equality.reading.problem import Contract
from gtpo.rewards.limits import COMPARISON_DIGITS

# A logarithm or a root leaves the reals at half of the points, hence more are tried than are needed.
POINTS_NEEDED, POINTS_TRIED = 4, 24
GUARD_DIGITS = 20
# Sizes of the integers at which terms with steps are compared too.
_WHOLE = (7, 7, 40, 40, 300, 300, 3_000, 3_000)
_STEPS, _EXTREMES = frozenset(("floor", "ceil", "mod", "gcd", "lcm")), frozenset(("max", "min"))


def close(a: Value, b: Value) -> bool:
    """Return whether two values agree: exactly if both are rational, else relative to the larger or up to rounding."""
    if isinstance(a, Matrix) or isinstance(b, Matrix):
        if not (isinstance(a, Matrix) and isinstance(b, Matrix)) or [len(r) for r in a] != [len(r) for r in b]:
            return False
        return all(close(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))
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
    return mp.mpf(2) ** Magnitudes.high * mp.mpf(10) ** (GUARD_DIGITS - mp.dps)


def _is_zero(value: Value) -> bool:
    return bool(value == 0) if isinstance(value, Fraction) else bool(abs(value) < _rounding())


def stable(decide: Callable[[], bool], literal_digits: int = 0) -> bool:
    """Return whether a comparison finds its sides equal, with digits enough for all its numbers too.

    `literal_digits`: of its longest number, which no irrational one equals however many they share.

    Raises TooBig if that would take too many.
    """
    Magnitudes.reset()
    if not decide():
        return False
    spread = max(int((Magnitudes.high - Magnitudes.low) * 0.302), literal_digits)
    # Nearly every comparison ends here: hardly any has numbers of such different sizes.
    if spread < GUARD_DIGITS or mp.dps > 60:
        return True
    digits = 60 + 2 * spread + GUARD_DIGITS
    if digits > COMPARISON_DIGITS:
        raise TooBig
    Magnitudes.reset()
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


def terminates(value: Value) -> bool:
    """Return whether a value is a fraction whose decimals end."""
    # 10^k is a multiple of a denominator of k binary digits if that has no factors but 2 and 5.
    return isinstance(value, Fraction) and 10 ** value.denominator.bit_length() % value.denominator == 0


def hundredth(answer: Scalar) -> Scalar:
    """Return the value of a percentage."""
    term = ("div", answer.term, ("num", Fraction(100)))
    return replace(answer, term=term, places=answer.places and answer.places + 2, percent=False)


def agree_as_decimals(p: Scalar, g: Scalar, contract: Contract | None) -> bool:
    """Return whether a decimal stands for the other number: the fewer digits it has, the more exact it must be.

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
        if terminates(x) and contract is not None and contract.rounded and contract.places is None and len(str(x)) >= 3:
            return integer(x) is not None and bool(gap <= 0.5)  # `118` for 117.95, which is about as much
        return g.digits >= 3 and not terminates(x) and bool(gap <= half)
    if g.term[0] == "num":
        return False  # `0.4545` for a gold that repeats for ever
    # An exact gold: a decimal with 5 digits, 4 of them after the point, may stand for a fraction without an end.
    if contract is not None and contract.rounded and contract.places is not None and p.places == contract.places:
        return bool(gap <= mp.mpf(5) * mp.mpf(10) ** (-p.places - 1))
    endless = isinstance(y, Fraction) and not terminates(y)
    return endless and p.digits >= 5 and p.places >= 4 and bool(gap < mp.mpf(10) ** -p.places)


# -- sets of reals, compared by what belongs to them: at each of their ends, between two ends, and beyond all ---------
FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!=", "~": "~"}
Has = Callable[[Any], bool]  # Whether a number, or an infinity, belongs to a set


class RealSets:
    """Compares answers as real sets at one point of their symbols."""

    def __init__(self, point: Mapping[str, Value]) -> None:
        self._point = point
        self._ends: list[Any] = []

    def same(self, p: Answer, g: Answer) -> bool | None:
        """Return whether two answers are one set of reals, None if one of them is no such set."""
        self._ends = []
        try:
            first, second = self._read(p), self._read(g)
        except (NoValue, TypeError):
            return None
        return all(first(x) == second(x) for x in self._places())

    def _places(self) -> Iterator[Any]:
        """Yield where sets with the ends that were read may differ."""
        ends = sorted(end for end in self._ends if mp.isfinite(end))
        # 0 and the infinities too, for a set may have no end at all.
        yield from (-mp.inf, mp.mpf(0), mp.inf, *ends)
        yield from (sign * (1 + 2 * abs(end)) for sign in (1, -1) for end in ends)
        yield from ((a + b) / 2 for a, b in pairwise(ends) if not close(a, b))

    def _end(self, term: Term) -> Any:
        value = number_of(evaluate(term, self._point))
        if not isinstance(value, mp.mpf):
            raise NoValue
        self._ends += [value, -value]  # of |x| < 3 both
        return value

    def _read(self, answer: Answer) -> Has:
        """Return the set that an answer is. Raises NoValue if it is none."""
        if isinstance(answer, Named):
            return self._read(answer.value)
        if isinstance(answer, Scalar):
            value = self._end(answer.term)
            return lambda x: _holds("=", x, value)
        if isinstance(answer, Listing) and answer.kind == "tuple" and len(answer.items) == 2:
            ends = [self._end(item.term) for item in answer.items if isinstance(item, Scalar)]
            if len(ends) != 2 or ends[0] > ends[1]:
                raise NoValue
            low, high = (">=" if answer.brackets[0] == "[" else ">"), ("<=" if answer.brackets[1] == "]" else "<")
            return lambda x: _holds(low, x, ends[0]) and _holds(high, x, ends[1])
        if isinstance(answer, Listing) and answer.kind in ("set", "list"):
            parts = [self._read(item) for item in answer.items]
            if not parts or not all(isinstance(item, Relation) for item in answer.items) or answer.joint == "or":
                return lambda x: any(part(x) for part in parts)
            both = answer.joint == "and" or any(all(part(x) for part in parts) for x in self._places())
            # A comma between inequalities means both of them, unless nothing fulfills both.
            return lambda x: (all if both else any)(part(x) for part in parts)
        if isinstance(answer, Relation):
            return self._relation(answer)
        if not isinstance(answer, Union):
            raise NoValue
        joined = [(operation, self._read(part)) for operation, part in answer.parts]

        def has(x: Any) -> bool:
            found = False
            for operation, part in joined:
                if operation == "cup":
                    found = found or part(x)
                else:
                    found = found and (part(x) if operation == "cap" else mp.isfinite(x) and not part(x))
            return found

        return has

    def _relation(self, answer: Relation) -> Has:
        at, *others = [i for i, term in enumerate(answer.terms) if symbols(term) or contains(term, "opaque")] or [-1]
        term = answer.terms[at]
        absolute = term[:2] == ("fn", "abs")
        if others or at < 0 or (term[2] if absolute else term)[0] not in ("sym", "opaque"):
            raise NoValue
        bounds: list[tuple[str, Any]] = []
        for index, op in enumerate(answer.ops):
            if at not in (index, index + 1):
                raise NoValue
            bound = self._end(answer.terms[index + 1 if at == index else index])
            bounds.append((op if at == index else FLIPPED[op], bound))

        def fulfills(x: Any, op: str, bound: Any) -> bool:
            if not absolute:
                return _holds(op, x, bound)
            both = (_holds(op, x, bound), _holds(FLIPPED[op], x, -bound))
            return all(both) if op[0] in "<!" else any(both)

        return lambda x: mp.isfinite(x) and all(fulfills(x, *each) for each in bounds)


def _holds(op: str, x: Any, bound: Any) -> bool:
    if x == bound or (mp.isfinite(x) and mp.isfinite(bound) and close(x, bound)):
        return op in ("=", "<=", ">=")
    return op == "!=" or (op[0] == "<" and x < bound) or (op[0] == ">" and x > bound)
