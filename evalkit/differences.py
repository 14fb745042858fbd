"""Differences of two methods on the same questions: interval, test, equivalence, and what the design would find.

Where both trained the same seeds, at least three,
those are paired, and a_sq - b_sq is one crossed layout. Elsewhere the terms of training add up, and two estimates of
them must agree: the variance that is pooled over all methods of the table, and each method's own where both have three
seeds. The test rejects where both do, the interval is the union of theirs. The first alone takes a noisy method for a
quiet one, the second alone takes three runs that happened not to collapse for a method that never does. Two sets of
weights are tested exactly: McNemar where all scores are 0 or 1, else sign flips (evalkit/permutation.py). The interval
is the score interval of evalkit/score_interval.py: it includes 0 wherever its test does not reject.

Sources beside those named: Holm (1979), Shaffer (1986) and Schuirmann (1987) for the corrections and for equivalence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from gtpo.evalkit.permutation import mcnemar_p, regroup_p, sign_flip_p
from gtpo.evalkit.score_interval import LEVEL, Student, Trinomial, detectable_by_mcnemar, detectable_by_t, trinomial
from gtpo.evalkit.training_variance import (
    FREEDOM_NEEDED,
    SEEDS_NEEDED,
    Reference,
    SeedVariance,
    borrowed,
    reference,
    seed_variance,
    term,
)

PAIRS_FOR_EQUIVALENCE = 5
"""Paired seeds from which on their differences alone may show that two methods are equivalent: with fewer, runs that
collapse in both methods by chance look like runs that never differ."""
METHODS, WEIGHTS = "methods", "weights"
"""What a difference speaks of: methods, trained anew with other seeds, or these very sets of weights."""

Array = NDArray[np.float64]


class PairedDifference(NamedTuple):
    """Mean of a - b over the questions both answered, as fractions. se is NaN where one question is too few."""

    difference: float
    se: float
    """sd(d) / sqrt(Q), with Q - 1 in the sd's denominator, and the variance of training added where it is covered."""
    low: float
    high: float
    """Interval at `level`; it includes 0 where p_value > 1 - level."""
    level: float
    p_value: float
    """Two-sided, by `test`."""
    test: str
    """`mcnemar`, `sign-flip` (all flips), `sign-flip-saddlepoint`, or `seeds-x-questions` (the crossed t test)."""
    detectable: float
    """The smallest true difference that this test shows with 80 % power at level 1 - `level`."""
    questions: int
    only_a: int
    only_b: int
    """Questions on which a (b) scored higher."""
    p_questions: float
    """The exact test over questions: these very trained models, on other questions of the kind."""
    p_seeds: float | None
    """The exact test over training seeds, on these very questions; None with one seed on a side."""
    smallest_p_seeds: float | None
    """The smallest p_value that so few seeds can reach."""
    seeds: tuple[int, int]
    """Training seeds of a and of b."""
    seeds_paired: bool
    scope: str
    """METHODS or WEIGHTS."""
    judged: bool
    """False where both were trained and too few seeds are known to say anything about methods."""
    fit: Trinomial
    references: tuple[Reference, ...]
    doubts: tuple[Reference, ...]
    """What the intervals work from: the matched trinomial, and the references that must agree; doubts: those that
    equivalence must pass as well."""

    @property
    def shown(self) -> int:
        """1: a is shown to be better, -1: b is, 0: neither: the interval excludes 0, and then the test rejects."""
        return (int(self.low > 0) - int(self.high < 0)) * self.judged

    def at_level(self, level: float) -> PairedDifference:
        """The same comparison with its interval and its detectable difference at another level."""
        low, high = _bounds(self.fit, self.references, np.array(self.p_value), np.array(level))
        moved = self._replace(low=float(low), high=float(high), level=level)
        return moved._replace(detectable=_detectable(moved))

    def equivalence_p(self, margin: float) -> float:
        """The p-value of two one-sided tests (Schuirmann 1987): small where the difference lies within +-margin."""
        if self.questions < 2:
            return 1.0
        found = []
        for one in (*self.references, *self.doubts):
            for side in (-1, 1):
                statistic = _beyond(self.fit, np.array(self.difference), np.array(self.se), one, side * margin)
                p = float(one.student.p_value(statistic)) / 2
                found.append(p if statistic * -side > 0 else 1 - p)
        return max(found)


def paired_difference(a: ArrayLike, b: ArrayLike) -> PairedDifference:
    """Compare two runs on the same questions: mean of a - b with SE, 95 % interval and an exact or permutation test.

    a, b: [Q] scores in the same order of questions; a NaN marks a question that a run could not be scored on, and
    the pair is left out (`questions` counts those used). Raises ValueError where the shapes differ or no pair is
    left.
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1:
        raise ValueError(f"a and b must score the same questions, got shapes {left.shape} and {right.shape}")
    both = ~np.isnan(left + right)
    if not both.any():
        raise ValueError("no question is scored in both runs")
    return differences(left[None, None, both], right[None, None, both], trained=(False, False))[0]


def differences(
    a: Array,
    b: Array,
    *,
    seeds_paired: bool = False,
    exact_too: bool = True,
    trained: tuple[bool, bool] = (True, True),
    pool: SeedVariance | None = None,
) -> list[PairedDifference]:
    """Compare two methods in T columns at once. a: [T, S_a, Q], b: [T, S_b, Q], without NaN.

    seeds_paired: seed s of a and seed s of b were trained alike (S_a = S_b). exact_too: where the crossed test decides,
    also the exact tests, which take most of the time; without them p_questions is NaN and p_seeds None. trained:
    whether each is the result of training, which another seed could have made otherwise. pool: the variance of
    training over all methods of the table; without it that of these two. Raises ValueError where the questions, or the
    numbers of paired seeds, differ.
    """
    compared = compare_columns(a, b, seeds_paired=seeds_paired, exact_too=exact_too, trained=trained, pool=pool)
    d, fit, basis = compared.d, compared.fit, compared.basis
    found = []
    for i in range(d.shape[0]):
        p_seeds, smallest = (
            _over_seeds(a[i].mean(axis=1), b[i].mean(axis=1), seeds_paired) if exact_too else (None, None)
        )
        one = PairedDifference(
            difference=float(d[i].mean()),
            se=float(compared.se[i]),
            low=float(compared.low[i]),
            high=float(compared.high[i]),
            level=LEVEL,
            p_value=float(compared.p_value[i]),
            test=str(compared.test[i]),
            detectable=1.0,
            questions=d.shape[1],
            only_a=int((d[i] > 0).sum()),
            only_b=int((d[i] < 0).sum()),
            p_questions=float(compared.p_questions[i]),
            p_seeds=p_seeds,
            smallest_p_seeds=smallest,
            seeds=(a.shape[1], b.shape[1]),
            seeds_paired=seeds_paired,
            scope=basis.scope,
            judged=basis.judged,
            fit=Trinomial(fit.up[i], fit.down[i], fit.scale[i], d.shape[1]),
            references=_of_column(basis.references, i),
            doubts=_of_column(basis.doubts, i),
        )
        found.append(one._replace(detectable=_detectable(one)))
    return found


class _Basis(NamedTuple):
    """What a comparison rests on."""

    references: list[Reference]
    doubts: list[Reference]
    covered: bool
    """Whether the references hold the variance of training."""
    scope: str
    judged: bool


class Columns(NamedTuple):
    """T comparisons at once, as arrays [T]: see PairedDifference."""

    d: Array
    """[T, Q] a - b, each the mean over its seeds."""
    se: Array
    low: Array
    high: Array
    p_value: Array
    p_questions: Array
    test: NDArray[np.str_]
    fit: Trinomial
    basis: _Basis

    @property
    def shown(self) -> NDArray[np.int64]:
        """1: a is shown to be better, -1: b is, 0: neither."""
        return ((self.low > 0).astype(int) - (self.high < 0)) * self.basis.judged

    def equivalent(self, margin: float, alpha: float) -> NDArray[np.bool_]:
        """Return whether two one-sided tests at `alpha` show that the difference lies within +-margin."""
        mean = self.d.mean(axis=1)
        both: NDArray[np.bool_] = np.logical_and.reduce(
            [
                -side * _beyond(self.fit, mean, self.se, one, side * margin) >= one.student.quantile(1 - alpha)
                for one in (*self.basis.references, *self.basis.doubts)
                for side in (-1, 1)
            ]
        )
        return both


def compare_columns(
    a: Array,
    b: Array,
    *,
    seeds_paired: bool = False,
    exact_too: bool = True,
    trained: tuple[bool, bool] = (True, True),
    pool: SeedVariance | None = None,
    p_too: bool = True,
) -> Columns:
    """`differences` as arrays, for many columns. p_too: also the p-values of the crossed test, which take longest."""
    if a.shape[2] != b.shape[2] or a.shape[0] != b.shape[0]:
        raise ValueError(f"a and b must score the same questions, got shapes {a.shape} and {b.shape}")
    if seeds_paired and a.shape[1] != b.shape[1]:
        raise ValueError(f"paired seeds must be equally many, got {a.shape[1]} and {b.shape[1]}")
    tests, _, questions = a.shape
    left, right = a.mean(axis=1), b.mean(axis=1)
    d = left - right
    # The same pass@k, computed twice, may differ in the last bit.
    d = np.where(np.abs(d) < 1e-12, 0.0, d)
    basis = _basis(a, b, d, seeds_paired, trained, pool)
    fit = trinomial(d)
    binary = np.all((left == 0) | (left == 1), axis=1) & np.all((right == 0) | (right == 1), axis=1)
    p_questions, exact = np.full(tests, np.nan), np.ones(tests, dtype=bool)
    if exact_too or not basis.covered:
        p_questions = mcnemar_p((d > 0).sum(axis=1), (d < 0).sum(axis=1))
        p_questions[~binary], exact[~binary] = sign_flip_p(d[~binary])
    names = np.where(binary, "mcnemar", np.where(exact, "sign-flip", "sign-flip-saddlepoint"))
    p_values = p_questions
    se = np.full(tests, np.nan)
    if questions > 1:
        se = np.sqrt(d.var(axis=1, ddof=1) / questions + np.maximum.reduce([one.extra for one in basis.references]))
    if basis.covered:
        p_values = (
            np.full(tests, np.nan)
            if not p_too
            else np.maximum.reduce(
                [one.student.p_value(fit.statistic(np.zeros(tests), one.extra)) for one in basis.references]
            )
        )
        names = np.full(tests, "seeds-x-questions")
    low, high = _bounds(fit, basis.references, p_values, np.full(tests, LEVEL))
    return Columns(d, se, low, high, p_values, p_questions, names, fit, basis)


def _basis(a: Array, b: Array, d: Array, paired: bool, trained: tuple[bool, bool], pool: SeedVariance | None) -> _Basis:
    sides = [x for x, by_training in zip((a, b), trained, strict=True) if by_training] if d.shape[1] > 1 else []
    counts = [x.shape[1] for x in sides]
    if pool is None:
        pool = borrowed([seed_variance(x) for x in sides if x.shape[1] > 1])
    of_pool = [reference(d, [term(pool, counts)])] if pool is not None and sides else []
    if paired and a.shape[1] >= SEEDS_NEEDED and sides:
        own = reference(d, [term(seed_variance(a - b), [a.shape[1]])])
        return _Basis([own], of_pool if a.shape[1] < PAIRS_FOR_EQUIVALENCE else [], True, METHODS, True)
    if pool is not None and pool.total >= FREEDOM_NEEDED and sides:
        both = all(count >= SEEDS_NEEDED for count in counts)
        separate = [reference(d, [term(seed_variance(x), [x.shape[1]]) for x in sides])] if both else []
        return _Basis([*of_pool, *separate], [], True, METHODS, True)
    if all(trained) and of_pool:  # an interval, but too few seeds to judge by
        return _Basis(of_pool, [], True, METHODS, False)
    return _Basis([reference(d, [])], [], False, WEIGHTS, not all(trained))


def _of_column(references: list[Reference], i: int) -> tuple[Reference, ...]:
    return tuple(Reference(one.extra[i], Student(*(field[i] for field in one.student))) for one in references)


def _bounds(fit: Trinomial, references: Sequence[Reference], p: Array, level: Array) -> tuple[Array, Array]:
    """The union of the score intervals at `level`, with 0 in it where the test does not reject 0 at that level."""
    ends = [fit.bounds(one.student.quantile((1 + level) / 2), one.extra) for one in references]
    low: Array = np.minimum.reduce([low for low, _ in ends])
    high: Array = np.maximum.reduce([high for _, high in ends])
    kept = p > (1 - level) * (1 + 1e-9)
    return np.where(kept, np.minimum(low, 0.0), low), np.where(kept, np.maximum(high, 0.0), high)


def _beyond(fit: Trinomial, mean: Array, se: Array, one: Reference, limit: float) -> Array:
    """The statistic of "the difference is `limit`": far from 0 on the side of 0 where it is smaller."""
    # Where no difference on a question is as large as the limit, the trinomial of that mean has no variance.
    within = abs(limit) < fit.scale
    score = fit.statistic(np.where(within, limit, 0.0), one.extra)
    return np.where(within, score, (mean - limit) / np.maximum(se, 1e-12))


def _over_seeds(a: Array, b: Array, paired: bool) -> tuple[float | None, float | None]:
    """(p, the smallest p possible) of the exact test over the seeds' means a [S_a], b [S_b]."""
    if min(a.size, b.size) < 2:
        return None, None
    if paired:
        p, _ = sign_flip_p((a - b)[None])
        return float(p[0]), 2.0 ** (1 - a.size)
    ways = float(special.binom(a.size + b.size, a.size))
    return regroup_p(a, b), (2 if a.size == b.size else 1) / ways


def _detectable(found: PairedDifference) -> float:
    """The smallest true difference that the test shows with 80 % power at its level."""
    questions, alpha = found.questions, 1 - found.level
    if questions < 2:
        return 1.0
    of_questions = found.se**2 - max(float(one.extra) for one in found.references)
    by_t = max(
        detectable_by_t(float(np.sqrt(of_questions + one.extra)), one.student, alpha) for one in found.references
    )
    share = (found.only_a + found.only_b) / questions
    if found.test == "seeds-x-questions" or (found.test != "mcnemar" and share > 0.5):
        return by_t
    # Few questions differ: what counts is how many would have to, each by about `scale`.
    exact = float(found.fit.scale) * detectable_by_mcnemar(questions, share, round(alpha, 12))
    return exact if found.test == "mcnemar" else max(exact, by_t)


def holm(p_values: ArrayLike, owners: Sequence[int] | None = None) -> Array:
    """Return Holm's step-down adjusted p-values, in the given order: reject where they are <= the level.

    owners: the comparison that each hypothesis belongs to. Of the hypotheses of one comparison at most one can be true
    (no difference; one beyond the margin), so a step counts the comparisons that are not settled yet (Shaffer 1986).
    """
    p = np.asarray(p_values, dtype=np.float64)
    return np.minimum(p * holm_factors(p, owners), 1.0)


def holm_factors(p: Array, owners: Sequence[int] | None = None) -> Array:
    """What each p-value is multiplied by: the comparison's level is the family's, divided by it."""
    order, p = np.argsort(p, kind="stable"), np.maximum(p, 1e-300)
    owner = np.arange(p.size) if owners is None else np.asarray(owners)
    open_comparisons = [np.unique(owner[order[i:]]).size for i in range(p.size)]
    factors = np.empty_like(p)
    factors[order] = np.maximum.accumulate(p[order] * open_comparisons) / p[order]
    return factors
