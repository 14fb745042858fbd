"""Has an answer the form that its problem asks for: factored, expanded, simplified, a decimal, one fraction?"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import Term, contains, evaluate, subterms, symbols
from gtpo.rewards.equality.arithmetic.values import NoValue, multiply, noise
from gtpo.rewards.equality.comparing.padding import same_values
from gtpo.rewards.equality.comparing.work import ONE, factors
from gtpo.rewards.equality.reading.answers import Scalar
from gtpo.rewards.equality.reading.expressions import canonical, is_literal


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
    if "as stated" in forms and not is_literal(g) and _outline(p) != _outline(g):
        return False
    if "simplest" in forms and symbols(g):
        return not (has_product_of_sums(p) or contains(p, "div")) or _sums(p) <= _sums(g)
    return True


def _outline(term: Term) -> str:
    """Return the form of an expression: its operations and letters, without numbers and signs, operands in order."""
    term = canonical(term)

    def outline(part: Term) -> str:
        if part[0] == "num":
            return "n"
        if part[0] in ("sym", "const"):
            return str(part[1])
        head = f"{part[0]} {part[1]}" if isinstance(part[1], str) else part[0]
        within = [outline(each) for each in part[1:] if isinstance(each, tuple)]
        if part[0] == "mul":
            within = [each for each in within if each != "n"]
            if len(within) < 2:
                return within[0] if within else "n"
        return f"{head}({', '.join(sorted(within))})"

    return outline(term) if term[0] != "mat" else ""


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
        left = [tuple(evaluate(f, point) for point in points) for f in theirs]
        for factor in ours:
            values = tuple(evaluate(factor, point) for point in points)
            signs = (values, tuple(multiply(Fraction(-1), value) for value in values))
            match = next((i for i, other in enumerate(left) if any(same_values(way, other) for way in signs)), None)
            if match is None:
                return False
            del left[match]
    except NoValue:
        return False
    return not left


def _all_factors(term: Term) -> list[Term]:
    """Return the factors of a product, powers written out, a rational number as one."""
    above, below, *_ = factors(term)
    found: list[Term] = []
    for factor in above + [("pow", f, ("neg", ONE)) for f in below]:
        small = factor[0] == "pow" and factor[2][0] == "num" and factor[2][1] in range(2, 13)
        found += [factor[1]] * int(factor[2][1]) if small else [factor]
    return found
