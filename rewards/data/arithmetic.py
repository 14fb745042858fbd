"""The embedded task: generated arithmetic with worked solutions, so that everything runs without network or data.

Three splits with no expression in common (membership is a hash of the expression, so no seed can leak one into
another):

    train   two terms, one of one digit and one from 10 to 79, or three terms of one digit each
    test    the same distribution, held out: the benchmark `arithmetic`
    hard    two terms, one of one digit and one from 80 to 99, which training never shows: `arithmetic_hard`

No intermediate value is negative. The worked solution has one step a line, which is what the SFT target teaches.
"""

from __future__ import annotations

import itertools
import random
import zlib

from gtpo.common.errors import UserError
from gtpo.rewards.data.problem import Problem

# Problems per split when no count is asked for; the two benchmarks are defined by theirs.
DEFAULT_COUNTS: dict[str, int] = {"train": 3000, "test": 64, "hard": 64}

TEMPLATES = ("What is {}?",)

_MOST_MISSES = 5000  # draws in a row that give nothing new: the split is exhausted
_SHARE_OF_THREE_TERMS = 0.35  # of train and test: enough to learn the layout of two steps


def _terms(rng: random.Random, kind: str) -> tuple[list[int], list[str], list[int]]:
    """Draw numbers, signs and running totals: no total is negative, and none that is calculated with exceeds 99."""
    while True:
        numbers = [rng.randint(0, 9) for _ in range(3 if kind == "three" else 2)]
        if kind != "three":
            numbers[rng.randrange(2)] = rng.randint(80, 99) if kind == "hard" else rng.randint(10, 79)
        signs = [rng.choice("+-") for _ in numbers[1:]]
        signed = [number if sign == "+" else -number for sign, number in zip(["+", *signs], numbers, strict=True)]
        totals = list(itertools.accumulate(signed))
        if min(totals) >= 0 and max(totals[:-1]) <= 99:
            return numbers, signs, totals


def arithmetic_problems(split: str, count: int | None = None, seed: int = 0) -> list[Problem]:
    """Generate the distinct problems of a split; the same arguments give the same list on every machine.

    Raises UserError for an unknown split, or a count beyond the distinct problems there are.
    """
    if split not in DEFAULT_COUNTS:
        raise UserError(f'arithmetic has the splits {", ".join(DEFAULT_COUNTS)}; found "{split}"')
    count = DEFAULT_COUNTS[split] if count is None else count
    rng = random.Random(f"gtpo-arithmetic-{split}-{seed}")
    problems: dict[str, Problem] = {}
    misses = 0
    while len(problems) < count:
        if misses > _MOST_MISSES:
            raise UserError(f"arithmetic/{split} has only about {len(problems)} problems; {count} were asked for")
        kind = "hard" if split == "hard" else "three" if rng.random() < _SHARE_OF_THREE_TERMS else "two"
        numbers, signs, totals = _terms(rng, kind)
        expression = str(numbers[0]) + "".join(f"{s}{n}" for s, n in zip(signs, numbers[1:], strict=True))
        # One in eight, by a hash and not a random number: whatever the seed, no problem of a test is in a training set.
        held_out = zlib.crc32(expression.encode()) % 8 == 0
        if expression in problems or (split != "hard" and held_out != (split == "test")):
            misses += 1
            continue
        misses = 0
        steps = zip(totals, signs, numbers[1:], totals[1:], strict=False)
        problems[expression] = Problem(
            id=f"arithmetic/{split}/{len(problems)}",
            problem=rng.choice(TEMPLATES).format(expression),
            answer=str(totals[-1]),
            solution="\n".join(f"{before}{sign}{number}={after}" for before, sign, number, after in steps),
            subject={"+": "addition", "-": "subtraction"}.get("".join(sorted(set(signs))), "mixed"),
            level=len(signs),
        )
    return list(problems.values())
