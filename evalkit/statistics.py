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

A method is trained with S seeds and gives scores v_sq: seeds and questions are crossed random effects,

    v_sq = mu + A_s + B_q + E_sq,     V(mean) = V_Q + max(V_S - V_E, 0),

V_S = var_s(mean over q) / S, V_Q = var_q(mean over s) / Q, V_E the mean square of what is left over S Q: the ANOVA
estimator of the two-way crossed design (Cornfield and Tukey 1956; the same as in multi-reader studies, Hillis 2007,
and multiway clustering, Cameron, Gelbach and Miller 2011). Three seeds are the fewest that say anything about training
(SEEDS_NEEDED); with fewer the questions' variance alone is counted. Quantiles: `_student`.

Difference of two methods on the same questions (`differences`). Where both trained the same seeds, those are paired
and d_sq = a_sq - b_sq is such a layout itself; elsewhere the seed terms of the two methods add up. One run against
one run is tested exactly: McNemar where all scores are 0 or 1, else sign flips (evalkit/permutation.py). With seeds
the test is the t test of the estimator above. The interval is the score interval of evalkit/score_interval.py at the
same level: it includes 0 wherever its test does not reject.

Sources beside those named: Holm (1979); Miller, "Adding Error Bars to Evals" (arXiv 2411.00640) for clustering and
pairing. scipy.special carries the distributions: scipy.stats has the same numbers but takes half a second to import.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gtpo.evalkit.permutation import mcnemar_p, regroup_p, sign_flip_p
from gtpo.evalkit.score_interval import (
    Student,
    Trinomial,
    detectable_by_mcnemar,
    detectable_by_t,
    mean_bounds,
    poisson_limit,
    t_quantile,
    trinomial,
)
from numpy.typing import ArrayLike, NDArray
from scipy import special

LEVEL = 0.95
"""Coverage of every interval here."""
SEEDS_NEEDED = 3
"""Training seeds of a method from which on an interval covers them."""

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
    """low, high: covers questions and samples, and training seeds from SEEDS_NEEDED seeds on."""
    seed_means: tuple[float, ...]
    """The mean of each seed."""

    @property
    def seed_sd(self) -> float | None:
        """Sample standard deviation over seeds; None for one seed."""
        return float(np.std(self.seed_means, ddof=1)) if len(self.seed_means) > 1 else None


class PairedDifference(NamedTuple):
    """Mean of a - b over the questions both answered, as fractions. se is NaN where one question is too few."""

    difference: float
    se: float
    """One run each: sd(d) / sqrt(Q), with Q - 1 in the sd's denominator. With seeds: the root of V(mean) above."""
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
    fit: Trinomial
    extra: float
    student: Student
    """What `at_level` works from: the matched trinomial, the variance of training, the quantiles."""

    @property
    def shown(self) -> int:
        """1: a is shown to be better, -1: b is, 0: neither: the interval excludes 0, and then the test rejects."""
        return int(self.low > 0) - int(self.high < 0)

    def at_level(self, level: float) -> PairedDifference:
        """The same comparison with its interval and its detectable difference at another level."""
        low, high = _bounds(self.fit, self.extra, self.student, np.array(self.p_value), np.array(level))
        found = _detectable(self.test, self.questions, self.fit, self.se, self.student, self.only_a, self.only_b, level)
        return self._replace(low=float(low), high=float(high), level=level, detectable=found)


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


def method_mean(scores: ArrayLike) -> MethodMean:
    """Return a method's mean over S seeds and Q questions with its 95 % interval. scores: [S, Q] in [0, 1].

    Raises ValueError on an empty array, a NaN, or a score outside [0, 1].
    """
    values = _checked(scores)
    if values.ndim != 2:
        raise ValueError(f"scores must be [seeds, questions], got shape {values.shape}")
    seeds, questions = values.shape
    by_question = values.mean(axis=0)
    extra, critical = 0.0, t_quantile((1 + LEVEL) / 2, questions - 1)
    if seeds >= SEEDS_NEEDED and questions > 1:
        term = _training_variance(values[None])
        extra, (critical,) = float(term.variance[0]), _student(by_question[None], [term]).quantile((1 + LEVEL) / 2)
    low, high = _mean_bounds(by_question, extra, float(critical))
    return MethodMean(float(by_question.mean()), low, high, tuple(values.mean(axis=1).tolist()))


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


class _Training(NamedTuple):
    """What S seeds on Q questions say of the noise of training, for T columns."""

    variance: Array
    """max(V_S - V_E, 0)."""
    of_seeds: Array
    """V_S."""
    squares: Array
    """The sum of V^2 / degrees of freedom over V_S and V_E."""
    freedom: int
    """S - 1."""


def _training_variance(x: Array) -> _Training:
    """x: [T, S, Q]."""
    seeds, questions = x.shape[1:]
    by_seed, by_question = x.mean(axis=2), x.mean(axis=1)
    between = by_seed.var(axis=1, ddof=1) / seeds
    left = x - by_seed[:, :, None] - by_question[:, None, :] + by_seed.mean(axis=1)[:, None, None]
    freedom = (seeds - 1) * (questions - 1)
    residual = np.square(left).sum(axis=(1, 2)) / (freedom * seeds * questions)
    squares = np.square(between) / (seeds - 1) + np.square(residual) / freedom
    return _Training(np.maximum(between - residual, 0.0), between, squares, seeds - 1)


def _student(by_question: Array, terms: list[_Training]) -> Student:
    """What (mean - its expectation) / sqrt(V_Q + the terms) is referred to; by_question: [T, Q].

    One term of training: Cochran and Cox's (1950) quantile, the mean of those with Q - 1 and S - 1 degrees of freedom,
    weighted with the variances V_Q and V_S. Two terms (seeds that do not pair): Satterthwaite's degrees of freedom, at
    least those of the smallest term. With one term of 2 degrees of freedom these are too many: where it comes out
    small by chance, it also seems to count for little, and a test at 5 % rejects 8 %, one at 1 % 3.6 %.
    """
    tests, questions = by_question.shape
    of_questions = by_question.var(axis=1, ddof=1) / questions if questions > 1 else np.zeros(tests)
    whole = of_questions + sum((term.variance for term in terms), np.zeros(tests))
    by_questions = np.full(tests, questions - 1.0)
    if len(terms) < 2:
        none = np.zeros(tests)
        of_seeds = terms[0].of_seeds if terms else none
        weight = np.minimum(np.divide(of_seeds, whole, out=none, where=whole > 0), 1.0)
        return Student(by_questions, np.full(tests, float(terms[0].freedom if terms else 1)), weight)
    parts = np.square(of_questions) / (questions - 1) + sum(term.squares for term in terms)
    freedom = np.divide(np.square(whole), parts, out=by_questions, where=parts > 0)
    least = min(questions - 1.0, *(term.freedom for term in terms))
    return Student(np.maximum(freedom, least), np.ones(tests), np.zeros(tests))


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
    return differences(left[None, None, both], right[None, None, both])[0]


def differences(a: Array, b: Array, *, seeds_paired: bool = False, exact_too: bool = True) -> list[PairedDifference]:
    """Compare two methods in T columns at once. a: [T, S_a, Q], b: [T, S_b, Q], without NaN.

    seeds_paired: seed s of a and seed s of b were trained alike (S_a = S_b). exact_too: where the crossed test decides,
    also the exact tests, which take most of the time; without them p_questions is NaN and p_seeds None. Every
    comparison depends on its own column alone. Raises ValueError where the questions, or the numbers of paired seeds,
    differ.
    """
    if a.shape[2] != b.shape[2] or a.shape[0] != b.shape[0]:
        raise ValueError(f"a and b must score the same questions, got shapes {a.shape} and {b.shape}")
    if seeds_paired and a.shape[1] != b.shape[1]:
        raise ValueError(f"paired seeds must be equally many, got {a.shape[1]} and {b.shape[1]}")
    tests, _, questions = a.shape
    seeds = (a.shape[1], b.shape[1])
    left, right = a.mean(axis=1), b.mean(axis=1)
    d = left - right
    d = np.where(np.abs(d) < 1e-12, 0.0, d)  # 1 - C(n-c,k)/C(n,k) computed twice may differ in the last bit
    sources = [a - b] if seeds_paired else [a, b]
    covered = [_training_variance(x) for x in sources if x.shape[1] >= SEEDS_NEEDED and questions > 1]
    training = sum((term.variance for term in covered), np.zeros(tests))
    student = _student(d, covered)
    fit = trinomial(d)
    only_a, only_b = (d > 0).sum(axis=1), (d < 0).sum(axis=1)
    binary = np.all((left == 0) | (left == 1), axis=1) & np.all((right == 0) | (right == 1), axis=1)
    p_questions, exact = np.full(tests, np.nan), np.ones(tests, dtype=bool)
    if exact_too or not covered:
        p_questions = mcnemar_p(only_a, only_b)
        p_questions[~binary], exact[~binary] = sign_flip_p(d[~binary])
    names = np.where(binary, "mcnemar", np.where(exact, "sign-flip", "sign-flip-saddlepoint"))
    p_values = p_questions
    se = np.sqrt(d.var(axis=1, ddof=1) / questions + training) if questions > 1 else np.full(tests, np.nan)
    if covered:
        p_values = student.p_value(fit.statistic(np.zeros(tests), training))
        names = np.full(tests, "seeds-x-questions")
    low, high = _bounds(fit, training, student, p_values, np.full(tests, LEVEL))
    found = []
    for i in range(tests):
        p_seeds, smallest = (
            _over_seeds(a[i].mean(axis=1), b[i].mean(axis=1), seeds_paired) if exact_too else (None, None)
        )
        its_fit = Trinomial(fit.up[i], fit.down[i], fit.scale[i], questions)
        its_student = Student(*(field[i] for field in student))
        test, counts = str(names[i]), (int(only_a[i]), int(only_b[i]))
        found.append(
            PairedDifference(
                difference=float(d[i].mean()),
                se=float(se[i]),
                low=float(low[i]),
                high=float(high[i]),
                level=LEVEL,
                p_value=float(p_values[i]),
                test=test,
                detectable=_detectable(test, questions, its_fit, float(se[i]), its_student, *counts, LEVEL),
                questions=questions,
                only_a=counts[0],
                only_b=counts[1],
                p_questions=float(p_questions[i]),
                p_seeds=p_seeds,
                smallest_p_seeds=smallest,
                seeds=seeds,
                seeds_paired=seeds_paired,
                fit=its_fit,
                extra=float(training[i]),
                student=its_student,
            )
        )
    return found


def _bounds(fit: Trinomial, extra: ArrayLike, student: Student, p: Array, level: Array) -> tuple[Array, Array]:
    """The score interval at `level`, with 0 in it where the test does not reject 0 at that level."""
    low, high = fit.bounds(student.quantile((1 + level) / 2), np.asarray(extra))
    kept = p > (1 - level) * (1 + 1e-9)
    return np.where(kept, np.minimum(low, 0.0), low), np.where(kept, np.maximum(high, 0.0), high)


def _over_seeds(a: Array, b: Array, paired: bool) -> tuple[float | None, float | None]:
    """(p, the smallest p possible) of the exact test over the seeds' means a [S_a], b [S_b]."""
    if min(a.size, b.size) < 2:
        return None, None
    if paired:
        p, _ = sign_flip_p((a - b)[None])
        return float(p[0]), 2.0 ** (1 - a.size)
    ways = float(special.binom(a.size + b.size, a.size))
    return regroup_p(a, b), (2 if a.size == b.size else 1) / ways


def _detectable(
    test: str, questions: int, fit: Trinomial, se: float, student: Student, only_a: int, only_b: int, level: float
) -> float:
    if questions < 2:
        return 1.0
    by_t = detectable_by_t(se, student, 1 - level)
    share = (only_a + only_b) / questions
    if test == "seeds-x-questions" or (test != "mcnemar" and share > 0.5):
        return by_t
    # Few questions differ: what counts is how many would have to, each by about `scale`.
    exact = float(fit.scale) * detectable_by_mcnemar(questions, share, round(1 - level, 12))
    return exact if test == "mcnemar" else max(exact, by_t)


def holm(p_values: ArrayLike) -> Array:
    """Return Holm's step-down adjusted p-values, in the given order: reject where they are <= the level."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
