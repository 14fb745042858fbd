"""Sets of reals, compared by what belongs to them: at each of their ends, between two ends, and beyond all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from mpmath import mp

from gtpo.rewards.equality.arithmetic import NoValue, Value, evaluate, number_of
from gtpo.rewards.equality.comparing.numeric import close
from gtpo.rewards.equality.reading.answers import Answer, Listing, Named, Relation, Scalar, Union
from gtpo.rewards.equality.terms import Term, contains, symbols

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
