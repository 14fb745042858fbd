"""Equality of two answers, by kind. Runs in the workers; docs/verification.md states the policy in words.

Expressions are equal if they agree in 60-digit arithmetic at points drawn for their variables, wherever both are
real (exactly, where all is rational). Equal expressions never disagree; for unequal ones to agree, random numbers
would have to coincide to 40 digits at several points.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath
from mpmath import mp

from rewards.answers import Answer, Based, Choice, Listing, Named, Relation, Scalar, Union, Words, read
from rewards.clean import clean, typed_thousands
from rewards.plain import without_spaces
from rewards.realsets import RealSets
from rewards.terms import (
    DIGITS,
    Budget,
    Matrix,
    NoValue,
    Term,
    TooBig,
    Value,
    contains,
    evaluate,
    noise,
    symbols,
)

POINTS_NEEDED, POINTS_TRIED = 4, 24
_TOLERANCE = mp.mpf(10) ** -40
_DEEP = 250


def _number(value: Value) -> Any:
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def close(a: Value, b: Value) -> bool:
    """Compare two values: exactly if both are rational, else to 40 digits, relative to the larger."""
    if isinstance(a, Matrix) or isinstance(b, Matrix):
        if not (isinstance(a, Matrix) and isinstance(b, Matrix)) or [len(r) for r in a] != [len(r) for r in b]:
            return False
        return all(close(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    x, y = _number(a), _number(b)
    if not (mpmath.isfinite(x) and mpmath.isfinite(y)):
        return bool(x == y)
    return bool(abs(x - y) <= _TOLERANCE * max(abs(x), abs(y)))


def _tiny(value: Value) -> bool:
    if isinstance(value, Matrix):
        return any(_tiny(cell) for row in value for cell in row)
    return not isinstance(value, Fraction) and bool(abs(value) < _TOLERANCE)


def _real(value: Value) -> bool:
    if isinstance(value, Matrix):
        return all(_real(cell) for row in value for cell in row)
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
        elif complex_meant or (_real(x) and _real(y)) or not names:
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
        return all(close(u, v) or bool(max(abs(_number(u)), abs(_number(v))) < mp.mpf(10) ** -200) for u, v in cells)


class Comparison:
    """One policy, applied to two answers that have been read."""

    def __init__(self, percent: str = "value") -> None:
        self.percent = percent

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
            return bool(p.relation and g.relation and self._relations(p.relation, g.relation))
        named, other = (p, g) if isinstance(p, Named) else (g, p)
        assert isinstance(named, Named)
        if isinstance(other, Relation):
            if named.relation is not None:
                pair = (named.relation, other) if named is p else (other, named.relation)
                if self._relations(*pair):
                    return True
            return isinstance(named.value, (Union, Listing)) and self._sets(p, g)
        return self.equal(named.value, other) if named is p else self.equal(other, named.value)

    # -- scalars -------------------------------------------------------------------------------------------------
    def _scalars(self, p: Scalar, g: Scalar) -> bool:
        if not _units_agree(p.unit, g.unit) or (p.percent and g.unit) or (g.percent and p.unit):
            return False
        if self.percent == "value" and p.percent and not g.percent:
            return self._values(_hundredth(p), g)
        if self.percent == "value" and g.percent and not p.percent:
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
        return _proportional(p_term, g_term, positive=op not in ("=", "!="))

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
        if self._ordered(p.items, g.items):
            return True
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
                if whole.kind in ("list", "set") and len(whole.items) == 1:
                    return self.equal(whole.items[0], part) if whole is p else self.equal(part, whole.items[0])
        return False

    def _sets(self, p: Answer, g: Answer) -> bool:
        point = point_for(set().union(*(_answer_symbols(x) for x in (p, g))), 0)
        sets = RealSets(point, close)
        first, second = sets.read(p), sets.read(g)
        if isinstance(p, Scalar) or isinstance(g, Scalar):
            return False
        if first is not None and second is not None:
            return sets.same(first, second)
        if isinstance(p, Union) and isinstance(g, Union) and len(p.parts) == len(g.parts):
            return all(a[0] == b[0] and self.equal(a[1], b[1]) for a, b in zip(p.parts, g.parts, strict=True))
        return False


_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!=", "~": "~"}


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

    def walk(part: Any) -> Any:
        if isinstance(part, tuple) and len(part) == 2 and part[0] == "sym":
            return ("sym", table.get(part[1], part[1]))
        return tuple(walk(x) for x in part) if isinstance(part, tuple) and not hasattr(part, "_fields") else part

    value = p.value
    if isinstance(value, Scalar):
        value = Scalar(walk(value.term), value.digits, value.places, value.unit, value.percent)
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
    if isinstance(x, Matrix) or isinstance(y, Matrix) or not (_real(x) and _real(y)):
        return False
    gap = abs(_number(x) - _number(y))
    if g.digits:
        half = mp.mpf(5) * mp.mpf(10) ** (-g.places - 1)
        if p.digits:  # both decimals: the prediction only says more digits of the gold
            return g.digits >= 4 and p.places > g.places and bool(gap <= half)
        return g.digits >= 3 and not _terminates(x) and bool(gap <= half)
    # An exact gold: a decimal with 5 digits, 4 of them after the point, may stand for a fraction without an end.
    endless = isinstance(y, Fraction) and not _terminates(y)
    return endless and p.digits >= 5 and p.places >= 4 and bool(gap < mp.mpf(10) ** -p.places)


def _terminates(value: Value) -> bool:
    if not isinstance(value, Fraction):
        return False
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1


def _difference(relation: Relation) -> tuple[str, Term]:
    """Bring a relation to `term op 0` with op one of = != > >=."""
    op, (left, right) = relation.ops[0], relation.terms
    if op in ("<", "<="):
        return _FLIPPED[op], ("add", right, ("neg", left))
    return op, ("add", left, ("neg", right))


def _proportional(a: Term, b: Term, positive: bool) -> bool:
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
            if not (_real(x) and _real(y)) or isinstance(x, Matrix) or isinstance(y, Matrix):
                continue
            if x == 0 or y == 0 or _tiny(x) or _tiny(y):
                if (x == 0) != (y == 0) and not (_tiny(x) and _tiny(y)):
                    return False
                continue
        except NoValue:
            continue
        if first is None:
            first = (x, y)
            ratio = _number(x) / _number(y)
            if positive and not mpmath.re(ratio) > 0:
                return False
        elif not close(_product(x, first[1]), _product(first[0], y)):
            return False
        agreed += 1
        if agreed > POINTS_NEEDED:
            return True
    return agreed > 1 or (agreed == 1 and not names)


def _product(x: Value, y: Value) -> Value:
    return x * y if isinstance(x, Fraction) and isinstance(y, Fraction) else _number(x) * _number(y)


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
    match = re.fullmatch(r"0?(\d{1,2}:\d{2})\s*(?:([ap])\.?\s*m\.?)?", _bare_text(text).lower())
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


def _bare_text(text: str) -> str:
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    if re.fullmatch(r"[^\\^_=+*/<>\d()\[\]|]*", text):
        return re.sub(r"[\s{}\"'`.,;:!?~-]+", "", text)
    return without_spaces(text)


def same_words(first: str, second: str) -> bool:
    """Compare two texts without their spaces; words also without case and punctuation."""
    a, b = _bare_text(first), _bare_text(second)
    if re.fullmatch(r"[\w:.,/-]*[a-zA-Z]{2}[\w:.,/-]*", a):
        a, b = a.lower(), b.lower()
    if a.isalpha() and len(a) > 1:
        a, b = (re.sub(r"^(?:the|a|an)(?=\s)", "", x.strip(), flags=re.I) for x in (first, second))
        a, b = _bare_text(a).lower(), _bare_text(b).lower()
    return bool(a) and a == b


def _readings(text: str, gold: bool = False) -> list[str]:
    """Return the cleaned text, and what its commas might mean: thousands separators, or a decimal comma."""
    cleaned = clean(text, gold)
    readings = [cleaned]
    bracketed = cleaned.startswith(("(", "[", "\\{"))
    thousands = typed_thousands(cleaned)
    if thousands is not None and (not bracketed or ", " in cleaned):
        readings.insert(0, thousands)
    elif re.fullmatch(r"[-+]?(?:\d+,\d{2}|\d+,\d{4,}|0,\d{3,})", cleaned):
        readings.append(cleaned.replace(",", "."))
    return readings


def decide(prediction: str, gold: str, percent: str, second_opinion: Callable[[str, str], bool] | None = None) -> str:
    """Return CORRECT, INCORRECT or REJECTED (a value beyond all bounds) for two answers as written."""
    comparison = Comparison(percent)
    mp.dps = DIGITS
    Budget.refill()
    predictions, golds = _readings(prediction), _readings(gold, gold=True)
    if same_words(predictions[-1], golds[-1]):
        return "CORRECT"
    try:
        read_predictions, read_golds = [read(text) for text in predictions], [read(text) for text in golds]
        if any(comparison.equal(p, g) for p in read_predictions for g in read_golds):
            return "CORRECT"
    except TooBig:
        return "REJECTED"
    unread = any(isinstance(answer, Words) for answer in (read_predictions[0], read_golds[0]))
    if unread and second_opinion is not None and second_opinion(predictions[0], golds[0]):
        return "CORRECT"
    return "INCORRECT"
