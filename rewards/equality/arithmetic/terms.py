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

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import reduce
from itertools import chain
from typing import Any

from mpmath import mp

from gtpo.rewards.equality.arithmetic.values import (
    FUNCTIONS,
    Magnitudes,
    Matrix,
    NoValue,
    TooBig,
    Value,
    add,
    divide,
    fingerprint,
    integer,
    multiply,
    negative,
    noise,
    power,
)

Term = tuple[Any, ...]


ZERO: Term = ("num", Fraction(0))
ONE: Term = ("num", Fraction(1))
MINUS_ONE: Term = ("num", Fraction(-1))


class Budget:
    """Counts visited terms, so that sums within sums end; one per process, refilled for every comparison.

    What an answer may cost is counted in work and not in seconds: a verdict does not depend on how busy the machine is.
    """

    visits = 0
    limit = 100_000
    price = 1

    @classmethod
    def refill(cls) -> None:
        """Start counting anew."""
        cls.visits = 0

    @classmethod
    def spend(cls) -> None:
        """Count one visit. Raises TooBig when the budget is spent."""
        cls.visits += cls.price
        if cls.visits > cls.limit:
            raise TooBig

    @classmethod
    @contextmanager
    def dearer(cls, digits: int) -> Iterator[None]:
        """Charge more for visits while arithmetic has so many digits."""
        cls.price = max(1, digits // 60)
        try:
            yield
        finally:
            cls.price = 1


def evaluate(term: Term, point: Mapping[str, Value], sign: int = 1) -> Value:
    """Return the value of a term where each variable has the value `point` gives it; `±` takes `sign`.

    Raises NoValue (a pole, an unbound name, shapes that do not fit) or TooBig.
    """
    Budget.spend()
    value = _value(term, point, sign)
    Magnitudes.note(value)
    return value


def _value(term: Term, point: Mapping[str, Value], sign: int) -> Value:
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
        return value if term[1] * sign > 0 else negative(value)
    values = [evaluate(argument, point, sign) for argument in term[1:]]
    try:
        if kind == "neg":
            return negative(values[0])
        if kind in ("add", "mul"):
            return reduce(add if kind == "add" else multiply, values)
        return divide(*values) if kind == "div" else power(*values)
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
    first, last = (None if end is None else integer(end) for end in ends)
    if head in ("sum", "prod") and first is not None and last is not None and 0 <= last - first < 500:
        total: Value = Fraction(0 if head == "sum" else 1)
        for index in range(first, last + 1):
            value = evaluate(body, {**point, variable: Fraction(index)}, sign)
            total = add(total, value) if head == "sum" else multiply(total, value)
        return total
    hidden = evaluate(body, {**point, variable: noise("bound", head)}, sign)
    return noise(head, fingerprint(hidden), *("" if end is None else fingerprint(end) for end in ends))


def symbols(term: Term) -> set[str]:
    """Return the free variables of a term."""
    if term[0] == "sym":
        return {term[1]}
    if term[0] == "bind":
        _, _, variable, body, low, high = term
        ends = set().union(*(symbols(end) for end in (low, high) if end is not None))
        return (symbols(body) - {variable}) | ends
    return set().union(*map(symbols, parts(term)))


def parts(term: Term) -> Iterator[Term]:
    """Yield the operands of a term, the cells of a matrix."""
    return (part for part in (chain(*term[1]) if term[0] == "mat" else term[1:]) if isinstance(part, tuple))


def subterms(term: Term) -> Iterator[Term]:
    """Yield a term and every term within it."""
    yield term
    for part in parts(term):
        yield from subterms(part)


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
        parts = [part for each in term[1:] for part in _operands(canonical(each), "add")]
        parts = sorted((part for part in parts if part != ZERO), key=repr)
        return ("add", *parts) if len(parts) > 1 else parts[0] if parts else ZERO
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


def _power(base: Term, exponent: Term) -> Term:
    if exponent == ONE:
        return base
    if base[0] == "pow" and exponent == MINUS_ONE:
        return ("pow", base[1], _product([MINUS_ONE, base[2]]))
    return ONE if base == ONE else ("pow", base, exponent)


def _product(factors: list[Term]) -> Term:
    parts: list[Term] = []
    sign = 1
    for factor in factors:
        for part in _operands(factor, "mul"):
            if part[0] == "num" and part[1] < 0:
                sign, part = -sign, ("num", -part[1])
            if part != ONE:
                parts.append(part)
    merged: list[Term] = []
    for part, count in Counter(parts).items():
        if part[0] == "num":
            merged += [part] * count
        else:
            merged.append(_power(part, ("num", Fraction(count))))
    merged.sort(key=repr)
    if sign < 0:
        if len(merged) < 2 and (not merged or merged[0][0] == "num"):
            return ("num", -(merged[0][1] if merged else 1))
        merged.insert(0, MINUS_ONE)
    return ("mul", *merged) if len(merged) > 1 else merged[0] if merged else ONE
