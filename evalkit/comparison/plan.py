"""What a comparison would take: the smallest difference that so many seeds, questions and samples find.

The variance of a difference of two methods, S seeds each, Q questions, n samples per question:

    V = of_methods / Q + (of_runs + of_samples / n) / (S Q) + of_training / S

of_methods: what one method finds easier than the other; of_runs: what a run finds easier than others of its method;
of_samples: p (1 - p) of both; of_training: how far whole runs of both lie apart. It is found where it is at least
(t_{1 - alpha/2} + t_{0.8}) sqrt(V), as in evalkit/score_interval.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gtpo.evalkit.comparison.questions import Shared
from gtpo.evalkit.comparison.scores import PASS, Column, pairing, scores
from gtpo.evalkit.score_interval import POWER, t_quantile
from gtpo.evalkit.training_variance import SEEDS_NEEDED, SeedVariance, seed_variance

TARGET = 0.02
"""The difference that is planned for where none is asked for: 2 points."""
MOST_SEEDS = 64
"""Beyond so many seeds, more questions are the way."""
QUESTIONS = (30, 100, 300, 1319, 5000)
SAMPLES = (1, 4, 16, 64)


@dataclass(frozen=True)
class Plan:
    """The noise of one comparison by its sources, for a difference of one run each; all as fractions."""

    questions: int
    samples: int
    of_methods: float
    of_runs: float
    of_samples: float
    of_training: float | None
    """None where no method has two seeds: what follows are then lower bounds."""
    paired: bool
    alpha: float = 0.05

    @property
    def silent(self) -> bool:
        """Return whether the scores vary in nothing, as where no question is ever solved."""
        return not (self.of_methods or self.of_runs or self.of_samples or self.of_training)

    def detectable(self, seeds: int, questions: int, samples: int) -> float:
        """The smallest difference found with 80 % power; 1 where nothing can be said: one seed, no variation."""
        if seeds < 2 or self.silent:
            return 1.0
        training = (self.of_training or 0.0) / seeds
        variance = self.of_methods / questions + (self.of_runs + self.of_samples / samples) / (seeds * questions)
        variance += training
        weight = training / variance if variance else 0.0
        freedom = (seeds - 1) * (1 if self.paired else 2)
        size = sum(
            (1 - weight) * t_quantile(p, questions - 1) + weight * t_quantile(p, freedom)
            for p in (1 - self.alpha / 2, POWER)
        )
        return min(float(size * math.sqrt(variance)), 1.0)

    def seeds(self, difference: float, questions: int | None = None, samples: int | None = None) -> int | None:
        """Seeds of each method that find a difference; None where MOST_SEEDS do not."""
        questions, samples = questions or self.questions, samples or self.samples
        every = range(SEEDS_NEEDED, MOST_SEEDS + 1)
        return next((s for s in every if self.detectable(s, questions, samples) <= difference), None)

    def more_questions(self, difference: float) -> tuple[int, int] | None:
        """(seeds, questions) that find a difference where no number of seeds does on these questions."""
        for factor in (2, 4, 8, 16, 32, 64):
            if (seeds := self.seeds(difference, factor * self.questions)) is not None:
                return seeds, factor * self.questions
        return None


def plan_for(
    shared: Shared, a: str, b: str | None, column: Column, pool: SeedVariance | None, alpha: float = 0.05
) -> Plan:
    """The noise of comparing two methods in a column; b: None where there is one method. pool: of that column."""
    names = [name for name in (a, b) if name is not None]
    values = [scores(shared, name, column) for name in names]
    questions, samples = values[0].shape[1], shared.samples
    d = values[0].mean(axis=0) - (values[1].mean(axis=0) if b is not None else 0.0)
    of_samples = 0.0
    if column == Column(PASS, 1) and samples > 1:
        each = [float((x * (1 - x)).mean()) * samples / (samples - 1) for x in values]
        of_samples = sum(each) * 2 / len(each)
    share = sum(1 / len(x) for x in values) / 2
    of_runs, training, paired = 0.0, None, False
    if pool is not None:
        of_runs = max(2 * float(pool.residual[0]) * questions - of_samples / samples, 0.0)
        training = 2 * float(pool.training[0])
    pair = pairing(shared.method(a), shared.method(b), shared.benchmark) if b is not None else None
    if pair is not None and questions > 1:
        paired = True
        training = float(seed_variance((values[0][pair[0]] - values[1][pair[1]])[None]).training[0])
    within = share * (of_runs + of_samples / samples)
    of_methods = max(float(d.var(ddof=1)) - within, 0.0) if b is not None and questions > 1 else 0.0
    return Plan(questions, samples, of_methods, of_runs, of_samples, training, paired, alpha)


def averaged(plans: Sequence[Plan]) -> Plan:
    """One plan for several comparisons of a benchmark: the mean of each variance."""
    trained = [plan.of_training for plan in plans if plan.of_training is not None]
    sources = ("of_methods", "of_runs", "of_samples")
    means: dict[str, Any] = {name: float(np.mean([getattr(plan, name) for plan in plans])) for name in sources}
    of_training = float(np.mean(trained)) if trained else None
    return replace(plans[0], **means, of_training=of_training, paired=all(plan.paired for plan in plans))


def table(plan: Plan, difference: float) -> list[tuple[int, list[int | None]]]:
    """(questions, seeds of each method by SAMPLES), for the benchmark's own number of questions and for others."""
    return [
        (questions, [plan.seeds(difference, questions, samples) for samples in SAMPLES])
        for questions in sorted({*QUESTIONS, plan.questions})
    ]
