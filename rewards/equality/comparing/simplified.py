"""Is an answer that equals the gold in value also an answer, or only what was to be computed?

`COPIED`: it repeats an expression of the problem and is not in the gold's own form. `UNEVALUATED`: the gold is a number
(or a collection of numbers) and the answer still has an operation between numbers to carry out, or is the last member
of a chain with another number in it (`x = 41 = 42`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from gtpo.rewards.equality.arithmetic import Budget, NoValue, Value, evaluate, negative, noise
from gtpo.rewards.equality.comparing.comparison import rename
from gtpo.rewards.equality.comparing.numeric import close, one_to_one
from gtpo.rewards.equality.comparing.work import ALWAYS, Count, Work, factors, is_rational, work_left
from gtpo.rewards.equality.reading.answers import (
    Answer,
    Based,
    Listing,
    Named,
    Relation,
    Scalar,
    Words,
    leaves,
    quotient_of,
    ratios,
    symbols_of,
)
from gtpo.rewards.equality.reading.grammar import occurs, tokens_of
from gtpo.rewards.equality.reading.problem import ProblemText
from gtpo.rewards.equality.terms import NO_BASE, ONE, Term, canonical, contains, is_literal, parts, subterms, symbols

# -- the form that a problem asks for, and parts that compute nothing -------------------------------------------------
Values = tuple[Value, ...]  # Of one term, at each point


def in_form(written: Sequence[Scalar], wanted: Sequence[Scalar], forms: frozenset[str]) -> bool:
    """Return whether an answer has each of the forms that its problem asks for and its gold has (`Contract.forms`)."""
    if len(written) != 1 or len(wanted) != 1:
        return True
    p, g = written[0].term, wanted[0].term
    if "factored" in forms and not _is_factored_as(p, g):
        return False
    if "expanded" in forms and has_product_of_sums(p) and not has_product_of_sums(g):
        return False
    if "a decimal" in forms and wanted[0].digits and not (written[0].digits or is_literal(p)):
        return False
    if "one fraction" in forms and p[0] == "add" and g[0] != "add":
        return False
    # "In the form a(x-h)^2+k": as many sums, powers and functions as the gold has.
    if "as stated" in forms and not is_literal(g):
        shapes = (
            Counter(part[0] for part in subterms(canonical(t)) if part[0] in ("add", "pow", "fn")) for t in (p, g)
        )
        if next(shapes) != next(shapes):
            return False
    if "simplest" in forms and symbols(g):
        return not (has_product_of_sums(p) or contains(p, "div")) or _sums(p) <= _sums(g)
    return True


def _sums(term: Term) -> int:
    return sum(len(part) - 2 for part in subterms(term) if part[0] == "add")


def has_product_of_sums(term: Term) -> bool:
    """Return whether a product or power of a sum with variables could be expanded."""
    for part in subterms(term):
        if part[0] == "pow" and part[1][0] == "add" and symbols(part[1]) and part[2][0] == "num":
            return True
        if part[0] == "mul" and any(f[0] == "add" and symbols(f) for f in factors(part)[0]):
            return True
    return False


def _is_factored_as(p: Term, g: Term) -> bool:
    """Return whether a product has the factors of the gold, up to signs; a gold that is no product asks for none."""
    ours, theirs = _all_factors(p), _all_factors(g)
    if len(theirs) < 2:
        return True
    names = symbols(g)
    points = [{name: noise("factor", name, index) for name in names} for index in range(3)]
    try:
        wanted, written = ([tuple(evaluate(f, point) for point in points) for f in side] for side in (theirs, ours))
    except NoValue:
        return False
    return one_to_one(wanted, written, lambda a, b: same_values(a, b) or same_values(a, tuple(map(negative, b))))


def _all_factors(term: Term) -> list[Term]:
    """Return the factors of a product, powers written out, a rational number as one."""
    above, below, *_ = factors(term)
    found: list[Term] = []
    for factor in above + [("pow", f, ("neg", ONE)) for f in below]:
        small = factor[0] == "pow" and factor[2][0] == "num" and factor[2][1] in range(2, 13)
        found += [factor[1]] * int(factor[2][1]) if small else [factor]
    return found


def same_values(a: Values, b: Values) -> bool:
    """Return whether values agree point by point."""
    return all(map(close, a, b))


def is_padded(term: Term) -> bool:
    """Return whether something in an expression changes nothing.

    A part of it is constant, or equals a part of its own.
    """
    names = sorted(symbols(term))
    if not names:
        return False
    Budget.refill()
    points = [{name: sign * noise("padded", name, sign) for name in names} for sign in (1, -1)]
    return _padding(term, points) is None


def _padding(term: Term, points: Sequence[dict[str, Value]]) -> list[Values] | None:
    """Return the values of a term and of its parts with variables, its own first; None if some part is padding."""
    if term[0] in ("bind", "mat", "opaque") or not symbols(term):
        return []
    within: list[Values] = []
    for part in parts(term):
        values = _padding(part, points)
        if values is None:
            return None
        within += values
    try:
        own: Values = tuple(evaluate(term, point) for point in points)
        if term[0] != "sym" and (close(own[0], own[1]) or any(same_values(own, other) for other in within)):
            return None
    except NoValue:
        return within
    return [own, *within]


# -- the finding ------------------------------------------------------------------------------------------------------
_HUNDRED: Term = ("num", Fraction(100))
_BRACKETS = {("(", ")"), ("[", "]"), (r"\{", r"\}"), ("{", "}")}
_RELATIONS = frozenset(("=", r"\equiv", r"\in", r"\approx"))  # Tokens of what says something of a number


def finding(prediction: str, p: Answer, gold: str, g: Answer, problem: ProblemText) -> str:
    """Return CORRECT, COPIED or UNEVALUATED for a prediction equal to the gold: cleaned and read."""
    if isinstance(p, Named) and p.contradicted and not isinstance(g, Words):
        return "UNEVALUATED"
    if isinstance(g, Words) or (tokens := tokens_of(prediction)) == tokens_of(gold):
        return "CORRECT"
    if isinstance(p, Relation) and isinstance(g, Scalar):  # a chain: its last term is the answer
        p = Scalar(p.terms[-1])
    if not _RELATIONS.isdisjoint(tokens) and tokens[0] != "=" and occurs(tokens, problem.tokens):
        return "COPIED"  # `f(2) = 3`, as the problem says it
    divided = [] if any(ratios(g)) else list(ratios(p))  # each is the division that it stands for
    for ratio in divided:
        to_one = isinstance(last := ratio.items[-1], Scalar) and last.term == ONE
        if not to_one and not all(isinstance(item, Scalar) and is_rational(item.term) for item in ratio.items):
            return "UNEVALUATED"
    if divided and (quotient := quotient_of(p)) is not None:
        p, prediction = quotient, prediction.rpartition(":")[0] if to_one else prediction
    if isinstance(g, Based):
        return "CORRECT" if isinstance(p, (Based, Scalar, Named)) else "UNEVALUATED"
    if is_solved(g) and isinstance(p, Relation) and not is_solved(p):
        return "UNEVALUATED"  # `6x + 14 = 44` for x = 5
    if isinstance(p, Listing) and p.kind == "ratio" and "simplest" in problem.contract.forms:
        numbers = [leaf.term[1] for leaf in leaves(p) if leaf.term[0] == "num"]
        if (len(numbers) == len(p.items) and any(n.denominator > 1 for n in numbers)) or math.gcd(
            *(int(n) for n in numbers)
        ) > 1:
            return "UNEVALUATED"
    written, wanted = list(leaves(p, bool(divided))), list(leaves(g))
    if wanted and _has_foreign_symbols(p, g):
        return "COPIED" if problem.is_known else "UNEVALUATED"
    excess = _work(written) - _work(wanted)
    undone = not ALWAYS.isdisjoint(excess)
    if (undone or _form_of(written) != _form_of(wanted)) and _repeats(prediction, p, problem):
        return "COPIED"
    # One entry of a list that repeats an expression makes a copy of the whole.
    if len(written) > 1:
        own = {canonical(leaf.term) for leaf in wanted}
        terms = [canonical(leaf.term) for leaf in written]
        if any(t not in own and (t in problem.expressions or t in problem.literals) for t in terms):
            return "COPIED"
    # Also without a problem and with letters: a sum to n is what was to be computed.
    if excess[Work.BOUND]:
        return "UNEVALUATED"
    if not wanted:
        return "CORRECT"
    numeric = not symbols_of(g) and not any(contains(leaf.term, "opaque") for leaf in wanted)
    if not numeric and not problem.is_known:
        return "CORRECT"
    # `65-4+t-t` for "What is 65-4?" is no expression of the problem, and copied all the same.
    if any(is_padded(leaf.term) for leaf in written) and not any(is_padded(leaf.term) for leaf in wanted):
        return "COPIED"
    if undone or not in_form(written, wanted, problem.contract.forms):
        return "UNEVALUATED"
    if not excess or not problem.is_known:
        return "CORRECT"
    # What is left is one number that could be written shorter: it depends on the problem whether it must.
    simplest = "simplest" in problem.contract.forms or divided
    if simplest or (excess[Work.FRACTION] and any(_is_whole(leaf.term) and _work([leaf]) for leaf in written)):
        return "UNEVALUATED"
    return "CORRECT"


def is_solved(answer: Answer) -> bool:
    """Return whether an answer gives a letter its value or its bounds: `x = 5`, `2 < x \\le 4`."""
    if isinstance(answer, Named):
        return len(answer.name) == 1 and not symbols_of(answer.value)
    if not isinstance(answer, Relation):
        return False
    letters = [term for term in answer.terms if symbols(term)]
    return len(letters) == 1 and letters[0][0] == "sym"


def _has_foreign_symbols(p: Answer, g: Answer) -> bool:
    """Return whether an answer has variables that its gold has not: its value does not depend on them."""
    if isinstance(p, Named) and isinstance(g, Named) and len(p.variables) == len(g.variables):
        p = rename(p, g)
    elif isinstance(p, Named) and p.variables:
        return False
    own = symbols_of(g)
    if isinstance(g, Named):
        own |= {g.name, *g.variables}.union(*map(symbols, g.relation.terms if g.relation else ()))
    relations = isinstance(p, (Relation, Listing)) and not own  # `x > 3` for an interval
    return not relations and not symbols_of(p) <= own


def _work(parts: Iterable[Scalar]) -> Count:
    found: Count = Counter()
    for part in parts:
        term = part.unscaled or part.term
        if term[0] == "div":  # `\frac{\ln 5}{\ln 2}` is the logarithm to the base 2 that it stands for
            above, below = (side[1] if side[2:] == (NO_BASE,) else side for side in term[1:])
            logarithms = above[0] == "fn" and above[1] in ("ln", "log") and above[1] == below[1]
            if logarithms and above[3:] == below[3:]:
                term = ("fn", "log", above[2], below[2])
        found += work_left(("div", term, _HUNDRED) if part.percent and not is_rational(term) else term)
    return found


def _form_of(parts: list[Scalar]) -> list[str]:
    """Return what tells the form of an answer: its expressions as written, their order and units left out."""
    return sorted(repr(canonical(part.unscaled or part.term)) for part in parts)


def _repeats(prediction: str, p: Answer, problem: ProblemText) -> bool:
    """Return whether an answer stands in the problem: a number by itself, anything else anywhere."""
    term = _term(p)
    tokens = tokens_of(prediction)
    if term is not None and is_literal(term):
        return canonical(term) in problem.literals
    if term is not None and canonical(term) in problem.expressions:
        return True
    while len(tokens) > 2 and (tokens[0], tokens[-1]) in _BRACKETS:
        tokens = tokens[1:-1]
    return len(tokens) > 1 and occurs(tokens, problem.tokens)


def _term(answer: Answer) -> Term | None:
    if isinstance(answer, Named):
        return _term(answer.value)
    if isinstance(answer, Listing) and answer.kind in ("list", "set") and len(answer.items) == 1:
        return _term(answer.items[0])
    return answer.term if isinstance(answer, Scalar) else None


def _is_whole(term: Term) -> bool:
    try:
        value = evaluate(term, {})
    except NoValue:
        return False
    return isinstance(value, Fraction) and value.denominator == 1
