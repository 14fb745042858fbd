"""Is an answer that equals the gold in value also an answer, or only what was to be computed?

`COPIED`: it repeats an expression of the problem and is not in the gold's own form. `UNEVALUATED`: the gold is a number
(or a collection of numbers) and the answer still has an operation between numbers to carry out, or is the last member
of a chain with another number in it (`x = 41 = 42`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise

from gtpo.rewards.equality.arithmetic.terms import ONE, Term, canonical, contains, evaluate, is_literal, symbols
from gtpo.rewards.equality.arithmetic.values import NoValue
from gtpo.rewards.equality.comparing.equations import rename
from gtpo.rewards.equality.comparing.form import in_form, is_padded
from gtpo.rewards.equality.comparing.numeric import equal_terms, hundredth
from gtpo.rewards.equality.comparing.work import ALWAYS, Count, Work, is_rational, work_left
from gtpo.rewards.equality.reading.answers import Answer, Based, Choice, Listing, Named, Relation, Scalar, Words, leaves
from gtpo.rewards.equality.reading.clean import one_spelling
from gtpo.rewards.equality.reading.grammar import term_of
from gtpo.rewards.equality.reading.problem import ProblemText
from gtpo.rewards.equality.reading.reader import read
from gtpo.rewards.equality.reading.tokens import occurs, tokens_of

ANALYSIS = re.compile(r"\\(?:int|iint|oint|lim|sum|prod|partial)(?![a-zA-Z])|\\frac\s*\{\s*d[^{}]*\}\s*\{\s*d")
"""Integrals, limits, sums, products and derivatives."""
_HUNDRED: Term = ("num", Fraction(100))
_WRAPPED = re.compile(r"\\[a-zA-Z]+\s*\{[^{}]*\}|(?<!\\)\b[a-z]{2,}\b")
"""Words and commands before an equation."""
_BRACKETS = {("(", ")"), ("[", "]"), (r"\{", r"\}"), ("{", "}")}
_TEXT = re.compile(r"\\(?:text|mbox|mathrm)[a-z]*\s*\{[^{}]*\}")
_CALL = re.compile(r"([A-Za-z])\s*\(")
_RELATIONS = frozenset(("=", r"\equiv", r"\in", r"\approx"))
"""Tokens of what says something of a number."""


_DRESSED = re.compile(r"(?<!\w)\(\s*\+\s*(\d+(?:\.\d+)?)\s*\)|(?<![\w.])0+(?=\d)")
"""A number with a sign or zeros that say nothing: `(+7)`, `007`."""
_BOXED = re.compile(r"\\f?box(?:ed)?\s*\{([^{}]*)\}")


def boxes_a_given(raw: str, problem: ProblemText) -> bool:
    r"""Return whether an answer is what the problem says of a number, its value in a box: `f(2) = \boxed{3}`."""
    if "boxed" not in raw:
        return False
    said = tokens_of(one_spelling(_BOXED.sub(r"\1", raw).strip("$ .")))
    if said[:1] == ("(",) and said[-1:] == (")",):
        said = said[1:-1]
    outside = tokens_of(one_spelling(_BOXED.sub(" ", raw)))
    return not _RELATIONS.isdisjoint(outside) and occurs(said, problem.tokens)


def finding(raw: str, prediction: str, p: Answer, gold: str, g: Answer, problem: ProblemText | None) -> str:
    """Return CORRECT, COPIED or UNEVALUATED for a prediction equal to the gold: raw, cleaned and read."""
    if isinstance(p, Named) and p.contradicted and not isinstance(g, Words):
        return "UNEVALUATED"
    if (
        problem is not None
        and boxes_a_given(raw, problem)
        and len(tokens_of(gold)) < len(tokens_of(_BOXED.sub(r"\1", raw)))
    ):
        return "COPIED"  # `f(2) = \boxed{3}`
    if isinstance(p, Choice) or isinstance(g, (Words, Choice)) or tokens_of(prediction) == tokens_of(gold):
        return "CORRECT"
    if isinstance(p, Relation) and isinstance(g, Scalar):  # a chain: its last term is the answer
        p = Scalar(p.terms[-1])
    if problem is not None and _restates(raw, prediction, problem):
        return "COPIED"
    if isinstance(p, Listing) and p.kind == "ratio" and isinstance(g, Scalar):
        if isinstance(last := p.items[-1], Scalar) and last.term == ONE:
            p, prediction = p.items[0], prediction.rpartition(":")[0]  # a ratio to 1
        elif not all(isinstance(item, Scalar) and is_rational(item.term) for item in p.items):
            return "UNEVALUATED"
    if isinstance(g, Based):
        return "CORRECT" if isinstance(p, (Based, Scalar, Named)) else "UNEVALUATED"
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
        term = part.unscaled or part.term
        found += work_left(("div", term, _HUNDRED) if part.percent and not is_rational(term) else term)
    return found


def _states(problem: ProblemText, wanted: list[Scalar]) -> bool:
    """Return whether the problem states the gold's number in another form: then that form is what it asks for."""
    own = {canonical(leaf.term) for leaf in wanted}
    given = [term for term in problem.expressions - own if not symbols(term)]
    return any(equal_terms(term, leaf.term) for leaf in wanted for term in given)


def _form_of(parts: list[Scalar]) -> list[str]:
    """Return what tells the form of an answer: its expressions as written, their order and units left out."""
    return sorted(repr(canonical(part.unscaled or part.term)) for part in parts)


def _restates(raw: str, prediction: str, problem: ProblemText) -> bool:
    """Return whether an answer repeats an equation that the problem states, whatever its sides are written as.

    What the problem says of a number, `f(2) = 3`, is not what it asks.
    """
    texts = [prediction, one_spelling(raw), one_spelling(_TEXT.sub(" ", raw).strip(" .$"))]
    if _DRESSED.search(raw):
        texts += [_DRESSED.sub(r"\1", text) for text in texts]
    for tokens in map(tokens_of, texts):
        said = tokens[1:] if tokens[:1] == ("=",) else tokens
        if not _RELATIONS.isdisjoint(said) and occurs(said, problem.tokens):
            return True
    if _disguised(prediction, problem):
        return True
    parts = [term_of(part.strip(" .,;")) for part in prediction.strip("() ").split("=")]
    sides = [side for side in parts if side is not None]
    return len(sides) == len(parts) and any(
        left[0] != "num" and equal_terms(left, given) and equal_terms(right, value)
        for pair in pairwise(sides)
        for left, right in (pair, pair[::-1])
        for given, value in problem.statements
    )


def _disguised(prediction: str, problem: ProblemText) -> bool:
    """Return whether a side of an equation ends as one that the problem states with this value: `[(AB = 200\\%)]`.

    A function that it gives the value somewhere (`f(2) = 3`) has it only where the problem asks for it (`f(5)`).
    """
    for left, right in pairwise(prediction.split("=")):
        value = next((v for end in (" .", " .,)]}\\") if (v := _number(right.strip(end))) is not None), None)
        if value is None:
            continue
        said = [re.sub(r"[\s{}:]|\\text", "", text) for text in (left, _WRAPPED.sub(" ", left))]
        for name, given in problem.stated:
            head = name[: name.find("(") + 1] or name
            found = [(text, text.rfind(head)) for text in said if head != name or text.endswith(name)]
            at = [text[place:] for text, place in found if place >= 0]
            before = [text[max(0, place - 1) : place] for text, place in found if place >= 0]
            renamed = _CALL.match(left.strip())
            if renamed and head != name and renamed[1] not in problem.tokens and equal_terms(value, given):
                return True
            if any(not letter.isalnum() for letter in before) and equal_terms(value, given):
                return head == name or not any(_is_asked(text, problem) for text in at)
    return False


def _number(text: str) -> Term | None:
    """Return the term of one number or expression, a percentage as its value; None for anything else."""
    answer = read(text)
    if isinstance(answer, Based):
        return ("num", Fraction(answer.digits if answer.base == 10 and answer.digits.isdigit() else -1))
    if not isinstance(answer, Scalar):
        return None
    return hundredth(answer).term if answer.percent else answer.term


def _is_asked(name: str, problem: ProblemText) -> bool:
    term = term_of(name)
    return term is not None and canonical(term) in problem.asked


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
