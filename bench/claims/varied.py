"""The arithmetic task with long, varied solutions: two right answers to a problem share few tokens besides the format.

In `arithmetic` all answers to a problem are nearly the same text, which no language model's are. Here each equation
stands among remarks that say nothing, drawn anew for every solution out of `REMARKS` that begin with different words.
A wrong target is wrong in its last digit only, so that right and wrong answers end differently but for the last tag.

Only the base reads this file (SFT on its solutions). The runs from it train on `arithmetic`'s problems, with which it
shares the held-out split.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from gtpo.common.files import write_text
from gtpo.rewards.data.arithmetic import arithmetic_problems
from gtpo.rewards.data.word_problems import TEXTS

FILE = Path("results/claims/varied.jsonl")
"""Where a base's config expects it. Written where it is missing: it follows from this module alone."""
PROBLEMS = 3000
REMARKS = 40
WORDS = 9
"""Words of a remark."""
BEFORE, BETWEEN = 6, 2
"""Remarks before the first equation, and after each."""
WRONG = 0.4
"""Share of solutions with a wrong last digit: what is left to learn."""


def remarks() -> list[str]:
    """REMARKS fixed texts of WORDS words of the word problems, no two with the same first word."""
    words = sorted(set(re.findall(r"[A-Za-z]{2,}", " ".join(re.sub(r"{\w}", " ", text) for text in TEXTS))))
    rng = random.Random("gtpo-varied-remarks")
    return [" ".join([first, *rng.sample(words, WORDS - 1)]) for first in rng.sample(words, REMARKS)]


def solution(worked: str, answer: str, rng: random.Random, wrong: bool) -> tuple[str, str]:
    """(solution, answer) with remarks around the equations of `worked`; wrong: the last digit is off by 1 to 9."""
    known = remarks()
    if wrong:
        other = answer[:-1] + str((int(answer[-1]) + rng.randint(1, 9)) % 10)
        worked, answer = worked.removesuffix(answer) + other, other
    lines = rng.sample(known, BEFORE)
    for equation in worked.split("\n"):
        lines += [equation, *rng.sample(known, BETWEEN)]
    return "\n".join(lines), answer


def write_varied(path: Path = FILE) -> None:
    """Write the problems with their solutions, one JSON object a line."""
    import json

    rng = random.Random("gtpo-varied")
    rows = []
    for problem in arithmetic_problems("train", PROBLEMS):
        text, answer = solution(problem.solution, problem.answer, rng, rng.random() < WRONG)
        rows.append({"id": problem.id, "problem": problem.problem, "answer": answer, "solution": text})
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
