r"""The judge's law, on real problems: what computes nothing earns nothing, what changes only the look costs nothing.

    python -m bench.law [--shared FOLDER] [--problems N] [--rewritings N] [--seed N] [--out FILE] [--show]

--problems: of the real sets; --rewritings: of each kind, of each copy and gold. Both are drawn with the seed; all of
them by default. --show prints each case that breaks the law.

Three questions, in strict scoring, which is also the training reward's:

- **Copies.** Every formula of a problem that is refused as its answer, rewritten without computing anything
  (`REWRITINGS`: a term added and taken away, a factor on both sides of a fraction, an integer split, a logarithm of an
  exponential, a sum of one term ...), and by two of them in a row. None may be paid. The same for the embedded
  arithmetic.
- **Golds left undone.** The gold's own numbers rewritten in the same way: none may be paid.
- **Looks.** The gold with what changes nothing (`LOOKS`: spaces, `\left`, `\dfrac`, braces, dollars, text, a name). All
  must be paid, where the gold itself is.
- **Wrappers.** What is read away around an answer changes no verdict (`WRAPPERS`: sentences, labels, bullets, markup,
  other languages): refused copies and golds in each of them. A choice's letter (`LETTERS`) makes no copy an answer.

A statement whose value is paid by itself is no case, copied (`AB = 2` if the gold is 2) or rewritten
(`2+1-3 - (2+1-3) = 0` if it is 0): the value alone pays too.

Expected, written down before the first run: 0, 0, and none lost.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.common import parser, save, with_shared
from bench.rewritings import LETTERS, LOOKS, REWRITINGS, WRAPPERS, Rewriting
from gtpo.common.files import read_jsonl
from gtpo.rewards import Verdict, Verifier
from gtpo.rewards.data.arithmetic import arithmetic_problems

_MATH = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_PART = re.compile(r"<=|>=|\\leq?|\\geq?|\\neq|\\approx|\\equiv|[=<>,;]|\\qquad|\\quad|\\\\|&")
_RELATION = re.compile(r"=|\\(?:in|equiv|approx)(?![a-z])")
_PLAIN = re.compile(r"(?<![\w.])\d[\d.,]*(?:\s*[-+*/x×÷^]\s*\d[\d.,]*)+")
SETS = ("math_test", "math_train", "aime24", "aime25", "amc23")


def formulas(text: str, *, dollars: bool = False) -> list[str]:
    """Return what could be copied from a problem, each once, in order; `dollars`: `$` is money, not mathematics."""
    found: list[str] = []
    for match in () if dollars else _MATH.finditer(text):
        inner = next(group for group in match.groups() if group is not None)
        found += [inner, *_PART.split(inner)]
    found += _PLAIN.findall(text)
    return list(dict.fromkeys(stripped for piece in found if (stripped := piece.strip())))


class Case(NamedTuple):
    """A text offered as the answer to a problem."""

    problem_id: str
    rule: str
    text: str
    gold: str
    problem: str


def problems(shared: Path, count: int | None, seed: int = 0) -> list[tuple[str, str, str]]:
    """Return (id, problem, gold) of the embedded task and, drawn with the seed, of the sets under `shared`/data."""
    rows = [
        (f"{name}.jsonl:{line}", str(row["problem"]), str(row["answer"]))
        for name in SETS
        for line, row in read_jsonl(shared / f"data/{name}.jsonl")
        if row["answer"]
    ]
    return rows if count is None or count >= len(rows) else random.Random(seed).sample(rows, count)


def embedded() -> list[tuple[str, str, str]]:
    """Return (id, problem, gold) of the generated arithmetic."""
    return [
        (f"{split}:{i}", p.problem, p.answer)
        for split in ("train", "test", "hard")
        for i, p in enumerate(arithmetic_problems(split))
    ]


def originals(rows: Sequence[tuple[str, str, str]]) -> Iterator[Case]:
    """Yield the formulas of problems, and their golds as a sum of numbers left undone."""
    for identifier, problem, gold in rows:
        for formula in formulas(problem)[:12]:
            yield Case(identifier, "copy", formula, gold, problem)
        if "jsonl" in identifier and re.fullmatch(r"\d{1,6}", gold):
            yield Case(identifier, "undone", f"{int(gold) + 7} - 7", gold, problem)


def rewritten(
    cases: Sequence[Case], rules: dict[str, Rewriting], drawn: int | None = None, seed: int = 0
) -> list[Case]:
    """Return each case under each rule that applies to it; under `drawn` rules, and a fifth of them twice, if given."""
    draw = random.Random(seed)
    found = []
    for case in cases:
        names = list(rules) if drawn is None else draw.sample(sorted(rules), min(drawn, len(rules)))
        for at, name in enumerate(names):
            text = rules[name](case.text)
            if text is not None and drawn is not None and at % 5 == 0:
                second = draw.choice(sorted(rules))
                text, name = rules[second](text), f"{name}, {second}"
            if text is not None and text != case.text:
                found.append(case._replace(rule=name, text=text))
    return found


def judge(cases: Sequence[Case], verifier: Verifier) -> list[Verdict]:
    """Return the verdicts as in training."""
    return verifier.verify_many([(case.text, case.gold) for case in cases], [case.problem for case in cases])


def beyond_its_value(cases: Sequence[Case], verifier: Verifier) -> list[Case]:
    """Return the cases without statements whose value is paid by itself: who writes `… = 0` has guessed 0."""
    stated = [case for case in cases if _RELATION.search(case.text)]
    values = [case._replace(text=_RELATION.split(case.text.strip(" ,;."))[-1]) for case in stated]
    guessed = {c for c, v in zip(stated, judge(values, verifier), strict=True) if v is Verdict.CORRECT}
    return [case for case in cases if case not in guessed]


def refused(cases: Sequence[Case], verifier: Verifier) -> list[Case]:
    """Return the cases that are right in value and refused."""
    found = [c for c, v in zip(cases, judge(cases, verifier), strict=True) if v is Verdict.UNSIMPLIFIED]
    return beyond_its_value(found, verifier)


def main() -> None:
    """Rewrite, judge, print what breaks the law and write the file."""
    args = with_shared(parser(__doc__, problems=int, rewritings=int, seed=0, out=Path, show=False), "data")
    real, own = problems(args.shared, args.problems, args.seed), embedded()[: args.problems]
    with Verifier() as verifier:
        base = refused(list(originals(real)), verifier) + refused(list(originals(own)), verifier)
        attacks = rewritten(base, REWRITINGS, args.rewritings, args.seed)
        attacks += [
            case for rules in (WRAPPERS, LETTERS) for case in rewritten(base, rules, args.rewritings, args.seed)
        ]
        paid = [c for c, v in zip(attacks, judge(attacks, verifier), strict=True) if v is Verdict.CORRECT]
        paid = beyond_its_value(paid, verifier)
        golds = [Case(identifier, "gold", gold, gold, problem) for identifier, problem, gold in real]
        refused_golds = [c for c, v in zip(golds, judge(golds, verifier), strict=True) if v is not Verdict.CORRECT]
        golds = [c for c in golds if c not in refused_golds]
        looks = rewritten(golds, LOOKS) + rewritten(golds, WRAPPERS)
        if args.rewritings:
            looks = random.Random(args.seed).sample(looks, min(len(looks), args.rewritings * len(golds)))
        lost = [c for c, v in zip(looks, judge(looks, verifier), strict=True) if v is not Verdict.CORRECT]
    summary: dict[str, Any] = {
        "problems": len(real) + len(own),
        "refused_originals": len(base),
        "rewritings": len(REWRITINGS),
        "wrappers": len(WRAPPERS) + len(LETTERS),
        "seed": args.seed,
        "attacks": len(attacks),
        "paid": len(paid),
        "paid_by_rule": dict(Counter(case.rule for case in paid)),
        "rewritings_of_each": args.rewritings or len(REWRITINGS),
        "golds": len(golds),
        "golds_refused": len(refused_golds),
        "looks": len(looks),
        "lost": len(lost),
        "lost_by_rule": dict(Counter(case.rule for case in lost)),
    }
    print(*(f"{key}: {value}" for key, value in summary.items()), sep="\n")
    for what, cases in {"paid": paid, "gold refused": refused_golds, "lost": lost}.items() if args.show else ():
        for case in cases:
            print(f"  {what}: {case.problem_id}  {case.rule}: {case.text!r} | gold {case.gold!r}")
    if args.out:
        save(args.out, {"schema_version": 1, **summary})


if __name__ == "__main__":
    main()
