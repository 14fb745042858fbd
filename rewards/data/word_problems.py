"""The second embedded task: generated word problems of several steps, with written reasoning of 40 to 120 tokens.

A story gives somebody a number of things and lets it change step by step; the worked solution tells every step in a
sentence with its equation. Wording and story are drawn independently of the numbers, in several variants each, so that
most tokens of two right solutions differ, which they do not in `gtpo.rewards.data.arithmetic`.

Three splits (membership is a hash of the numbers and operations, so no seed and no wording leaks one into another):

    train   2 or 3 steps
    test    the same distribution, held out: the benchmark `word_problems`
    hard    4 steps, which training never shows: `word_problems_hard`

All numbers are whole and between 0 and 99. What runs before the last step stays below 100 too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gtpo.rewards.data.problem import Problem, Split, generate

Operation = Literal["gain", "lose", "packs", "share", "times"]

DEFAULT_COUNTS: dict[str, int] = {"train": 8000, "test": 128, "hard": 128}
"""Problems per split when no count is asked for; the two benchmarks are defined by theirs."""

LARGEST = 99

NAMES = ("Mia", "Tom", "Ana", "Ben", "Zoe", "Sam", "Eva", "Leo", "Ida", "Max")
ITEMS = ("apples", "books", "coins", "cards", "shells", "stamps", "pencils", "marbles")
PACKS = ("bags", "boxes", "packs")

BEGIN = ("{a} has {n} {item}.", "{a} starts the day with {n} {item}.", "There are {n} {item} on the table of {a}.")
TOLD: dict[Operation, tuple[str, ...]] = {
    "gain": ("{a} buys {n} more {item}.", "A friend gives {a} {n} {item}.", "Later {a} finds {n} {item}."),
    "lose": ("{a} gives away {n} {item}.", "Then {a} sells {n} {item}.", "On the way {a} loses {n} {item}."),
    "packs": ("{a} buys {m} {pack} with {k} {item} each.", "Then {a} gets {m} {pack} of {k} {item} each."),
    "share": ("All {item} are put into {m} equal piles.", "{a} shares all {item} equally among {m} friends."),
    "times": ("{b} has {m} times as many {item} as {a} has now.",),
}
ASKED: dict[Operation, tuple[str, ...]] = {
    "gain": ("How many {item} does {a} have now?", "How many {item} are there in the end?"),
    "lose": ("How many {item} does {a} have left?", "How many {item} remain?"),
    "packs": ("How many {item} does {a} have in all?", "How many {item} are there in the end?"),
    "share": ("How many {item} are in each part?", "How many {item} does each part hold?"),
    "times": ("How many {item} does {b} have?",),
}
OPENING = ("{a} begins with {n} {item}.", "At first there are {n} {item}.", "We start from {n}.")
WORKED: dict[Operation, tuple[str, ...]] = {
    "gain": (
        "{n} more make {t}+{n}={r}.",
        "Adding the {n} new {item} gives {t}+{n}={r}.",
        "With {n} {item} more it is {t}+{n}={r}.",
    ),
    "lose": (
        "{n} fewer leave {t}-{n}={r}.",
        "Taking away {n} {item} leaves {t}-{n}={r}.",
        "Without those {n} it is {t}-{n}={r}.",
    ),
    "packs": (
        "{m} {pack} of {k} are {m}*{k}={n} {item}, so now {t}+{n}={r}.",
        "The {pack} hold {m}*{k}={n} {item}. Together that is {t}+{n}={r}.",
    ),
    "share": ("Each of the {m} parts gets {t}/{m}={r} {item}.", "Divided by {m} that is {t}/{m}={r}."),
    "times": ("{b} has {m}*{t}={r} {item}.", "{m} times {t} is {m}*{t}={r}."),
}
TEXTS = (*BEGIN, *OPENING, *(text for table in (TOLD, ASKED, WORKED) for texts in table.values() for text in texts))
"""Every template, for a tokenizer that is to know their words."""


@dataclass(frozen=True, slots=True)
class _Step:
    operation: Operation
    n: int = 0
    """What is added or taken away."""
    m: int = 0
    """Packs, parts, or the factor."""
    k: int = 0
    """Things per pack."""
    before: int = 0
    after: int = 0


def _draw_step(rng: random.Random, total: int, last: bool) -> _Step | None:
    """Draw one step from `total` things, or None where the drawn operation does not fit them."""
    operation: Operation = rng.choice(("gain", "lose", "packs", "gain", "lose", "share", "times"))
    if operation in ("share", "times") and not last:
        return None
    m, k = rng.randint(2, 6), rng.randint(2, 9)
    if operation == "packs":
        step = _Step("packs", m * k, m, k, total, total + m * k)
    elif operation == "share":
        if total % m or total < 2 * m:
            return None
        step = _Step("share", 0, m, 0, total, total // m)
    elif operation == "times":
        step = _Step("times", 0, min(m, 3), 0, total, total * min(m, 3))
    else:
        n = rng.randint(2, 40)
        step = _Step(operation, n, 0, 0, total, total + n if operation == "gain" else total - n)
    return step if 0 < step.after <= LARGEST else None


def _draw(rng: random.Random, steps: int) -> list[_Step]:
    """Draw the numbers of a story; no two steps in a row are the same operation."""
    while True:
        total = rng.randint(3, 60)
        drawn: list[_Step] = []
        for position in range(steps):
            step = _draw_step(rng, total, position == steps - 1)
            if step is None or (drawn and drawn[-1].operation == step.operation):
                break
            drawn.append(step)
            total = step.after
        if len(drawn) == steps:
            return drawn


def _tell(rng: random.Random, identifier: str, drawn: list[_Step]) -> Problem:
    """Return a story as a problem with its worked solution, in words drawn by `rng`."""
    a, b = rng.sample(NAMES, 2)
    words = {"a": a, "b": b, "item": rng.choice(ITEMS), "pack": rng.choice(PACKS)}
    told = [rng.choice(BEGIN).format(**words, n=drawn[0].before)]
    worked = [rng.choice(OPENING).format(**words, n=drawn[0].before)]
    for step in drawn:
        numbers = {"n": step.n, "m": step.m, "k": step.k, "t": step.before, "r": step.after}
        told.append(rng.choice(TOLD[step.operation]).format(**words, **numbers))
        worked.append(rng.choice(WORKED[step.operation]).format(**words, **numbers))
    told.append(rng.choice(ASKED[drawn[-1].operation]).format(**words))
    return Problem(
        id=identifier,
        problem=" ".join(told),
        answer=str(drawn[-1].after),
        solution="\n".join(worked),
        subject=drawn[-1].operation,
        level=len(drawn),
    )


def word_problems(split: Split, count: int | None = None, seed: int = 0) -> list[Problem]:
    """Generate the distinct problems of a split (`gtpo.rewards.data.problem.generate`).

    `level` is the number of steps, `subject` the last operation.
    """

    def draw(rng: random.Random) -> tuple[str, Callable[[str], Problem]]:
        drawn = _draw(rng, 4 if split == "hard" else rng.choice((2, 3)))
        # The numbers and operations of a story are what makes it another problem.
        key = f"{drawn[0].before}" + "".join(f" {s.operation} {s.n} {s.m} {s.k}" for s in drawn)
        return key, lambda identifier: _tell(rng, identifier, drawn)

    return generate("word_problems", DEFAULT_COUNTS, split, count, seed, draw)
