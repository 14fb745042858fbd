"""Terms: what an expression is once it is read. Nothing is computed here; `arithmetic` gives terms their values.

A term is a tuple: `("num", Fraction)`, `("const", name)`, `("sym", name)`, `("add", a, b, …)`, `("mul", a, b, …)`,
`("div", a, b)`, `("pow", a, b)`, `("neg", a)`, `("fn", name, a, …)`, `("pm", sign, a)`, `("mat", rows)`,
`("bind", head, variable, body, low, high)` and `("opaque", head, a, …)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import chain
from typing import Any

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
        # Any order does that is the same for both sides.
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
            # Numbers stay side by side: `5 * 5` of a problem is not the `5^2` of an answer.
            merged += [part] * count
        else:
            merged.append(_power(part, ("num", Fraction(count))))
    merged.sort(key=repr)
    if sign < 0:
        if len(merged) < 2 and (not merged or merged[0][0] == "num"):
            return ("num", -(merged[0][1] if merged else 1))
        merged.insert(0, MINUS_ONE)
    return ("mul", *merged) if len(merged) > 1 else merged[0] if merged else ONE
