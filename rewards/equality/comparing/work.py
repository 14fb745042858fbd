"""Is an answer that equals the gold in value also an answer, or only what was to be computed?

`COPIED`: it repeats an expression of the problem and is not in the gold's own form. `UNEVALUATED`: it leaves work that
the gold does not leave: operations are counted by kind. So is the last member of a chain with another number in it
(`x = 41 = 42`).
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain, pairwise

from gtpo.rewards.equality import answers, arithmetic
from gtpo.rewards.equality.answers import Answer, Listing, Named, Relation, Scalar, Words, leaves, ratios, symbols_of
from gtpo.rewards.equality.arithmetic import ONE, ZERO, Term, addends, canonical, is_literal, parts, subterms, symbols
from gtpo.rewards.equality.comparing.comparison import rename
from gtpo.rewards.equality.reading.grammar import occurs, tokens_of
from gtpo.rewards.equality.reading.problem import ProblemText


class Work(enum.Enum):
    """Kinds of operations that an expression leaves."""

    SUM = "numbers that are added"
    LIKE = "terms of a sum that can be put together"
    PRODUCT = "factors that can be put together"
    POWER = "a power of a power, an exponent of 0 or 1"
    SIGN = "a sign that cancels another"
    FUNCTION = "a function of numbers, or of its own inverse"
    BOUND = "a sum, product, integral or limit over a variable"
    REDUCTION = "a fraction or root that can be reduced, within an expression"
    FRACTION = "a number that is one fraction or root and can be reduced"
    LITERAL_POWER = "a number that is a power"
    ROOT = "a root with a square in it, in a denominator, or of a sum"


Count = Counter[Work]
# What no answer may leave that its gold does not leave; the others depend on the problem.
ALWAYS = frozenset(Work) - {Work.FRACTION, Work.ROOT, Work.LITERAL_POWER}
_REALS = Listing("tuple", (Scalar(("neg", ("const", "inf"))), Scalar(("const", "inf"))), "()")
_TWO: Term = ("num", Fraction(2))
_INVERSES = {"ln": "exp", "exp": "ln", "sin": "arcsin", "cos": "arccos", "tan": "arctan", "arcsin": "sin",
             "arccos": "cos", "arctan": "tan"}  # fmt: skip


def work_left(term: Term) -> Count:
    """Return how many operations of each kind an expression leaves."""
    found: Count = Counter()
    _visit(term, found, whole=not symbols(term))
    return found


def _visit(term: Term, found: Count, whole: bool = False) -> None:
    """Count what one term leaves; `whole`: it is a number by itself."""
    kind = term[0]
    if kind in ("add", "mul"):
        matrices = sum(_unsigned(part)[0] == "mat" for part in term[1:])
        found[Work.PRODUCT] += max(0, matrices - 1)
    if kind == "bind":
        found[Work.BOUND] += 1
    elif kind == "add":
        added = list(addends(term))
        if not symbols(term):
            found[Work.SUM] += len(added) - 1
        found[Work.LIKE] += len(added) - len(set(map(_kind_of, added))) + added.count(ZERO)
        for part in added:
            _visit(part, found)
    elif kind in ("mul", "div", "neg", "pow") or term[:2] in (("fn", "sqrt"), ("fn", "root")):
        _product(term, found, whole)
    elif kind == "fn":
        _function(term, found)
    else:
        for part in parts(term):
            _visit(part, found, kind == "mat" and not symbols(part))


def _kind_of(addend: Term) -> str:
    """Return an addend without its rational coefficient: two of one kind can be put together."""
    above, below, *_ = factors(addend)
    above, below = ([f for f in side if not is_rational(f)] for side in (above, below))
    inverted: list[Term] = [("pow", factor, ("neg", ONE)) for factor in below]
    return repr(canonical(("mul", ONE, *above, *inverted)))


# -- products and powers -------------------------------------------------------------------------------------------
def factors(term: Term) -> tuple[list[Term], list[Term], int, int]:
    """Return the factors above and below the line (1/2 and 2^3 are one), the signs, the fractions in denominators."""
    sides: tuple[list[Term], list[Term]] = ([], [])
    signs = nested = 0

    def collect(part: Term, side: int) -> None:
        nonlocal signs, nested
        if part[0] == "mul":
            for each in part[1:]:
                collect(each, side)
        elif part[0] == "neg":
            signs += 1
            collect(part[1], side)
        elif part[0] == "div" and not is_rational(part):
            nested += side
            signs += part[1][0] == "neg"
            top = _unsigned(part[1])
            if top != ONE:
                collect(top, side)
            collect(part[2], 1 - side)
        elif part[0] == "pow" and part[2] == ("neg", ONE) and not is_rational(part):
            nested += side
            collect(part[1], 1 - side)
        else:
            sides[side].append(part)

    collect(term, 0)
    return *sides, signs, nested


def _unsigned(term: Term) -> Term:
    return term[1] if term[0] == "neg" else term


def _is_integer(term: Term) -> bool:
    return bool(term[0] == "num" and term[1].denominator == 1)


def is_rational(term: Term) -> bool:
    """Return whether a term is one rational number as written: 3, 0.5, 2/3, 1 1/2, 2^10."""
    term = _unsigned(term)
    if term[0] == "div":
        return all(_is_integer(_unsigned(part)) for part in term[1:])
    if term[0] == "pow":
        return is_rational(term[1]) and _is_integer(_unsigned(term[2]))
    return bool(term[0] == "num" or term[:2] == ("fn", "mixed"))


def _base(factor: Term) -> Term:
    return factor[1] if factor[0] == "pow" and _is_integer(_unsigned(factor[2])) else factor


def _root_of(factor: Term) -> tuple[Term, Term] | None:
    """Return (radicand, degree) of a root, None for anything else."""
    if factor[:2] == ("fn", "sqrt"):
        return factor[2], _TWO
    if factor[:2] == ("fn", "root"):
        return factor[2], factor[3]
    power = _unsigned(factor[2]) if factor[0] == "pow" else ZERO
    if power[0] == "num" and power[1].denominator > 1:  # `4^{0.5}`
        return factor[1], ("num", Fraction(power[1].denominator))
    if power[0] == "div" and is_rational(power):
        return factor[1], _unsigned(power[2])
    return None


def _product(term: Term, found: Count, whole: bool) -> None:
    above, below, signs, nested = factors(term)
    found[Work.SIGN] += max(0, signs - 1)
    # `a/b^{-1}` too: a number with a negative exponent is one below a line.
    found[Work.PRODUCT] += nested + sum(f[0] == "pow" and f[2][0] == "neg" for f in map(_unsigned, below))
    tops, bottoms = ([f for f in side if is_rational(f)] for side in (above, below))
    others = [[f for f in side if not is_rational(f)] for side in (above, below)]
    alone = len(above) + len(below) == 1
    # `3.2 \times 10^5` is a number as it is written.
    # `100 \div 10` is read with the exponent -1 as a number; `100 \cdot 10^{-1}` is that division.
    proper = all(1 <= abs(f[1]) < 10 for f in map(_unsigned, tops) if f[0] == "num")
    powers = [f[2] for f in tops if f[0] == "pow" and f[1] == ("num", Fraction(10))]
    scientific = not below and any(p != ("num", Fraction(-1)) and (proper or p != ("neg", ONE)) for p in powers)
    found[Work.PRODUCT] += max(0, len(tops) - 1 - scientific) + max(0, len(bottoms) - 1)
    if not alone:
        found[Work.PRODUCT] += sum(f in (ONE, ZERO) for f in tops)
    reduction = Work.FRACTION if whole else Work.REDUCTION
    found[reduction] += sum(_is_reducible(f) for f in tops + bottoms) + bottoms.count(ONE)
    for top in tops:
        for bottom in bottoms:
            a, b = _whole_base(top), _whole_base(bottom)
            if a is None or b is None:
                found[Work.PRODUCT] += 1
            elif math.gcd(a, b) > 1:
                # `2x/2` is x in disguise, and what x would be paid it must not earn; `6x/4` may stay as it is.
                found[Work.PRODUCT if a == b and any(others) else reduction] += 1
    bases = [repr(canonical(_base(f))) for f in others[0] + others[1]]
    found[Work.PRODUCT] += len(bases) - len(set(bases))
    for side in others:
        degrees = [root[1] for f in side if (root := _root_of(f)) is not None]
        found[Work.PRODUCT] += len(degrees) - len(set(degrees))
    if not symbols(term):
        sums = sum(_base(f)[0] == "add" for f in others[0] + others[1])
        powers = sum(f[0] == "pow" and f[1][0] == "add" for f in others[0] + others[1])
        found[Work.PRODUCT] += powers + max(0, sums - 1)
    for factor in map(_unsigned, tops + bottoms):
        if factor[0] == "pow" and (factor[2] == ZERO or _unsigned(factor[1]) != ("num", Fraction(10))):
            base, exponent = _unsigned(factor[1]), factor[2]
            small = exponent in (ZERO, ONE) or base in (ZERO, ONE) or base[0] == "pow" or _is_reducible(base)
            found[Work.POWER if small else Work.LITERAL_POWER if whole else Work.REDUCTION] += 1
    for number, side in enumerate(others):
        for factor in side:
            if (root := _root_of(factor)) is not None:
                # `5 \cdot 27^{-1/3}` is no number that is one root.
                _root(*root, found, whole and alone, number == 1)
                if factor[0] == "pow":
                    _visit(factor[2], found)
            elif factor[0] == "pow":
                _power(factor[1], factor[2], found)
            else:
                _visit(factor, found)


def _power(base: Term, exponent: Term, found: Count) -> None:
    bare = _unsigned(base)
    found[Work.PRODUCT] += bare[0] == "mat"
    whole_exponent = _is_integer(_unsigned(exponent))
    if exponent in (ZERO, ONE) or bare in (ZERO, ONE) or bare[0] == "pow" or (bare[0] == "fn" and exponent == ONE):
        found[Work.POWER] += 1
    # `(\sqrt{x})^2`, `|x|^2`, `(2x)^2` and `i^2` are each something shorter.
    if whole_exponent:
        root = _root_of(bare)
        found[Work.SIGN] += base[0] == "neg"
        found[Work.POWER] += root is not None and (not symbols(root[0]) or _divides(root[1], exponent))
        found[Work.POWER] += bare[:2] == ("fn", "abs") and _divides(_TWO, exponent)
        found[Work.POWER] += bare[0] in ("mul", "div") and any(map(is_rational, chain(*factors(bare)[:2])))
        found[Work.POWER] += base == ("const", "i")
    if base == ("const", "e"):
        found[Work.FUNCTION] += arithmetic.contains(exponent, "const", "i") and _is_turn(exponent)
        found[Work.FUNCTION] += any(part[:2] in (("fn", "ln"), ("fn", "log")) for part in addends(exponent))
    # `10^{\log_{10} x}`
    found[Work.FUNCTION] += any(part[:2] == ("fn", "log") and part[3:] == (base,) for part in addends(exponent))
    _visit(base, found)
    _visit(exponent, found)


def _is_turn(exponent: Term) -> bool:
    """Return whether an exponent of e is a whole multiple of i pi / 2: then the power is 1, -1, i or -i."""
    turns = arithmetic.constant_value(("div", exponent, ("mul", ("const", "i"), ("const", "pi"))))
    quarters = None if turns is None else 2 * arithmetic.number_of(turns)
    return quarters is not None and bool(abs(quarters - round(quarters.real)) < 1e-30)


def _divides(divisor: Term, number: Term) -> bool:
    number = _unsigned(number)
    return _is_integer(divisor) and _is_integer(number) and divisor[1] != 0 and number[1] % divisor[1] == 0


def _is_reducible(unit: Term) -> bool:
    """Return whether a fraction of integers is not in lowest terms."""
    unit = _unsigned(unit)
    if unit[0] != "div":
        return False
    top, bottom = (int(_unsigned(part)[1]) for part in unit[1:])
    return math.gcd(top, bottom) != 1 or bottom in (0, 1)


def _whole_base(unit: Term) -> int | None:
    """Return an integer, or that of which it is a power; None for other rationals."""
    base = _unsigned(_base(_unsigned(unit)))
    return int(base[1]) if _is_integer(base) else None


def _root(radicand: Term, degree: Term, found: Count, whole: bool, below: bool) -> None:
    bare = _unsigned(radicand)
    if degree == ONE or (not symbols(degree) and not _is_integer(degree)):
        found[Work.POWER] += 1
    if symbols(radicand):
        above, under, *_ = factors(radicand)
        if all(f[0] == "pow" and _divides(degree, f[2]) for f in above + under):
            found[Work.FUNCTION] += 1
    elif _is_integer(bare) and _is_integer(degree):
        perfect, composed = _perfect(abs(int(bare[1])), int(degree[1]))
        found[Work.FRACTION if whole else Work.REDUCTION] += perfect
        # `1/\sqrt{2}` and `\sqrt{8}` are fine unless the problem asks for the simplest form.
        found[Work.ROOT] += composed or below
    elif is_rational(bare) and bare[0] != "pow":
        found[Work.ROOT] += 1
        if not symbols(degree) and isinstance(arithmetic.constant_value(("fn", "root", radicand, degree)), Fraction):
            found[Work.FRACTION if whole else Work.REDUCTION] += 1  # `0.25^{0.5}` is 0.5
    else:
        nested = any(part[0] == "add" for part in subterms(radicand)) and radicand[0] != "pow"
        found[Work.ROOT if nested else Work.FUNCTION] += 1
    _visit(radicand, found)
    _visit(degree, found)


def _perfect(number: int, index: int) -> tuple[bool, bool]:
    """Say of an integer whether it is a power of this index, and whether a factor of it is."""
    # Beyond these a search for factors costs more than it would tell.
    if not 2 <= index <= 64 or number > 10**12:
        return False, False
    if arithmetic.whole_root(number, index) is not None:
        return True, False
    return False, any(number % n**index == 0 for n in range(2, min(round(number ** (1 / index)) + 2, 1000)))


def _function(term: Term, found: Count) -> None:
    name, arguments = term[1], term[2:]
    if name == "mixed":
        return
    first = arguments[0]
    if name == "exp" and is_rational(first) and first != ZERO:
        return
    if name == "det" and first[0] == "mat":
        found[Work.FUNCTION] += 1
    numbers = not symbols(term) and not any(part[0] == "opaque" for part in subterms(term))
    undone = first[:2] == ("fn", _INVERSES.get(name)) or (name == "ln" and first[:2] == ("pow", ("const", "e")))
    kept = name == "abs" and (first[:2] == ("fn", "abs") or (first[0] == "pow" and _divides(_TWO, first[2])))
    found[Work.FUNCTION] += numbers or undone or kept
    for part in arguments:
        _visit(part, found)


# -- the form that a problem asks for, and parts that compute nothing -------------------------------------------------
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
    fractions = "simplest" in forms and symbols(g) and (has_product_of_sums(p) or arithmetic.contains(p, "div"))
    return not fractions or _sums(p) <= _sums(g)


def _sums(term: Term) -> int:
    return sum(len(part) - 2 for part in subterms(term) if part[0] == "add")


def has_product_of_sums(term: Term) -> bool:
    """Return whether a product or power of a sum with variables could be expanded."""
    for part in subterms(term):
        sums = [part[1]] if part[0] == "pow" and part[2][0] == "num" else factors(part)[0] if part[0] == "mul" else []
        if any(factor[0] == "add" and symbols(factor) for factor in sums):
            return True
    return False


def _is_factored_as(p: Term, g: Term) -> bool:
    """Return whether a product has the factors of the gold, up to signs; a gold that is no product asks for none."""
    ours, theirs = _all_factors(p), _all_factors(g)
    if len(theirs) < 2:
        return True
    return answers.one_to_one(theirs, ours, lambda a, b: any(arithmetic.equal_terms(a, x) for x in (b, ("neg", b))))


def _all_factors(term: Term) -> list[Term]:
    """Return the factors of a product, powers written out, a rational number as one."""
    above, below, *_ = factors(term)
    found: list[Term] = []
    for factor in above + [("pow", f, ("neg", ONE)) for f in below]:
        small = factor[0] == "pow" and factor[2][0] == "num" and factor[2][1] in range(2, 13)
        found += [factor[1]] * int(factor[2][1]) if small else [factor]
    return found


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
    if isinstance(p, Listing) and p.items and isinstance(g, Scalar) and isinstance(p.items[-1], Relation):
        p = p.items[-1]
    if isinstance(p, Relation) and isinstance(g, Scalar):  # a chain: its last term is the answer
        p = Scalar(p.terms[-1])
    if not _RELATIONS.isdisjoint(tokens) and tokens[0] != "=" and occurs(tokens, problem.tokens):
        return "COPIED"  # `f(2) = 3`, as the problem says it
    divided = [] if any(ratios(g)) else list(ratios(p))  # each is the division that it stands for
    for ratio in divided:
        to_one = isinstance(last := ratio.items[-1], Scalar) and last.term == ONE
        if not to_one and not all(isinstance(item, Scalar) and is_rational(item.term) for item in ratio.items):
            return "UNEVALUATED"
    if divided and (quotient := answers.quotient_of(p)) is not None:
        p, prediction = quotient, prediction.rpartition(":")[0] if to_one else prediction
    if isinstance(g, answers.Based):
        return "CORRECT" if isinstance(p, (answers.Based, Scalar, Named)) else "UNEVALUATED"
    if is_solved(g) and isinstance(p, Relation) and not is_solved(p):
        return "UNEVALUATED"  # `6x + 14 = 44` for x = 5
    if isinstance(p, Listing) and p.kind == "ratio" and "simplest" in problem.contract.forms:
        numbers = [leaf.term[1] for leaf in leaves(p) if leaf.term[0] == "num"]
        fractions = len(numbers) == len(p.items) and any(n.denominator > 1 for n in numbers)
        if fractions or math.gcd(*map(int, numbers)) > 1:
            return "UNEVALUATED"
    written, wanted = list(leaves(p, bool(divided))), list(leaves(g))
    if wanted and _has_foreign_symbols(p, g):
        return "COPIED" if problem.is_known else "UNEVALUATED"
    excess = _work_of(written) - _work_of(wanted)
    undone = not ALWAYS.isdisjoint(excess) or _set_operations(p) > _set_operations(g)
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
    numeric = not symbols_of(g) and not any(arithmetic.contains(leaf.term, "opaque") for leaf in wanted)
    if not numeric and not problem.is_known:
        return "CORRECT"
    if undone or not in_form(written, wanted, problem.contract.forms):
        return "UNEVALUATED"
    if not excess or not problem.is_known:
        return "CORRECT"
    # What is left is one number that could be written shorter: it depends on the problem whether it must.
    reducible = excess[Work.FRACTION] and any(
        arithmetic.integer(arithmetic.constant_value(leaf.term)) is not None and _work_of([leaf]) for leaf in written
    )
    # A power or a fraction of two numbers of the problem is an operation that stands still to be done.
    numbers = [token for token in tokens if token[0].isdigit()]
    copied = (excess[Work.LITERAL_POWER] or excess[Work.FRACTION]) and set(numbers) <= set(problem.tokens)
    left = "simplest" in problem.contract.forms or divided or reducible or copied
    return "UNEVALUATED" if left else "CORRECT"


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


def _work_of(parts: Iterable[Scalar]) -> Count:
    found: Count = Counter()
    for part in parts:
        term = part.unscaled or part.term
        if term[0] == "div":  # `\frac{\ln 5}{\ln 2}` is the logarithm to the base 2 that it stands for
            above, below = (side[1] if side[2:] == (arithmetic.NO_BASE,) else side for side in term[1:])
            logarithms = above[0] == "fn" and above[1] in ("ln", "log") and above[1] == below[1]
            if logarithms and above[3:] == below[3:]:
                term = ("fn", "log", above[2], below[2])
        found += work_left(("div", term, _HUNDRED) if part.percent and not is_rational(term) else term)
    return found


def _set_operations(answer: Answer) -> int:
    """Return how many operations on sets are left undone; an interval without some points is written like that."""
    found = sum(map(_set_operations, answers.parts_of(answer)))
    for (_, left), (operation, right) in pairwise(answer.parts if isinstance(answer, answers.Union) else ()):
        finite = [isinstance(part, Listing) and part.kind in ("set", "list") for part in (left, right)]
        found += operation == "cap" or (operation == "setminus" and finite != [False, True] and left != _REALS)
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
