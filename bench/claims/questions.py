"""The questions of plan.yaml and their tests.

The first test of a question at a scale is its primary one there; every other test is shown with its own 95 % interval
and is exploratory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

TASKS = {"micro": "arithmetic", "small": "word_problems"}
"""Scale -> its benchmark; the harder one has `_hard` behind its name."""
BASELINES = ("sft", "grpo", "grpo-filtered", "dr-grpo", "dapo", "80-20", "nsr", "w-reinforce")
"""What GTPO is held against, without a test."""
ACCURACY = ("pass@1", "hard:pass@1", "maj@n", "pass@n", "hard:maj@n", "hard:pass@n", "format")
"""What a test of `accuracy` compares."""


class PairedTest(NamedTuple):
    """a - b of one measure in one regime, paired by seed; b None: a against 0.

    measure: a name of measures.MEASURES, or `benchmark:metric` with metric pass@1, pass@n, maj@n or format.
    """

    regime: str
    a: str
    b: str | None
    measure: str

    @property
    def scale(self) -> str:
        """micro or small: how the regime's name begins."""
        return self.regime.partition("-")[0]


class Question(NamedTuple):
    """One question; plan.yaml says what its fields are."""

    name: str
    short: str
    asks: str
    claim: str
    expected: int
    tests: tuple[PairedTest, ...]
    stays: bool = False


def _tests(regime: str, a: str, b: str | None, *measures: str) -> Iterator[PairedTest]:
    """The tests of one row of the plan."""
    task = TASKS[regime.partition("-")[0]]
    for name in measures:
        for each in ACCURACY if name == "accuracy" else (name,):
            hard, metric = "_hard" if each.startswith("hard:") else "", each.removeprefix("hard:")
            yield PairedTest(regime, a, b, f"{task}{hard}:{metric}" if metric in ACCURACY else metric)


def _read() -> tuple[Question, ...]:
    rows = yaml.safe_load(Path(__file__).with_name("plan.yaml").read_text(encoding="utf-8"))["questions"]
    return tuple(
        Question(**{**row, "tests": tuple(t for given in row["tests"] for t in _tests(*given))}) for row in rows
    )


QUESTIONS = _read()


def primaries() -> Iterator[tuple[str, Question, PairedTest]]:
    """(scale, question, its primary test there), scale by scale."""
    for scale in TASKS:
        for question in QUESTIONS:
            test = next((test for test in question.tests if test.scale == scale), None)
            if test is not None:
                yield scale, question, test
