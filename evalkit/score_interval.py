"""Score intervals: of a mean in [0, 1], and of a mean difference in [-1, 1], that keep a width at the edges.

Mean m of Q scores (Wilson 1927): all mu with |m - mu| <= t sqrt(mu (1 - mu) / E), E the effective number of questions.

Mean difference of Q paired scores d_q = a_q - b_q. For 0/1 scores this is Tango's score interval (Tango 1998,
"Equivalence test and confidence interval for the difference in proportions for the paired-sample design"): all delta
with |mean d - delta| <= t sqrt(V(delta)), V the variance of the mean under the best-fitting trinomial (a alone right,
b alone right, neither) whose mean is delta. Fractional differences are given the trinomial on {-s, 0, s} with the same
first two moments, where s is the largest |d_q|, or less where nearly all differences have one sign. So V(mean d) is
their usual variance, and with differences that are nearly all 0 the interval is the trinomial's, which has a width
even where all are 0. A sample of few differences says little of how large they get: s is moved towards 1, the largest
there can be, with the weight of SCALE_PRIOR questions. The simulation bench/coverage.py measures what this covers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

LEVEL = 0.95
"""Coverage of every interval."""
SCALE_PRIOR = 0.2
"""Weight, in questions that differ, of the prior that a difference may be as large as 1."""
POWER = 0.80
"""Power at which the smallest detectable difference is stated."""

Array = NDArray[np.float64]


def t_quantile(probability: ArrayLike, freedom: ArrayLike) -> Array:
    """Student's quantile; infinite for 0 degrees of freedom."""
    freedom = np.asarray(freedom, dtype=np.float64)
    return np.where(freedom > 0, special.stdtrit(np.where(freedom > 0, freedom, 1), probability), np.inf)


class Student(NamedTuple):
    """Student's distributions of two terms, their quantiles weighted (Cochran and Cox 1950). Every field is [T]."""

    freedom: Array
    """Degrees of freedom of the first term."""
    other: Array
    """Of the second term."""
    weight: Array
    """Of the second term; 0: the first alone."""

    def quantile(self, probability: ArrayLike) -> Array:
        """The weighted quantile; infinite for 0 degrees of freedom."""
        quantile = t_quantile(probability, self.freedom)
        if not np.any(self.weight):
            return quantile
        of_other = np.where(self.weight > 0, t_quantile(probability, np.maximum(self.other, 1)), 0.0)
        return (1 - self.weight) * quantile + self.weight * of_other

    def p_value(self, statistic: Array) -> Array:
        """Two-sided: the level at which `quantile` is |statistic|. It lies between the two terms' own; bisection."""
        tails = [np.maximum(special.stdtr(f, -np.abs(statistic)), 1e-250) for f in (self.freedom, self.other)]
        least, most = np.log(np.minimum(*tails)), np.log(np.maximum(*tails))
        for _ in range(50):
            middle = (least + most) / 2
            further = -self.quantile(np.exp(middle)) > np.abs(statistic)
            least, most = np.where(further, middle, least), np.where(further, most, middle)
        return 2 * np.where(self.weight > 0, np.exp((least + most) / 2), tails[0])


def mean_bounds(mean: float, effective: float, critical: float) -> tuple[float, float]:
    """All mu in [0, 1] with |mean - mu| <= critical * sqrt(mu (1 - mu) / effective)."""
    if not np.isfinite(critical):
        return 0.0, 1.0
    shrink = critical**2 / effective
    centre = (mean + shrink / 2) / (1 + shrink)
    half = critical * np.sqrt(mean * (1 - mean) / effective + (critical / effective) ** 2 / 4) / (1 + shrink)
    # At mean 0 and 1 the bound is the mean itself; rounding must not move it.
    return float(min(max(centre - half, 0.0), mean)), float(max(min(centre + half, 1.0), mean))


def poisson_limit(count: int, level: float) -> float:
    """The expected count for which `count` or more would be seen with probability 1 - level."""
    return float(special.gammaincinv(count, 1 - level))


class Trinomial(NamedTuple):
    """The trinomials with the first two moments of T rows of differences; every field is [T]."""

    up: Array
    down: Array
    """Questions (not whole ones) that differ by +scale and by -scale."""
    scale: Array
    questions: int

    def statistic(self, delta: Array, extra: Array) -> Array:
        """(mean - delta) / its standard error under delta; extra: variance of the mean from other sources."""
        distance, n = delta / self.scale, self.questions
        # Beyond, the questions have no variance; other sources still may.
        x = np.clip(distance, -1.0, 1.0)
        linear = (2 * n - self.up + self.down) * x - self.up - self.down
        root = np.sqrt(np.maximum(np.square(linear) + 8 * n * self.down * x * (1 - x), 0.0))
        lost = (root - linear) / (4 * n)
        variance = np.maximum(2 * lost + x * (1 - x), 1e-300) / max(n - 1, 1)
        return ((self.up - self.down) / n - distance) / np.sqrt(variance + extra / np.square(self.scale))

    def bounds(self, critical: Array, extra: Array) -> tuple[Array, Array]:
        """The smallest and the largest delta whose |statistic| is at most `critical`. Bisection to 1e-12."""
        mean = (self.up - self.down) / self.questions * self.scale
        inside = np.stack([mean, mean])
        outside = np.stack([-np.ones_like(mean), np.ones_like(mean)])
        for _ in range(42):
            middle = (inside + outside) / 2
            within = np.abs(self.statistic(middle, extra)) <= critical
            inside, outside = np.where(within, middle, inside), np.where(within, outside, middle)
        low, high = inside
        return np.where(np.isfinite(critical), low, -1.0), np.where(np.isfinite(critical), high, 1.0)


def trinomial(d: Array) -> Trinomial:
    """Match T rows of differences d [T, Q]."""
    total, squares = d.sum(axis=1), np.square(d).sum(axis=1)
    different = np.count_nonzero(d, axis=1)
    largest = np.abs(d).max(axis=1)
    # A trinomial of scale s and mean D / Q has at least the second moment s |D| / Q.
    one_sided = np.divide(squares, np.abs(total), out=np.ones_like(total), where=total != 0)
    towards_1 = SCALE_PRIOR / (different + SCALE_PRIOR)
    scale = np.minimum(largest + (1 - largest) * towards_1, one_sided + (1 - one_sided) * towards_1)
    scale = np.where(different > 0, scale, 1.0)
    less = np.maximum(squares / np.square(scale) - np.abs(total) / scale, 0.0) / 2
    more = less + np.abs(total) / scale
    return Trinomial(np.where(total < 0, less, more), np.where(total < 0, more, less), scale, d.shape[1])


def detectable_by_t(se: float, student: Student, alpha: float) -> float:
    """The true difference that a two-sided t test of standard error `se` shows with probability POWER."""
    return float(np.minimum((student.quantile(1 - alpha / 2) + student.quantile(POWER)) * se, 1.0))


@lru_cache(maxsize=4096)
def detectable_by_mcnemar(questions: int, share: float, alpha: float) -> float:
    """The true difference of two success rates that McNemar's exact test shows with probability POWER.

    share: of questions that one side alone gets right; it grows where a difference needs more. 1 where even a
    difference on every question is not shown.
    """
    trials = np.arange(questions + 1)
    most = _mcnemar_rejects(questions, alpha)

    def power(delta: float) -> float:
        rate = min(max(share, delta), 1.0)
        spread = 8 * np.sqrt(questions * rate * (1 - rate)) + 8
        rows = slice(max(0, int(questions * rate - spread)), int(questions * rate + spread) + 1)
        m, wins = trials[rows], (1 + delta / rate) / 2
        log_chance = special.gammaln(questions + 1) - special.gammaln(m + 1) - special.gammaln(questions - m + 1)
        chance = np.exp(log_chance + special.xlogy(m, rate) + special.xlog1py(questions - m, -rate))
        least = m - most[rows]
        shown = np.where(most[rows] >= 0, special.betainc(np.maximum(least, 1), most[rows] + 1, wins), 0.0)
        return float((chance * shown).sum())

    if questions == 0 or power(1.0) < POWER:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


@lru_cache(maxsize=64)
def _mcnemar_rejects(questions: int, alpha: float) -> NDArray[np.float64]:
    """For m = 0..questions that differ: the largest smaller count that is rejected, 2 P(X <= count) <= alpha; or -1."""
    m = np.arange(questions + 1, dtype=np.float64)
    guess = np.floor(m / 2 + special.ndtri(alpha / 2) * np.sqrt(m) / 2) - 3
    most = np.full(m.size, -1.0)
    for count in (guess + step for step in range(6)):
        below = special.betainc(np.maximum(m - count, 1e-9), np.maximum(count, 0) + 1, 0.5)  # P(X <= count)
        most = np.where((count >= 0) & (below <= alpha / 2), count, most)
    return most
