"""Answers beside their golds, two tables: verdicts (answers.txt), and what is equal in value (pairs.txt).

All invented or commonplace.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from gtpo.rewards.equality.comparing.decide import decide
from gtpo.rewards.extract import extract_answer
from gtpo.rewards.verify import Verdict, Verifier

IN_A_PROCESS = ("rewards/equality/",)

MARKS = {"+": Verdict.CORRECT, "-": Verdict.INCORRECT, "~": Verdict.UNSIMPLIFIED}


def cases() -> Iterator[tuple[str, str, str, Verdict]]:
    """Yield (problem, gold, answer, verdict) of each line that begins with a mark."""
    problem = gold = ""
    for line in Path(__file__).with_name("answers.txt").read_text(encoding="utf-8").splitlines():
        mark, text = line[:1], line[2:].replace("⏎", "\n")
        if mark == "?":
            problem = text
        elif mark == "=":
            gold = text
        elif mark in MARKS:
            yield problem, gold, text, MARKS[mark]


def test_the_table(verifier: Verifier) -> None:
    table = list(cases())
    # An answer with a box is judged within answer tags too: a box that is an operand is no answer there either.
    tagged = [(p, g, extract_answer(f"<answer>{text}</answer>") or "", v) for p, g, text, v in table if "boxed" in text]
    assert len(table) > 950
    assert len(tagged) > 30
    table += tagged
    verdicts = verifier.verify_many([(case[2], case[1]) for case in table], [case[0] or None for case in table])
    assert [(*c, str(v)) for c, v in zip(table, verdicts, strict=True) if v is not c[3]] == []


def test_pairs_are_equal_as_the_table_says() -> None:
    lines = Path(__file__).with_name("pairs.txt").read_text(encoding="utf-8").splitlines()
    wrong = []
    for mark, line in ((line[0], line[2:]) for line in lines if line[0] != "#"):
        first, second = line.rsplit(" | ", 1)
        ways = [(first, second), (second, first)] if mark in "=!" else [(first, second)]
        wrong += [(*way, mark) for way in ways if (decide(*way) in ("CORRECT", "UNEVALUATED")) != (mark in "=>")]
    assert len(lines) > 390
    assert wrong == []


@pytest.mark.parametrize("term", [r"\lfloor \frac{n}{<k>} \rfloor", r"\lceil \frac{n}{<k>} \rceil", r"n \bmod <k>"])
def test_integer_parts_are_compared_far_out(term: str) -> None:
    for k, other in itertools.permutations((3, 4, 5, 7, 9, 10, 100), 2):
        assert decide(term.replace("<k>", str(k)), term.replace("<k>", str(other))) == "INCORRECT"
    for k in (3, 10, 100):
        own = term.replace("<k>", str(k))
        assert decide(f"-{own}", own) == "INCORRECT"
        assert decide(f"{own} + 1", f"1 + {own}") == "CORRECT"
        assert decide(f"y = {own}", f"{own} = y") == "CORRECT"
