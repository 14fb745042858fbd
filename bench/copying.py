"""What copying from the problem earns: every formula of every real problem, offered as the answer to that problem.

    python -m bench.copying [--shared FOLDER] [--out FILE]

The formulas are what stands between `$...$`, `$$...$$`, `\\(...\\)` and `\\[...\\]`, the parts of each that relations
and commas separate, and the arithmetic in plain text ("3 + 4 x 5"). They are found here, not by the verifier's own
reader of problems, so that what that one overlooks is offered too. Each is verified against the problem's gold in
strict scoring, which is also the training reward's. What scores CORRECT is sorted by why: the file holds line of the
problem and number of the formula, since the text of the data sets is not ours to copy; `--show` prints it.

Expected, written down before the first run: nothing but the gold itself, written as the gold is or with what a gold may
carry (a unit, a currency sign, the letter of its option, the name of the unknown).
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gtpo.rewards import Verdict, Verifier

from gtpo.common.files import read_jsonl, write_json

SETS = ("gsm8k_test", "gsm8k_train", "math_test", "math_train", "aime24", "aime25", "amc23", "amc_aimo83")
_MATH = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_PART = re.compile(r"<=|>=|\\leq?|\\geq?|\\neq|\\approx|\\equiv|[=<>,;]|\\qquad|\\quad|\\\\|&")
_PLAIN = re.compile(r"(?<![\w.])\d[\d.,]*(?:\s*[-+*/x×÷^]\s*\d[\d.,]*)+")
_OPTION = re.compile(r"\(?([A-E])[).]")
_SPELLING = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\frac": r"\frac"}
_UNIT = re.compile(
    r"\^\\circ|\^\{\\circ\}|\\text\{[^}]*\}|\\mbox\{[^}]*\}|\\mathrm\{[^}]*\}|\\\$|\$|\\?%|[A-Za-z]+\.?$"
)


class Copy(NamedTuple):
    """One formula of a problem, offered as its answer."""

    problem_id: str
    index: int
    formula: str
    gold: str
    problem: str


def formulas(text: str, *, dollars: bool = False) -> list[str]:
    """Return what could be copied from a problem, each once, in order; `dollars`: `$` is money, not mathematics."""
    found: list[str] = []
    for match in () if dollars else _MATH.finditer(text):
        inner = next(group for group in match.groups() if group is not None)
        found += [inner, *_PART.split(inner)]
    found += _PLAIN.findall(text)
    return list(dict.fromkeys(stripped for piece in found if (stripped := piece.strip())))


def copies(shared: Path) -> Iterator[Copy]:
    """Yield the formulas of all problems of the sets under `shared`/data."""
    for name in SETS:
        for line, row in read_jsonl(shared / f"data/{name}.jsonl"):
            gold = str(row.get("answer", row.get("gold"))).split("####")[-1].strip()
            for index, formula in enumerate(formulas(row["problem"], dollars=name.startswith("gsm8k"))):
                yield Copy(f"{name}.jsonl:{line}", index, formula, gold, row["problem"])


def _plain(text: str) -> str:
    """Return a formula without what only sets it: spaces, sizes, braces, one of two spellings of a fraction."""
    text = re.sub(r"\\left|\\right|\\[!,;: ]|\\displaystyle|\\[td]?frac|[\s~]", lambda m: _SPELLING.get(m[0], ""), text)
    text = re.sub(r"\\text(?:bf)?\s*\{\s*([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\frac\{((?:[^{}]|\{\w+\})+)\}\{([^{}]+)\}", r"\1/\2", re.sub(r"\\frac(\d)(\d)", r"\1/\2", text))
    return re.sub(r"(?<=\d),(?=\d{3})|[{}]", "", text).rstrip(".,;\\").lstrip("+")


def reason(copy: Copy) -> str:
    """Say why a copied formula is the gold; "other" is what a person has to look at."""
    formula, gold = _plain(copy.formula), _plain(copy.gold)
    if formula == gold or formula.strip("()") == gold.strip("()"):
        return "the gold as written"
    if (option := _OPTION.match(formula)) and not {gold, gold.strip("()")}.isdisjoint(
        (option[1], formula[option.end() :])
    ):
        return "an option with its letter, the gold being one of both"
    if formula.partition("\\pmod")[0] == gold.lstrip("0"):
        return "the gold and its modulus"
    if _UNIT.sub("", formula) == _UNIT.sub("", gold) != "":
        return "the gold with a unit, a currency or a percent sign"
    if formula == gold.rpartition("=")[2] or gold in (formula.partition("=")[0], formula.rpartition("=")[2]):
        return "the gold with or without the name of the unknown"
    return "other"


def main() -> None:
    """Offer every formula, print what is accepted by reason, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("GTPO_SHARED_DIR", "../shared")))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true", help="print each accepted formula with its gold")
    args = parser.parse_args()
    if not (args.shared / "data").is_dir():
        parser.exit(2, f"bench.copying: {args.shared}/data: no such folder; name it by --shared\n")
    offered = list(copies(args.shared))
    with Verifier() as verifier:
        verdicts = verifier.verify_many(
            [(copy.formula, copy.gold) for copy in offered], [copy.problem for copy in offered], scoring="strict"
        )
    accepted = [(copy, reason(copy)) for copy, v in zip(offered, verdicts, strict=True) if v is Verdict.CORRECT]
    summary: dict[str, Any] = {
        "formulas": len(offered),
        "problems": len({copy.problem_id for copy in offered}),
        "verdicts": dict(Counter(str(v) for v in verdicts)),
        "accepted": dict(Counter(why for _, why in accepted)),
    }
    print(*(f"{key}: {value}" for key, value in summary.items()), sep="\n")
    for copy, why in accepted if args.show else [pair for pair in accepted if pair[1] == "other"]:
        print(f"  {copy.problem_id}#{copy.index}  {copy.formula!r} | gold {copy.gold!r}: {why}")
    if args.out:
        rows = [{"problem": copy.problem_id, "formula": copy.index, "reason": why} for copy, why in accepted]
        write_json(args.out, {"schema_version": 1, **summary, "rows": rows})


if __name__ == "__main__":
    main()
