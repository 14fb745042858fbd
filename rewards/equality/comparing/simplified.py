"""Is an answer that equals the gold in value also an answer, or only what was to be computed?

`COPIED`: it repeats an expression of the problem and is not in the gold's own form. `UNEVALUATED`: the gold is a number
(or a collection of numbers) and the answer still has an operation between numbers to carry out, or is the last member
of a chain with another number in it (`x = 41 = 42`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import ONE, Term, canonical, contains, evaluate, is_literal, symbols
from gtpo.rewards.equality.arithmetic.values import NoValue
from gtpo.rewards.equality.comparing.equations import rename
from gtpo.rewards.equality.comparing.form import in_form, is_padded
from gtpo.rewards.equality.comparing.numeric import equal_terms
from gtpo.rewards.equality.comparing.work import ALWAYS, Count, Work, is_rational, work_left
from gtpo.rewards.equality.reading.answers import Answer, Based, Choice, Listing, Named, Relation, Scalar, Words, leaves
from gtpo.rewards.equality.reading.problem import ProblemText
from gtpo.rewards.equality.reading.tokens import occurs, tokens_of

ANALYSIS = re.compile(r"\\(?:int|iint|oint|lim|sum|prod|partial)(?![a-zA-Z])|\\frac\s*\{\s*d[^{}]*\}\s*\{\s*d")
"""Integrals, limits, sums, products and derivatives."""
_HUNDRED: Term = ("num", Fraction(100))
_BRACKETS = {("(", ")"), ("[", "]"), (r"\{", r"\}"), ("{", "}")}
_RELATIONS = frozenset(("=", r"\equiv", r"\in", r"\approx"))
"""Tokens of what says something of a number."""


def finding(prediction: str, p: Answer, gold: str, g: Answer, problem: ProblemText | None) -> str:
    """Return CORRECT, COPIED or UNEVALUATED for a prediction equal to the gold: cleaned and read."""
    if isinstance(p, Named) and p.contradicted and not isinstance(g, Words):
        return "UNEVALUATED"
    if isinstance(g, (Words, Choice)) or (tokens := tokens_of(prediction)) == tokens_of(gold):
        return "CORRECT"
    if isinstance(p, Relation) and isinstance(g, Scalar):  # a chain: its last term is the answer
        p = Scalar(p.terms[-1])
    if (
        problem is not None
        and tokens[0] != "="
        and not _RELATIONS.isdisjoint(tokens)
        and occurs(tokens, problem.tokens)
    ):
        return "COPIED"  # `f(2) = 3`, as the problem says it
    if isinstance(p, Listing) and p.kind == "ratio" and isinstance(g, Scalar):
        if isinstance(last := p.items[-1], Scalar) and last.term == ONE:
            p, prediction = p.items[0], prediction.rpartition(":")[0]  # a ratio to 1
        elif not all(isinstance(item, Scalar) and is_rational(item.term) for item in p.items):
            return "UNEVALUATED"
    if isinstance(g, Based):
        return "CORRECT" if isinstance(p, (Based, Scalar, Named)) else "UNEVALUATED"
    if is_solved(g) and isinstance(p, Relation) and not is_solved(p):
        return "UNEVALUATED"  # `6x + 14 = 44` for x = 5
    if isinstance(p, Listing) and p.kind == "ratio" and problem is not None and "simplest" in problem.contract.forms:
        numbers = [leaf.term[1] for leaf in leaves(p) if leaf.term[0] == "num"]
        if (len(numbers) == len(p.items) and any(n.denominator > 1 for n in numbers)) or math.gcd(
            *(int(n) for n in numbers)
        ) > 1:
            return "UNEVALUATED"
    written, wanted = list(leaves(p)), list(leaves(g))
    if wanted and _has_foreign_symbols(p, g):
        return "COPIED" if problem is not None else "UNEVALUATED"
    excess = _work(written) - _work(wanted)
    undone = not ALWAYS.isdisjoint(excess)
    if problem is not None and (undone or _form_of(written) != _form_of(wanted)) and _repeats(prediction, p, problem):
        return "COPIED"
    if problem is not None and len(written) > 1:
        own = {canonical(leaf.term) for leaf in wanted}
        terms = [canonical(leaf.term) for leaf in written]
        if any(t in problem.expressions and t not in own and not is_literal(t) for t in terms):
            return "COPIED"
    if excess[Work.BOUND]:
        return "UNEVALUATED"
    if isinstance(p, Words) and ANALYSIS.search(prediction) and not ANALYSIS.search(gold):
        return "UNEVALUATED"
    if not wanted:
        return "CORRECT"
    numeric = not _symbols(wanted) and not any(contains(leaf.term, "opaque") for leaf in wanted)
    if isinstance(p, Words):  # only SymPy could read it
        return "UNEVALUATED" if problem is not None or (numeric and ALWAYS.isdisjoint(_work(wanted))) else "CORRECT"
    if not numeric and problem is None:
        return "CORRECT"
    if any(is_padded(leaf.term) for leaf in written) and not any(is_padded(leaf.term) for leaf in wanted):
        return "COPIED"
    if undone or (problem is not None and not in_form(written, wanted, problem.contract.forms)):
        return "UNEVALUATED"
    if problem is None or not excess:
        return "CORRECT"
    # What is left is one number that could be written shorter: it depends on the problem whether it must.
    simplest = "simplest" in problem.contract.forms or (numeric and _states(problem, wanted))
    if simplest or (excess[Work.FRACTION] and all(_is_whole(leaf.term) for leaf in wanted)):
        return "UNEVALUATED"
    return "CORRECT"


def is_solved(answer: Answer) -> bool:
    """Return whether an answer gives a letter its value or its bounds: `x = 5`, `2 < x \\le 4`."""
    if isinstance(answer, Named):
        return len(answer.name) == 1 and not _symbols(leaves(answer.value))
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
    own = _symbols(leaves(g))
    if isinstance(g, Named):
        own |= {g.name, *g.variables}.union(*map(symbols, g.relation.terms if g.relation else ()))
    relations = isinstance(p, (Relation, Listing)) and not own  # `x > 3` for an interval
    return not relations and not _symbols(leaves(p)) <= own


def _symbols(parts: Iterable[Scalar]) -> set[str]:
    return set().union(*(symbols(part.term) for part in parts))


def _work(parts: Iterable[Scalar]) -> Count:
    found: Count = Counter()
    for part in parts:
        term = _one_logarithm(part.unscaled or part.term)
        found += work_left(("div", term, _HUNDRED) if part.percent and not is_rational(term) else term)
    return found


def _one_logarithm(term: Term) -> Term:
    r"""Return `\frac{\ln 5}{\ln 2}` as the logarithm to the base 2 that it stands for, anything else as it is."""
    if term[0] != "div" or not all(part[:2] in (("fn", "ln"), ("fn", "log")) for part in term[1:]):
        return term
    above, below = term[1:]
    same = above[1] == below[1] and above[3:] == below[3:]
    return ("fn", "log", above[2], below[2]) if same else term


def _states(problem: ProblemText, wanted: list[Scalar]) -> bool:
    """Return whether the problem states the gold's number in another form: then that form is what it asks for."""
    own = {canonical(leaf.term) for leaf in wanted}
    given = [term for term in problem.expressions - own if not symbols(term)]
    return any(equal_terms(term, leaf.term) for leaf in wanted for term in given)


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
