"""Power: what a comparison of Q questions, n samples of each and S training seeds of each method can show.

A difference of two methods has the variance

    V = (C + I / S + N / (n S)) / Q + T / S

C: how much the methods differ by question, whatever the seed. I: what one seed of each adds on single questions. N: the
noise of one sample of each. T: what one seed of each adds to the whole mean. Two sets of weights have S = 1 and no T;
their I belongs to C. `measure_noise` estimates all four without bias from a pilot: each is a mean over questions of
terms (crossed random effects), T the variance between seeds without what I and N explain. An estimate may be below 0;
plans take it as 0. Their ranges hold the truth in about 80 of 100 pilots: normal for C, I and N, chi-squared for T.

Power is that of the test that `gtpo compare` does (`join_variances` in statistics.py): V is drawn as the pilot's would
come out, at fixed quantiles, and the chance of a shown difference is averaged over these draws. Published pilots that
stand for one that was not run are in spreads.yaml, made by docs/tools/spreads.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from scipy import special

from gtpo.evalkit import statistics
from gtpo.evalkit.statistics import LEVEL, PAIRS_NEEDED, SEEDS_NEEDED, UNSEEN, SeedVariance, by_cluster, t_quantile

# The chance that a design must give to be called enough.
ENOUGH = 0.8
# Variances are taken at so many quantiles; more change a power by less than 0.5 points.
_DRAWS = 96
# m / Q of many samples if the chances are spread as Beta(0.6, 0.8), as in bench/coverage.py.
_INFORMATIVE = 0.55
# The most of each that is looked for.
MOST = {"questions": 10_000_000, "samples": 65_536, "seeds": 512}

Array = NDArray[np.float64]
Lever = Literal["questions", "samples", "seeds"]


class Estimate(NamedTuple):
    """A variance, and the range that holds the true one in about 80 of 100 pilots; all alike if it was stated."""

    mean: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Estimate:
        """Return one that is known."""
        return cls(value, value, value)

    def to(self, mean: float) -> Estimate:
        """Return it with another mean, and its range moved as far."""
        return Estimate(mean, self.low + mean - self.mean, self.high + mean - self.mean)


class Design(NamedTuple):
    """What is evaluated: seeds of each method; 0 for two sets of weights."""

    questions: int
    samples: int
    seeds: int


@dataclass(frozen=True)
class Noise:
    """C, I, N and T above, as fractions squared."""

    questions: Estimate
    single: Estimate
    # None: samples and questions are not told apart, as of maj@k, of pass@k from 2 on, and of one sample a question.
    samples: Estimate | None
    # None: two sets of weights.
    training: Estimate | None
    paired: bool = False

    def at_least_zero(self, pilot: Design) -> Noise:
        """Return it without variances below 0; V of its own pilot stays the same."""
        seeds, samples = max(pilot.seeds, 1), self.samples
        of_runs, whole = max(self.single.mean, 0.0), self.questions.mean + self.single.mean / seeds
        of_questions = whole - of_runs / seeds
        if of_questions < 0:
            of_questions, of_runs = 0.0, max(seeds * whole, 0.0)
        rest = (whole - of_questions - of_runs / seeds) * pilot.samples * seeds
        samples = samples and samples.to(samples.mean + rest)
        return replace(self, questions=self.questions.to(of_questions), single=self.single.to(of_runs), samples=samples)


class Parts(NamedTuple):
    """V by where it comes from: questions, samples, seeds."""

    questions: float
    samples: float
    seeds: float


def parts(noise: Noise, design: Design, end: int = 0) -> Parts:
    """Return the parts of V; nothing is cut off at 0. end: 0 of each variance's mean, 1 and 2 of its range."""
    seeds = max(design.seeds, 1)
    of_samples = noise.samples[end] / design.samples / seeds if noise.samples else 0.0
    training = noise.training[end] / seeds if noise.training and design.seeds else 0.0
    by_question = noise.questions[end] + noise.single[end] / seeds
    return Parts(by_question / design.questions, of_samples / design.questions, training)


class Strength(NamedTuple):
    """What the test of one design can show."""

    # Of the mean over questions, and of the mean of one question.
    se: float
    of_question: float
    # V without its prior as it may come out, and the quantile of t that belongs to each.
    variance: Array
    quantile: Array
    design: Design

    def half_widths(self, effect: float) -> Array:
        """Return those of the interval, [draws], at a true difference."""
        return self.quantile * np.sqrt(self.variance + _prior(self.of_question, self.se**2 + effect**2, self.design))

    def power(self, effect: float) -> float:
        """Return the chance that a difference of so much is shown."""
        return float(special.ndtr((effect - self.half_widths(effect)) / self.se).mean())

    def equivalence(self, margin: float) -> float:
        """Return the chance that two equal methods are shown to lie within the margin."""
        inside = 2 * special.ndtr((margin - self.half_widths(0.0)) / self.se) - 1
        return float(np.maximum(inside, 0.0).mean())

    def detectable(self) -> float:
        """Return the difference that is shown with a chance of ENOUGH; infinite if none up to 1 is."""
        low, high = 0.0, 1.0
        if self.power(high) < ENOUGH:
            return math.inf
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self.power(middle) >= ENOUGH else (middle, high)
        return high


Chance = Callable[[Strength], float]


def strength(noise: Noise, design: Design, *, level: float = LEVEL, end: int = 0) -> Strength:
    """Return what the test of a design can show. level: of its interval. end: as in `parts`."""
    questions, count = design.questions, max(design.seeds, 1)
    of = parts(noise, design, end)
    by_question, training = max(of.questions, 0.0) + max(of.samples, 0.0), max(of.seeds, 0.0)
    # A lattice (Roberts 2018): points that fill the cube evenly. Variances are drawn at these quantiles.
    cube = (0.5 + np.outer(np.arange(_DRAWS), (0.8191725134, 0.6710436067, 0.5497004779))) % 1
    of_questions: Array = by_question * special.chdtri(questions - 1, 1 - cube[:, 0]) / (questions - 1)
    quantile: Array = t_quantile((1 + LEVEL) / 2, np.full(_DRAWS, questions - 1.0))
    degrees = np.full(_DRAWS, questions - 1.0)
    variance = of_questions
    if design.seeds:
        sides = 1 if noise.paired and design.seeds >= PAIRS_NEEDED else 2
        # What single questions and samples add to the mean of one run of a side.
        rest = max((noise.single[end] / questions + of.samples * count), 0.0) / sides
        between = (training * count / sides + rest) / (count - 1)
        runs = [
            SeedVariance(between * special.chdtri(count - 1, 1 - at), np.full(_DRAWS, rest), count, np.empty(0))
            for at in (cube[:, 1], cube[:, 2])[:sides]
        ]
        variance, quantile, degrees = statistics.join_variances(of_questions, runs, questions)
    if level != LEVEL:
        freedom = statistics.freedom_of(quantile.mean(keepdims=True), degrees.mean(), questions)
        quantile = quantile * t_quantile((1 + level) / 2, freedom) / t_quantile((1 + LEVEL) / 2, freedom)
    se = max(math.sqrt(by_question + training), 1e-9)
    return Strength(se, by_question * questions, variance, quantile, design)


def _prior(of_question: float, shift: float, design: Design) -> float:
    """Return about what the prior of V_Q comes to. of_question: variance of d; shift: expected square of its mean."""
    questions, draws = design.questions, design.samples * max(design.seeds, 1)
    # m / Q: of one sample the chance of a difference; of many that of normal ones on questions of unlike difficulty.
    share = 1 / (1 / _INFORMATIVE + max(1 / max(of_question * draws, 1e-9) - 1 / _INFORMATIVE, 0.0) / draws)
    square = of_question + shift
    share = (share * of_question + shift) / max(square, 1e-300)
    alike = max(1 - (2 - 1 / draws) * share, shift / max(square, 1e-300))
    return UNSEEN * alike * (square * questions + 1) / (share * questions + 1) / questions / (questions - 1)


def fewest(noise: Noise, design: Design, vary: Lever, chance: Chance, *, level: float = LEVEL, end: int = 0) -> float:
    """Return the least number of one thing that gives a chance of ENOUGH; infinite if MOST does not."""

    def ok(count: int) -> bool:
        return chance(strength(noise, design._replace(**{vary: count}), level=level, end=end)) >= ENOUGH

    low, high = {"questions": 2, "samples": 1, "seeds": SEEDS_NEEDED}[vary], MOST[vary]
    if ok(low):
        return low
    if not ok(high):
        return math.inf
    while high - low > max(1, low // 50):
        middle = round(math.sqrt(low * high)) if high > 2 * low else (low + high) // 2
        low, high = (low, middle) if ok(middle) else (middle, high)
    return high


def over_range(value: Callable[[int], float]) -> Estimate:
    """Return what follows from the variances' mean, and from the ends of their ranges."""
    # By size: near a ceiling the prior sees less noise as more.
    mean, *ends = map(value, range(3))
    return Estimate(mean, min(mean, *ends), max(mean, *ends))


def needs(noise: Noise, design: Design, chance: Chance, level: float) -> tuple[Estimate, dict[Lever, Estimate]]:
    """Return what the design of a pilot sees, and how many of one thing would do: none if it does; maybe infinite."""
    noise = noise.at_least_zero(design)
    sees = over_range(lambda end: strength(noise, design, level=level, end=end).detectable())
    if chance(strength(noise, design, level=level)) >= ENOUGH:
        return sees, {}
    has: dict[Lever, bool] = {"questions": True, "samples": noise.samples is not None, "seeds": design.seeds > 0}
    return sees, {
        lever: over_range(lambda end: fewest(noise, design, lever, chance, level=level, end=end))  # noqa: B023
        for lever in has if has[lever]
    }  # fmt: skip


def limit(noise: Noise, design: Design, level: float = LEVEL) -> float | None:
    """Return what these questions show with any number of samples and seeds; None if it is not known."""
    if noise.samples is None and not design.seeds:  # what samples add counts as the questions'
        return None
    endless = design._replace(samples=MOST["samples"], seeds=MOST["seeds"] if design.seeds else 0)
    return strength(noise, endless, level=level).detectable()


def measure_noise(
    a: Array,
    b: Array,
    *,
    sampling: tuple[Array, Array] | None = None,
    samples: int = 1,
    trained: bool = True,
    paired: bool = False,
    clusters: ArrayLike | None = None,
) -> Noise:
    """Estimate the noise from two methods' scores, a: [S_a, Q] and b: [S_b, Q], at least two questions.

    sampling: the variance that samples give to each score, in the same shapes; samples: how many a score is made of.
    trained, paired: the rows are training seeds, the same of both. clusters: as in `paired_difference`.
    """
    size = 1.0 if clusters is None else a.shape[1] / np.unique(np.asarray(clusters)).size
    (a, weight), (b, _) = (by_cluster(x, clusters) for x in (a, b))
    trained = trained and min(len(a), len(b)) > 1
    questions, none = a.shape[1], np.zeros(a.shape[1])
    d = a.mean(axis=0) - b.mean(axis=0)
    # Terms by question: their means are the variances.
    of_questions, of_runs, of_samples = (d - weight * d.mean()) ** 2 * questions / (questions - 1), none, None
    if sampling is not None:
        # A cluster's score is its total over the mean size, so its variance has the square of that.
        each = [by_cluster(x, clusters)[0] / size for x in sampling]
        of_samples = sum((x.mean(axis=0) / (1 if trained else len(x)) for x in each), none)
    if not trained:
        of_questions = of_questions - (none if of_samples is None else of_samples)
        training = None
    else:
        sides, between = [a - b] if paired else [a, b], 0.0
        for x in sides:
            one = statistics.seed_variance(x[None], weight)
            of_runs, of_questions = of_runs + one.by_question[0], of_questions - one.by_question[0] / len(x)
            between += float(one.between[0])
        degrees = sum(len(x) - 1 for x in sides)
        ends = (1.0, *(degrees / float(special.chdtri(degrees, at)) for at in (0.1, 0.9)))
        training = Estimate(*(between * end - float(of_runs.mean()) / questions for end in ends))
        of_runs = of_runs - (none if of_samples is None else of_samples)
    return Noise(
        _estimate(of_questions), _estimate(of_runs), None if of_samples is None else _estimate(samples * of_samples),
        training, paired=paired and trained,
    )  # fmt: skip


def _estimate(terms: Array) -> Estimate:
    mean, around = float(terms.mean()), 1.2816 * float(terms.std(ddof=1)) / math.sqrt(terms.size)
    return Estimate(mean, mean - around, mean + around)


def assumed_noise(accuracy: float | None, seed_sd: float | None, *, models: bool = False) -> tuple[Noise, str]:
    """Return the noise of two methods of this accuracy (0 to 1), and the published pair that it is scaled from.

    seed_sd: the standard deviation of a method's mean between seeds, a fraction; None: as published.
    """
    text = resources.files("gtpo.evalkit").joinpath("spreads.yaml").read_text(encoding="utf-8")
    pairs: dict[str, dict[str, Any]] = yaml.safe_load(text)
    name = min(pairs, key=lambda one: 0.0 if accuracy is None else abs(pairs[one]["accuracy"] - accuracy))
    pair, like = pairs[name], pairs[name]["accuracy"]
    # A mean of outcomes varies as p (1 - p) does.
    by = 1.0 if accuracy is None else accuracy * (1 - accuracy) / (like * (1 - like))
    questions, single, samples, training = (by * pair[of] for of in ("questions", "single", "samples", "training"))
    if models:
        questions, single = questions + single, 0.0
    elif seed_sd is not None:
        training = 2 * seed_sd**2
    of = [Estimate.exactly(value) for value in (questions, single, samples, training)]
    return Noise(of[0], of[1], of[2], None if models else of[3]), f"{name} ({pair['source']})"
