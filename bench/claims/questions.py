"""The questions of the experiment and the tests that answer them, written down before the runs that they look at.

The first test of a question at a scale is its primary one there. Holm's correction covers the primary tests of a scale
together; every other test is shown with its own 95 % interval and is exploratory. docs/claims-plan.md is the same in
words.
"""

from __future__ import annotations

from typing import NamedTuple

TASKS = {"micro": "arithmetic", "small": "word_problems"}
"""Scale -> its benchmark; the harder one has `_hard` behind its name."""
BASELINES = ("sft", "grpo", "grpo-filtered", "dr-grpo", "dapo", "80-20", "nsr", "w-reinforce")
"""What GTPO is held against, without a test."""


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
    """One question."""

    name: str
    short: str
    """The claim, for the README."""
    asks: str
    claim: str
    """What the paper says, or what follows from it."""
    expected: int
    """Sign of the primary difference if the claim holds; 0: that there is none."""
    tests: tuple[PairedTest, ...]
    stays: bool = False
    """The claim also says that `a` itself stays accurate."""


def _accuracy(regime: str, a: str, b: str) -> tuple[PairedTest, ...]:
    task = TASKS[regime.partition("-")[0]]
    columns = (":pass@1", "_hard:pass@1", ":maj@n", ":pass@n", "_hard:maj@n", "_hard:pass@n", ":format")
    return tuple(PairedTest(regime, a, b, task + column) for column in columns)


QUESTIONS = (
    Question(
        "gtpo-against-grpo",
        "GTPO is more accurate than GRPO in calm training",
        "Is GTPO more accurate than GRPO when training is calm?",
        "GTPO's accuracy is higher than GRPO's",
        1,
        _accuracy("micro-calm", "gtpo", "grpo") + _accuracy("small-calm", "gtpo", "grpo"),
    ),
    Question(
        "stability",
        "GTPO stays accurate where GRPO fails, one prompt per step",
        "Is GTPO more accurate than GRPO where GRPO's training fails?",
        "GTPO stays accurate where GRPO collapses",
        1,
        (
            *_accuracy("micro-unstable", "gtpo", "grpo"),
            PairedTest("micro-unstable", "gtpo", "grpo", "collapsed"),
            PairedTest("micro-unstable", "gtpo", "grpo", "entropy at the end"),
            PairedTest("micro-high-rate", "gtpo", "grpo", "arithmetic:pass@1"),
            PairedTest("micro-weaker-base", "gtpo", "grpo", "arithmetic:pass@1"),
            *_accuracy("small-unstable", "gtpo", "grpo"),
            PairedTest("small-unstable", "gtpo", "grpo", "collapsed"),
            PairedTest("small-unstable", "gtpo", "grpo", "entropy at the end"),
        ),
        stays=True,
    ),
    Question(
        "reuse",
        "GTPO stays accurate where GRPO fails, four steps per rollout",
        "Is GTPO more accurate than GRPO with four optimizer steps per rollout?",
        "GTPO stays accurate where GRPO collapses",
        1,
        (
            *_accuracy("micro-reuse", "gtpo", "grpo"),
            PairedTest("micro-reuse", "gtpo", "grpo", "collapsed"),
            PairedTest("micro-reuse", "gtpo-conflict-only", "grpo", "arithmetic:pass@1"),
        ),
        stays=True,
    ),
    Question(
        "format-tokens",
        "conflict correction protects the format's tags",
        "Does conflict correction protect the format's tokens?",
        "without it the tags lose probability",
        1,
        (
            PairedTest("micro-unstable", "gtpo-conflict-only", "grpo", "tags over training"),
            PairedTest("micro-unstable", "gtpo-conflict-only", "grpo", "format reward at the end"),
            PairedTest("micro-calm", "gtpo-conflict-only", "grpo", "tags over training"),
            PairedTest("micro-calm", "gtpo", "grpo", "tags over training"),
            PairedTest("micro-unstable", "gtpo", "grpo", "tags over training"),
            PairedTest("small-unstable", "gtpo-conflict-only", "grpo", "tags over training"),
            PairedTest("small-unstable", "gtpo-conflict-only", "grpo", "format reward at the end"),
            PairedTest("small-unstable", "gtpo", "grpo", "tags over training"),
            PairedTest("small-calm", "gtpo-conflict-only", "grpo", "tags over training"),
        ),
    ),
    Question(
        "conflict-accuracy",
        "conflict correction alone raises accuracy",
        "Does conflict correction change accuracy, pass@n or maj@n, in and out of distribution?",
        "it raises accuracy",
        1,
        _accuracy("micro-calm", "gtpo-conflict-only", "grpo") + _accuracy("small-calm", "gtpo-conflict-only", "grpo"),
    ),
    Question(
        "gate",
        "the gate holds entropy down",
        "Does the entropy gate keep entropy from running away?",
        "without it entropy runs away, and accuracy with it",
        -1,
        (
            PairedTest("micro-weak-base", "gtpo", "gtpo-no-filter", "entropy over training"),
            PairedTest("micro-weak-base", "gtpo", "grpo", "entropy over training"),
            PairedTest("micro-weak-base", "gtpo", "gtpo-no-filter", "kept by the gate"),
            PairedTest("micro-weak-base", "gtpo", "gtpo-no-filter", "format reward at the end"),
            PairedTest("micro-weak-base", "gtpo", "gtpo-no-filter", "arithmetic:pass@1"),
            # Added after the primary test was in (docs/claims-plan.md).
            PairedTest("micro-weak-base", "grpo-filtered", "grpo", "entropy over training"),
            PairedTest("micro-weak-base", "grpo-filtered", "gtpo", "kept by the gate"),
            PairedTest("micro-weak-base", "grpo-filtered", "grpo", "arithmetic:pass@1"),
            PairedTest("micro-weak-base", "grpo-filtered", "grpo", "collapsed"),
            PairedTest("micro-unstable", "gtpo", "gtpo-no-filter", "arithmetic:pass@1"),
            PairedTest("micro-unstable", "gtpo", "gtpo-no-filter", "collapsed"),
            PairedTest("micro-calm", "gtpo", "gtpo-no-filter", "arithmetic:pass@1"),
        ),
    ),
    Question(
        "lead",
        "entropy shows a collapse before KL",
        "Does entropy show a collapse before KL does?",
        "entropy moves first",
        1,
        (
            PairedTest("micro-unstable", "grpo", None, "lead of entropy over KL"),
            PairedTest("micro-reuse", "grpo", None, "lead of entropy over KL"),
            PairedTest("micro-high-rate", "grpo", None, "lead of entropy over KL"),
            PairedTest("small-unstable", "grpo", None, "lead of entropy over KL"),
        ),
    ),
    Question(
        "gamma-advantage",
        "gamma in mode `advantage` raises entropy",
        "Which way does gamma move entropy in mode `advantage`?",
        "up: the sampled tokens of uncertain completions are pushed down",
        1,
        (
            PairedTest("micro-calm", "gtpo-gamma1", "gtpo-conflict-only", "entropy at the end"),
            PairedTest("micro-calm", "gtpo", "gtpo-conflict-only", "entropy at the end"),
        ),
    ),
    Question(
        "gamma-loss",
        "gamma in mode `loss` lowers entropy",
        "Which way does gamma move entropy in mode `loss` (Eq. 7)?",
        "down: the entropy itself is penalised",
        -1,
        (
            PairedTest("micro-calm", "gtpo-eq7-gamma1", "gtpo-conflict-only", "entropy at the end"),
            PairedTest("micro-calm", "gtpo-eq7", "gtpo-conflict-only", "entropy at the end"),
        ),
    ),
    Question(
        "optimizer",
        "the paper's two optimizer settings train GRPO alike",
        "How much of the difference between the paper's GTPO and its GRPO is the optimizer?",
        "none: the difference is the method's",
        0,
        (
            PairedTest("micro-calm", "grpo-gtpo-betas", "grpo-paper-betas", "arithmetic:pass@1"),
            PairedTest("micro-calm", "gtpo-paper-betas", "grpo-paper-betas", "arithmetic:pass@1"),
            PairedTest("micro-calm", "gtpo-paper-betas", "grpo-gtpo-betas", "arithmetic:pass@1"),
            PairedTest("small-calm", "grpo-gtpo-betas", "grpo-paper-betas", "word_problems:pass@1"),
            PairedTest("small-calm", "gtpo-paper-betas", "grpo-paper-betas", "word_problems:pass@1"),
            PairedTest("small-calm", "gtpo-paper-betas", "grpo-gtpo-betas", "word_problems:pass@1"),
        ),
    ),
)
