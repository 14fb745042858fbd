r"""Two spellings of one expression: the same tokens, or the same term up to the order of its operands.

Nothing is computed: `65-4`, `(65) - 4` and `-4 + 65 + 0` are one expression, `61` is another. So are `1/2` and `0.5`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import Term

_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]+|\\?[^\s]")
_SAME = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\times": "*", r"\cdot": "*", r"\ast": "*",
    r"\div": "/", r"\leq": r"\le", r"\geq": r"\ge", r"\%": "%",
}  # fmt: skip
_SILENT = frozenset(
    ["$", "{", "}", r"\left", r"\right", r"\,", r"\;", r"\!", r"\:", r"\displaystyle", r"\quad", r"\text", r"\$",
     r"\(", r"\)", r"\[", r"\]", r"\big", r"\Big", r"\bigl", r"\bigr", "~", "\\"]
)  # fmt: skip
_ZERO: Term = ("num", Fraction(0))
_ONE: Term = ("num", Fraction(1))
_MINUS_ONE: Term = ("num", Fraction(-1))


def tokens_of(text: str) -> tuple[str, ...]:
    """Return the tokens of a text without delimiters, braces and space, operators in one spelling."""
    joined = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return tuple(_SAME.get(token, token) for token in _TOKEN.findall(joined) if token not in _SILENT)


def occurs(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    """Return whether tokens stand in a row within others."""
    if not part:
        return False
    first, size = part[0], len(part)
    return any(token == first and whole[at : at + size] == part for at, token in enumerate(whole))


def is_literal(term: Term) -> bool:
    """Return whether a term is one number or name, with or without its sign: nothing in it can be computed."""
    if term[0] == "neg" or (term[0] == "mul" and len(term) == 3 and term[1] == _MINUS_ONE):
        return is_literal(term[-1])
    return term[0] in ("num", "sym", "const")


def canonical(term: Term) -> Term:
    """Return a term with signs, quotients and roots as factors and powers, operands in order, 0 and 1 left out."""
    kind = term[0]
    if kind in ("num", "sym", "const"):
        return term
    if kind == "neg":
        return _product([_MINUS_ONE, canonical(term[1])])
    if kind == "add":
        parts = [part for each in term[1:] for part in _operands(canonical(each), "add")]
        parts = sorted((part for part in parts if part != _ZERO), key=repr)
        return ("add", *parts) if len(parts) > 1 else parts[0] if parts else _ZERO
    if kind == "mul":
        return _product([canonical(part) for part in term[1:]])
    if kind == "div":
        return _product([canonical(term[1]), _power(canonical(term[2]), _MINUS_ONE)])
    if kind == "pow":
        return _power(canonical(term[1]), canonical(term[2]))
    if term[:2] == ("fn", "sqrt"):
        return _power(canonical(term[2]), ("num", Fraction(1, 2)))
    if kind == "mat":
        return ("mat", tuple(tuple(canonical(cell) for cell in row) for row in term[1]))
    return tuple(canonical(part) if isinstance(part, tuple) else part for part in term)


def _operands(term: Term, kind: str) -> Iterator[Term]:
    if term[0] == kind:
        yield from term[1:]
    else:
        yield term


def _power(base: Term, exponent: Term) -> Term:
    if exponent == _ONE:
        return base
    if base[0] == "pow" and exponent == _MINUS_ONE:
        return ("pow", base[1], _product([_MINUS_ONE, base[2]]))
    return _ONE if base == _ONE else ("pow", base, exponent)


def _product(factors: list[Term]) -> Term:
    parts: list[Term] = []
    sign = 1
    for factor in factors:
        for part in _operands(factor, "mul"):
            if part[0] == "num" and part[1] < 0:
                sign, part = -sign, ("num", -part[1])
            if part != _ONE:
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
        merged.insert(0, _MINUS_ONE)
    return ("mul", *merged) if len(merged) > 1 else merged[0] if merged else _ONE
