"""The embedded task: generated arithmetic with worked solutions, so that everything runs without network or data.

Three splits with no expression in common (membership is a hash of the expression, so no seed can leak one into
another):

    train   `a + b` and `a - b` of numbers up to 99, and three terms of single digits
    test    the same distribution, held out: the benchmark `arithmetic`
    hard    three terms of numbers up to 99, a composition that training never shows: `arithmetic_hard`

No intermediate value is negative. The worked solution has one step a line, which is what the SFT target teaches.
"""

from __future__ import annotations

import random
import zlib
from typing import Literal

from rewards.data.problems import Problem
from rewards.support.errors import UserError

Split = Literal["train", "test", "hard"]

DEFAULT_COUNTS: dict[str, int] = {"train": 4096, "test": 64, "hard": 64}
"""Problems per split when no count is asked for; the two benchmarks are defined by theirs."""

TEMPLATES = ("What is {}?", "Compute {}.", "Find the value of {}.", "{} = ?")

_SHARE_OF_THREE_TERMS = (
    0.25  # of train and test; enough to learn the two-line layout, too little to learn carrying in it
)


def _is_held_out(expression: str) -> bool:
    """Return whether an expression belongs to the test split (one in eight), by a hash that no seed changes."""
    return zlib.crc32(expression.encode()) % 8 == 0


def _terms(rng: random.Random, count: int, largest: int) -> tuple[list[int], list[str]]:
    """Draw numbers and signs such that no running total is negative."""
    numbers, signs = [rng.randint(0, largest)], []
    total = numbers[0]
    for _ in range(count - 1):
        sign = rng.choice("+-")
        number = rng.randint(0, min(largest, total) if sign == "-" else largest)
        total += number if sign == "+" else -number
        numbers.append(number)
        signs.append(sign)
    return numbers, signs


def _worked(numbers: list[int], signs: list[str]) -> tuple[str, int]:
    """Return the solution, one step a line, and the value."""
    total, lines = numbers[0], []
    for sign, number in zip(signs, numbers[1:], strict=True):
        result = total + number if sign == "+" else total - number
        lines.append(f"{total} {sign} {number} = {result}")
        total = result
    return "\n".join(lines), total


def arithmetic_problems(split: Split, count: int | None = None, seed: int = 0) -> list[Problem]:
    """Generate the distinct problems of a split; the same arguments give the same list on every machine.

    Raises UserError for an unknown split, or a count beyond the distinct expressions there are.
    """
    if split not in DEFAULT_COUNTS:
        raise UserError(f'arithmetic has the splits {", ".join(DEFAULT_COUNTS)}; found "{split}"')
    count = DEFAULT_COUNTS[split] if count is None else count
    rng = random.Random(f"gtpo-arithmetic-{split}-{seed}")
    problems: list[Problem] = []
    seen: set[str] = set()
    draws = 0
    while len(problems) < count:
        draws += 1
        if draws > 50 * count + 1000:
            raise UserError(
                f"arithmetic/{split} has only about {len(problems)} distinct problems; {count} were asked for"
            )
        three = split == "hard" or rng.random() < _SHARE_OF_THREE_TERMS
        largest = 99 if split == "hard" or not three else 9
        numbers, signs = _terms(rng, 3 if three else 2, largest)
        expression = str(numbers[0]) + "".join(f" {s} {n}" for s, n in zip(signs, numbers[1:], strict=True))
        # Three terms that all happen to be single digits would be training problems.
        wrong_split = max(numbers) <= 9 if split == "hard" else _is_held_out(expression) != (split == "test")
        if expression in seen or wrong_split:
            continue
        seen.add(expression)
        solution, value = _worked(numbers, signs)
        problems.append(
            Problem(
                id=f"arithmetic/{split}/{len(problems)}",
                problem=rng.choice(TEMPLATES).format(expression),
                answer=str(value),
                solution=solution,
                subject={"+": "addition", "-": "subtraction"}.get("".join(sorted(set(signs))), "mixed"),
                level=len(signs),
            )
        )
    return problems
