"""Error bars and paired tests for scores in [0, 1] that are clustered by question.

A benchmark has Q questions; a run gives each a score v_q in [0, 1] (its pass@k or maj@k over n samples). The
samples of one question are not independent of each other, the questions are: the question is the unit everywhere.

Interval of one run's mean m = sum_q v_q / Q (`mean_interval`). A score interval: all mu with
|m - mu| <= t * sqrt(phi mu (1 - mu) / Q), where t is Student's quantile with Q - 1 degrees of freedom and phi <= 1
says how much less the scores vary than 0/1 outcomes would:

    phi = (sum_q (v_q - m)^2 + c) / (Q m (1 - m) + c),      c = 1/4.

For 0/1 scores phi = 1 and this is Wilson's interval with t for z. For fractional scores it tends to the t interval
of the question means as Q grows. At 0 % and at 100 %, where the sample variance is 0 and the t interval has no
width, c makes phi = 1: thirty questions without a success still allow up to about 12 %.

Difference of two runs on the same questions (`paired_difference`), d_q = a_q - b_q: SE = sd(d) / sqrt(Q); the test
is McNemar's exact one where both scores are 0 or 1 on every question, and otherwise the paired permutation
(sign-flip) test of sum_q d_q, by full enumeration where that is affordable and by seeded Monte Carlo elsewhere.
The two agree exactly where both apply.

Sources: Wilson (1927); Bonett and Price (2012) for the interval of a paired difference of proportions; Holm (1979);
Miller, "Adding Error Bars to Evals" (arXiv 2411.00640) for clustering and pairing. scipy.special carries the
distributions: scipy.stats has the same numbers but takes half a second to import.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

LEVEL = 0.95
"""Coverage of every interval here."""
POWER = 0.80
"""Power at which the smallest detectable difference is stated."""
FLIPS = 9_999
"""Random sign flips where enumeration is not affordable; the smallest p-value is 1 / (FLIPS + 1)."""
ENUMERATION = 2**15
"""Largest support of each half of the enumerated sign-flip distribution: 30 different differences, or many more
where values repeat."""

_PRIOR = 0.25
"""c above: pseudo-variance that keeps an interval honest where all scores agree. tests/evalkit/test_statistics.py
measures the coverage it gives."""

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """A mean in [0, 1] with its 95 % intervals, all as fractions."""

    mean: float
    low: float
    high: float
    """low, high: covers the choice of questions as well as sampling noise."""
    low_sampling: float | None
    high_sampling: float | None
    """Sampling noise on these very questions alone; None where it cannot be estimated (one sample a question)."""


class PairedDifference(NamedTuple):
    """Mean of a - b over the questions both runs answered, as fractions. NaN where one question is too few."""

    difference: float
    se: float
    """sd(d) / sqrt(Q), with Q - 1 in the sd's denominator."""
    low: float
    high: float
    """95 % interval: Student's t; Bonett-Price where all scores are 0 or 1 (it has width when nothing differs)."""
    p_value: float
    """Two-sided, by `test`."""
    test: str
    """`mcnemar` (exact), `permutation` (all sign flips) or `permutation-mc` (FLIPS random sign flips)."""
    detectable: float
    """The smallest true difference that these questions show with 80 % power at the 5 % level."""
    questions: int
    only_a: int
    only_b: int
    """Questions on which a (b) scored higher."""
    t_p: float
    """Paired t-test, for comparison with other reports."""
    se_unpaired: float
    unpaired_p: float
    """Ignoring the pairing (normal approximation): what a table of two separate error bars suggests."""


def t_quantile(probability: float, freedom: ArrayLike) -> Array:
    """Student's quantile; infinite for 0 degrees of freedom."""
    freedom = np.asarray(freedom, dtype=np.float64)
    return np.where(freedom > 0, special.stdtrit(np.maximum(freedom, 1), probability), np.inf)


def _score_interval(mean: float, effective: float, critical: float) -> tuple[float, float]:
    """All mu with |mean - mu| <= critical * sqrt(mu (1 - mu) / effective)."""
    if not np.isfinite(critical):
        return 0.0, 1.0
    shrink = critical**2 / effective
    centre = (mean + shrink / 2) / (1 + shrink)
    half = critical * np.sqrt(mean * (1 - mean) / effective + (critical / effective) ** 2 / 4) / (1 + shrink)
    # At mean 0 and 1 the bound is the mean itself; rounding must not put it a hair beside.
    return float(min(max(centre - half, 0.0), mean)), float(max(min(centre + half, 1.0), mean))


def mean_interval(values: ArrayLike, within_variance: ArrayLike | None = None, *, draws: float = 1.0) -> Interval:
    """Return the mean of per-question scores with its 95 % intervals, clustered by question.

    values: [Q] scores in [0, 1], one a question. within_variance: [Q] estimated sampling variance of each score
    (for pass@1 of c out of n: p (1 - p) / (n - 1)), or None, or NaN anywhere, where it cannot be estimated. draws:
    independent draws behind each score (for pass@1: n; for k of n samples: n / k), used only where every question
    came out alike and the variances say nothing. Raises ValueError on an empty list, a NaN, or a score outside [0, 1].
    """
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or scores.size == 0:
        raise ValueError(f"values must be a non-empty list of per-question scores, got shape {scores.shape}")
    if not (np.all(scores >= -1e-9) and np.all(scores <= 1 + 1e-9)):
        raise ValueError("values must lie in [0, 1]: one fraction a question, no NaN")
    scores = np.clip(scores, 0.0, 1.0)
    questions = scores.size
    mean = float(scores.mean())
    bernoulli = questions * mean * (1 - mean)
    spread = float(np.square(scores - mean).sum())
    phi = (spread + _PRIOR) / (bernoulli + _PRIOR)
    low, high = _score_interval(mean, questions / phi, float(t_quantile((1 + LEVEL) / 2, questions - 1)))
    if within_variance is None:
        return Interval(mean, low, high, None, None)
    within = np.asarray(within_variance, dtype=np.float64)
    if np.isnan(within).any():
        return Interval(mean, low, high, None, None)
    if within.shape != scores.shape or not np.all(within >= 0):
        raise ValueError(f"within_variance must be {questions} variances >= 0, one a question")
    if draws <= 0:
        raise ValueError(f"draws must be positive, got {draws}")
    if within.any():  # p (1 - p) / variance: as many independent draws as the variances speak of
        draws = max(float((scores * (1 - scores)).sum() / within.sum()), 1.0)
    effective = (bernoulli + _PRIOR) / (float(within.mean()) + _PRIOR / (questions * draws))
    z = float(special.ndtri((1 + LEVEL) / 2))
    return Interval(mean, low, high, *_score_interval(mean, effective, z))


def paired_difference(a: ArrayLike, b: ArrayLike, *, seed: int = 0) -> PairedDifference:
    """Compare two runs on the same questions: mean of a - b with SE, 95 % interval and an exact or permutation test.

    a, b: [Q] scores in the same order of questions; a NaN marks a question that a run could not be scored on, and
    the pair is left out (`questions` counts those used). seed: of the Monte Carlo flips. Raises ValueError where
    the shapes differ or no pair is left.
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1:
        raise ValueError(f"a and b must score the same questions, got shapes {left.shape} and {right.shape}")
    both = ~np.isnan(left + right)
    if not both.any():
        raise ValueError("no question is scored in both runs")
    return paired_differences(left[None, both], right[None, both], seed=seed)[0]


def paired_differences(a: Array, b: Array, *, seed: int = 0) -> list[PairedDifference]:
    """`paired_difference` for T comparisons over the same Q questions at once. a, b: [T, Q] without NaN.

    The T Monte Carlo tests share their random flips, so that a whole table costs one matrix product.
    """
    d = a - b
    d = np.where(np.abs(d) < 1e-12, 0.0, d)  # 1 - C(n-c,k)/C(n,k) computed twice may differ in the last bit
    tests, questions = d.shape
    freedom = questions - 1
    mean = d.mean(axis=1)
    binary = np.all((a == 0) | (a == 1), axis=1) & np.all((b == 0) | (b == 1), axis=1)
    only_a, only_b = (d > 0).sum(axis=1), (d < 0).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        root = np.sqrt(questions)
        se = d.std(axis=1, ddof=1) / root if freedom else np.full(tests, np.nan)
        se_unpaired = (
            np.sqrt((a.var(axis=1, ddof=1) + b.var(axis=1, ddof=1)) / questions) if freedom else np.full(tests, np.nan)
        )
        t_p = 2 * special.stdtr(max(freedom, 1), -np.abs(mean / se))
        unpaired_p = 2 * special.ndtr(-np.abs(mean / se_unpaired))
    t_p, unpaired_p = (np.where(mean == 0, 1.0, p) for p in (t_p, unpaired_p))
    critical, power = float(t_quantile((1 + LEVEL) / 2, freedom)), float(t_quantile(POWER, freedom))
    # Bonett and Price: one more question won by each side.
    won, lost = (only_a + 1) / (questions + 2), (only_b + 1) / (questions + 2)
    adjusted_se = np.sqrt((won + lost - (won - lost) ** 2) / (questions + 2))
    centre, spread = np.where(binary, won - lost, mean), np.where(binary, adjusted_se, se)
    if freedom:
        z = np.where(binary, special.ndtri((1 + LEVEL) / 2), critical)
        low, high = np.maximum(centre - z * spread, -1.0), np.minimum(centre + z * spread, 1.0)
        detectable = np.minimum((critical + power) * spread, 1.0)
    else:
        low, high, detectable = np.full(tests, -1.0), np.full(tests, 1.0), np.full(tests, 1.0)
    p_values, names = np.ones(tests), np.where(binary, "mcnemar", "permutation").astype(object)
    trials = only_a + only_b
    p_values[binary] = np.minimum(2 * special.bdtr(np.minimum(only_a, only_b), trials, 0.5), 1.0)[binary]
    sampled = []
    for i in np.flatnonzero(~binary):
        exact = _enumerated_p(d[i])
        if exact is None:
            sampled.append(i)
        else:
            p_values[i] = exact
    if sampled:
        p_values[sampled] = _sampled_p(d[sampled], seed)
        names[sampled] = "permutation-mc"
    return [
        PairedDifference(
            difference=float(mean[i]),
            se=float(se[i]),
            low=float(low[i]),
            high=float(high[i]),
            p_value=float(p_values[i]),
            test=str(names[i]),
            detectable=float(detectable[i]),
            questions=questions,
            only_a=int(only_a[i]),
            only_b=int(only_b[i]),
            t_p=float(t_p[i]),
            se_unpaired=float(se_unpaired[i]),
            unpaired_p=float(unpaired_p[i]),
        )
        for i in range(tests)
    ]


def holm(p_values: ArrayLike) -> Array:
    """Return Holm's step-down adjusted p-values, in the given order: reject where they are <= the level."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _enumerated_p(d: Array) -> float | None:
    """Two-sided sign-flip p-value of sum(d) over all 2^Q flips, or None where that is too many.

    Equal |d| are flipped together through the binomial distribution, equal sums are merged, and the two halves of
    the distribution meet in the middle: 2^15 + 2^15 sums stand for 2^30 flips.
    """
    size = np.abs(d[d != 0])
    if size.size == 0:
        return 1.0
    scale = size.max()
    values, counts = np.unique(np.round(size / scale, 9), return_counts=True)
    if size.size > 64 and values.size > 8:
        return None  # hopeless, or too slow for a table of tests
    observed = abs(float(np.round(d / scale, 9).sum()))
    if observed < 1e-7:
        return 1.0
    halves = [(np.zeros(1), np.ones(1)), (np.zeros(1), np.ones(1))]
    for value, count in sorted(zip(values, counts, strict=True), key=lambda pair: -pair[1]):
        smaller = 0 if halves[0][0].size <= halves[1][0].size else 1
        sums, weights = halves[smaller]
        if sums.size * (count + 1) > 2 * ENUMERATION:
            return None
        heads = np.arange(count + 1)
        choose = special.gammaln(count + 1) - special.gammaln(heads + 1) - special.gammaln(count - heads + 1)
        chance = np.exp(choose - count * np.log(2.0))
        # Laid out as sorted runs, which a stable sort merges in linear time.
        sums = (value * (2 * heads - count)[:, None] + sums).ravel()
        weights = (chance[:, None] * weights).ravel()
        sums, weights = _merge_equal(sums, weights)
        if sums.size > ENUMERATION:
            return None
        halves[smaller] = (sums, weights)
    (x, chance_x), (y, chance_y) = halves
    upper_tail = np.append(np.cumsum(chance_y[::-1])[::-1], 0.0)
    beyond = upper_tail[np.searchsorted(y, observed - x - 1e-7, side="left")]
    return float(min(2 * (chance_x * beyond).sum(), 1.0))


def _merge_equal(sums: Array, weights: Array) -> tuple[Array, Array]:
    """Sort sums and add up the weights of those equal within rounding."""
    order = np.argsort(sums, kind="stable")
    sums, weights = sums[order], weights[order]
    starts = np.flatnonzero(np.concatenate([[True], sums[1:] - sums[:-1] > 1e-8]))
    if starts.size == sums.size:
        return sums, weights
    return sums[starts], np.add.reduceat(weights, starts)


def _sampled_p(d: Array, seed: int) -> Array:
    """Two-sided sign-flip p-values [T] of the row sums of d [T, Q] by FLIPS shared random flips.

    (1 + hits) / (1 + FLIPS): the flip that was observed counts, so that p is never 0 and the test keeps its level.
    """
    d = d[:, np.any(d != 0, axis=0)]
    observed = np.abs(d.sum(axis=1))
    rounding = 1e-5 * np.abs(d).sum(axis=1) / np.sqrt(d.shape[1])
    generator = np.random.default_rng(seed)
    hits = np.zeros(d.shape[0], dtype=np.int64)
    columns, total = np.ascontiguousarray(d.T, dtype=np.float32), d.sum(axis=1)
    width = d.shape[1]
    chunk = max(1, 4_000_000 // width)
    for start in range(0, FLIPS, chunk):
        rows = min(chunk, FLIPS - start)
        bits = np.frombuffer(generator.bytes(rows * (-(-width // 8))), dtype=np.uint8).reshape(rows, -1)
        heads = np.unpackbits(bits, axis=1, count=width).astype(np.float32)
        sums = 2 * (heads @ columns) - total
        hits += (np.abs(sums) >= observed - rounding).sum(axis=0)
    return (1 + hits) / (1 + FLIPS)
