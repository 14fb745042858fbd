r"""Labelled pairs made by mutation of golds, each with the rule that made it: what a verifier must and must not accept.

The golds are our own and, where the real sets are at hand, theirs; the rules are code. A pair is `equal`, `unequal`, or
`unsimplified`: right in value, but the computation is left undone or copied from the problem, so that it must not pay.
Contested pairs, on which graders differ with reason, are marked and counted apart.
`python -m bench.verify` scores both contenders on them.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, NamedTuple

from gtpo.common.files import read_jsonl
from gtpo.rewards import Verdict, Verifier
from gtpo.rewards.data.arithmetic import arithmetic_problems

Label = Literal["equal", "unequal", "unsimplified"]


class Pair(NamedTuple):
    """A prediction to be judged against a gold."""

    rule: str
    prediction: str
    gold: str
    label: Label
    problem: str | None = None
    contested: bool = False


INTEGERS = (7, 12, 42, 61, 90, 128, 345, 1024, 1250, 86400)
FRACTIONS = (Fraction(3, 4), Fraction(-5, 6), Fraction(7, 3), Fraction(22, 7), Fraction(1, 12), Fraction(9, 8))
SURDS = ((2, 3), (3, 5), (5, 2), (4, 7), (6, 11))
EXPRESSIONS = (
    ("x^2+2x+1", "(x+1)^2", "x^2+2x-1"), ("2x+6", "2(x+3)", "2x+3"), ("x^3-x", "x(x-1)(x+1)", "x^3+x"),
    (r"\frac{x}{2}+1", r"\frac{x+2}{2}", r"\frac{x+1}{2}"), ("a^2-b^2", "(a-b)(a+b)", "(a-b)^2"),
    (r"\sin(2x)", r"2\sin x\cos x", r"2\sin x"), ("3y-4", "3(y-2)+2", "4-3y"), ("|x|", r"\sqrt{x^2}", "x"),
    (r"e^{2x}", r"(e^x)^2", r"2e^x"), (r"\ln 6x", r"\ln 6+\ln x", r"\ln 6 \ln x"),
)  # fmt: skip
POINTS = ((1, 2), (-3, 4), (0, 5), (6, -7), (8, 9))
FALSE_UNITS = (
    "tenths", "hundredths", "thousandths", "halves", "thirds", "quarters", "fifths", "hundreds", "thousands",
    "millions", "squared", "cubed", "gross", "dozen", "lakh", "crore", "wrong", "except", "not", "factorial",
    "or more", "or less", "incorrect", "false", "twice", "fold", "percent", "minus one", "times two", "plus one",
    "mod 3", "eighths", "pairs", "billion", "zorks", "excluded", "no", "at least", "reciprocal", "negative",
)  # fmt: skip
UNITS = (
    "cm", r"\text{ cm}", "meters", "miles", "apples", "dollars", "dollars per week", "square units", "km/h", "students",
    "hours", "degrees", r"\text{ square feet}", "books in total", "cookies", r"\mathrm{~kg}", "people", "days left",
)  # fmt: skip
UNIT_PAIRS = (
    ("m/s", "km/h"), ("square inches", "square feet"), ("cm", "m"), ("hours", "minutes"), ("kg", "g"), ("pounds", "kg"),
    ("miles", "km"), ("mph", "km/h"), ("days", "weeks"), ("dollars", "cents"), ("liters", "gallons"), ("cm^2", "cm^3"),
)  # fmt: skip
NAMES = ("Ned", "Dan", "Sue", "Amy", "Leo", "Mae", "Ian", "Ben")


def _factors(n: int) -> tuple[int, int] | None:
    return next(((d, n // d) for d in range(2, math.isqrt(n) + 1) if n % d == 0), None)


def integers() -> Iterator[Pair]:
    """Yield pairs whose gold is an integer."""
    for n in INTEGERS:
        g, low = str(n), n - 3
        for rule, text in {
            "decimal zeros": f"{n}.0", "box": rf"\boxed{{{n}}}", "dollars around": f"${n}$", "bold": f"**{n}**",
            "emphasis": f"*{n}*", "full stop": f"{n}.", "thousands": f"{n:,}", "text": rf"\text{{{n}}}",
            "name": f"x = {n}", "name after": f"{n} = x", "plus": f"+{n}", "leading zero": f"0{n}",
            "brackets": f"({n})",
            "sentence": f"The answer is {n}.", "true chain": f"{low}+3={n}", "limit": rf"x \to {n}",
            "currency": rf"\${n}", "one option": rf"\boxed{{{n}}}.", "over one": f"{n}/1",
        }.items():  # fmt: skip
            yield Pair(rule, text, g, "equal")
        for unit in UNITS:
            yield Pair("unit", f"{n} {unit}", g, "equal")
        for unit in FALSE_UNITS:
            yield Pair("word that is no unit", f"{n} {unit}", g, "unequal")
        for first, second in UNIT_PAIRS:
            yield Pair("another unit", f"{n} {first}", f"{n} {second}", "unequal")
        for rule, text in {
            "next": str(n + 1), "sign": f"-{n}", "ten times": f"{n}0", "tenth": str(n / 10), "list": f"{n}, {n + 1}",
            "or": f"{n} or {n + 1}", "negation": f"not {n}", "bound": f"at least {n}", "inequality": f"x > {n}",
            "contradiction": f"{n - 1}={n}", "long contradiction": f"1=2=3={n}", "percent": rf"{n}\%",
            "power": f"{n}^2", "coefficient": f"{n}x", "near": f"{n}.0001", "scaled": f"{n} million",
            "denied": f"The answer is not {n}", "unknown side": f"{n} = {n + 1}",
        }.items():  # fmt: skip
            yield Pair(rule, text, g, "unequal")
        undone = {
            "sum": f"{low}+3", "difference": f"{n + 5}-5", "plus zero": f"{low}+3+0", "sum in brackets": f"({low})+(3)",
            "integral": rf"\int_0^1 {n} dx", "big sum": rf"\sum_{{k=1}}^{{{n}}} 1" if n < 500 else f"{low}+1+2",
            "division sign": rf"{2 * n} \div 2", "quotient": rf"\frac{{{n}\cdot 2}}{{2}}", "absolute": f"|-{n}|",
            "remainder": rf"{n} \bmod {n + 1}", "maximum": rf"\max({n}, 1)", "named sum": f"x = {low}+3",
        }  # fmt: skip
        if factors := _factors(n):
            undone["product"] = f"{factors[0]}*{factors[1]}"
            undone["product in TeX"] = rf"{factors[0]} \times {factors[1]}"
        for rule, text in undone.items():
            yield Pair(f"undone {rule}", text, g, "unsimplified")
        for rule, text, problem in [
            ("copied sum", f"{low}+3", f"What is {low}+3?"), ("turned round", f"3+{low}", f"What is {low}+3?"),
            ("copied quotient", f"{6 * n}/6", f"Compute {6 * n}/6."),
            ("copied fraction", rf"\frac{{{2 * n}}}{{2}}", rf"Simplify $\frac{{{2 * n}}}{{2}}$."),
            ("spoken quotient", f"{4 * n}/4", f"What is {4 * n} divided by 4?"),
            ("spoken root", rf"\sqrt{{{n * n}}}", f"What is the square root of {n * n}?"),
            ("copied root", rf"\sqrt{{{n * n}}}", rf"Evaluate $\sqrt{{{n * n}}}$."),
            ("spoken product", f"{n}*1", f"What is {n} times 1?"),
        ]:  # fmt: skip
            yield Pair(rule, text, g, "unsimplified", problem)


def percentages() -> Iterator[Pair]:
    """Yield pairs about percentages, where the problem asks for one and where it does not."""
    asks, other = "What percentage of the apples are red?", "How many of the apples are red?"
    for n in (5, 12, 25, 60, 75, 90):
        yield Pair("percent asked for", rf"{n}\%", str(n), "equal", asks)
        yield Pair("percent asked for, sign in the gold", str(n), rf"{n}\%", "equal", asks)
        yield Pair("percent not asked for", rf"{n}\%", str(n), "unequal", other)
        yield Pair("share for a percentage", str(n / 100), str(n), "unequal", asks)
        yield Pair("percent as a value", rf"{n}\%", str(n / 100), "equal", "What share of them is red?")
        yield Pair("a hundredth of it", rf"{n / 100}\%", str(n), "unequal", asks)


def fractions_and_surds() -> Iterator[Pair]:
    """Yield pairs whose gold is a fraction or a root."""
    for f in FRACTIONS:
        top, bottom = f.numerator, f.denominator
        g = rf"\frac{{{top}}}{{{bottom}}}"
        sign, whole = ("-" if f < 0 else ""), abs(f)
        for rule, text in {
            "typed": f"{top}/{bottom}", "other command": rf"\dfrac{{{top}}}{{{bottom}}}",
            "sign outside": rf"{sign}\frac{{{abs(top)}}}{{{bottom}}}", "reduced elsewhere": f"{2 * top}/{2 * bottom}",
            "name": f"y = {top}/{bottom}",
        }.items():  # fmt: skip
            yield Pair(f"fraction, {rule}", text, g, "equal")
        if whole > 1:
            rest = whole - int(whole)
            yield Pair(
                "mixed number", rf"{sign}{int(whole)}\frac{{{rest.numerator}}}{{{rest.denominator}}}", g, "equal"
            )
        for rule, text in {
            "turned over": rf"\frac{{{bottom}}}{{{top}}}", "next": rf"\frac{{{top + 1}}}{{{bottom}}}",
            "rounded": f"{float(f):.2f}1", "other sign": rf"-{g}", "product": f"{top}*{bottom}",
        }.items():  # fmt: skip
            yield Pair(f"fraction, {rule}", text, g, "unequal")
        yield Pair("fraction, undone sum", rf"\frac{{{top - 1}}}{{{bottom}}}+\frac{{1}}{{{bottom}}}", g, "unsimplified")
        simplify = rf"Simplify $\frac{{{3 * top}}}{{{3 * bottom}}}$."
        yield Pair("fraction, not simplified", rf"\frac{{{2 * top}}}{{{2 * bottom}}}", g, "unsimplified", simplify)
        yield Pair("fraction, copied", rf"\frac{{{3 * top}}}{{{3 * bottom}}}", g, "unsimplified", simplify)
    for digits, (top, bottom) in {"3": (1, 3), "6": (2, 3), "09": (1, 11), "142857": (1, 7)}.items():
        for text in (f"0.({digits})", rf"0.\overline{{{digits}}}", f"0.{digits * 3}…", f"0.{digits * 3}..."):
            yield Pair("repeating decimal", text, rf"\frac{{{top}}}{{{bottom}}}", "equal")
        yield Pair("cut decimal", f"0.{digits[:3]}", rf"\frac{{{top}}}{{{bottom}}}", "unequal")
    for k, n in SURDS:
        g = rf"{k}\sqrt{{{n}}}"
        for rule, text in {
            "sign": f"{k}√{n}", "no braces": rf"{k}\sqrt {n}", "under one root": rf"\sqrt{{{k * k * n}}}",
            "power": f"{k}\\cdot {n}^{{1/2}}", "typed": f"{k}*sqrt({n})",
        }.items():  # fmt: skip
            yield Pair(f"root, {rule}", text, g, "equal")
        for rule, text in {
            "dropped": str(k), "other radicand": rf"{k}\sqrt{{{n + 1}}}", "sum": rf"{k}+\sqrt{{{n}}}",
            "decimal": f"{k * math.sqrt(n):.6f}", "cube": rf"{k}\sqrt[3]{{{n}}}",
        }.items():  # fmt: skip
            yield Pair(f"root, {rule}", text, g, "unequal")
        problem = rf"Simplify $\sqrt{{{k * k * n}}}$."
        yield Pair("root, copied", rf"\sqrt{{{k * k * n}}}", g, "unsimplified", problem)
        yield Pair("root, undone sum", rf"{k - 1}\sqrt{{{n}}}+\sqrt{{{n}}}", g, "unsimplified")


def expressions() -> Iterator[Pair]:
    """Yield pairs whose gold is an expression, and sampling attacks on them."""
    for g, same, other in EXPRESSIONS:
        yield Pair("another form", same, g, "equal")
        yield Pair("function of it", f"f(x) = {same}", g, "equal")
        yield Pair("another expression", other, g, "unequal")
        yield Pair("copied expression", same, g, "unsimplified", f"Rewrite ${same}$ in its other form.")
        yield Pair("copied in brackets", f"({same})", g, "unsimplified", f"Rewrite ${same}$ in its other form.")
        for huge in ("10^{3}", "10^{9}", "10^{30}", "10^{100}"):
            if g != "|x|":
                yield Pair("hidden maximum", rf"\max({g}, -{huge})", g, "unequal")
            yield Pair(
                "hidden step", rf"{g} + \lfloor \frac{{|{'x' if 'x' in g else 'y'}|}}{{{huge}}} \rfloor", g, "unequal"
            )
            yield Pair("hidden term", rf"{g} + \frac{{1}}{{{huge}}}", g, "unequal")
    for power in (100, 200, 1000, 5000):
        yield Pair("tiny numbers", rf"e^{{-{power}}}", rf"e^{{-{2 * power}}}", "unequal")
        yield Pair("tiny is not 0", rf"e^{{-{power}}}", "0", "unequal")
        yield Pair("hidden behind 1", rf"1+e^{{-{power}}}", "1", "unequal")
        yield Pair("hidden behind pi", rf"\pi+10^{{-{power}}}", r"\pi", "unequal")
        yield Pair("far kink", rf"\sqrt{{(x-{power})^2}}", f"{power}-x", "unequal")
        yield Pair("flat tangent", rf"\tanh({power})", "1", "unequal")
    for first, second in ((r"\int_0^1 x^2 dx", r"\frac13"), (r"\lim_{x \to 0} \frac{\sin x}{x}", "1"),
                          (r"\sum_{k=1}^{4} k^2", "30"), (r"\frac{d}{dx} x^3 |_{x=1}", "4")):  # fmt: skip
        yield Pair("undone analysis", first, second, "unequal" if second == "4" else "unsimplified")


def collections() -> Iterator[Pair]:
    """Yield pairs about points, intervals, sets, logic, names and options."""
    for a, b in POINTS:
        g = f"({a}, {b})"
        for rule, text in {
            "names": f"x={a}, y={b}", "names turned": f"y={b}, x={a}", "pair name": f"(x,y)=({a},{b})",
            "no brackets": f"{a}, {b}", "TeX": rf"\left({a},\,{b}\right)",
        }.items():  # fmt: skip
            yield Pair(f"point, {rule}", text, g, "equal")
        for rule, text in {
            "turned": f"({b}, {a})", "closed": f"[{a}, {b}]", "names swapped": f"y={a}, x={b}",
            "set": rf"\{{{a},{b}\}}",
            "one": str(a), "three": f"({a}, {b}, 0)",
        }.items():  # fmt: skip
            yield Pair(f"point, {rule}", text, g, "unequal", None, rule == "set")
        yield Pair("point, named gold swapped", f"y={a}, x={b}", f"(x,y)=({a},{b})", "unequal")
        yield Pair("point, undone sum", f"({a - 1}+1, {b})", g, "unsimplified")
        low, high = min(a, b), max(a, b)
        interval = f"[{low}, {high}]"
        for rule, text in {
            "and": rf"x>={low} and x<={high}", "chain": rf"{low} \le x \le {high}",
            "wedge": rf"x \ge {low} \land x \le {high}",
            "set builder": rf"\{{x : {low} \le x \le {high}\}}",
        }.items():  # fmt: skip
            yield Pair(f"interval, {rule}", text, interval, "equal")
        for rule, text in {
            "or": rf"x>={low} or x<={high}", "open": f"({low}, {high})", "half open": f"[{low}, {high})",
            "one side": rf"x \ge {low}", "pair": rf"\{{{low}, {high}\}}",
        }.items():  # fmt: skip
            yield Pair(f"interval, {rule}", text, interval, "unequal")
        yield Pair("and is not or", f"x<{low} and x>{high}", f"x<{low} or x>{high}", "unequal")
        yield Pair("or is not and", f"x>{low} or x<{high}", f"x>{low} and x<{high}", "unequal")
    options = [("A", "10"), ("B", "12"), ("C", "15"), ("D", "20")]
    problem = "Which one? " + " ".join(f"({letter}) {text}" for letter, text in options)
    for letter, text in options:
        for rule, prediction in {
            "bare": letter, "brackets": f"({letter})", "bold": rf"\textbf{{({letter})}}",
            "with its text": f"({letter}) {text}",
            "point": f"{letter}. {text}", "correct": f"({letter}) is correct",
        }.items():  # fmt: skip
            yield Pair(f"option, {rule}", prediction, letter, "equal", problem)
        for other, other_text in options:
            if other != letter:
                yield Pair("option, another", f"({other})", letter, "unequal", problem)
                yield Pair("option, two", f"({letter}) or ({other})", letter, "unequal", problem)
                yield Pair("option, denied", f"({letter}) is wrong, ({other})", letter, "unequal", problem)
                yield Pair("option, text of another", f"({letter}) {other_text}", letter, "unequal", problem)
        yield Pair("option, not", f"({letter}) not", letter, "unequal", problem)
    for name in NAMES:
        turned = name[::-1]
        asked = f"Who won the race, {name} or Zed?"
        yield Pair("name", name.upper(), name, "equal", asked)
        yield Pair("name in text", rf"\text{{{name}}}", name, "equal", asked)
        yield Pair("letters of a name turned", turned, name, "unequal", asked)
        yield Pair("letters of a name apart", "*".join(name), name, "unequal", asked)


def own_pairs() -> list[Pair]:
    """Return the pairs that need no data but our own golds."""
    made = [*integers(), *percentages(), *fractions_and_surds(), *expressions(), *collections()]
    for problem in arithmetic_problems("test"):
        expression = problem.problem.removeprefix("What is ").removesuffix("?")
        made.append(Pair("embedded task copied", expression, problem.answer, "unsimplified", problem.problem))
        made.append(Pair("embedded task", problem.answer, problem.answer, "equal", problem.problem))
    return made


def real_pairs(shared: Path, count: int = 400) -> list[Pair]:
    """Return pairs from golds of the real sets, drawn with a fixed seed."""
    draw = random.Random(0)
    made: list[Pair] = []
    for name in ("math_test", "gsm8k_test"):
        rows = [row for _, row in read_jsonl(shared / f"data/{name}.jsonl")]
        for row in draw.sample(rows, count):
            gold, problem = str(row["answer"]), str(row["problem"])
            made.append(Pair("real gold, boxed", rf"\boxed{{{gold}}}", gold, "equal", problem))
            made.append(Pair("real gold, in dollars", f"${gold}$", gold, "equal", problem))
            made.append(Pair("real gold, spaced", gold.replace("\\frac", "\\dfrac"), gold, "equal", problem))
            if re.fullmatch(r"\d+", gold):
                made.append(Pair("real gold, plus one", str(int(gold) + 1), gold, "unequal", problem))
                made.append(Pair("real gold, undone", f"{int(gold) + 7}-7", gold, "unsimplified", problem))
                made.append(Pair("real gold, hundredths", f"{gold} hundredths", gold, "unequal", problem))
                made.append(Pair("real gold, contradiction", f"{int(gold) + 1}={gold}", gold, "unequal", problem))
    return made


def ours(pairs: Sequence[Pair], verifier: Verifier) -> list[bool]:
    """Return what this project accepts, scored as in training."""
    verdicts = verifier.verify_many([(p.prediction, p.gold) for p in pairs], [p.problem for p in pairs])
    return [verdict is Verdict.CORRECT for verdict in verdicts]


def math_verify(pairs: Sequence[Pair]) -> list[bool]:
    """Return what Math-Verify accepts, given the answers in dollars as its documentation asks."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    return [bool(verify(parse(f"${p.gold}$"), parse(f"${p.prediction}$"))) for p in pairs]


class Score(NamedTuple):
    """How a verifier does on pairs of one kind; contested pairs are left out but for their number."""

    equal: int
    accepted: int
    """Of the equal pairs."""
    others: int
    false_accepts: int
    """Of the pairs that are not equal, or equal but left undone."""
    contested: int


def score(pairs: Sequence[Pair], accepted: Sequence[bool]) -> Score:
    """Count what was rightly and wrongly accepted."""
    judged = [(p.label == "equal", yes) for p, yes in zip(pairs, accepted, strict=True) if not p.contested]
    equal = [yes for same, yes in judged if same]
    others = [yes for same, yes in judged if not same]
    return Score(len(equal), sum(equal), len(others), sum(others), len(pairs) - len(judged))
