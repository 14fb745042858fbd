"""Permutation tests for mean differences: over questions by sign flips, over training seeds by regrouping.

Sign flips (`sign_flip_p`). Under the null hypothesis the difference d_q of question q is as likely as -d_q. The
p-value is the share of the 2^Q sign patterns whose |sum_q +-d_q| is at least the observed one. Where every score is 0
or 1 this is McNemar's exact test. Few or repeating differences are enumerated exactly. Elsewhere the tail is the
Lugannani-Rice saddlepoint approximation of the same distribution, K(t) = sum_q log cosh(d_q t), with a relative error
of about 1/Q, also far out in the tail (Robinson 1982, "Saddlepoint approximations for permutation tests and
confidence intervals"). No random number is drawn: a p-value depends on its own pair of runs and on nothing else.

Regrouping (`regroup_p`). S_a + S_b seeds are dealt out anew to the two methods, in all C(S_a + S_b, S_a) ways.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

ENUMERATION = 2**15
"""Largest support of each half of the enumerated distribution: 30 different differences, or many more that repeat."""
ENUMERATED_QUESTIONS = 200
"""Beyond so many questions that differ the saddlepoint's error is below 1 %, and enumeration is slow."""
REGROUPINGS = 200_000
"""Most regroupings that are enumerated: 10 seeds against 10."""

Array = NDArray[np.float64]


def mcnemar_p(only_a: NDArray[np.int64], only_b: NDArray[np.int64]) -> Array:
    """Exact two-sided McNemar p-values [T] from the numbers of questions that one side alone got right."""
    return np.minimum(2 * special.bdtr(np.minimum(only_a, only_b), only_a + only_b, 0.5), 1.0)


def sign_flip_p(d: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Two-sided sign-flip p-values of T rows of differences d [T, Q]: (p [T], whether enumerated [T])."""
    p, exact = np.ones(d.shape[0]), np.ones(d.shape[0], dtype=bool)
    for i, row in enumerate(d):
        enumerated = _enumerated_p(row)
        if enumerated is None:
            exact[i] = False
        else:
            p[i] = enumerated
    if not exact.all():
        p[~exact] = _saddlepoint_p(d[~exact])
    return p, exact


def regroup_p(a: Array, b: Array) -> float:
    """Exact two-sided p-value of mean(a) - mean(b) over all regroupings of the seeds. a: [S_a], b: [S_b].

    Beyond REGROUPINGS of them, 20,000 random ones drawn from a stream that the values themselves seed.
    """
    values = np.concatenate([a, b])
    total, size = values.sum(), a.size
    observed = abs(a.mean() - b.mean())
    if math.comb(values.size, size) <= REGROUPINGS:
        sums = _groupings(values.size, size) @ values
        counted = 0
    else:
        generator = np.random.default_rng(np.sort(values).view(np.uint64))
        sums = generator.permuted(np.tile(values, (20_000, 1)), axis=1)[:, :size].sum(axis=1)
        counted = 1  # the observed grouping, so that p is never 0
    found = np.abs(sums / size - (total - sums) / b.size)
    return float((np.count_nonzero(found >= observed - 1e-12) + counted) / (found.size + counted))


@lru_cache(maxsize=4)
def _groupings(count: int, size: int) -> Array:
    """0/1 rows of all groupings; where both groups are alike, one of each two mirror images."""
    if 2 * size == count:
        chosen = [(0, *rest) for rest in itertools.combinations(range(1, count), size - 1)]
    else:
        chosen = list(itertools.combinations(range(count), size))
    rows = np.zeros((len(chosen), count))
    rows[np.arange(len(chosen))[:, None], np.array(chosen)] = 1.0
    return rows


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
    if size.size > ENUMERATED_QUESTIONS and values.size > 8:
        return None
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


def _saddlepoint_p(d: Array) -> Array:
    """Two-sided sign-flip p-values [T] of the row sums of d [T, Q] by the Lugannani-Rice formula."""
    d = np.abs(d) / np.abs(d).max(axis=1, keepdims=True) * np.sign(d)
    observed = np.abs(d.sum(axis=1))
    d = np.abs(d)
    t = observed / np.square(d).sum(axis=1)
    for _ in range(40):  # K' is concave, so Newton's steps come from the left and never pass the root
        tanh = np.tanh(d * t[:, None])
        slope = np.square(d) * (1 - np.square(tanh))
        step = (observed - (d * tanh).sum(axis=1)) / np.maximum(slope.sum(axis=1), 1e-300)
        t = t + np.clip(step, 0.0, 4 * t + 1e-12)
        if np.all(np.abs(step) <= 1e-10 * (t + 1e-300)):
            break
    x = d * t[:, None]
    cumulants = (x + np.log1p(np.exp(-2 * x)) - math.log(2.0)).sum(axis=1)
    curvature = (np.square(d) * (1 - np.square(np.tanh(x)))).sum(axis=1)
    w = np.sqrt(np.maximum(2 * (t * observed - cumulants), 0.0))
    u = t * np.sqrt(curvature)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = special.ndtr(-w) + np.exp(-np.square(w) / 2) / math.sqrt(2 * math.pi) * (1 / u - 1 / w)
    # All differences of one sign: the saddlepoint lies at infinity, and two of the 2^Q patterns reach the sum.
    certain = 2.0 ** -np.count_nonzero(d, axis=1).astype(np.float64)
    tail = np.where(observed >= (1 - 1e-12) * d.sum(axis=1), certain, np.where(w < 1e-3, 0.5, tail))
    return np.clip(2 * tail, 2 * certain, 1.0)
