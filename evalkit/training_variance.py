"""The noise of training: how far a method's score moves when it is trained anew with another seed.

S seeds on Q questions give scores v_sq = mu + A_s + B_q + E_sq, crossed random effects. The variance of A is that
between the seeds' means less what is left over (E), which both contain: the ANOVA estimator of the two-way crossed
design (Cornfield and Tukey 1956; as in multi-reader studies, Hillis 2007).

One or two seeds say little of A. Its variance is therefore borrowed: pooled over all methods of a table, each with its
S - 1 degrees of freedom. Where the methods' variances differ (Bartlett 1937), the largest stands for all of them.

A variance that is estimated from few seeds can miss that training fails now and then: where half of the runs collapse,
all seeds of every method come out alike with probability 2^-F for F degrees of freedom. FREEDOM_NEEDED keeps the chance
that two such methods then seem to differ, or to be the same, at 2^-(F + 1), 3 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from gtpo.evalkit.score_interval import Student

SEEDS_NEEDED = 3
"""Training seeds from which on a method's own variance between them is used."""
FREEDOM_NEEDED = 4
"""Degrees of freedom of the variance of training from which on something is said about methods: two methods of three
seeds, one of two and one of four, or any number of methods with as many seeds more than there are methods."""
HETEROGENEOUS = 0.05
"""Level of the test of equal variances."""

Array = NDArray[np.float64]


class SeedVariance(NamedTuple):
    """How the mean score of one training run varies, for T columns. Arrays are [T]."""

    between: Array
    """Variance between runs of their means over the questions."""
    residual: Array
    """What of it is due to samples and to single questions."""
    freedom: Array
    """Degrees of freedom of `between`."""
    total: int
    """The same over all methods, whether their variances are pooled or not."""
    questions: int

    @property
    def training(self) -> Array:
        """The variance of training alone."""
        return np.maximum(self.between - self.residual, 0.0)


class Term(NamedTuple):
    """The part of a variance that is due to training, for T columns. Arrays are [T]."""

    variance: Array
    of_seeds: Array
    """The same, with what samples and single questions add to it."""
    squares: Array
    """The sum of V^2 / degrees of freedom over the two estimates in it."""
    freedom: Array


def seed_variance(x: Array) -> SeedVariance:
    """The variance between the seeds of one method, at least two. x: [T, S, Q], Q at least 2."""
    seeds, questions = x.shape[1:]
    by_seed, by_question = x.mean(axis=2), x.mean(axis=1)
    left = x - by_seed[:, :, None] - by_question[:, None, :] + by_seed.mean(axis=1)[:, None, None]
    residual = np.square(left).sum(axis=(1, 2)) / ((seeds - 1) * (questions - 1) * questions)
    freedom = np.full(x.shape[0], seeds - 1.0)
    return SeedVariance(by_seed.var(axis=1, ddof=1), residual, freedom, seeds - 1, questions)


def borrowed(found: Sequence[SeedVariance]) -> SeedVariance | None:
    """One variance for several methods: pooled, or the largest where they differ; None without one."""
    if not found:
        return None
    freedom = np.array([v.freedom for v in found])
    between, residual = np.array([v.between for v in found]), np.array([v.residual for v in found])
    total = freedom.sum(axis=0)
    pooled = (freedom * between).sum(axis=0) / total
    left = (freedom * residual).sum(axis=0) / total
    if len(found) > 1:
        differ, largest = _bartlett_p(between, freedom) <= HETEROGENEOUS, between.argmax(axis=0)
        column = np.arange(between.shape[1])
        pooled = np.where(differ, between[largest, column], pooled)
        left = np.where(differ, residual[largest, column], left)
        total = np.where(differ, freedom[largest, column], total)
    return SeedVariance(pooled, left, total, sum(v.total for v in found), found[0].questions)


def _bartlett_p(variances: Array, freedom: Array) -> Array:
    """Bartlett's test of equal variances. Both [methods, T]; 1 where no seed differs."""
    total = freedom.sum(axis=0)
    pooled = (freedom * variances).sum(axis=0) / total
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = total * np.log(pooled) - (freedom * np.log(variances)).sum(axis=0)
    methods = variances.shape[0]
    statistic /= 1 + ((1 / freedom).sum(axis=0) - 1 / total) / (3 * (methods - 1))
    return np.where(pooled > 0, special.chdtrc(methods - 1, np.maximum(np.nan_to_num(statistic), 0.0)), 1.0)


def term(variance: SeedVariance, seeds: Sequence[int]) -> Term:
    """The term of training in the variance of a sum of means, each over so many seeds."""
    share = sum(1 / count for count in seeds)
    between, residual, freedom = variance.between * share, variance.residual * share, variance.freedom
    squares = np.square(between) / freedom + np.square(residual) / (freedom * (variance.questions - 1))
    return Term(np.maximum(between - residual, 0.0), between, squares, freedom)


class Reference(NamedTuple):
    """What a mean is referred to: the variance of training in it, and the distribution of its statistic."""

    extra: Array
    student: Student


def reference(by_question: Array, terms: Sequence[Term]) -> Reference:
    """What (mean - its expectation) / sqrt(V_Q + the terms) is referred to; by_question: [T, Q].

    One term of training: Cochran and Cox's (1950) quantile, the mean of those with Q - 1 and with the term's degrees of
    freedom, weighted with the variances V_Q and V_S. Two terms: Satterthwaite's degrees of freedom, at least those of
    the smallest term. With one term of 2 degrees of freedom these are too many: where it comes out small by chance, it
    also seems to count for little, and a test at 5 % rejects 8 %, one at 1 % 3.6 %.
    """
    tests, questions = by_question.shape
    none = np.zeros(tests)
    of_questions = by_question.var(axis=1, ddof=1) / questions if questions > 1 else none
    extra = sum((one.variance for one in terms), none)
    whole, by_questions = of_questions + extra, np.full(tests, questions - 1.0)
    if len(terms) < 2:
        of_seeds = terms[0].of_seeds if terms else none
        weight = np.minimum(np.divide(of_seeds, whole, out=np.zeros(tests), where=whole > 0), 1.0)
        return Reference(extra, Student(by_questions, terms[0].freedom if terms else np.ones(tests), weight))
    parts = np.square(of_questions) / (questions - 1) + sum(one.squares for one in terms)
    freedom = np.divide(np.square(whole), parts, out=by_questions.copy(), where=parts > 0)
    least = np.minimum.reduce([by_questions, *(one.freedom for one in terms)])
    return Reference(extra, Student(np.maximum(freedom, least), np.ones(tests), np.zeros(tests)))
