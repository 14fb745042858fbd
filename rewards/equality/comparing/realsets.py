"""Sets of real numbers as sorted, disjoint pieces, so that two ways of writing one set compare equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from mpmath import mp

from gtpo.rewards.equality.arithmetic.terms import Term, contains, evaluate, symbols
from gtpo.rewards.equality.arithmetic.values import NoValue, Value
from gtpo.rewards.equality.reading.answers import Answer, Listing, Named, Relation, Scalar, Union


class Piece(NamedTuple):
    """One interval; a point is closed at both of its equal ends."""

    low: Value
    low_closed: bool
    high: Value
    high_closed: bool


Close = Callable[[Value, Value], bool]
_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


class RealSets:
    """Reads answers as real sets at one point of their symbols, comparing ends with `close`."""

    def __init__(self, point: Mapping[str, Value], close: Close) -> None:
        self.point, self.close = point, close

    def read(self, answer: Answer) -> list[Piece] | None:
        """Return the pieces of an answer, merged, or None if it is no set of reals."""
        try:
            pieces = self._read(answer)
            return None if pieces is None else self._merge(pieces)
        except (NoValue, TypeError):
            return None

    def same(self, first: list[Piece], second: list[Piece]) -> bool:
        """Compare merged sets piece by piece."""
        return len(first) == len(second) and all(
            a.low_closed == b.low_closed
            and a.high_closed == b.high_closed
            and self._equal(a.low, b.low)
            and self._equal(a.high, b.high)
            for a, b in zip(first, second, strict=True)
        )

    def _value(self, term: Term) -> Any:
        value = evaluate(term, self.point)
        if isinstance(value, Fraction):
            return mp.mpf(value.numerator) / value.denominator
        if not isinstance(value, mp.mpf):
            raise NoValue
        return value

    def _equal(self, a: Value, b: Value) -> bool:
        return bool(a == b) or (abs(a) != mp.inf and abs(b) != mp.inf and self.close(a, b))

    def _read(self, answer: Answer) -> list[Piece] | None:
        if isinstance(answer, Named):
            return self._read(answer.value)
        if isinstance(answer, Scalar):
            value = self._value(answer.term)
            return [Piece(value, True, value, True)]
        if isinstance(answer, Listing) and answer.kind == "tuple" and len(answer.items) == 2:
            ends = [self._value(item.term) for item in answer.items if isinstance(item, Scalar)]
            if len(ends) != 2 or ends[0] > ends[1]:
                return None
            return [Piece(ends[0], answer.brackets[0] == "[", ends[1], answer.brackets[1] == "]")]
        if isinstance(answer, Listing) and answer.kind in ("set", "list"):
            found = [self._read(item) for item in answer.items]
            if None in found:
                return None
            if not found:
                return []
            pieces = [self._merge(part) for part in found if part is not None]
            union = [piece for part in pieces for piece in part]
            if not all(isinstance(item, Relation) for item in answer.items) or answer.joint == "or":
                return union
            both = pieces[0]
            for part in pieces[1:]:
                both = _intersect(both, part)
            if answer.joint == "and":
                return both
            # A comma between inequalities means both of them, unless nothing fulfils both.
            return both or union
        if isinstance(answer, Relation):
            return self._relation(answer)
        if isinstance(answer, Union):
            return self._union(answer)
        return None

    def _union(self, answer: Union) -> list[Piece] | None:
        total: list[Piece] = []
        for operation, part in answer.parts:
            pieces = self._read(part)
            if pieces is None:
                return None
            if operation == "cup":
                total = total + pieces
            elif operation == "cap":
                total = _intersect(self._merge(total), self._merge(pieces))
            else:
                total = _intersect(self._merge(total), _complement(self._merge(pieces)))
        return total

    def _relation(self, answer: Relation) -> list[Piece] | None:
        variables = [i for i, term in enumerate(answer.terms) if symbols(term) or contains(term, "opaque")]
        if len(variables) != 1:
            return None
        at = variables[0]
        term = answer.terms[at]
        inside = [Piece(-mp.inf, False, mp.inf, False)]
        absolute = term[:2] == ("fn", "abs")
        if (term[2] if absolute else term)[0] not in ("sym", "opaque"):
            return None
        for index, op in enumerate(answer.ops):
            if at not in (index, index + 1):
                return None
            bound = self._value(answer.terms[index + 1 if at == index else index])
            inside = _intersect(inside, _half_line(op if at == index else _FLIP[op], bound, absolute))
        return inside

    def _merge(self, pieces: list[Piece]) -> list[Piece]:
        ordered = sorted((p for p in pieces if not _empty(p)), key=lambda p: (p.low, not p.low_closed))
        merged: list[Piece] = []
        for piece in ordered:
            last = merged[-1] if merged else None
            touches = last is not None and (
                piece.low < last.high or (self._equal(piece.low, last.high) and (piece.low_closed or last.high_closed))
            )
            if last is None or not touches:
                merged.append(piece)
            elif self._equal(piece.high, last.high):
                merged[-1] = last._replace(high_closed=last.high_closed or piece.high_closed)
            elif piece.high > last.high:
                merged[-1] = last._replace(high=piece.high, high_closed=piece.high_closed)
        return merged


def _empty(piece: Piece) -> bool:
    return bool(piece.low > piece.high) or bool(
        piece.low == piece.high and not (piece.low_closed and piece.high_closed)
    )


def _half_line(op: str, bound: Value, absolute: bool) -> list[Piece]:
    closed = op in ("<=", ">=", "=")
    if op == "=":
        return [Piece(b, True, b, True) for b in ({bound, -bound} if absolute else {bound})]
    if op == "!=":
        return _complement(_half_line("=", bound, absolute))
    if op in ("<", "<="):
        return [Piece(-bound if absolute else -mp.inf, closed and absolute, bound, closed)]
    right = Piece(bound, closed, mp.inf, False)
    if not absolute:
        return [right]
    return [Piece(-mp.inf, False, -bound, closed), right] if bound > 0 else [Piece(-mp.inf, False, mp.inf, False)]


def _intersect(first: list[Piece], second: list[Piece]) -> list[Piece]:
    found = []
    for a in first:
        for b in second:
            low, low_closed = max((a.low, not a.low_closed), (b.low, not b.low_closed))
            high, high_closed = min((a.high, a.high_closed), (b.high, b.high_closed))
            piece = Piece(low, not low_closed, high, high_closed)
            if not _empty(piece):
                found.append(piece)
    return found


def _complement(pieces: list[Piece]) -> list[Piece]:
    left, left_closed = -mp.inf, False
    found = []
    for piece in sorted(pieces, key=lambda p: p.low):
        found.append(Piece(left, left_closed, piece.low, not piece.low_closed))
        left, left_closed = piece.high, not piece.high_closed
    found.append(Piece(left, left_closed, mp.inf, False))
    return [piece for piece in found if not _empty(piece) and piece.low != mp.inf and piece.high != -mp.inf]
