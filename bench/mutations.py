r"""Labelled pairs made by mutation of golds, each with the rule that made it: what a verifier must and must not accept.

The golds are our own and, where the real sets are at hand, theirs; the rules are in mutations.yaml. A pair is `equal`,
`unequal`, or `unsimplified`: right in value, but the computation is left undone or copied from the problem, so that it
must not pay. Contested pairs, on which graders differ with reason, are marked and counted apart.
`python -m bench.verify` scores both contenders on them.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from bench.common import rows_of
from bench.rewritings import filled
from gtpo.rewards import Verdict, Verifier
from gtpo.rewards.data.arithmetic import arithmetic_problems

Label = Literal["equal", "unequal", "unsimplified"]
RULES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


class Pair(NamedTuple):
    """A prediction to be judged against a gold."""

    rule: str
    prediction: str
    gold: str
    label: Label
    problem: str | None = None
    contested: bool = False


Values = Mapping[str, Any]  # What a template's <> stand for


def made(family: str, values: Iterable[Values]) -> Iterator[Pair]:
    """Yield what the rules of a family make of each of its values."""
    rules = RULES[family]
    kinds = [(label, rules.get(label, {})) for label in ("equal", "unequal", "unsimplified", "contested")]
    for each in values:
        for label, (rule, given) in ((label, item) for label, found in kinds for item in found.items()):
            own = [given] if isinstance(given, str) else given
            text, problem, gold = [*own, *(rules.get("problem"), rules.get("gold"))[len(own) - 1 :]]
            contested = label == "contested"
            asked = None if problem is None else filled(problem, each)
            yield Pair(
                rule, filled(text, each), filled(gold, each), "unequal" if contested else label, asked, contested
            )


def of_integer(n: int) -> Values:
    """Return an integer with what the rules make of it."""
    times = {f"{factor}n": factor * n for factor in (2, 4, 6)}
    near = {f"n{step:+d}": n + step for step in (-3, -1, 1, 5)}
    ones = rf"\sum_{{k=1}}^{{{n}}} 1" if n < 500 else f"{n - 3}+1+2"
    return {"n": n, "n,": f"{n:,}", "n/10": n / 10, "n/100": n / 100, "nn": n * n, "ones": ones, **times, **near}


def of_fraction(f: Fraction) -> Values:
    """Return a fraction with what the rules make of it."""
    top, bottom = f.numerator, f.denominator
    times = {f"{factor}{name}": factor * of for factor in (2, 3) for name, of in (("top", top), ("bottom", bottom))}
    whole, rest = divmod(abs(top), bottom)
    return {"top": top, "bottom": bottom, "|top|": abs(top), "top+1": top + 1, "top-1": top - 1, **times,
            "sign": "-" * (f < 0), "rounded": f"{float(f):.2f}", "whole": whole, "rest": rest}  # fmt: skip


def families() -> dict[str, Iterable[Values]]:
    """Return the values of each family that needs no data but our own golds."""
    given = RULES["values"]
    integers, fractions = given["integers"], [of_fraction(Fraction(text)) for text in given["fractions"]]
    factors = ((n, next((d for d in range(2, math.isqrt(n) + 1) if n % d == 0), None)) for n in integers)
    hidden = [
        {**row, "huge": huge, "unknown": "x" if "x" in row["g"] else "y"}
        for row, huge in product(given["expressions"], given["huge"])
    ]
    options = given["options"]
    return {
        "integers": map(of_integer, integers),
        "products": ({"n": n, "a": a, "b": n // a} for n, a in factors if a),
        "units": ({"n": n, "unit": unit} for n, unit in product(integers, given["units"])),
        "false units": ({"n": n, "unit": unit} for n, unit in product(integers, given["false units"])),
        "unit pairs": (
            {"n": n, "first": one, "second": two} for n, (one, two) in product(integers, given["unit pairs"])
        ),
        "percentages": map(of_integer, given["percentages"]),
        "fractions": fractions,
        "mixed numbers": (values for values in fractions if values["whole"]),
        "repeating decimals": given["repeating"],
        "roots": (
            {"k": k, "n": n, "kkn": k * k * n, "n+1": n + 1, "k-1": k - 1, "decimal": f"{k * math.sqrt(n):.6f}"}
            for k, n in given["roots"]
        ),
        "expressions": given["expressions"],
        "hidden": hidden,
        "hidden maxima": (row for row in hidden if row["g"] != "|x|"),
        "powers": ({"power": power, "2power": 2 * power} for power in given["powers"]),
        "analysis": given["analysis"],
        "wrong analysis": [{}],
        "points": ({"a": a, "b": b, "a-1": a - 1} for a, b in given["points"]),
        "intervals": ({"low": min(point), "high": max(point)} for point in given["points"]),
        "options": ({"letter": letter, "text": text} for letter, text in options.items()),
        "other options": (
            {"letter": letter, "other": other, "text": options[other]} for letter, other in permutations(options, 2)
        ),
        "names": ({"name": n, "upper": n.upper(), "turned": n[::-1], "apart": "*".join(n)} for n in given["names"]),
        "embedded task": (
            {"expression": p.problem[len("What is ") : -1], "problem": p.problem, "answer": p.answer}
            for p in arithmetic_problems("test")
        ),
    }


def own_pairs() -> list[Pair]:
    """Return the pairs that need no data but our own golds."""
    return [pair for family, values in families().items() for pair in made(family, values)]


def real_pairs(shared: Path, count: int = 400) -> list[Pair]:
    """Return pairs from golds of the real sets, drawn with a fixed seed."""
    draw = random.Random(0)
    sets = (rows_of(shared / f"data/{name}.jsonl") for name in ("math_test", "gsm8k_test"))
    rows = [(str(row["answer"]), str(row["problem"])) for found in sets for row in draw.sample(found, count)]
    golds = ({"gold": g, "problem": p, "dfrac": g.replace("\\frac", "\\dfrac")} for g, p in rows)
    whole = ((int(g), p) for g, p in rows if re.fullmatch(r"\d+", g))
    integers = ({"gold": n, "problem": p, "n+1": n + 1, "n+7": n + 7} for n, p in whole)
    return [*made("real golds", golds), *made("real integers", integers)]


def ours(pairs: Sequence[Pair], verifier: Verifier) -> list[bool]:
    """Return what this project accepts, scored as in training."""
    verdicts = verifier.verify_many([(p.prediction, p.gold) for p in pairs], [p.problem for p in pairs])
    return [verdict is Verdict.CORRECT for verdict in verdicts]


def score(pairs: Sequence[Pair], accepted: Sequence[bool]) -> dict[str, int]:
    """Count the equal pairs and the others, with what was accepted of each; contested ones are counted apart."""
    judged = [(p.label == "equal", yes) for p, yes in zip(pairs, accepted, strict=True) if not p.contested]
    equal = [yes for same, yes in judged if same]
    others = [yes for same, yes in judged if not same]
    return {"equal": len(equal), "accepted": sum(equal), "others": len(others), "false_accepts": sum(others),
            "contested": len(pairs) - len(judged)}  # fmt: skip
