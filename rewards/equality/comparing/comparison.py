"""Equality of two answers, by kind; docs/verification.md states the policy in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations
from typing import Any

import mpmath
from mpmath import mp

from gtpo.rewards.completions import words
from gtpo.rewards.equality import answers, arithmetic
from gtpo.rewards.equality.answers import Answer, Listing, Named, Relation, Scalar, Union, Words, symbols_of
from gtpo.rewards.equality.arithmetic import NoValue, Term, Value, canonical, contains, equal_terms, evaluate, symbols
from gtpo.rewards.equality.reading import WORDS
from gtpo.rewards.equality.reading.clean import same_time, same_words, time_of_day
from gtpo.rewards.equality.reading.grammar import occurs, tokens_of
from gtpo.rewards.equality.reading.problem import Contract, ProblemText, plain_name
from gtpo.rewards.equality.reading.units import is_noun, singular


# -- equations, chains that give a value, and names of values ---------------------------------------------------------
def difference(relation: Relation) -> tuple[str, Term]:
    """Bring a relation to `term op 0` with op one of = != > >=."""
    op, (left, right) = relation.ops[0], relation.terms
    if op in ("<", "<="):
        op, left, right = FLIPPED[op], right, left
    return op, ("add", left, ("neg", right))


def value_of_chain(chain: Relation, problem: ProblemText) -> Term | None:
    """Return the last term of a chain that gives an expression its value, as `m + n = 12 + 19 = 31` does, else None.

    It gives one if all its terms are equal, or if its first is a sum of names or what the problem asks for, and the
    others are one number.
    """
    first, *others = chain.terms
    last = others[-1]
    if set(chain.ops) != {"="} or not all(equal_terms(term, last) for term in others[:-1]):
        return None
    if not any(map(symbols, others)):
        if not symbols(first) and contains(first, "bind"):
            return last  # `\sum_{n=1}^\infty 2^{-n} = 1`
        names = first[0] == "add" and all(part[0] == "sym" for part in first[1:])
        asked = canonical(first) in problem.asked
        computed = not symbols(first) and equal_terms(first, last)
        return last if names or asked or computed else None
    return last if equal_terms(first, last) else None


def _plain(name: str) -> str:
    r"""Return a name without what changes no quantity: `|AB|` is AB, `m\angle A` is `\angle A`; `x^2` is not `x`."""
    return re.sub(r"^\|([A-Z]{2})\|$|^\\overline([A-Z]{2})$|^m(\\angle[A-Z]{1,3})$", r"\1\2\3", name)


def rename(p: Named, g: Named) -> Named:
    """Rename the argument of `f(t) = …` to the other's."""
    return Named(g.name, renamed(p.value, dict(zip(p.variables, g.variables, strict=True))), None, g.variables)


def renamed(answer: Answer, names: Mapping[str, str]) -> Answer:
    """Return an answer with other names of its letters, and without its equation."""
    if isinstance(answer, Scalar):
        table = {old: ("sym", new) for old, new in names.items()}
        return replace(answer, term=arithmetic.substitute(answer.term, table))
    if isinstance(answer, Named):
        return replace(answer, value=renamed(answer.value, names), relation=None)
    if isinstance(answer, Listing):
        return replace(answer, items=tuple(renamed(item, names) for item in answer.items))
    return answer


def assigned(answer: Answer) -> dict[str, Answer] | None:
    """Return name -> value of `(x, y) = (1, 2)` and of `x = 1, y = 2`, if there are two names or more."""
    if isinstance(answer, Named) and answer.name.startswith("(") and isinstance(answer.value, Listing):
        names = [re.sub(r"\([a-z]$|\([a-z]\)$", "", name) for name in answer.name[1:-1].split(",")]
        same = len(names) == len(answer.value.items) == len(set(names))
        return dict(zip(names, answer.value.items, strict=True)) if same and answer.value.kind == "tuple" else None
    if not isinstance(answer, Listing) or answer.kind != "list" or answer.joint == "or":
        return None
    named = {item.name: item.value for item in answer.items if isinstance(item, Named)}
    return named if len(named) == len(answer.items) and not indexed(list(named)) else None


def distinct_names(items: Sequence[Answer]) -> list[str] | None:
    """Return the names of a list in which every item has one of its own, else None."""
    names = [item.name for item in items if isinstance(item, Named)]
    return names if len(names) == len(items) and len(set(names)) == len(names) else None


def indexed(names: Sequence[str]) -> bool:
    """Return whether names are one letter with different indices: `x_1, x_2`, whose order says nothing."""
    return len({re.sub(r"_.*|\d+$", "", name) for name in names}) == 1


# -- decimals, which may be rounded, and percentages ----------------------------------------------------------------
def terminates(value: Value) -> bool:
    """Return whether a value is a fraction whose decimals end."""
    # 10^k is a multiple of a denominator of k binary digits if that has no factors but 2 and 5.
    return isinstance(value, Fraction) and 10 ** value.denominator.bit_length() % value.denominator == 0


def _hundredth(answer: Scalar) -> Scalar:
    term = ("div", answer.term, ("num", Fraction(100)))
    return replace(answer, term=term, places=answer.places and answer.places + 2, percent=False)


def _agree_as_decimals(p: Scalar, g: Scalar, contract: Contract | None) -> bool:
    """Return whether a decimal stands for the other number: the fewer digits it has, the more exact it must be.

    `contract` is that of a known problem: one that speaks of no rounding has an exact answer. NoValue for a matrix.
    """
    x, y = evaluate(p.term, {}), evaluate(g.term, {})
    gap = abs(arithmetic.number_of(x) - arithmetic.number_of(y))
    if not (arithmetic.is_real_value(x) and arithmetic.is_real_value(y)):
        return False
    rounded, places = (contract.rounded, contract.places) if contract is not None else (False, None)
    half = mp.mpf(5) * mp.mpf(10) ** (-(g if g.digits else p).places - 1)
    if g.digits and p.digits:  # both decimals: the prediction only says more digits of the gold
        return (contract is None or rounded) and g.digits >= 4 and p.places > g.places and bool(gap <= half)
    if g.digits:
        if rounded and places is None and terminates(x) and len(str(x)) >= 3:
            return arithmetic.integer(x) is not None and bool(gap <= 0.5)  # `118` for 117.95, which is about as much
        return g.digits >= 3 and not terminates(x) and bool(gap <= half)
    if g.term[0] == "num":
        return False  # `0.4545` for a gold that repeats for ever
    # An exact gold: a decimal with 5 digits, 4 of them after the point, may stand for a fraction without an end.
    if rounded and p.places == places:
        return bool(gap <= half)
    endless = isinstance(y, Fraction) and not terminates(y)
    return endless and p.digits >= 5 and p.places >= 4 and bool(gap < mp.mpf(10) ** -p.places)


# -- sets of reals, compared by what belongs to them: at each of their ends, between two ends, and beyond all ---------
FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!=", "~": "~"}
Has = Callable[[Any], bool]  # Whether a number, or an infinity, belongs to a set


def _same_sets(p: Answer, g: Answer, point: Mapping[str, Value]) -> bool | None:
    """Return whether two answers are one set of reals at a point of their symbols, None if one of them is no set."""
    ends: list[Any] = []
    try:
        first, second = _set_of(p, point, ends), _set_of(g, point, ends)
    except (NoValue, TypeError):
        return None
    return all(first(x) == second(x) for x in _places(ends))


def _places(ends: Sequence[Any]) -> Iterator[Any]:
    """Yield where sets with these ends may differ."""
    finite = sorted(end for end in ends if mp.isfinite(end))
    # 0 and the infinities too, for a set may have no end at all.
    yield from (-mp.inf, mp.mpf(0), mp.inf, *finite)
    yield from (sign * (1 + 2 * abs(end)) for sign in (1, -1) for end in finite)
    yield from ((a + b) / 2 for a, b in pairwise(finite) if not arithmetic.close(a, b))


def _end(term: Term, point: Mapping[str, Value], ends: list[Any]) -> Any:
    value = arithmetic.number_of(evaluate(term, point))
    if not isinstance(value, mp.mpf):
        raise NoValue
    ends += [value, -value]  # of |x| < 3 both
    return value


def _set_of(answer: Answer, point: Mapping[str, Value], ends: list[Any]) -> Has:
    """Return the set that an answer is, and add its ends to those of others. Raises NoValue if it is none."""
    if isinstance(answer, Named):
        return _set_of(answer.value, point, ends)
    if isinstance(answer, Scalar):
        value = _end(answer.term, point, ends)
        return lambda x: _holds("=", x, value)
    if isinstance(answer, Listing) and answer.kind == "tuple" and len(answer.items) == 2:
        pair = [_end(item.term, point, ends) for item in answer.items if isinstance(item, Scalar)]
        if len(pair) != 2 or pair[0] > pair[1]:
            raise NoValue
        above, below = (">=" if answer.brackets[0] == "[" else ">"), ("<=" if answer.brackets[1] == "]" else "<")
        return lambda x: _holds(above, x, pair[0]) and _holds(below, x, pair[1])
    if isinstance(answer, Listing) and answer.kind in ("set", "list"):
        parts = [_set_of(item, point, ends) for item in answer.items]
        relations = bool(parts) and all(isinstance(item, Relation) for item in answer.items) and answer.joint != "or"
        # A comma between inequalities means both of them, unless nothing fulfills both.
        both = relations and (answer.joint or any(all(part(x) for part in parts) for x in _places(ends)))
        return lambda x: (all if both else any)(part(x) for part in parts)
    if isinstance(answer, Relation):
        return _fulfilling(answer, point, ends)
    if not isinstance(answer, Union):
        raise NoValue
    joined = [(operation, _set_of(part, point, ends)) for operation, part in answer.parts]

    def has(x: Any) -> bool:
        held = False
        for operation, part in joined:
            if operation == "cup":
                held = held or part(x)
            else:
                held = held and (part(x) if operation == "cap" else mp.isfinite(x) and not part(x))
        return held

    return has


def _fulfilling(answer: Relation, point: Mapping[str, Value], ends: list[Any]) -> Has:
    at, *others = [i for i, term in enumerate(answer.terms) if symbols(term) or contains(term, "opaque")] or [-1]
    term = answer.terms[at]
    absolute = term[:2] == ("fn", "abs")
    if others or at < 0 or (term[2] if absolute else term)[0] not in ("sym", "opaque"):
        raise NoValue
    bounds: list[tuple[str, Any]] = []
    for index, op in enumerate(answer.ops):
        if at not in (index, index + 1):
            raise NoValue
        bound = _end(answer.terms[index + 1 if at == index else index], point, ends)
        bounds.append((op if at == index else FLIPPED[op], bound))

    def fulfills(x: Any, op: str, bound: Any) -> bool:
        if not absolute:
            return _holds(op, x, bound)
        both = (_holds(op, x, bound), _holds(FLIPPED[op], x, -bound))
        return all(both) if op[0] in "<!" else any(both)

    return lambda x: mp.isfinite(x) and all(fulfills(x, *each) for each in bounds)


def _holds(op: str, x: Any, bound: Any) -> bool:
    if x == bound or (mp.isfinite(x) and mp.isfinite(bound) and arithmetic.close(x, bound)):
        return op in ("=", "<=", ">=")
    return op == "!=" or (op[0] == "<" and x < bound) or (op[0] == ">" and x > bound)


# -- the policy -------------------------------------------------------------------------------------------------------
_TIMES = words("time clock am pm o'clock noon midnight hour hours minute minutes morning evening")
_RISING = {"increasing": "<", "decreasing": ">"}
_MONEY = frozenset(("dollar", "cent", "euro", "sterling", "yen", "rupee"))


class Comparison:
    """One policy, applied to two answers that have been read; `problem` is what is known of their problem."""

    def __init__(self, problem: ProblemText) -> None:
        self.problem = problem
        self.contract = problem.contract

    def matching(self, p: Answer, g: Answer) -> Answer | None:
        """Return prediction `p` if it equals gold `g`, with the gold's names for parameters of its own, else None."""
        if self.equal(p, g):
            return p
        ours, theirs = symbols_of(p), symbols_of(g)
        mine, its = sorted(ours - theirs), sorted(theirs - ours)
        if not (self.problem.is_known and 0 < len(mine) == len(its) <= 2 and isinstance(g, (Scalar, Named, Listing))):
            return None
        # Of a tuple the gold's parameter may have any letter; elsewhere x is a coordinate, and z another.
        free = isinstance(g.value if isinstance(g, Named) else g, Listing)
        letters = {*mine} if free and all(map(str.isalpha, its)) else {*mine, *its}
        if not set("abcdkmnlrstCKN") >= letters or not {*mine, *its}.isdisjoint(self.problem.tokens):
            return None
        ways = (renamed(p, dict(zip(mine, order, strict=True))) for order in permutations(its))
        return next((way for way in ways if self.equal(way, g)), None)

    def equal(self, p: Answer, g: Answer) -> bool:
        """Return whether prediction `p` equals gold `g`."""
        if (wanted := assigned(g)) is not None and (given := assigned(p)) is not None:
            return given.keys() == wanted.keys() and all(self.equal(given[name], wanted[name]) for name in given)
        if isinstance(p, Named) or isinstance(g, Named):
            return self._named(p, g)
        if isinstance(p, Scalar) and isinstance(g, Scalar):
            return self._scalars(p, g)
        for kind in (g, p):
            if isinstance(kind, answers.Kind):
                return kind.same(p, g, self.equal, self.problem)
        # Before lists: `7:30` has been read as a ratio.
        if (same := same_time(p, g)) is not None:
            return same
        if isinstance(p, Words) or isinstance(g, Words):
            return isinstance(p, Words) and isinstance(g, Words) and same_words(p.text, g.text)
        if isinstance(p, answers.Based) or isinstance(g, answers.Based):
            return p == g
        if isinstance(p, Relation) and isinstance(g, Relation) and self._relations(p, g):
            return True
        if isinstance(p, Relation) and isinstance(g, Scalar):
            value = value_of_chain(p, self.problem)
            return value is not None and equal_terms(value, g.term)
        if isinstance(p, Scalar) and isinstance(g, Relation) and len(g.ops) == 1:  # `x^2` for `y - x^2 = 0`
            return self._relations(Relation(("=",), (("sym", "y"), p.term)), g)
        if isinstance(p, Listing) and isinstance(g, Scalar) and (result := self._computed(p)) is not None:
            return self._scalars(result, g)
        listing, chain = (p, g) if isinstance(p, Listing) else (g, p)
        rises = isinstance(chain, Relation) and set(chain.ops) == {_RISING.get(self.contract.order)}
        if rises and isinstance(chain, Relation) and isinstance(listing, Listing) and listing.kind == "list":
            return self._ordered(listing.items, tuple(map(Scalar, chain.terms)))  # `b, a, c` for b < a < c
        if isinstance(p, Listing) and isinstance(g, Listing) and self._listings(p, g):
            return True
        inequalities = (i for x in (p, g) if isinstance(x, Listing) for i in x.items if isinstance(i, Relation))
        if isinstance(p, (Union, Relation)) or isinstance(g, (Union, Relation)) or any(inequalities):
            return self._sets(p, g)
        return self._single(p, g)

    # -- names ---------------------------------------------------------------------------------------------------
    def _computed(self, p: Listing) -> Scalar | None:
        """Return what is asked for, if a list of values ends in it and they give it: `m = 3, n = 4, m + n = 7`."""
        last = p.items[-1] if p.items and p.joint != "or" else None
        named = {item.name: item.value for item in p.items if isinstance(item, Named)}
        given = {name: value.term for name, value in named.items() if isinstance(value, Scalar)}
        if not isinstance(last, Relation) or last.ops != ("=",) or len(given) != len(p.items) - 1:
            return None
        left, right = last.terms
        asked = canonical(left) in self.problem.asked and equal_terms(arithmetic.substitute(left, given), right)
        return Scalar(right) if asked else None

    def _named(self, p: Answer, g: Answer) -> bool:
        if isinstance(p, Named) and isinstance(g, Named):
            if _plain(p.name) == _plain(g.name):
                other_letter = p.variables and g.variables and p.variables != g.variables
                return self.equal(rename(p, g).value if other_letter else p.value, g.value)
            return p.relation is not None and g.relation is not None and self._relations(p.relation, g.relation)
        named, other = (p, g) if isinstance(p, Named) else (g, p)
        assert isinstance(named, Named)
        if isinstance(other, Listing) and other.kind == "tuple" and (items := self._in_order(named)) is not None:
            # `(y, x) = (2, 5)` is the point (5, 2)
            return self._ordered(items, other.items) if named is p else self._ordered(other.items, items)
        if named is p and self._says_of_unknown(p):
            return False
        if isinstance(other, Relation):
            if named.relation is not None:
                pair = (named.relation, other) if named is p else (other, named.relation)
                if self._relations(*pair):
                    return True
            return isinstance(named.value, (Union, Listing)) and self._sets(p, g)
        if named is p and len(named.variables) == 1 and isinstance(other, Scalar) and len(symbols(other.term)) == 1:
            named = Named(named.name, renamed(named.value, {named.variables[0]: symbols(other.term).pop()}))
        return self.equal(named.value, other) if p is not other else self.equal(other, named.value)

    def _says_of_unknown(self, p: Named) -> bool:
        """Return whether an equation gives something of an unknown (`|x| = 5`) and not the unknown asked for."""
        letters = set(re.findall(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z(])", p.name))
        unknowns = self.contract.unknowns
        if self.problem.is_known and self._names_another(p):
            return True
        if len(unknowns) == 1 and re.fullmatch("[a-z]", p.name) and p.name not in unknowns:
            return p.name in self.problem.tokens  # `y = 5` for "solve for x"
        if p.name in letters or p.relation is None or letters.isdisjoint(unknowns):
            return False
        return canonical(p.relation.terms[0]) not in self.problem.asked

    def _names_another(self, p: Named) -> bool:
        """Return whether a name is another than those of its kind in the question: `AB`, `AC^2`, `f` for f^{-1}."""
        names, word = self.problem.asked_names, p.name.lower()
        if word in self.problem.vocabulary - self.problem.asking and len(word) > 2:
            return True  # `width = 26` for a perimeter
        name = plain_name(f"{p.name}({p.variables[0]})" if p.variables else p.name)
        if re.fullmatch(r"[A-Z]{2}\^\d", name) and not occurs(tokens_of(p.name), self.problem.tokens):
            return True  # the square of a segment of which nobody has spoken
        if not names or name in names:
            return False
        if p.variables:
            return any(re.match(re.escape(p.name) + r"(?:\^-1|')", other) for other in names)
        if re.match(r"\\(?:angle|triangle)", name) and any(re.fullmatch("[A-Z]{2}", other) for other in names):
            return True  # `\angle A` for `AC`
        if len(name) > 1 or name in self.problem.tokens:  # `\angle A` for `\angle C`, `AB` for `AC`, `a_4` for `a_5`
            shape, *shapes = (re.sub(r"\^\d$|[\d{}]", "", re.sub("[A-Z]", "A", each)) for each in (name, *names))
            if shape in shapes and re.search("[A-Z]|_", name):
                return True
        if p.relation is None:
            return False
        left, asked = p.relation.terms[0], self.problem.asked
        letters = [found for term in asked if max(map(len, found := symbols(term)), default=0) == 1]
        among = left[0] != "opaque" and symbols(left) and any(symbols(left) <= found for found in letters)
        return bool(among) and canonical(left) not in asked  # `xy = 3` for `x + y`

    # -- scalars -------------------------------------------------------------------------------------------------
    def _scalars(self, p: Scalar, g: Scalar) -> bool:
        # An angle without a unit may be in degrees or in radians, unless the problem says which.
        units = {p.unit.name, g.unit.name}
        if "degree" in units and units <= {"", "degree", "radian"} and len(units) == 2:
            plain, degrees = (p, g) if g.unit.name == "degree" else (g, p)
            if contains(degrees.term, "const", "pi"):
                return False  # an angle in radians
            if contains(plain.term, "const", "pi") or plain.unit.name:  # if the problem fixes no unit
                free = self.problem.is_known and "angles" not in self.problem.topics and not self.contract.units
                radians = ("mul", degrees.term, ("div", ("const", "pi"), ("num", Fraction(180))))
                return free and equal_terms(radians, plain.term)
        if not self._units_agree(p.unit, g.unit) or (p.percent and g.unit.name):
            return False
        if g.percent and (p.unit.name or (p.unit != answers.NO_UNIT and not p.percent)):
            return False  # `3 students` for 3 %
        if p.unscaled is not None and self.problem.counted.issuperset(map(singular, p.scales)):
            p = replace(p, term=p.unscaled)  # `5 dozen` if the problem asks how many dozen
        if p.percent == g.percent:
            return self._values(p, g)
        asked = self.problem.asks_percent
        if p.percent:  # 60 % and 60 are one answer if a percentage is asked for; 0.6 is never 60
            return self._values(p if asked else _hundredth(p), g)
        return self._values(p, _hundredth(g)) or ((asked or not self.problem.is_known) and self._values(p, g))

    def _units_agree(self, p: answers.Unit, g: answers.Unit) -> bool:
        """Return whether the units fit: a measure that only one side names is left out, a word needs a reason."""
        vocabulary, counted = self.problem.vocabulary, self.problem.counted
        if not p.nouns <= vocabulary | g.nouns or not p.amounts <= counted | g.amounts:
            return False
        if p.things and not g.things and p.things <= vocabulary - counted and any(map(is_noun, counted)):
            return False  # `5 boys` if the problem asks how many girls
        spoken, asked = p.nouns | p.things, self.problem.asked_nouns
        persons = spoken <= WORDS.persons and not asked.isdisjoint(WORDS.persons | WORDS.sorts_of_persons)
        abstract = spoken <= WORDS.countable - vocabulary and asked & (WORDS.countable | WORDS.sorts_of_countable)
        general = persons or abstract  # `5 children` for girls, `5 ways` for routes
        wanted = self.contract.counts or (self.contract.units and not p.name)
        if wanted and spoken - g.nouns - g.things and asked.isdisjoint(spoken) and not general:
            return False  # `5 ladders` if it asks how many violins, or ounces
        if not g.name:
            return self.has_asked_unit(p)
        money = p.name.split("/")[0] == g.name.split("/")[0] in _MONEY  # $12 and 12 dollars a week
        degrees = {p.name, g.name} in ({"degree", "celsius"}, {"degree", "fahrenheit"})
        return not p.name or p.name == g.name or money or degrees

    def has_asked_unit(self, unit: answers.Unit) -> bool:
        """Return whether a unit is one that the problem asks for; none is, and any is if it asks for none."""
        contract, given = self.contract, unit.name
        head, _, below = given.partition("/")
        foreign = head in _MONEY and contract.currencies and head not in contract.currencies
        if foreign or (given and self.problem.asks_percent):
            return False  # `25°` for a percentage
        if given and contract.measure:
            return given == contract.measure
        if not given or not contract.units:
            return not (given and contract.counts)
        for asked in contract.units:
            wanted, _, per = asked.partition("/")
            if given == "degree" and wanted in ("celsius", "fahrenheit"):
                return True
            money = contract.currencies == {"sterling"} and {head, wanted} >= {"sterling", "pound"}
            # `$5` for dollars an hour, and `5 hours a week` for hours, if weeks are spoken of.
            apart = head in _MONEY if per else below in self.problem.vocabulary
            if money or (head == wanted and (per == below or (apart and not (per and below)))):
                return True
        return False

    def _values(self, p: Scalar, g: Scalar) -> bool:
        if equal_terms(p.term, g.term):
            return "matrices" not in self.problem.topics or arithmetic.equal_as_matrices(p.term, g.term)
        if (p.digits or g.digits) and not (symbols(p.term) or symbols(g.term)):
            with suppress(NoValue):
                return _agree_as_decimals(p, g, self.contract if self.problem.is_known else None)
        return False

    # -- relations -----------------------------------------------------------------------------------------------
    def _relations(self, p: Relation, g: Relation) -> bool:
        if len(p.ops) != len(g.ops):
            return False
        if len(p.ops) > 1:
            flipped = Relation(tuple(FLIPPED[op] for op in reversed(p.ops)), tuple(reversed(p.terms)))
            return any(way.ops == g.ops and all(map(equal_terms, way.terms, g.terms)) for way in (p, flipped))
        (op, p_term), (other, g_term) = difference(p), difference(g)
        return op == other and arithmetic.proportional(p_term, g_term, positive=op not in ("=", "!="))

    # -- collections ---------------------------------------------------------------------------------------------
    def _listings(self, p: Listing, g: Listing) -> bool:
        kinds = {p.kind, g.kind}
        p_names, g_names = distinct_names(p.items), distinct_names(g.items)
        # `m = 3, m = 5` and `m = 3 or b = 5` are not both m and b
        partly = p_names is None and any(isinstance(item, Named) for item in p.items)
        if kinds == {"list"} and g_names and not indexed(g_names) and (p.joint == "or" or partly):
            return False
        if (p_names is None) != (g_names is None) and kinds == {"list"}:
            ours, theirs = ([x.value if isinstance(x, Named) else x for x in each.items] for each in (p, g))
            similar = indexed(p_names or g_names or [])
            return answers.one_to_one(ours, theirs, self.equal) if similar else self._ordered(ours, theirs)
        if kinds <= {"list", "set"} and self.contract.order and self.in_asked_order(g):
            return p.joint != "or" and self._ordered(p.items, g.items)
        if "ratio" in kinds:
            return kinds == {"ratio"} and self._ratios(p, g)
        if kinds == {"tuple"}:
            # With two entries the brackets tell an open interval (or a point) from a closed one.
            either = len(p.items) > 2 or "monotony" in self.problem.topics
            same_brackets = p.brackets == g.brackets or (either and "(" not in p.brackets[1:] + g.brackets[1:])
            return same_brackets and self._ordered(p.items, g.items)
        if kinds == {"tuple", "list"}:  # `y = 2, x = 1` beside (1, 2)
            p, g = (replace(each, items=self._in_order(each) or each.items) for each in (p, g))
        if "tuple" in kinds:
            pair, other = (p, g) if p.kind == "tuple" else (g, p)
            if len(other.items) == 1:  # `\{(1, 2)\}`
                return self.equal(p, g.items[0]) if pair is p else self.equal(p.items[0], g)
            in_order = other.kind == "list" and other.joint != "or" and pair.brackets == "()"
            infinite = any(contains(leaf.term, "const", "inf") for leaf in answers.leaves(pair))
            if (self.contract.interval or infinite) and pair is g and len(pair.items) == 2:
                return False  # the ends of an interval are not the interval
            return in_order and self._ordered(p.items, g.items)
        if {p.joint, g.joint} == {"and", "or"} and any(isinstance(x, (Relation, Union)) for x in (*p.items, *g.items)):
            return False  # x < 1 and x > 2 is not x < 1 or x > 2: as sets they are compared elsewhere
        p_items, g_items = (self._distinct(x.items) if x.kind == "set" else x.items for x in (p, g))
        if kinds == {"set", "list"} or not any(isinstance(x, Scalar) for x in (*p_items, *g_items)):
            # A solution named twice is one solution; a number written twice may be a double root.
            p_items, g_items = self._distinct(p_items), self._distinct(g_items)
        return answers.one_to_one(p_items, g_items, self.equal)

    def in_asked_order(self, gold: Listing) -> bool:
        """Return whether a gold stands in the order that its problem asks for; else that has been misread."""
        terms = [item.term for item in gold.items if isinstance(item, Scalar)]
        if len(terms) < len(gold.items):
            return self.contract.order == "as named" and not any(isinstance(item, Named) for item in gold.items)
        try:
            values = [mpmath.re(arithmetic.number_of(evaluate(term, {}))) for term in terms]
        except NoValue:
            return self.contract.order == "as named"
        ordered = {"increasing": sorted(values), "decreasing": sorted(values, reverse=True)}
        return ordered.get(self.contract.order, values) == values

    def _in_order(self, answer: Answer) -> tuple[Answer, ...] | None:
        """Return the values of letters in the order the problem names them, else that of x, y, z, else their own."""
        named = assigned(answer)
        if named is None or not all(len(name) == 1 for name in named):
            return None
        order = sorted(named) if set("uvwxyz").issuperset(named) else list(named)
        return tuple(named[name] for name in (self.problem.order if set(self.problem.order) == set(named) else order))

    def _ordered(self, p: Sequence[Answer], g: Sequence[Answer]) -> bool:
        return len(p) == len(g) and all(self.equal(a, b) for a, b in zip(p, g, strict=True))

    def _distinct(self, items: Sequence[Answer]) -> tuple[Answer, ...]:
        distinct: list[Answer] = []
        for item in items:
            distinct += [] if any(self.equal(item, other) for other in distinct) else [item]
        return tuple(distinct)

    def _ratios(self, p: Listing, g: Listing) -> bool:
        pairs = zip(p.items, g.items, strict=False)
        units = ({item.unit for item in pair if isinstance(item, Scalar) and item.unit.name} for pair in pairs)
        if len(p.items) != len(g.items) or any(len(each) > 1 for each in units):
            return False  # `7:17 hours` is no time of day
        if any(time is not None and ":0" in time[0] for time in map(time_of_day, (p, g))):
            return False  # a time of day, which no ratio equals
        if self._ordered(p.items, g.items):
            return True
        if any(isinstance(x, Scalar) and equal_terms(x.term, arithmetic.ZERO) for x in (*p.items, *g.items)):
            return False
        (first_p, *_), (first_g, *_) = terms = _terms(p), _terms(g)
        return all(equal_terms(("mul", a, first_g), ("mul", b, first_p)) for a, b in zip(*terms, strict=True))

    def _single(self, p: Answer, g: Answer) -> bool:
        """Return whether a list or set of one is the answer beside it, a ratio of two its quotient."""
        whole, part = (p, g) if isinstance(p, Listing) else (g, p)
        if not isinstance(whole, Listing) or not isinstance(part, Scalar):
            return False
        spoken = self.problem.vocabulary
        # `7:30` is no 7/30 if the problem speaks of times, or is not known.
        time = time_of_day(whole)
        is_time = time is not None and (bool(time[1]) or not spoken or not _TIMES.isdisjoint(spoken))
        if whole.kind == "ratio" and len(whole.items) == 2 and not is_time:
            quotient = Scalar(("div", *_terms(whole)))
            return self._values(quotient, part) if whole is p else self._values(part, quotient)
        if whole.kind == "tuple" and part.term[0] == "mat":
            return _as_matrix(whole, part.term)
        apart = 1 < len(set(map(repr, whole.items))) == len(whole.items)
        names = distinct_names(whole.items)  # `a = 3, c = 3` says more than 3
        twice = whole.kind == "list" and (whole.joint == "or" or apart) and (not names or indexed(names))
        one = twice or (whole.kind in ("list", "set") and len(whole.items) == 1)  # `5/2 or 2.5`
        return one and all(self.equal(*((item, part) if whole is p else (part, item))) for item in whole.items)

    def _sets(self, p: Answer, g: Answer) -> bool:
        if self.contract.point and isinstance(p, Relation) and isinstance(g, Listing) and g.kind == "tuple":
            return False  # 2 < x < 5 is no point
        point = arithmetic.point_for(symbols_of(p) | symbols_of(g), 0)
        same = _same_sets(p, g, point)
        if isinstance(p, Scalar) or isinstance(g, Scalar):
            return False
        if isinstance(p, Relation) and isinstance(g, Relation) and symbols_of(p) != symbols_of(g):
            return False  # x > 3 is not y > 3
        if same is not None:
            return arithmetic.stable(lambda: bool(_same_sets(p, g, point)))
        if isinstance(p, Union) and isinstance(g, Union) and len(p.parts) == len(g.parts):
            return all(a[0] == b[0] and self.equal(a[1], b[1]) for a, b in zip(p.parts, g.parts, strict=True))
        return False


def _as_matrix(listing: Listing, matrix: Term) -> bool:
    """Return whether a tuple is a vector, or a tuple of rows a matrix."""
    nested = [item.items for item in listing.items if isinstance(item, Listing) and item.kind == "tuple"]
    flat = [listing.items] if len(matrix[1]) == 1 else [(item,) for item in listing.items]
    rows = nested if len(nested) == len(listing.items) else flat
    cells = tuple(tuple(cell.term if isinstance(cell, Scalar) else () for cell in row) for row in rows)
    return all(map(all, cells)) and equal_terms(("mat", cells), matrix)


def _terms(listing: Listing) -> tuple[Term, ...]:
    return tuple(item.term for item in listing.items if isinstance(item, Scalar))
