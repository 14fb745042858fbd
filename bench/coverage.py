"""What the intervals of `gtpo compare` cover and how often its tests reject a true null hypothesis, by simulation.

Benchmarks of 6, 30, 64, 100 and 1,319 questions, methods of 1, 3, 5 and 10 training seeds. Questions are drawn from a
population of difficulties, seeds from a population of training runs, samples from the questions' chances; "true" is
the mean over those populations. Expected, written down before the first run: 95 % intervals cover the truth in at
least 93 % of the repetitions everywhere, and in at most 97 % where at least ten questions can be expected to differ
(where nearly none does, an interval that must not be empty covers more); no test rejects more than 5.5 % at 5 %.

    python -m bench.coverage [--repeats N] [--jobs N] [--out FILE]
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from evalkit.statistics import differences, mean_interval, method_mean
from rewards.support.files import write_json

QUESTIONS = (6, 30, 64, 100, 1319)
SEEDS = (3, 5, 10)
SEED = 20261121
LARGEST = 40_000_000
"""Numbers held at once."""

Array = NDArray[np.float64]
Pair = tuple[Array, Array]


class Scenario(NamedTuple):
    """Two methods whose chances of solving a question of difficulty p are expit(logit p + shift + training noise)."""

    name: str
    alpha: float
    beta: float
    """Chances p of the questions: Beta(alpha, beta)."""
    samples: int
    shift: float
    """Of the first method against the second, in logits; 0: the null hypothesis is true."""
    of_seed: float = 0.0
    of_seed_and_question: float = 0.0
    """Standard deviations of the training noise, in logits."""

    def truth(self) -> tuple[float, float]:
        """(mean score of the first method, mean difference), by quadrature."""
        chance = special.betaincinv(self.alpha, self.beta, (np.arange(4000) + 0.5) / 4000)
        logit = special.logit(np.clip(chance, 1e-9, 1 - 1e-9))
        noise = special.ndtri((np.arange(400) + 0.5) / 400) * np.hypot(self.of_seed, self.of_seed_and_question)
        first, second = (float(special.expit(logit[:, None] + s + noise).mean()) for s in (self.shift, 0.0))
        return first, first - second

    def draw(self, rng: np.random.Generator, repeats: int, seeds: int, questions: int) -> Pair:
        """Two [repeats, seeds, questions] arrays of pass@1."""
        chance = np.clip(rng.beta(self.alpha, self.beta, (repeats, 1, questions)), 1e-9, 1 - 1e-9)
        logit = special.logit(chance)
        scores = []
        for shift in (self.shift, 0.0):
            moved = logit + shift + self.of_seed * rng.normal(size=(repeats, seeds, 1))
            if self.of_seed_and_question:
                moved = moved + self.of_seed_and_question * rng.normal(size=(repeats, seeds, questions))
            chances = np.broadcast_to(special.expit(moved), (repeats, seeds, questions))
            scores.append(rng.binomial(self.samples, chances) / self.samples)
        return scores[0], scores[1]


class Rare(NamedTuple):
    """Two models that agree (both right) but on 2 % of the questions."""

    name: str
    up: float
    """Share of those on which the first model is the better one."""
    whole: bool
    """Whether it is right or wrong on them, or by any amount."""

    def truth(self) -> tuple[float, float]:
        """(mean score of the first method, mean difference)."""
        size = 0.02 * (1.0 if self.whole else 0.5)
        return 1 - size * (1 - self.up), size * (2 * self.up - 1)

    def draw(self, rng: np.random.Generator, repeats: int, seeds: int, questions: int) -> Pair:
        """Two [repeats, seeds, questions] arrays."""
        shape = (repeats, seeds, questions)
        size = (rng.random(shape) < 0.02) * (1.0 if self.whole else rng.random(shape))
        first = rng.random(shape) < self.up
        return 1 - size * ~first, 1 - size * first


RUNS: tuple[Scenario | Rare, ...] = (
    Scenario("1 sample, better", 0.6, 0.8, 1, 0.5),
    Scenario("64 samples, better", 0.6, 0.8, 64, 0.5),
    Scenario("64 samples, medium questions, better", 2, 2, 64, 0.3),
    Scenario("64 samples near 100 %, better", 8, 0.4, 64, 0.5),
    Scenario("64 samples, most solved, better", 0.4, 0.1, 64, 0.7),
    Scenario("1 sample near 0 %, better", 0.4, 8, 1, 0.5),
    Rare("2 % of questions differ, one way", 1.0, True),
    Rare("2 % of questions differ, 3 to 1", 0.75, True),
    Rare("2 % of questions differ by any amount, one way", 1.0, False),
    Rare("2 % of questions differ by any amount, 3 to 1", 0.75, False),
    Scenario("1 sample, equal", 0.6, 0.8, 1, 0.0),
    Scenario("16 samples, equal", 0.6, 0.8, 16, 0.0),
    Scenario("64 samples near 100 %, equal", 8, 0.4, 64, 0.0),
    Rare("2 % of questions differ, evenly", 0.5, True),
    Rare("2 % of questions differ by any amount, evenly", 0.5, False),
)
METHODS = (
    Scenario("seeds alike, better", 0.6, 0.8, 16, 0.3, 0.0, 0.3),
    Scenario("seeds differ little, better", 0.6, 0.8, 16, 0.3, 0.1, 0.3),
    Scenario("seeds differ, better", 0.6, 0.8, 16, 0.3, 0.3, 0.5),
    Scenario("seeds differ much, near 100 %, better", 8, 0.4, 16, 0.5, 0.6, 0.5),
    Scenario("1 sample, seeds differ, better", 2, 2, 1, 0.3, 0.3, 0.0),
    Scenario("seeds alike, equal", 0.6, 0.8, 16, 0.0, 0.0, 0.3),
    Scenario("seeds differ, equal", 0.6, 0.8, 16, 0.0, 0.3, 0.5),
    Scenario("1 sample, seeds differ, equal", 2, 2, 1, 0.0, 0.3, 0.0),
)


def share(found: list[bool]) -> float:
    """Share of True, to four places."""
    return round(float(np.mean(found)), 4)


def measure(
    scenario: Scenario | Rare, questions: int, seeds: int, repeats: int, paired: bool, seed: list[int]
) -> list[dict[str, Any]]:
    """The cells of one scenario: coverage and width of its intervals, rejections where its null is true."""
    rng = np.random.default_rng(seed)
    level, difference = scenario.truth()
    mean_hits: list[bool] = []
    hits: list[bool] = []
    widths: list[float] = []
    p: dict[str, list[bool]] = {"marked": [], "questions": [], "seeds": []}
    at_once = max(1, LARGEST // (2 * seeds * questions))
    for start in range(0, repeats, at_once):
        a, b = scenario.draw(rng, min(at_once, repeats - start), seeds, questions)
        for scores in a:
            interval = mean_interval(scores[0]) if seeds == 1 else method_mean(scores)
            mean_hits.append(interval.low <= level + 1e-12 and interval.high >= level - 1e-12)
        for found in differences(a, b, seeds_paired=paired):
            hits.append(found.low <= difference + 1e-12 and found.high >= difference - 1e-12)
            widths.append(found.high - found.low)
            p["marked"].append(found.shown != 0)
            p["questions"].append(found.p_questions <= 0.05)
            if found.p_seeds is not None:
                p["seeds"].append(found.p_seeds <= 0.05)
    about = {"scenario": scenario.name, "questions": questions, "seeds": seeds, "repeats": repeats}
    what = "difference" if seeds == 1 else f"difference, seeds {'' if paired else 'not '}paired"
    cells = [about | {"what": what, "coverage": share(hits), "width": round(float(np.mean(widths)), 4)}]
    if not paired:  # the mean of a method knows nothing of pairing
        cells.insert(0, about | {"what": "mean", "coverage": share(mean_hits)})
    if difference == 0:
        cells[-1]["rejects"] = share(p["marked"])
        cells[-1]["rejects_over_questions"] = share(p["questions"])
        if p["seeds"]:
            cells[-1]["rejects_over_seeds"] = share(p["seeds"])
    return cells


def extremes(cells: list[dict[str, Any]], key: str) -> dict[tuple[str, int, int], tuple[float, float]]:
    """(what, questions, seeds) -> (least, most) of `key` over the scenarios."""
    groups: dict[tuple[str, int, int], list[float]] = {}
    for cell in cells:
        if key in cell:
            groups.setdefault((cell["what"], cell["questions"], cell["seeds"]), []).append(cell[key])
    return {group: (min(values), max(values)) for group, values in groups.items()}


def show(cells: list[dict[str, Any]]) -> None:
    """Print the tables of docs/comparison.md."""
    covered, marked = extremes(cells, "coverage"), extremes(cells, "rejects")
    seeds_test = extremes(cells, "rejects_over_seeds")
    head = ("what", "questions", "seeds", "coverage, %", "marked at 5 %, %", "test over seeds, %")
    print(f"| {' | '.join(head)} |\n|:--|--:|--:|--:|--:|--:|")

    def text(found: tuple[float, float] | None) -> str:
        return "" if found is None else f"{100 * found[0]:.1f} to {100 * found[1]:.1f}"

    for (what, questions, seeds), found in covered.items():
        key = (what, questions, seeds)
        print(f"| {what} | {questions:,} | {seeds} | {text(found)} | {text(marked.get(key))} | "
              f"{text(seeds_test.get(key))} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=4000)
    parser.add_argument("--jobs", type=int, default=1, help="processes; the result does not depend on it")
    parser.add_argument("--out", type=Path, default=Path("results/bench/coverage.json"))
    arguments = parser.parse_args()
    started = time.perf_counter()
    work: list[tuple[Scenario | Rare, int, int, int, bool, list[int]]] = []
    for questions in QUESTIONS:
        work += [(s, questions, 1, arguments.repeats, False, [SEED, questions, i]) for i, s in enumerate(RUNS)]
        repeats = arguments.repeats if questions < 1000 else arguments.repeats // 2
        work += [
            (s, questions, seeds, repeats, paired, [SEED, questions, seeds, i, paired])
            for seeds in SEEDS
            for i, s in enumerate(METHODS)
            for paired in (False, True)
        ]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        found = pool.map(measure, *zip(*reversed(work), strict=True))  # the largest first
        cells = [cell for part in found for cell in part]
    cells.sort(key=lambda cell: (cell["what"], cell["seeds"], cell["questions"], cell["scenario"]))
    write_json(arguments.out, {"seed": SEED, "repeats": arguments.repeats, "cells": cells})
    show(cells)
    print(f"{time.perf_counter() - started:.0f} s; written to {arguments.out}")


if __name__ == "__main__":
    main()
