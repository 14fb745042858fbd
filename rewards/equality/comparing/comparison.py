"""Equality of two answers, by kind; docs/verification.md states the policy in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from mpmath import mp

from rewards.equality.arithmetic.terms import Term, evaluate, rename, substitute, symbols
from rewards.equality.arithmetic.values import Matrix, NoValue
from rewards.equality.comparing.numeric import (
    close,
    equal_terms,
    is_real_value,
    number_of,
    point_for,
    proportional,
    terminates,
)
from rewards.equality.comparing.realsets import RealSets
from rewards.equality.reading.answers import Answer, Based, Choice, Listing, Named, Relation, Scalar, Union, Words
from rewards.equality.reading.words import bare_text, same_words


class Comparison:
    """One policy, applied to two answers that have been read."""

    def equal(self, p: Answer, g: Answer) -> bool:
        """Say whether prediction `p` equals gold `g`."""
        if isinstance(p, Choice) or isinstance(g, Choice):
            return self._choices(p, g)
        if isinstance(p, Named) or isinstance(g, Named):
            return self._named(p, g)
        if isinstance(p, Words) or isinstance(g, Words):
            times = _time(p), _time(g)
            if times[0] is not None and times[1] is not None:
                return times[0][0] == times[1][0] and (times[0][1] == times[1][1] or "" in (times[0][1], times[1][1]))
            return isinstance(p, Words) and isinstance(g, Words) and same_words(p.text, g.text)
        if isinstance(p, Based) or isinstance(g, Based):
            return _based(p, g)
        if isinstance(p, Relation) and isinstance(g, Relation) and self._relations(p, g):
            return True
        if isinstance(p, Relation) and isinstance(g, Scalar):
            return self._total_of_names(p, g)
        if isinstance(p, Scalar) and isinstance(g, Scalar):
            return self._scalars(p, g)
        if isinstance(p, Listing) and isinstance(g, Listing) and self._listings(p, g):
            return True
        if isinstance(p, (Union, Relation)) or isinstance(g, (Union, Relation)):
            return self._sets(p, g)
        return self._single(p, g)

    # -- multiple choice, names ----------------------------------------------------------------------------------
    def _choices(self, p: Answer, g: Answer) -> bool:
        letters = [_letter(p), _letter(g)]
        if None not in letters:
            marked = any(isinstance(x, Choice) and x.marked for x in (p, g))
            first, second = (str(letter) for letter in letters)
            return first == second or (marked and first.lower() == second.lower())
        if isinstance(p, Choice):
            return p.body is not None and not isinstance(g, Choice) and self.equal(p.body, g)
        return isinstance(g, Choice) and g.body is not None and self.equal(p, g.body)

    def _named(self, p: Answer, g: Answer) -> bool:
        if isinstance(p, Named) and isinstance(g, Named):
            if p.name == g.name or not (_symbol_name(p.name) and _symbol_name(g.name)):
                if p.variables and g.variables and p.variables != g.variables:
                    return self.equal(_rename(p, g).value, g.value)
                return self.equal(p.value, g.value)
            if p.relation is None or g.relation is None:
                return False
            return self._relations(p.relation, g.relation) or _is_graph(p, g.relation) or _is_graph(g, p.relation)
        named, other = (p, g) if isinstance(p, Named) else (g, p)
        assert isinstance(named, Named)
        if isinstance(other, Relation):
            if named.relation is not None:
                pair = (named.relation, other) if named is p else (other, named.relation)
                if self._relations(*pair) or _is_graph(named, other):
                    return True
            return isinstance(named.value, (Union, Listing)) and self._sets(p, g)
        return self.equal(named.value, other) if named is p else self.equal(other, named.value)

    # -- scalars -------------------------------------------------------------------------------------------------
    def _scalars(self, p: Scalar, g: Scalar) -> bool:
        if not _units_agree(p.unit, g.unit) or (p.percent and g.unit) or (g.percent and p.unit):
            return False
        if p.percent and not g.percent:
            return self._values(_hundredth(p), g)
        if g.percent and not p.percent:
            # The question asked for a percentage: `28` and `0.28` both say it.
            return self._values(p, g) or self._values(p, _hundredth(g))
        return self._values(p, g)

    def _values(self, p: Scalar, g: Scalar) -> bool:
        if equal_terms(p.term, g.term):
            return True
        if not (p.digits or g.digits) or symbols(p.term) or symbols(g.term):
            return False
        try:
            return _agree_as_decimals(p, g)
        except NoValue:
            return False

    def _total_of_names(self, p: Relation, g: Scalar) -> bool:
        """Take `m + n = 142` for the gold 142: a sum of names, no equation of a line that was asked for."""
        if set(p.ops) != {"="} or symbols(g.term) or symbols(p.terms[-1]):
            return False
        left = p.terms[0]
        names_only = left[0] == "add" and all(part[0] == "sym" for part in left[1:])
        return names_only and equal_terms(p.terms[-1], g.term)

    # -- relations -----------------------------------------------------------------------------------------------
    def _relations(self, p: Relation, g: Relation) -> bool:
        if len(p.ops) != len(g.ops):
            return False
        if len(p.ops) > 1:
            flipped = Relation(tuple(_FLIPPED[op] for op in reversed(p.ops)), tuple(reversed(p.terms)))
            return any(
                way.ops == g.ops and all(equal_terms(a, b) for a, b in zip(way.terms, g.terms, strict=True))
                for way in (p, flipped)
            )
        (op, p_term), (other, g_term) = _difference(p), _difference(g)
        if op != other:
            return False
        return proportional(p_term, g_term, positive=op not in ("=", "!="))

    # -- collections ---------------------------------------------------------------------------------------------
    def _listings(self, p: Listing, g: Listing) -> bool:
        kinds = {p.kind, g.kind}
        if "ratio" in kinds:
            return kinds == {"ratio"} and self._ratios(p, g)
        if kinds == {"tuple"}:
            # With two entries the brackets tell an open interval (or a point) from a closed one.
            same_brackets = p.brackets == g.brackets or (len(p.items) > 2 and {p.brackets, g.brackets} <= {"()", "[]"})
            return same_brackets and self._ordered(p.items, g.items)
        if "tuple" in kinds:
            pair = (p, g) if p.kind == "tuple" else (g, p)
            return pair[1].kind == "list" and pair[0].brackets == "()" and self._ordered(p.items, g.items)
        p_names, g_names = _distinct_names(p.items), _distinct_names(g.items)
        if (p_names is None) != (g_names is None) and kinds == {"list"}:
            values = [_strip_names(x.items) for x in (p, g)]
            similar = _indexed(p_names or g_names or [])
            return self._unordered(*values) if similar else self._ordered(*values)
        p_items, g_items = (self._distinct(x.items) if x.kind == "set" else x.items for x in (p, g))
        if kinds == {"set", "list"} or not any(isinstance(x, Scalar) for x in (*p_items, *g_items)):
            # A solution named twice is one solution; a number written twice may be a double root.
            p_items, g_items = self._distinct(p_items), self._distinct(g_items)
        return self._unordered(p_items, g_items)

    def _ordered(self, p: Sequence[Answer], g: Sequence[Answer]) -> bool:
        return len(p) == len(g) and all(self.equal(a, b) for a, b in zip(p, g, strict=True))

    def _unordered(self, p: Sequence[Answer], g: Sequence[Answer]) -> bool:
        if len(p) != len(g):
            return False
        left = list(g)
        for item in p:
            match = next((i for i, other in enumerate(left) if self.equal(item, other)), None)
            if match is None:
                return False
            del left[match]
        return True

    def _distinct(self, items: Sequence[Answer]) -> tuple[Answer, ...]:
        kept: list[Answer] = []
        for item in items:
            if not any(self.equal(item, other) for other in kept):
                kept.append(item)
        return tuple(kept)

    def _ratios(self, p: Listing, g: Listing) -> bool:
        if len(p.items) != len(g.items):
            return False
        times = _time(p), _time(g)
        if times[0] is not None and times[1] is not None:  # 7:30 is not 14:60
            return _same_time(times[0], times[1])
        if any(time is not None and ":0" in time[0] for time in times):  # a time of day, which no ratio equals
            return False
        if self._ordered(p.items, g.items):
            return True
        if any(isinstance(x, Scalar) and equal_terms(x.term, ("num", Fraction(0))) for x in (*p.items, *g.items)):
            return False
        terms = [[item.term for item in x.items if isinstance(item, Scalar)] for x in (p, g)]
        first_p, first_g = terms[0][0], terms[1][0]
        return all(
            equal_terms(("mul", a, first_g), ("mul", b, first_p)) for a, b in zip(terms[0], terms[1], strict=True)
        ) and not equal_terms(first_p, ("num", Fraction(0)))

    def _single(self, p: Answer, g: Answer) -> bool:
        """One answer beside a list or set of one; a ratio of two beside its quotient."""
        for whole, part in ((p, g), (g, p)):
            if isinstance(whole, Listing) and isinstance(part, Scalar):
                whole_number = part.term[0] == "num" and part.term[1].denominator == 1
                if whole.kind == "ratio" and len(whole.items) == 2 and not _clock(whole.brackets) and not whole_number:
                    a, b = whole.items
                    return (
                        isinstance(a, Scalar)
                        and isinstance(b, Scalar)
                        and equal_terms(("div", a.term, b.term), part.term)
                    )
                if whole.kind == "tuple" and part.term[0] == "mat":
                    return _as_matrix(whole, part.term)
                forms = {repr(item) for item in whole.items}
                if whole.kind == "list" and 1 < len(forms) == len(whole.items):  # `5/2 or 2.5`: one value, twice
                    return all(self.equal(item, part) if whole is p else self.equal(part, item) for item in whole.items)
                if whole.kind in ("list", "set") and len(whole.items) == 1:
                    return self.equal(whole.items[0], part) if whole is p else self.equal(part, whole.items[0])
        return False

    def _sets(self, p: Answer, g: Answer) -> bool:
        point = point_for(set().union(*(_answer_symbols(x) for x in (p, g))), 0)
        sets = RealSets(point, close)
        first, second = sets.read(p), sets.read(g)
        if isinstance(p, Scalar) or isinstance(g, Scalar):
            return False
        if isinstance(p, Relation) and isinstance(g, Relation) and _answer_symbols(p) != _answer_symbols(g):
            return False  # x > 3 is not y > 3
        if first is not None and second is not None:
            return sets.same(first, second)
        if isinstance(p, Union) and isinstance(g, Union) and len(p.parts) == len(g.parts):
            return all(a[0] == b[0] and self.equal(a[1], b[1]) for a, b in zip(p.parts, g.parts, strict=True))
        return False


_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!=", "~": "~"}


def _as_matrix(listing: Listing, matrix: Term) -> bool:
    """A vector may be written as a tuple, a matrix as a tuple of rows."""
    rows = matrix[1]
    if all(isinstance(item, Listing) and item.kind == "tuple" for item in listing.items):
        written = [item.items for item in listing.items if isinstance(item, Listing)]
    else:
        flat = len(rows) == 1
        written = [listing.items] if flat else [(item,) for item in listing.items]
    if [len(row) for row in written] != [len(row) for row in rows]:
        return False
    return all(
        isinstance(item, Scalar) and equal_terms(item.term, cell)
        for row, cells in zip(written, rows, strict=True)
        for item, cell in zip(row, cells, strict=True)
    )


def _letter(answer: Answer) -> str | None:
    if isinstance(answer, Choice):
        return answer.letter
    if isinstance(answer, Scalar) and answer.term[0] in ("sym", "const") and len(answer.term[1]) == 1:
        return str(answer.term[1])
    return answer.text if isinstance(answer, Words) and len(answer.text) == 1 else None


def _symbol_name(name: str) -> bool:
    return re.fullmatch(r"\\?[a-zA-Z]+(?:_\w+)?|\(.*\)", name) is not None


def _rename(p: Named, g: Named) -> Named:
    """Rename the argument of `f(t) = …` to the other's."""
    table = dict(zip(p.variables, g.variables, strict=True))

    value = p.value
    if isinstance(value, Scalar):
        value = Scalar(rename(value.term, table), value.digits, value.places, value.unit, value.percent)
    return Named(g.name, value, None, g.variables)


def _units_agree(a: str, b: str) -> bool:
    if not a or not b or a == b:
        return True
    return {a, b} in ({"degree", "celsius"}, {"degree", "fahrenheit"})


def _hundredth(answer: Scalar) -> Scalar:
    return Scalar(("div", answer.term, ("num", Fraction(100))), answer.digits, answer.places and answer.places + 2)


def _agree_as_decimals(p: Scalar, g: Scalar) -> bool:
    """Apply the policy on decimals: the fewer digits are written, the more exactly they must be meant."""
    x, y = evaluate(p.term, {}), evaluate(g.term, {})
    if isinstance(x, Matrix) or isinstance(y, Matrix) or not (is_real_value(x) and is_real_value(y)):
        return False
    gap = abs(number_of(x) - number_of(y))
    if g.digits:
        half = mp.mpf(5) * mp.mpf(10) ** (-g.places - 1)
        if p.digits:  # both decimals: the prediction only says more digits of the gold
            return g.digits >= 4 and p.places > g.places and bool(gap <= half)
        return g.digits >= 3 and not terminates(x) and bool(gap <= half)
    # An exact gold: a decimal with 5 digits, 4 of them after the point, may stand for a fraction without an end.
    endless = isinstance(y, Fraction) and not terminates(y)
    return endless and p.digits >= 5 and p.places >= 4 and bool(gap < mp.mpf(10) ** -p.places)


def _difference(relation: Relation) -> tuple[str, Term]:
    """Bring a relation to `term op 0` with op one of = != > >=."""
    op, (left, right) = relation.ops[0], relation.terms
    if op in ("<", "<="):
        return _FLIPPED[op], ("add", right, ("neg", left))
    return op, ("add", left, ("neg", right))


def _based(p: Answer, g: Answer) -> bool:
    if isinstance(p, Based) and isinstance(g, Based):
        return p == g
    based, other = (p, g) if isinstance(p, Based) else (g, p)
    assert isinstance(based, Based)
    # A numeral in base 10 is a plain number; in any other base the base is part of the answer.
    return (
        based.base == 10
        and isinstance(other, Scalar)
        and based.digits.isdigit()
        and equal_terms(("num", Fraction(based.digits)), other.term)
    )


def _is_graph(named: Named, equation: Relation) -> bool:
    """Say whether an equation linear in y, such as x y = 1, has the solution y = 1/x."""
    if equation.ops != ("=",) or not isinstance(named.value, Scalar) or len(named.name) != 1:
        return False
    value, name = named.value.term, named.name
    _, left = _difference(equation)
    if name in symbols(value) or name not in symbols(left):
        return False

    def at(term: Term) -> Term:
        return substitute(left, name, term)

    zero: Term = ("num", Fraction(0))
    two: Term = ("num", Fraction(2))
    one: Term = ("num", Fraction(1))
    bend = ("add", at(two), ("mul", ("num", Fraction(-2)), at(one)), at(zero))
    return equal_terms(bend, zero) and equal_terms(at(value), zero) and not equal_terms(at(one), at(zero))


def _distinct_names(items: Sequence[Answer]) -> list[str] | None:
    names = [item.name for item in items if isinstance(item, Named)]
    return names if len(names) == len(items) and len(set(names)) == len(names) else None


def _indexed(names: Sequence[str]) -> bool:
    """Whether names are one letter with different indices: `x_1, x_2`, whose order says nothing."""
    return len({re.sub(r"_.*|\d+$", "", name) for name in names}) == 1


def _strip_names(items: Sequence[Answer]) -> list[Answer]:
    return [item.value if isinstance(item, Named) else item for item in items]


def _clock(text: str) -> bool:
    return re.fullmatch(r"\d{1,2}:\d{2}", text) is not None


def _time(answer: Answer) -> tuple[str, str] | None:
    """Return a time of day as (`h:mm`, `a` or `p` or empty), or None."""
    text = answer.text if isinstance(answer, Words) else answer.brackets if isinstance(answer, Listing) else ""
    match = re.fullmatch(r"0?(\d{1,2}:\d{2})\s*(?:([ap])\.?\s*m\.?)?", bare_text(text).lower())
    return (match[1], match[2] or "") if match else None


def _same_time(a: tuple[str, str], b: tuple[str, str]) -> bool:
    return a[0] == b[0] and (a[1] == b[1] or "" in (a[1], b[1]))


def _answer_symbols(answer: Answer) -> set[str]:
    if isinstance(answer, Scalar):
        return symbols(answer.term)
    if isinstance(answer, Relation):
        return set().union(*(symbols(term) for term in answer.terms))
    if isinstance(answer, Listing):
        return set().union(*(_answer_symbols(item) for item in answer.items))
    if isinstance(answer, Union):
        return set().union(*(_answer_symbols(part) for _, part in answer.parts))
    return _answer_symbols(answer.value) if isinstance(answer, Named) else set()
