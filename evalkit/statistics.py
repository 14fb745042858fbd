"""Error bars and tests for scores in [0, 1] that are clustered by question, of one run or of several training seeds.

Q questions (more precisely Q clusters: questions with the same text are one), S training seeds. The samples of a
question are not independent of each other, the questions are: the question is the unit everywhere.

**A difference** of two methods is the mean over questions of d_q = a_q - b_q, each a mean over its method's seeds.
Its variance has two sources:

    V   = V_Q + V_T
    V_Q = (sum_q (d_q - mean d)^2 + UNSEEN z s^2) / (Q (Q - 1))
    z   = max(1 - min(#{q: d_q != 0}, 2 m) / Q, (sum_q d_q)^2 / (Q sum_q d_q^2))
    m   = (sum_q |d_q|)^2 / sum_q d_q^2        s^2 = (sum_q d_q^2 + 1) / (m + 1)
    V_T = sum over both methods of max(B - E, 0) / S

UNSEEN z s^2 is a prior: the squares of two differences that no question has shown yet. If nearly all questions came
out alike (z = 1: a ceiling), the sum is nearly 0 and says nothing of the differences that other questions would show.
m counts the questions that do show one: those with d != 0 if all d are 0 or +-1; of pass@k with n > k, whose d are
mostly tiny and seldom large, about the large ones; of normal ones 2/pi Q. Half of Q needs no prior. s is how large the
shown differences are, counted together with one that is as large as it can be.

B is the variance between the means of a method's seeds, and E what of it samples and single questions explain (crossed
random effects: Cornfield and Tukey 1956). B of a method is at least the pooled one of both: three runs that did not
collapse do not show that none does. From PAIRS_NEEDED common seeds on these are paired: then V_T is that of
a_sq - b_sq.

(mean d - delta) / sqrt(V) is taken for Student's t. Its degrees of freedom are those whose 97.5 % quantile is Cochran
and Cox's (1950): the mean of the quantiles with Q - 1 and with the seeds' degrees of freedom (Satterthwaite 1946),
weighted with the two variances. Satterthwaite's for both together are too many: a variance of three seeds that comes
out small by chance also seems to count for little. Interval, p-value and equivalence all come from this t, so they
never disagree: a difference is shown if the interval excludes 0, and two methods are equivalent if it lies within the
margin (two one-sided tests, Schuirmann 1987, at 2.5 %).

**A mean** m of Q scores v_q has a score interval: all mu with |m - mu| <= t sqrt(phi mu (1 - mu) / Q), where
phi = (sum_q (v_q - m)^2 + Q^2 V_T + c) / (Q m (1 - m) + c), c = 1/4, says how much less the scores vary than 0/1
outcomes would. For 0/1 scores this is Wilson's interval with t for z; for others it tends to the t interval. If one or
two of 0/1 scores stand apart, Wilson's inner end covers as little as 84 %: there it is the Poisson limit of the
modified Wilson interval (Brown, Cai and DasGupta 2001, section 4.1.1).

bench/coverage.py simulates what all this covers. Holm (1979) and Shaffer (1986): corrections. Miller, "Adding Error
Bars to Evals" (arXiv 2411.00640). scipy.special carries the distributions: scipy.stats takes half a second to import.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

# Coverage of every interval.
LEVEL = 0.95
# Training seeds of each of two methods from which on something is said of the methods, and not only of weights.
#
# A difference to given weights is about weights, however many seeds the other side has: all its runs may have come out
# well by chance. If half of a method's runs collapse, three are alike in 1 of 4 cases, and nothing in them says that
# another could differ (two methods of three seeds each: in 1 of 32).
SEEDS_NEEDED = 3
# Common seeds from which on they are paired. With fewer, runs of which some collapse look too often (2^-S) as if two
# methods never differed.
PAIRS_NEEDED = 5
# What a difference speaks of: methods, trained anew with other seeds; these very sets of weights; or, if nobody knows
# whether the runs of a side were trained apart, these very outputs.
METHODS, WEIGHTS, OUTPUTS = "methods", "weights", "outputs"
# The prior of V_Q above: it keeps wrong equivalence below 6 % if one model loses a few of many questions. It shows
# a difference of 0/1 scores from 6 questions to none on, as McNemar's exact test does.
UNSEEN = 2.25
# Wordings (texts apart from their numbers) from which on each is a family of questions.
FAMILIES = 20
_NUMBER = re.compile(r"\d+([.,]\d+)*")
# c above: it keeps a mean's interval honest if all scores agree.
_PRIOR = 0.25
# Questions that stand apart, up to which Wilson's interval is mended.
_FEW = 2

Array = NDArray[np.float64]


class ScoreInterval(NamedTuple):
    """A mean in [0, 1] with its 95 % interval over questions and samples, all as fractions."""

    mean: float
    low: float
    high: float
    # Whether it covers training too.
    covers_training: bool
    # The mean of each training seed.
    seed_means: tuple[float, ...]

    @property
    def seed_sd(self) -> float | None:
        """Sample standard deviation over seeds; None for one seed."""
        return float(np.std(self.seed_means, ddof=1)) if len(self.seed_means) > 1 else None


class PairedDifference(NamedTuple):
    """Mean of a - b over the questions both answered, as fractions: one difference, or T of them as arrays [T]."""

    difference: Array
    # V above; NaN for a single question.
    variance: Array
    # Degrees of freedom of t.
    freedom: Array
    # Of d_q, as far as questions make V; NaN for a single question.
    skewness: Array
    questions: int
    # Questions on which a (b) scored higher.
    only_a: Array
    only_b: Array
    # Training seeds of a and of b; 0 for weights that were not trained here.
    seeds: tuple[int, int]
    seeds_paired: bool
    # Level of the interval.
    level: float = LEVEL
    # False: a side has several runs that are not known to be trained apart.
    known: bool = True

    @property
    def scope(self) -> str:
        """METHODS if both sides were trained, with SEEDS_NEEDED seeds each; OUTPUTS if that is not known of a side."""
        if not self.known:
            return OUTPUTS
        return METHODS if min(self.seeds) >= SEEDS_NEEDED else WEIGHTS

    @property
    def judged(self) -> bool:
        """False if training is not known, or both sides were trained and one has too few seeds to speak of methods."""
        return self.scope == METHODS or (self.known and 0 in self.seeds)

    @property
    def covers(self) -> str:
        """What the interval and the test cover."""
        return "seeds, questions and samples" if self.scope == METHODS else "questions and samples"

    @property
    def se(self) -> Array:
        """Standard error."""
        return np.sqrt(self.variance)

    @property
    def half_width(self) -> Array:
        """Of the interval, before it is cut off at -1 and 1."""
        return t_quantile((1 + self.level) / 2, self.freedom) * np.nan_to_num(self.se, nan=np.inf)

    @property
    def low(self) -> Array:
        """Lower end of the interval; it excludes 0 exactly if p_value < 1 - level."""
        return np.maximum(self.difference - self.half_width, -1.0)

    @property
    def high(self) -> Array:
        """Upper end."""
        return np.minimum(self.difference + self.half_width, 1.0)

    @property
    def p_value(self) -> Array:
        """Two-sided, of no difference."""
        return 2 * self._tail(-np.abs(self.difference))

    def equivalence_p(self, margin: float, moved: tuple[ArrayLike, ArrayLike] = (0.0, 0.0)) -> Array:
        """Of equivalence: below 1 - level exactly if the interval lies within +-margin. moved: as in `shown`."""
        low, high = self.difference + np.minimum(moved[0], 0.0), self.difference + np.maximum(moved[1], 0.0)
        p: Array = np.minimum(2 * np.maximum(self._tail(high - margin), self._tail(-low - margin)), 1.0)
        return p

    def loses_less(
        self, most: float, moved: tuple[ArrayLike, ArrayLike] = (0.0, 0.0), looks: int = 1
    ) -> NDArray[np.bool_]:
        """Whether a loss of `most` of a is excluded at one-sided 5 %, and training is known; as in `shown`."""
        t = t_quantile(1 - (1 - LEVEL) / looks, self.freedom)
        # A few large losses that are seldom drawn: the bound of t is too high (Johnson 1978).
        t = t + np.maximum(-self.skewness, 0.0) * (1 + 2 * t**2) / (6 * np.sqrt(self.questions))
        low = self.difference - t * np.nan_to_num(self.se, nan=np.inf) + np.minimum(moved[0], 0.0)
        excluded: NDArray[np.bool_] = (low > -most) & self.judged
        return excluded

    def shown(self, moved: tuple[ArrayLike, ArrayLike] = (0.0, 0.0)) -> NDArray[np.int64]:
        """1: a is shown to be better, -1: b is, 0: neither. The interval excludes 0, wherever missing samples move it.

        moved: how far missing samples could move the difference, down and up.
        """
        up, down = self.low + np.minimum(moved[0], 0.0) > 0, self.high + np.maximum(moved[1], 0.0) < 0
        signs: NDArray[np.int64] = (up.astype(int) - down.astype(int)) * self.judged
        return signs

    def at(self, i: int) -> PairedDifference:
        """Return the i-th of T differences."""
        arrays = {name: value[i] for name, value in self._asdict().items() if isinstance(value, np.ndarray)}
        return self._replace(**arrays)

    def _tail(self, distance: Array) -> Array:
        """The chance that t lies below distance / se."""
        if self.questions < 2:  # no variance: p = 1
            return np.full_like(distance, 0.5)
        tail: Array = special.stdtr(self.freedom, distance / self.se)
        return tail


def t_quantile(probability: float, freedom: ArrayLike) -> Array:
    """Student's quantile; infinite for 0 degrees of freedom."""
    freedom = np.asarray(freedom, dtype=np.float64)
    return np.where(freedom > 0, special.stdtrit(np.where(freedom > 0, freedom, 1), probability), np.inf)


def paired_difference(a: ArrayLike, b: ArrayLike, clusters: ArrayLike | None = None) -> PairedDifference:
    """Compare two runs on the same questions: mean of a - b with standard error, 95 % interval and t test.

    a, b: [Q] scores in the same order of questions; a NaN marks a question that a run could not be scored on, and
    the pair is left out (`questions` counts those used). clusters: [Q] labels; questions with one label are one.
    Raises ValueError if the shapes differ or no pair is left.
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1:
        raise ValueError(f"a and b must score the same questions, got shapes {left.shape} and {right.shape}")
    both = ~np.isnan(left + right)
    if not both.any():
        raise ValueError("no question is scored in both runs")
    labels = None if clusters is None else np.asarray(clusters)[both]
    found = differences(left[None, None, both], right[None, None, both], trained=(False, False), clusters=labels)
    return found.at(0)


def differences(
    a: Array,
    b: Array,
    *,
    paired: bool = False,
    trained: tuple[bool, bool] = (True, True),
    known: bool = True,
    clusters: ArrayLike | None = None,
) -> PairedDifference:
    """Compare two methods, T times at once. a: [T, S_a, Q], b: [T, S_b, Q], without NaN.

    paired: seed s of a and seed s of b were trained alike; used from PAIRS_NEEDED seeds on. trained: whether each is
    the result of training, which another seed could have made otherwise. known: as in PairedDifference. clusters: as in
    `paired_difference`. Raises ValueError if the questions, or the numbers of paired seeds, differ.
    """
    if a.shape[2] != b.shape[2] or a.shape[0] != b.shape[0]:
        raise ValueError(f"a and b must score the same questions, got shapes {a.shape} and {b.shape}")
    if paired and a.shape[1] != b.shape[1]:
        raise ValueError(f"paired seeds must be equally many, got {a.shape[1]} and {b.shape[1]}")
    seeds = a.shape[1] * trained[0], b.shape[1] * trained[1]
    wins = a.mean(axis=1) - b.mean(axis=1)
    # The same pass@k, computed twice, may differ in the last bit.
    wins = np.where(np.abs(wins) < 1e-12, 0.0, wins)
    a, weight = by_cluster(a, clusters)
    b, _ = by_cluster(b, clusters)
    paired = paired and all(trained) and a.shape[1] >= PAIRS_NEEDED
    sides = [a - b] if paired else [a, b]
    d = a.mean(axis=1) - b.mean(axis=1)
    d = np.where(np.abs(d) < 1e-12, 0.0, d)
    mean, questions = d.mean(axis=1), d.shape[1]
    unknown = np.full_like(mean, np.nan)
    found = PairedDifference(
        mean, unknown, np.zeros_like(mean), unknown, questions, (wins > 0).sum(axis=1), (wins < 0).sum(axis=1),
        seeds, paired, known=known,
    )  # fmt: skip
    if questions < 2:
        return found
    of_questions, rest = question_variance(d, weight), d - weight * mean[:, None]
    skewness = (rest**3).mean(axis=1) / np.maximum(np.square(rest).mean(axis=1), 1e-12) ** 1.5
    # Given weights do not vary: only other questions and samples could change it.
    if found.scope != METHODS:
        return found._replace(variance=of_questions, freedom=np.full_like(mean, questions - 1.0), skewness=skewness)
    variance, quantile, degrees = join_variances(of_questions, [seed_variance(x, weight) for x in sides], questions)
    skewness *= (of_questions / variance) ** 1.5
    return found._replace(variance=variance, freedom=freedom_of(quantile, degrees, questions), skewness=skewness)


def question_variance(d: Array, weight: Array | float = 1.0) -> Array:
    """Return V_Q of the differences d [T, Q], at least two; weight: of `by_cluster`."""
    questions, mean, squares = d.shape[1], d.mean(axis=1), np.square(d).sum(axis=1)
    informative = np.abs(d).sum(axis=1) ** 2 / np.maximum(squares, 1e-300)
    # The last term is for d that are all alike but not 0 (every question 1 point better).
    alike = np.maximum(
        1 - np.minimum(np.count_nonzero(d, axis=1), 2 * informative) / questions,
        questions * mean**2 / np.maximum(squares, 1e-300),
    )
    spread = np.square(d - weight * mean[:, None]).sum(axis=1) + UNSEEN * alike * (squares + 1) / (informative + 1)
    of_questions: Array = spread / (questions - 1) / questions
    return of_questions


def join_variances(of_questions: Array, noise: list[SeedVariance], questions: int) -> tuple[Array, Array, Array]:
    """Return V, the 97.5 % quantile that belongs to it, and the degrees of freedom of its part of training.

    noise: of both methods, or of their difference if seeds are paired.
    """
    if len(noise) > 1:
        # At least the pooled variance: three runs that did not collapse do not show that none does.
        freedom = sum(one.freedom for one in noise)
        pooled = sum(one.between * one.freedom for one in noise) / freedom
        noise = [one._replace(between=np.maximum(one.between, pooled)) for one in noise]
    none = np.zeros_like(of_questions)
    variance = of_questions + sum((one.training / one.seeds for one in noise), none)
    of_seeds = sum((one.between / one.seeds for one in noise), none)
    parts = sum(((one.between / one.seeds) ** 2 / one.freedom for one in noise), none)
    # Satterthwaite 1946: two variances are added, so the degrees of freedom depend on which is large.
    degrees = np.maximum(of_seeds**2 / np.maximum(parts, 1e-300), min(one.freedom for one in noise))
    return variance, _cochran_cox(of_seeds / np.maximum(variance, 1e-300), degrees, questions), degrees


def _cochran_cox(weight: Array, degrees: ArrayLike, questions: int) -> Array:
    """Return the 97.5 % quantile; weight, degrees: of the seeds."""
    # Not Satterthwaite's for the sum: if three seeds come out alike by chance, he gives their variance no weight.
    weight, middle = np.minimum(weight, 1.0), (1 + LEVEL) / 2
    quantile: Array = (1 - weight) * t_quantile(middle, questions - 1) + weight * t_quantile(middle, degrees)
    return quantile


def freedom_of(quantile: Array, degrees: ArrayLike, questions: int) -> Array:
    """Return the degrees of freedom that have this 97.5 % quantile, by bisection; degrees: of the seeds."""
    degrees = np.broadcast_to(np.asarray(degrees, dtype=np.float64), quantile.shape)
    low, high = np.log(np.minimum(degrees, questions - 1)), np.log(np.maximum(degrees, questions - 1))
    for _ in range(40):  # halves a range of logarithms, below 14, to 1e-11
        between = (low + high) / 2
        more = t_quantile((1 + LEVEL) / 2, np.exp(between)) > quantile
        low, high = np.where(more, between, low), np.where(more, high, between)
    freedom: Array = np.exp((low + high) / 2)
    return freedom


class SeedVariance(NamedTuple):
    """How the mean score of one training run varies, T times."""

    # B: variance between runs of their means over the questions. [T]
    between: Array
    # E: what of it is due to samples and to single questions. [T]
    residual: Array
    seeds: int
    # Terms by question, whose mean over the number of questions is E. [T, Q]
    by_question: Array

    @property
    def freedom(self) -> int:
        """Degrees of freedom of `between`."""
        return self.seeds - 1

    @property
    def training(self) -> Array:
        """The variance of training without samples and questions."""
        return np.maximum(self.between - self.residual, 0.0)


def seed_variance(x: Array, weight: Array | float = 1.0) -> SeedVariance:
    """Return the variance between the seeds of one method, at least two. x: [T, S, Q] and weight of `by_cluster`."""
    _, seeds, questions = x.shape
    by_seed = x.mean(axis=2)
    grand = by_seed.mean(axis=1)[:, None, None]
    left = x - x.mean(axis=1, keepdims=True) - weight * (by_seed[:, :, None] - grand)
    by_question = np.square(left).sum(axis=1) * questions / ((seeds - 1) * (questions - 1))
    return SeedVariance(by_seed.var(axis=1, ddof=1), by_question.mean(axis=1) / questions, seeds, by_question)


def by_cluster(x: Array, clusters: ArrayLike | None) -> tuple[Array, Array]:
    """Return x [..., Q] by cluster, [..., G], with the same mean; and the clusters' sizes [G] over their mean."""
    if clusters is None:
        return x, np.ones(x.shape[-1])
    _, place, size = np.unique(np.asarray(clusters), return_inverse=True, return_counts=True)
    weight = size / size.mean()
    if size.max(initial=1) == 1:
        return x, weight
    total = np.zeros((*x.shape[:-1], size.size))
    np.add.at(total.T, place, x.T)
    return total / size.mean(), weight


def wording(text: str) -> str:
    """Return a text without its numbers."""
    return _NUMBER.sub("#", " ".join(text.split()))


def clusters_of(texts: Sequence[str], families: Sequence[str], source: str = "") -> NDArray[np.int64] | None:
    """Return a number for each question [Q]: the same for one family, or for texts that differ in white space only.

    Texts that differ in their numbers only are one too, if there are at least FAMILIES wordings: problems in several
    versions. Fewer are the templates of a generator, which all sets of its questions have in common. families: "" is
    none; if any is known, wordings are not compared, nor for a source that is `generated`. None if every question is
    its own.
    """
    names = [
        f"\1{family}" if family else " ".join(text.split()) or f"\0{i}"
        for i, (text, family) in enumerate(zip(texts, families, strict=True))
    ]
    if not any(families) and not source.startswith("generated") and len(set(map(wording, names))) >= FAMILIES:
        names = [name if name[0] == "\0" else wording(name) for name in names]
    numbers = np.unique(names, return_inverse=True)[1]
    return None if numbers.max(initial=-1) + 1 == len(texts) else numbers


def mean_interval(values: ArrayLike, *, clusters: ArrayLike | None = None) -> ScoreInterval:
    """Return the mean of per-question scores with its 95 % interval, clustered by question.

    values: [Q] scores in [0, 1], one per question. clusters: [Q] labels; questions with one label are one. Raises
    ValueError on an empty list, a NaN, or a score outside [0, 1].
    """
    return method_mean(np.asarray(values)[None], clusters=clusters)


def method_mean(scores: ArrayLike, *, clusters: ArrayLike | None = None) -> ScoreInterval:
    """Return a method's mean over S seeds and Q questions with its 95 % interval. scores: [S, Q] in [0, 1].

    From SEEDS_NEEDED seeds on it covers training. clusters: as in `mean_interval`. Raises ValueError on an empty
    array, a NaN, or a score outside [0, 1].
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"scores must be a non-empty list, of one run or [seeds, questions], got shape {values.shape}")
    if not (np.all(values >= -1e-9) and np.all(values <= 1 + 1e-9)):
        raise ValueError("scores must lie in [0, 1]: one fraction per question, no NaN")
    values = np.clip(values, 0.0, 1.0)
    seed_means = values.mean(axis=1)
    x, weight = by_cluster(values, clusters)
    seeds, questions = x.shape
    mean, by_question = float(seed_means.mean()), x.mean(axis=0)
    spread, freedom = float(np.square(by_question - weight * mean).sum()), questions - 1.0
    covers_training = questions > 1 and seeds >= SEEDS_NEEDED
    if covers_training:
        noise = seed_variance(x[None], weight)
        whole = spread / (questions - 1) / questions + noise.training / seeds
        quantile = _cochran_cox(noise.between / seeds / np.maximum(whole, 1e-300), noise.freedom, questions)
        freedom = float(freedom_of(quantile, noise.freedom, questions)[0])
        spread += questions**2 * float(noise.training[0]) / seeds
    phi = (spread + _PRIOR) / (questions * mean * (1 - mean) + _PRIOR)
    effective, t = questions / phi, float(t_quantile((1 + LEVEL) / 2, freedom))
    low, high = 0.0, 1.0
    if np.isfinite(t):  # all mu in [0, 1] with |mean - mu| <= t sqrt(mu (1 - mu) / effective)
        shrink = t**2 / effective
        centre = (mean + shrink / 2) / (1 + shrink)
        half = t * np.sqrt(mean * (1 - mean) / effective + (t / effective) ** 2 / 4) / (1 + shrink)
        # At mean 0 and 1 the bound is the mean itself; rounding must not move it.
        low, high = float(min(max(centre - half, 0.0), mean)), float(max(min(centre + half, 1.0), mean))
    solved = int(np.count_nonzero(by_question))
    if solved == by_question.sum():  # 0/1 scores: with one or two apart, Wilson's inner end covers as little as 84 %
        # The expected counts for which so many or more would be seen with probability 1 - LEVEL.
        if 0 < solved <= _FEW:
            low = min(low, float(special.gammaincinv(solved, 1 - LEVEL)) / questions)
        if 0 < questions - solved <= _FEW:
            high = max(high, 1 - float(special.gammaincinv(questions - solved, 1 - LEVEL)) / questions)
    return ScoreInterval(mean, low, high, covers_training, tuple(seed_means.tolist()))


def holm_factors(p: Array, owners: Sequence[int] | None = None) -> Array:
    """Return what Holm's step-down correction multiplies each p-value by: reject if the product is <= the level.

    The level of a comparison's own interval is the family's, divided by it. owners: the comparison that each hypothesis
    belongs to. Of the hypotheses of one comparison at most one can be true (no difference; one beyond the margin), so a
    step counts the comparisons that are not settled yet (Shaffer 1986).
    """
    order, p = np.argsort(p, kind="stable"), np.maximum(p, 1e-300)
    owner = np.arange(p.size) if owners is None else np.asarray(owners)
    open_comparisons = [np.unique(owner[order[i:]]).size for i in range(p.size)]
    factors = np.empty_like(p)
    # A hypothesis is rejected only if all with smaller p are: its adjusted p is at least theirs.
    factors[order] = np.maximum.accumulate(p[order] * open_comparisons) / p[order]
    return factors
