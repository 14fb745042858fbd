"""Error bars and tests for scores in [0, 1] that are clustered by question, of one run or of several training seeds.

A benchmark has Q questions; a run gives each a score v_q in [0, 1] (its pass@k or maj@k over n samples). The
samples of one question are not independent of each other, the questions are: the question is the unit everywhere.

One run's mean m = sum_q v_q / Q (`mean_interval`). A score interval: all mu with
|m - mu| <= t * sqrt(phi mu (1 - mu) / Q), where t is Student's quantile with Q - 1 degrees of freedom and phi
says how much less the scores vary than 0/1 outcomes would:

    phi = (sum_q (v_q - m)^2 + c) / (Q m (1 - m) + c),      c = 1/4.

For 0/1 scores phi = 1 and this is Wilson's interval with t for z. For fractional scores it tends to the t interval
of the question means as Q grows. At 0 % and at 100 %, where the sample variance is 0 and the t interval has no
width, c makes phi = 1: thirty questions without a success still allow up to about 12 %. Where the scores are 0/1 and
one or two questions stand apart, Wilson's interval ends too early and covers as little as 84 %. There its inner end is
the Poisson limit of the modified Wilson interval (Brown, Cai and DasGupta 2001, section 4.1.1).

A method is trained with S seeds: V(mean) = V_Q + V_A / S, V_Q the variance over questions of the mean over seeds, V_A
that of training (evalkit/training_variance.py).

Source beside those named: Miller, "Adding Error Bars to Evals" (arXiv 2411.00640). Differences: evalkit/differences.py.
scipy.special carries the distributions: scipy.stats has the same numbers but takes half a second to import.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from gtpo.evalkit.differences import PairedDifference, paired_difference
from gtpo.evalkit.score_interval import LEVEL, mean_bounds, poisson_limit, t_quantile
from gtpo.evalkit.training_variance import (
    FREEDOM_NEEDED,
    SEEDS_NEEDED,
    SeedVariance,
    reference,
    seed_variance,
    term,
)

__all__ = ["Interval", "MethodMean", "PairedDifference", "mean_interval", "method_mean", "paired_difference"]

_FEW = 2
"""Questions that stand apart, up to which Wilson's interval is mended. Brown, Cai and DasGupta take 2 up to 50
questions and 3 beyond."""
_PRIOR = 0.25
"""c above: pseudo-variance that keeps an interval honest where all scores agree. bench/coverage.py measures the
coverage it gives."""

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """A mean in [0, 1] with its 95 % intervals, all as fractions."""

    mean: float
    low: float
    high: float
    """low, high: covers the choice of questions as well as sampling noise."""
    low_sampling: float | None
    high_sampling: float | None
    """Sampling noise on these very questions alone; None where it cannot be estimated (one sample per question)."""


class MethodMean(NamedTuple):
    """The mean of a method over its training seeds with its 95 % interval, all as fractions."""

    mean: float
    low: float
    high: float
    """low, high: covers questions and samples, and training where `covers_training`."""
    covers_training: bool
    seed_means: tuple[float, ...]
    """The mean of each seed."""

    @property
    def seed_sd(self) -> float | None:
        """Sample standard deviation over seeds; None for one seed."""
        return float(np.std(self.seed_means, ddof=1)) if len(self.seed_means) > 1 else None


def mean_interval(values: ArrayLike, within_variance: ArrayLike | None = None, *, draws: float = 1.0) -> Interval:
    """Return the mean of per-question scores with its 95 % intervals, clustered by question.

    values: [Q] scores in [0, 1], one per question. within_variance: [Q] estimated sampling variance of each score
    (for pass@1 of c out of n: p (1 - p) / (n - 1)), or None, or NaN anywhere, where it cannot be estimated. draws:
    independent draws behind each score (for pass@1: n; for k of n samples: n / k), used only where every question
    came out alike and the variances say nothing. Raises ValueError on an empty list, a NaN, or a score outside [0, 1].
    """
    scores = _checked(values)
    if scores.ndim != 1:
        raise ValueError(f"values must be a non-empty list of per-question scores, got shape {scores.shape}")
    questions = scores.size
    mean = float(scores.mean())
    bernoulli = questions * mean * (1 - mean)
    low, high = _mean_bounds(scores, 0.0, float(t_quantile((1 + LEVEL) / 2, questions - 1)))
    if within_variance is None:
        return Interval(mean, low, high, None, None)
    within = np.asarray(within_variance, dtype=np.float64)
    if np.isnan(within).any():
        return Interval(mean, low, high, None, None)
    if within.shape != scores.shape or not np.all(within >= 0):
        raise ValueError(f"within_variance must be {questions} variances >= 0, one per question")
    if draws <= 0:
        raise ValueError(f"draws must be positive, got {draws}")
    if within.any():  # p (1 - p) / variance: as many independent draws as the variances speak of
        draws = max(float((scores * (1 - scores)).sum() / within.sum()), 1.0)
    effective = (bernoulli + _PRIOR) / (float(within.mean()) + _PRIOR / (questions * draws))
    z = float(special.ndtri((1 + LEVEL) / 2))
    return Interval(mean, low, high, *mean_bounds(mean, effective, z))


def method_mean(scores: ArrayLike, pool: SeedVariance | None = None) -> MethodMean:
    """Return a method's mean over S seeds and Q questions with its 95 % interval. scores: [S, Q] in [0, 1].

    pool: the variance of training over all methods (one column), used where the method has fewer than SEEDS_NEEDED
    seeds and it has FREEDOM_NEEDED degrees of freedom; with neither, training is not covered. Raises ValueError on
    an empty array, a NaN, or a score outside [0, 1].
    """
    values = _checked(scores)
    if values.ndim != 2:
        raise ValueError(f"scores must be [seeds, questions], got shape {values.shape}")
    seeds, questions = values.shape
    by_question = values.mean(axis=0)
    terms = []
    if questions > 1 and seeds >= SEEDS_NEEDED:
        terms = [term(seed_variance(values[None]), [seeds])]
    elif questions > 1 and pool is not None and pool.total >= FREEDOM_NEEDED:
        terms = [term(pool, [seeds])]
    found = reference(by_question[None], terms)
    (critical,) = found.student.quantile((1 + LEVEL) / 2)
    low, high = _mean_bounds(by_question, float(found.extra[0]), float(critical))
    return MethodMean(float(by_question.mean()), low, high, bool(terms), tuple(values.mean(axis=1).tolist()))


def _checked(values: ArrayLike) -> Array:
    scores = np.asarray(values, dtype=np.float64)
    if scores.size == 0:
        raise ValueError(f"values must be a non-empty list of per-question scores, got shape {scores.shape}")
    if not (np.all(scores >= -1e-9) and np.all(scores <= 1 + 1e-9)):
        raise ValueError("values must lie in [0, 1]: one fraction per question, no NaN")
    return np.clip(scores, 0.0, 1.0)


def _mean_bounds(by_question: Array, extra: float, critical: float) -> tuple[float, float]:
    """The score interval of the mean of by_question [Q]; extra: the variance of training."""
    questions, mean = by_question.size, float(by_question.mean())
    spread = float(np.square(by_question - mean).sum()) + questions**2 * extra
    phi = (spread + _PRIOR) / (questions * mean * (1 - mean) + _PRIOR)
    low, high = mean_bounds(mean, questions / phi, critical)
    solved = int(np.count_nonzero(by_question))
    if solved != by_question.sum():
        return low, high
    if 0 < solved <= _FEW:
        low = min(low, poisson_limit(solved, LEVEL) / questions)
    if 0 < questions - solved <= _FEW:
        high = max(high, 1 - poisson_limit(questions - solved, LEVEL) / questions)
    return low, high
