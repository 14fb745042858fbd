"""What `gtpo compare` and `gtpo plan` are worth, by simulation: coverage, false marks, false equivalence, gate, power.

Two methods whose true difference is known. Questions are drawn from a population of difficulties, training seeds from
one of training runs, samples from the chances; "true" is the mean over those populations. Kinds of cells:

    alike      seeds of both methods lie 0.3 logits apart
    unequal    those of the first 0.45, of the second 0.15
    unlike     those of the first 0.45, of the second 0.05
    skewed     0.45 logits apart, most of them close together and a few far below
    collapse   as alike, and half of the runs of either method collapse: 3 logits lower
    weights    two models that were not trained here; also at ceilings of pass@k, and differing widely by question
    chosen     the best of a's checkpoints, 0.15 logits apart, was chosen on these questions
    thrice     one training of each, evaluated three times
    unknown    as alike, but nothing is known of the training of any run
    one-sided  a share of the questions is lost by one model, the rest is solved by both
    missing    half of the wrong samples of one model are missing
    repeated   every question stands in the benchmark one to eight times
    mean       the interval of one method's mean
    power      what `gtpo plan` says of a design, against how often the difference is shown

Design `3 v 10`: training seeds of each; `base v 3`: weights that all runs began from. Marked: a difference is shown.
Equivalent: declared within a margin that is the true difference, so every one is wrong; of equal ones: within 2 points.
Passed: the gate lets this difference pass as a loss of fewer points.
If too few seeds are there to speak of methods, the truth is that of these very runs ("of weights"), and marked are
differences that are shown with the wrong sign; with too few on both sides nothing is marked at all.
LIMITS says what is promised, and a test holds the published file to it within two standard errors.

    python -m bench.coverage [--repeats N] [--jobs N] [--seed N] [--out FILE]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from bench.common import parser, save, table
from gtpo.evalkit.comparison.methods import Member, Method
from gtpo.evalkit.design import Design, Noise, measure_noise, strength
from gtpo.evalkit.metrics import pass_at_all_k
from gtpo.evalkit.statistics import METHODS, differences, mean_interval, method_mean
from gtpo.runs.train_run import TrainFolder

Array = NDArray[np.float64]
Cell = dict[str, Any]

SEED = 20261126
SPREADS = {"alike": (0.3, 0.3), "unequal": (0.45, 0.15), "skewed": (0.45, 0.45), "collapse": (0.3, 0.3)}
FURTHER = {"unlike": (0.45, 0.05), "chosen": (0.15, 0.0), "thrice": (0.3, 0.3), "unknown": (0.3, 0.3)}
DROP = 3.0  # Logits that a collapse takes
ALPHA, BETA = 0.6, 0.8
"""Chances of the questions."""
LIMITS = {"marked": 0.06, "equivalent": 0.06, "passed": 0.06, "coverage": 0.93}
"""Most equal methods that are marked, false equivalence, losses of POINTS that pass, least coverage."""
ALLOWED = {"unequal": 0.07, "unlike": 0.07}  # Most marks, if seeds of the two methods lie unlike far apart
CLOSE = 0.05  # How far the planned power may lie from the simulated one
LARGEST = 8_000_000  # Numbers held at once


class Setting(NamedTuple):
    """One cell."""

    kind: str
    a: int = 0  # Training seeds; 0: weights that were not trained here
    b: int = 0
    paired: bool = False
    questions: int = 100
    samples: int = 16
    k: int = 1
    ease: float = 0.0  # Logits by which the questions are easier than those of a benchmark that is half solved
    apart: float = 0.3  # Logits: what a run finds easier or harder than others on single questions
    difference: float = 0.0

    @property
    def design(self) -> str:
        """`3 v 10`, `5 v 5 paired`, `base v 3`."""
        if not self.a and not self.b:
            return "two models"
        return f"{self.a or 'base'} v {self.b}{' paired' * self.paired}"


def seed_effects(kind: str, spread: float, at: Array) -> Array:
    """Return the logits by which training runs differ, at quantiles `at` of their population."""
    if kind == "skewed":
        return spread * (1 + np.log(at))
    if kind == "collapse" and spread:  # the lower half of the quantiles are the runs that collapse
        low = at < 0.5
        return spread * special.ndtri(np.where(low, 2 * at, 2 * at - 1)) - DROP * low
    return spread * special.ndtri(at)


@lru_cache(maxsize=512)
def mean_score(kind: str, spread: float, ease: float, apart: float, k: int) -> float:
    """The expected pass@k of a method, by quadrature."""
    chance = special.betaincinv(ALPHA, BETA, (np.arange(1000) + 0.5) / 1000)
    logit = special.logit(np.clip(chance, 1e-9, 1 - 1e-9)) + ease
    effects = seed_effects(kind, spread, (np.arange(100) + 0.5) / 100) if spread else np.zeros(1)
    normal, weights = np.polynomial.hermite_e.hermegauss(21)
    wrong = [special.expit(-(logit + effect + apart * normal[:, None])) ** k for effect in effects]
    return float(1 - (weights @ np.mean(wrong, axis=(0, 2))) / weights.sum())


@lru_cache(maxsize=512)
def shift_for(kind: str, spreads: tuple[float, float], ease: float, apart: float, k: int, difference: float) -> float:
    """How much easier the questions are for the first method, in logits."""
    goal = mean_score(kind, spreads[1], ease, apart, k) + difference
    return float(optimize.brentq(lambda by: mean_score(kind, spreads[0], ease + by, apart, k) - goal, -12, 12))


@lru_cache(maxsize=64)
def scores_by_shift(ease: float, apart: float, k: int) -> tuple[Array, Array]:
    """Return shifts in logits, and the expected pass@k of weights that find every question so much easier."""
    shifts = np.linspace(-12, 8, 201)
    return shifts, np.array([mean_score("weights", 0.0, ease + shift, apart, k) for shift in shifts])


def draw(rng: np.random.Generator, one: Setting, repeats: int) -> tuple[list[Array], Array]:
    """Return right samples [repeats, S, Q] of both methods, and the true difference of these very runs [repeats]."""
    size = (repeats, 1, one.questions)
    logit = special.logit(np.clip(rng.beta(ALPHA, BETA, size), 1e-9, 1 - 1e-9)).astype(np.float32) + one.ease
    spreads = spreads_of(one)
    shifts = shift_for(one.kind, spreads, one.ease, one.apart, one.k, one.difference), 0.0
    out, means = [], []
    for seeds, spread, shift in zip((one.a, one.b), spreads, shifts, strict=True):
        runs = max(seeds, 1)
        moved = shift + (seed_effects(one.kind, spread, rng.random((repeats, runs, 1))) if spread else 0.0)
        own = one.apart * rng.standard_normal((repeats, runs, one.questions), dtype=np.float32)
        chance = np.repeat(special.expit(logit + own + moved), 3 if one.kind == "thrice" else 1, axis=1)
        out.append(rng.binomial(one.samples, chance))
        means.append(np.interp(moved, *scores_by_shift(one.ease, one.apart, one.k)) * np.ones((repeats, runs, 1)))
    return out, means[0].mean(axis=(1, 2)) - means[1].mean(axis=(1, 2))


def spreads_of(one: Setting) -> tuple[float, float]:
    """Return how far the seeds of each method lie apart; 0 for weights that were not trained here."""
    first, second = (SPREADS | FURTHER).get(one.kind, (0.0, 0.0))
    return first * bool(one.a), second * bool(one.b)


def scored(right: Array, n: int, k: int) -> Array:
    """pass@k of counts of right samples out of n."""
    return pass_at_all_k(np.full(n + 1, n), np.arange(n + 1))[:, k - 1][right]


@lru_cache
def by_draw(kind: str, runs: int) -> tuple[list[list[int]], bool]:
    """Return which of a method's runs are one draw of training, and whether that is known, as `gtpo compare` does."""
    one = TrainFolder(Path("one")) if kind == "thrice" else None
    if kind not in ("thrice", "unknown"):
        return [[i] for i in range(runs)], True
    method = Method("", tuple(Member(str(i), None, one, None) for i in range(runs)))
    return method.by_draw(method.evaluated), not method.doubt


def noise_of(one: Setting, questions: int = 2000) -> Noise:
    """The noise of a kind of cell, from a pilot that is as good as endless."""
    runs = 200 if one.a else 1
    pilot = one._replace(
        a=one.a and runs, b=one.b and runs, samples=8, questions=questions if one.a else 20 * questions
    )
    a, b = (x[0] / 8 for x in draw(np.random.default_rng(SEED), pilot, 1)[0])
    return measure_noise(a, b, sampling=(a * (1 - a) / 7, b * (1 - b) / 7), samples=8, trained=one.a > 0)


def measure_power(one: Setting, repeats: int, seed: int) -> Cell:
    """Simulate what a design shows: of the difference that it is planned to see with 80 %, or 0.6 of it."""
    kind = one._replace(kind="alike" if one.a else "weights", difference=0.0)
    plan = strength(noise_of(kind), Design(one.questions, one.samples, one.a))
    effect = round(plan.detectable() * one.difference, 4)
    cell = measure(kind._replace(difference=effect), repeats, seed)
    return one._asdict() | {"design": one.design, "repeats": repeats, "effect": effect,
                            "planned": round(plan.power(effect), 4), "shown": cell["shown"]}  # fmt: skip


def measure(one: Setting, repeats: int, seed: int) -> Cell:
    """Simulate one cell: of two methods, of a mean, or of what a plan says."""
    if one.kind in ("mean", "power"):
        return (measure_mean if one.kind == "mean" else measure_power)(one, repeats, seed)
    rng = np.random.default_rng([seed, *map(ord, repr(one))])
    margin = abs(one.difference) or 0.02
    lots = []
    per_lot = max(1, LARGEST // ((max(one.a, 1) + max(one.b, 1)) * one.questions))
    for start in range(0, repeats, per_lot):
        count = min(per_lot, repeats - start)
        clusters, moved, truth = None, (np.zeros(count), np.zeros(count)), np.full(count, one.difference)
        if one.kind == "one-sided":
            lost = rng.random((count, 1, one.questions)) < -one.difference
            a, b = (~lost).astype(float), np.ones(lost.shape)
        else:
            (x, y), of_runs = draw(rng, one, count)
            a, b = scored(x, one.samples, one.k), scored(y, one.samples, one.k)
            if one.kind == "repeated":
                clusters = np.repeat(np.arange(one.questions), rng.integers(1, 9, one.questions))
                a, b = a[..., clusters], b[..., clusters]
            if one.kind == "chosen":
                every = a.mean(axis=2)
                best = every.argmax(axis=1)[:, None]
                down = every.mean(axis=1) - np.take_along_axis(every, best, axis=1)[:, 0]
                a, moved = np.take_along_axis(a, best[..., None], axis=1), (down, np.zeros(count))
            a, b = (np.stack([x[:, rows].mean(axis=1) for rows in places], axis=1) for x, (places, _) in
                    ((a, by_draw(one.kind, a.shape[1])), (b, by_draw(one.kind, b.shape[1]))))  # fmt: skip
            if one.kind == "missing":
                gone = rng.binomial(one.samples - x, 0.5)
                seen = np.maximum(one.samples - gone, 1)
                worst, best = a, (x + gone) / one.samples
                a = x / seen
                moved = (worst - a).mean(axis=(1, 2)), (best - a).mean(axis=(1, 2))
        trained = (one.a > 0 and one.kind != "chosen", one.b > 0)
        known = by_draw(one.kind, max(one.a, 1))[1]
        found = differences(a, b, paired=one.paired, trained=trained, known=known, clusters=clusters)
        shown = found.shown(moved)
        of_weights = any(found.seeds) and found.scope != METHODS
        truth = of_runs if of_weights else truth
        lots.append({
            "coverage": (found.low <= truth + 1e-12) & (found.high >= truth - 1e-12),
            "shown": shown == np.sign(one.difference),
            "marked": (shown != 0) & (shown != np.sign(truth)) if of_weights else shown != 0,
            "equivalent": (found.equivalence_p(margin, moved) <= 0.05) & (shown == 0) & found.judged,
            "width": found.high - found.low,
            # The loss is that of the second method, if it is the worse one.
            "passed": (found if one.difference < 0 else found._replace(
                difference=-found.difference, skewness=-found.skewness)).loses_less(margin, moved),
        })  # fmt: skip
    means = {name: round(float(np.mean(np.concatenate([lot[name] for lot in lots]))), 4) for name in lots[0]}
    about = {"design": one.design, "repeats": repeats, "judged": found.judged, "of_weights": of_weights}
    return one._asdict() | about | means


def measure_mean(one: Setting, repeats: int, seed: int) -> Cell:
    """Simulate one cell of the interval of a method's mean."""
    rng = np.random.default_rng([seed, *map(ord, repr(one))])
    population = one._replace(kind="alike" if one.a else "weights", b=0)
    truth = mean_score("alike", spreads_of(population)[0], one.ease, one.apart, one.k)
    (counts, _), _ = draw(rng, population, repeats)
    scores = scored(counts, one.samples, one.k)
    found = [method_mean(x) if one.a else mean_interval(x[0]) for x in scores]
    coverage = np.mean([interval.low <= truth <= interval.high for interval in found])
    return one._asdict() | {"design": f"{one.a} seeds" if one.a else "one model", "repeats": repeats,
                            "coverage": round(float(coverage), 4)}  # fmt: skip


JUDGED = ((3, 3, False), (3, 10, False), (10, 3, False), (5, 5, False), (10, 10, False), (5, 5, True), (10, 10, True))
PLANNED = (
    (0, 0, 30, 64), (0, 0, 30, 16), (0, 0, 100, 4), (0, 0, 500, 1), (0, 0, 500, 8), (0, 0, 1319, 1), (3, 3, 100, 4),
    (3, 3, 500, 8), (5, 5, 30, 64), (5, 5, 500, 8), (10, 10, 100, 16), (10, 10, 30, 64),
)  # fmt: skip


def grid(*kinds: str, **values: Sequence[Any]) -> list[Setting]:
    """Return a cell of each combination of values; fields that vary together stand in one name, apart by `_`."""
    names, found = "_".join(values).split("_"), []
    for kind, *chosen in product(kinds, *values.values()):
        flat = chain.from_iterable(each if isinstance(each, tuple) else (each,) for each in chosen)
        found.append(Setting(kind, **dict(zip(names, flat, strict=True))))
    return found


def settings() -> list[Setting]:
    """Return every cell."""
    few = [design for design in JUDGED if max(design[:2]) <= 5]
    apart, lost = (0.0, 0.02, 0.1), (-0.0, -0.015, -0.04)  # a cell's draws follow from how it is written
    return [
        *grid(*SPREADS, a_b_paired=JUDGED, questions=(30, 100), difference=apart),
        *grid(*SPREADS, a_b=((1, 1), (1, 3), (2, 2), (2, 10)), difference=apart),
        *grid(*SPREADS, a_b_paired=few, questions=(500,), difference=(0.0, 0.02)),
        *grid("alike", "collapse", a_b_paired=JUDGED, questions=(30,), samples_k=((1, 1), (16, 16))),
        *grid(*SPREADS, b=(1, 3, 10), questions=(30, 100)),
        *grid("weights", questions=(30, 100, 500), samples=(1, 8, 64), apart=(0.3, 1.0), difference=apart),
        *grid("weights", questions_samples_k=((30, 8, 8), (30, 32, 32), (30, 64, 64), (100, 8, 8)),
              ease=(0.0, 2.5, 4.0), apart=(0.3, 1.0), difference=lost),
        *grid("weights", questions_k=((30, 4), (30, 16), (100, 8), (100, 32), (300, 32)), samples=(64,),
              ease=(1.0, 2.5, 4.0), difference=lost),
        *grid("alike", a_b=((10, 10),), questions_samples_k=((30, 64, 4),), ease=(1.0, 2.5, 4.0), difference=apart[:2]),
        *grid("unlike", a_b_paired=JUDGED[:4], questions=(100, 500), samples=(8,), difference=apart[:2]),
        *grid("chosen", a=(3, 10, 20), samples=(16,)),
        *grid("thrice", a_b_samples=((1, 1, 4),)),
        *grid("unknown", a_b=((3, 3), (10, 10))),
        *grid("power", a_b_questions_samples=PLANNED, difference=(1.0, 0.6)),
        *grid("one-sided", questions=(30, 100, 300), samples=(1,), difference=(-0.02, -0.05, -0.1)),
        *grid("missing", "repeated", questions=(30, 100), samples=(1, 16)),
        *grid("mean", a=(0, 3, 5, 10), questions=(30, 100, 500), samples=(1, 16)),
    ]  # fmt: skip


def promises(cell: Cell) -> Cell:
    """Return the measures of a cell that a promise is about: marks and equivalence that are wrong, losses that pass."""
    of_weights, apart = cell.get("of_weights", False), bool(cell["difference"])
    names = ["marked"] * (of_weights or not apart) + ["equivalent", "passed"] * (apart and not of_weights)
    if cell.get("judged", True) and cell["kind"] not in ("missing", "chosen"):  # the interval speaks of neither
        names.append("coverage")
    return {name: cell[name] for name in names if name in cell}


def kept(cell: Cell) -> dict[str, bool]:
    """Return whether each promise holds for a cell, within two standard errors."""
    if cell["kind"] == "power":
        return {"power": abs(cell["planned"] - cell["shown"]) <= CLOSE + 2 * math.sqrt(0.25 / cell["repeats"])}
    held = {}
    for name, value in promises(cell).items() if cell.get("judged", True) else ():
        limit = ALLOWED.get(cell["kind"], LIMITS[name]) if name == "marked" else LIMITS[name]
        error = 2 * math.sqrt(limit * (1 - limit) / cell["repeats"])
        held[name] = value >= limit - error if name == "coverage" else value <= limit + error
    return held


def tables(cells: list[Cell]) -> str:
    """The table of results/published/bench/coverage.md: of each kind the worst cells, in percent."""
    groups: dict[tuple[str, bool], list[Cell]] = {}
    for cell in cells:
        if cell["kind"] != "power":
            kind = cell["kind"] + ", of weights" * cell.get("of_weights", False)
            groups.setdefault((kind, cell.get("judged", True)), []).append(cell)
    rows = []
    for (kind, judged), its in groups.items():
        designs = list(dict.fromkeys(cell["design"] for cell in its))
        worst = []
        for name, of in (("marked", max), ("coverage", min), ("equivalent", max), ("passed", max)):
            values = [100 * promises(cell)[name] for cell in its if name in promises(cell)]
            worst.append(f"{of(values):.1f}" if values else "")
        seeds = f"{designs[0]} to {designs[-1]}" if designs[1:] else designs[0]
        rows.append((kind if judged else f"{kind}, too few seeds", seeds, len(its), *worst))
    shown = (">equal ones marked", ">least coverage", ">wrongly equivalent", ">wrongly passed")
    power = [
        (cell["design"], f"{cell['questions']:,} x {cell['samples']}", f"{100 * cell['effect']:.1f}",
         f"{100 * cell['planned']:.0f}", f"{100 * cell['shown']:.1f}")
        for cell in cells if cell["kind"] == "power"
    ]  # fmt: skip
    planned = table(("seeds", "questions x samples", ">points", ">planned power", ">simulated power"), power)
    return f"{table(('kind', 'seeds', '>cells', *shown), rows)}\n\n{planned}"


def main() -> None:
    out = Path("results/bench/coverage.json")
    arguments = parser(__doc__, repeats=2000, jobs=1, seed=SEED, out=out).parse_args()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        cells = list(pool.map(partial(measure, repeats=arguments.repeats, seed=arguments.seed), settings()))
    print(tables(cells))
    for cell in cells:
        if not all(kept(cell).values()):
            print("not kept:", cell)
    save(arguments.out, {"seed": arguments.seed, "repeats": arguments.repeats, "cells": cells})


if __name__ == "__main__":
    main()
