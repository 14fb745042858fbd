"""The scenarios of bench.coverage: two methods whose true scores are known, and what a benchmark would show of them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]
Pair = tuple[Array, Array]


class Scenario(NamedTuple):
    """Two methods whose chances of solving a question of difficulty p are expit(logit p + shift + training noise)."""

    name: str
    alpha: float
    beta: float
    """Chances p of the questions: Beta(alpha, beta)."""
    samples: int
    shift: float
    """Of the first method against the second, in logits; 0: the null hypothesis is true."""
    of_seed: float = 0.0
    of_seed_and_question: float = 0.0
    """Standard deviations of the training noise, in logits."""
    of_method_and_question: float = 0.0
    """Standard deviation of what a method finds easier or harder, whatever its seed, in logits."""

    @property
    def whole(self) -> bool:
        """Return whether every score is 0 or 1."""
        return self.samples == 1

    def truth(self) -> tuple[float, float]:
        """(mean score of the first method, mean difference)."""
        first, second = (mean for mean, _ in _over_training(self))
        return first, first - second

    def training(self) -> tuple[float, float]:
        """Variance over training runs of (the first method's mean score, the difference), one run each."""
        first, second = (variance for _, variance in _over_training(self))
        return first, first + second

    def draw(self, rng: np.random.Generator, repeats: int, seeds: int, questions: int) -> Pair:
        """Two [repeats, seeds, questions] arrays of pass@1."""
        chance = np.clip(rng.beta(self.alpha, self.beta, (repeats, 1, questions)), 1e-9, 1 - 1e-9)
        logit = special.logit(chance)
        scores = []
        for shift in (self.shift, 0.0):
            moved = logit + shift + self.of_seed * rng.normal(size=(repeats, seeds, 1))
            if self.of_seed_and_question:
                moved = moved + self.of_seed_and_question * rng.normal(size=(repeats, seeds, questions))
            if self.of_method_and_question:
                moved = moved + self.of_method_and_question * rng.normal(size=(repeats, 1, questions))
            chances = np.broadcast_to(special.expit(moved), (repeats, seeds, questions))
            scores.append(rng.binomial(self.samples, chances) / self.samples)
        return scores[0], scores[1]


@lru_cache(maxsize=64)
def _over_training(scenario: Scenario) -> list[tuple[float, float]]:
    """(mean, variance over training runs) of the mean score of either method, by quadrature."""
    chance = special.betaincinv(scenario.alpha, scenario.beta, (np.arange(4000) + 0.5) / 4000)
    logit = special.logit(np.clip(chance, 1e-9, 1 - 1e-9))
    normal, weights = np.polynomial.hermite_e.hermegauss(31)
    weights = weights / weights.sum()
    of_questions = np.hypot(scenario.of_seed_and_question, scenario.of_method_and_question) * normal[:, None]
    found = []
    for shift in (scenario.shift, 0.0):
        means = [
            weights @ special.expit(logit + shift + s + of_questions).mean(axis=1) for s in scenario.of_seed * normal
        ]
        mean = float(weights @ means)
        found.append((mean, float(weights @ np.square(np.array(means) - mean))))
    return found


class Rare(NamedTuple):
    """Two models that agree (both right) but on 2 % of the questions."""

    name: str
    up: float
    """Share of those on which the first model is the better one."""
    whole: bool
    """Whether it is right or wrong on them, or by any amount."""

    def training(self) -> tuple[float, float]:
        """Training makes no difference here."""
        return 0.0, 0.0

    def truth(self) -> tuple[float, float]:
        """(mean score of the first method, mean difference)."""
        size = 0.02 * (1.0 if self.whole else 0.5)
        return 1 - size * (1 - self.up), size * (2 * self.up - 1)

    def draw(self, rng: np.random.Generator, repeats: int, seeds: int, questions: int) -> Pair:
        """Two [repeats, seeds, questions] arrays."""
        shape = (repeats, seeds, questions)
        size = (rng.random(shape) < 0.02) * (1.0 if self.whole else rng.random(shape))
        first = rng.random(shape) < self.up
        return 1 - size * ~first, 1 - size * first


RUNS: tuple[Scenario | Rare, ...] = (
    Scenario("1 sample, better", 0.6, 0.8, 1, 0.5),
    Scenario("64 samples, better", 0.6, 0.8, 64, 0.5),
    Scenario("64 samples, medium questions, better", 2, 2, 64, 0.3),
    Scenario("64 samples near 100 %, better", 8, 0.4, 64, 0.5),
    Scenario("64 samples, most solved, better", 0.4, 0.1, 64, 0.7),
    Scenario("1 sample near 0 %, better", 0.4, 8, 1, 0.5),
    Rare("2 % of questions differ, one way", 1.0, True),
    Rare("2 % of questions differ, 3 to 1", 0.75, True),
    Rare("2 % of questions differ by any amount, one way", 1.0, False),
    Rare("2 % of questions differ by any amount, 3 to 1", 0.75, False),
    Scenario("1 sample, equal", 0.6, 0.8, 1, 0.0),
    Scenario("16 samples, equal", 0.6, 0.8, 16, 0.0),
    Scenario("64 samples near 100 %, equal", 8, 0.4, 64, 0.0),
    Rare("2 % of questions differ, evenly", 0.5, True),
    Rare("2 % of questions differ by any amount, evenly", 0.5, False),
)
METHODS = (
    Scenario("seeds alike, better", 0.6, 0.8, 16, 0.3, 0.0, 0.3),
    Scenario("seeds differ little, better", 0.6, 0.8, 16, 0.3, 0.1, 0.3),
    Scenario("seeds differ, better", 0.6, 0.8, 16, 0.3, 0.3, 0.5),
    Scenario("seeds differ much, near 100 %, better", 8, 0.4, 16, 0.5, 0.6, 0.5),
    Scenario("1 sample, seeds differ, better", 2, 2, 1, 0.3, 0.3, 0.0),
    Scenario("seeds differ, methods differ by question, better", 0.6, 0.8, 16, 0.3, 0.3, 0.3, 0.5),
    Scenario("seeds alike, equal", 0.6, 0.8, 16, 0.0, 0.0, 0.3),
    Scenario("seeds differ, equal", 0.6, 0.8, 16, 0.0, 0.3, 0.5),
    Scenario("1 sample, seeds differ, equal", 2, 2, 1, 0.0, 0.3, 0.0),
    Scenario("seeds differ, methods differ by question, equal", 0.6, 0.8, 16, 0.0, 0.3, 0.3, 0.5),
)
