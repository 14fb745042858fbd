"""What the intervals of `gtpo compare` cover and how often its tests reject a true null hypothesis, by simulation.

Benchmarks of 6, 30, 64, 100 and 1,319 questions, methods of 1, 3, 5 and 10 training seeds. Questions are drawn from a
population of difficulties, seeds from a population of training runs, samples from the questions' chances; "true" is
the mean over those populations.

Where an interval claims to cover the truth in 93 to 97 % of the cases is written in CLAIMS and decided by `claimed`,
from what is known of a cell beside its coverage; both were written down before this seed was run. Every cell is marked
in the file. A test holds the published file to them, with two standard errors for the simulation's own noise: claimed
cells within 93 to 97 %, no difference below 93 %, no mean below 91.5 %, and at most 5.5 % of true null hypotheses
rejected at 5 %.

    python -m bench.coverage [--repeats N] [--jobs N] [--out FILE]
    python -m bench.coverage --measured FILE         # mark the cells of FILE anew and print its tables
"""

from __future__ import annotations

import argparse
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from evalkit.statistics import differences, mean_interval, method_mean
from rewards.support.files import write_json

QUESTIONS = (6, 30, 64, 100, 1319)
SEEDS = (3, 5, 10)
SEED = 20261122
MEAN, DIFFERENCE = "mean", "difference"
UNPAIRED, PAIRED = "difference, seeds not paired", "difference, seeds paired"
CLAIMS = {
    ("a run", (MEAN,), (1,)): "30 questions; 5 expected to be solved, 5 to fail",
    ("a method", (MEAN,), SEEDS): "the same, and 5 seeds",
    ("a difference, one run each", (DIFFERENCE,), (1,)): "64 questions, 20 that differ; 0/1 scores: models that are "
    "not equal",
    ("a difference, seeds", (UNPAIRED, PAIRED), SEEDS): "100 questions, 5 seeds, two thirds of the variance from "
    "training",
}
"""(name, cells' "what", seeds) -> where 93 to 97 % is claimed."""
ELSEWHERE = {
    "few": (
        "fewer than 20 questions differ, one run each",
        "McNemar's exact test rejects nothing where five or fewer differ (2/2^5 = 6.25 %), and the interval agrees "
        "with it. With 2 % differing so few do in 100, 99.8 and 98.5 % of benchmarks of 30, 64 and 100 questions, "
        "and the interval covers these",
    ),
    "discrete": ("equal models, 0/1 scores", "100 % less what the exact test rejects, which moves in steps"),
    "small": ("a difference on 6 or 30 questions", "Student's t and a score interval, each a little wide"),
    "three": (
        "a difference, 3 seeds, 64 questions or more",
        "two degrees of freedom: the quantile guards against a variance that comes out small",
    ),
    "alike": (
        "a difference, 5 or 10 seeds: 64 questions, or seeds that differ little",
        "an estimate of the variance of training below 0 counts as 0",
    ),
    "edge": (
        "a mean with fewer than 5 questions expected to be solved, or to fail",
        "few outcomes are possible. Of 0/1 scores, exactly: 91.9 % and more where one is expected, 93 % elsewhere",
    ),
    "mean": ("a mean over 3 seeds, or on 6 questions", "as for differences"),
}
"""Key of `without_claim` -> (where, why)."""
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
    of_method_and_question: float = 0.0
    """Standard deviation of what a method finds easier or harder, whatever its seed, in logits."""

    @property
    def whole(self) -> bool:
        """Whether every score is 0 or 1."""
        return self.samples == 1

    def truth(self) -> tuple[float, float]:
        """(mean score of the first method, mean difference)."""
        first, second = (mean for mean, _ in _over_training(self))
        return first, first - second

    def training(self) -> tuple[float, float]:
        """Variance over training runs of (the first method's mean score, the difference), one run each."""
        first, second = (variance for _, variance in _over_training(self))
        return first, first + second

    def draw(self, rng: np.random.Generator, repeats: int, seeds: int, questions: int) -> Pair:
        """Two [repeats, seeds, questions] arrays of pass@1."""
        chance = np.clip(rng.beta(self.alpha, self.beta, (repeats, 1, questions)), 1e-9, 1 - 1e-9)
        logit = special.logit(chance)
        scores = []
        for shift in (self.shift, 0.0):
            moved = logit + shift + self.of_seed * rng.normal(size=(repeats, seeds, 1))
            if self.of_seed_and_question:
                moved = moved + self.of_seed_and_question * rng.normal(size=(repeats, seeds, questions))
            if self.of_method_and_question:
                moved = moved + self.of_method_and_question * rng.normal(size=(repeats, 1, questions))
            chances = np.broadcast_to(special.expit(moved), (repeats, seeds, questions))
            scores.append(rng.binomial(self.samples, chances) / self.samples)
        return scores[0], scores[1]


@lru_cache(maxsize=64)
def _over_training(scenario: Scenario) -> list[tuple[float, float]]:
    """(mean, variance over training runs) of the mean score of either method, by quadrature."""
    chance = special.betaincinv(scenario.alpha, scenario.beta, (np.arange(4000) + 0.5) / 4000)
    logit = special.logit(np.clip(chance, 1e-9, 1 - 1e-9))
    normal, weights = np.polynomial.hermite_e.hermegauss(31)
    weights = weights / weights.sum()
    of_questions = np.hypot(scenario.of_seed_and_question, scenario.of_method_and_question) * normal[:, None]
    found = []
    for shift in (scenario.shift, 0.0):
        means = [
            weights @ special.expit(logit + shift + s + of_questions).mean(axis=1) for s in scenario.of_seed * normal
        ]
        mean = float(weights @ means)
        found.append((mean, float(weights @ np.square(np.array(means) - mean))))
    return found


class Rare(NamedTuple):
    """Two models that agree (both right) but on 2 % of the questions."""

    name: str
    up: float
    """Share of those on which the first model is the better one."""
    whole: bool
    """Whether it is right or wrong on them, or by any amount."""

    def training(self) -> tuple[float, float]:
        """Training makes no difference here."""
        return 0.0, 0.0

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
    Scenario("seeds differ, methods differ by question, better", 0.6, 0.8, 16, 0.3, 0.3, 0.3, 0.5),
    Scenario("seeds alike, equal", 0.6, 0.8, 16, 0.0, 0.0, 0.3),
    Scenario("seeds differ, equal", 0.6, 0.8, 16, 0.0, 0.3, 0.5),
    Scenario("1 sample, seeds differ, equal", 2, 2, 1, 0.0, 0.3, 0.0),
    Scenario("seeds differ, methods differ by question, equal", 0.6, 0.8, 16, 0.0, 0.3, 0.3, 0.5),
)


def share(found: list[bool]) -> float:
    """Share of True, to four places."""
    return round(float(np.mean(found)), 4)


class Tally:
    """What the comparisons of one cell came to."""

    def __init__(self, difference: float) -> None:
        self.difference = difference
        self.hits: list[bool] = []
        self.widths: list[float] = []
        self.found: list[float] = []
        self.differing: list[int] = []
        self.rejects: dict[str, list[bool]] = {"rejects": [], "rejects_over_questions": [], "rejects_over_seeds": []}

    def add(self, a: Array, b: Array, paired: bool) -> None:
        """Compare in every repetition."""
        for found in differences(a, b, seeds_paired=paired, exact_too=self.difference == 0):
            self.hits.append(found.low <= self.difference + 1e-12 and found.high >= self.difference - 1e-12)
            self.widths.append(found.high - found.low)
            self.found.append(found.difference)
            self.differing.append(found.only_a + found.only_b)
            self.rejects["rejects"].append(found.shown != 0)
            self.rejects["rejects_over_questions"].append(found.p_questions <= 0.05)
            if found.p_seeds is not None:
                self.rejects["rejects_over_seeds"].append(found.p_seeds <= 0.05)

    def cell(self, of_training: float) -> dict[str, Any]:
        """of_training: the variance of the difference that training makes."""
        cell = {
            "coverage": share(self.hits),
            "width": round(float(np.mean(self.widths)), 4),
            "differing": round(float(np.mean(self.differing)), 1),
            "training_share": round(of_training / max(float(np.var(self.found)), 1e-12), 2),
        }
        if self.difference == 0:
            cell |= {name: share(found) for name, found in self.rejects.items() if found}
        return cell


def measure(
    scenario: Scenario | Rare, questions: int, seeds: int, repeats: int, seed: list[int]
) -> list[dict[str, Any]]:
    """The cells of one scenario: coverage and width of its intervals, rejections where its null is true."""
    rng = np.random.default_rng(seed)
    level, difference = scenario.truth()
    mean_hits: list[bool] = []
    means: list[float] = []
    pairings = (False,) if seeds == 1 else (False, True)
    tallies = {paired: Tally(difference) for paired in pairings}
    at_once = max(1, LARGEST // (2 * seeds * questions))
    for start in range(0, repeats, at_once):
        a, b = scenario.draw(rng, min(at_once, repeats - start), seeds, questions)
        for scores in a:
            interval = mean_interval(scores[0]) if seeds == 1 else method_mean(scores)
            mean_hits.append(interval.low <= level + 1e-12 and interval.high >= level - 1e-12)
            means.append(interval.mean)
        for paired, tally in tallies.items():
            tally.add(a, b, paired)
    about = {
        "scenario": scenario.name, "questions": questions, "seeds": seeds, "repeats": repeats, "whole": scenario.whole
    }  # fmt: skip
    of_mean, of_difference = (variance / seeds for variance in scenario.training())
    mean = {
        "what": MEAN,
        "coverage": share(mean_hits),
        "expected": round(questions * min(level, 1 - level), 2),
        "training_share": round(of_mean / max(float(np.var(means)), 1e-12), 2),
    }
    cells = [about | mean]
    for paired, tally in tallies.items():
        what = DIFFERENCE if seeds == 1 else PAIRED if paired else UNPAIRED
        cell = about | {"what": what} | tally.cell(of_difference)
        if isinstance(scenario, Scenario) and scenario.of_method_and_question:
            # On these very questions the two do differ, which is what the test over seeds is about.
            cell.pop("rejects_over_seeds", None)
        cells.append(cell)
    return cells


def claimed(cell: dict[str, Any]) -> bool:
    """Whether the interval of this cell claims to cover the truth in 93 to 97 % of the cases: CLAIMS, as a rule."""
    if cell["what"] == MEAN:
        return cell["questions"] >= 30 and cell["expected"] >= 5 and cell["seeds"] not in (3, 4)
    if cell["what"] == DIFFERENCE:
        equal_outcomes = cell["whole"] and "rejects" in cell
        return cell["questions"] >= 64 and cell["differing"] >= 20 and not equal_outcomes
    return cell["questions"] >= 100 and cell["seeds"] >= 5 and cell["training_share"] >= 2 / 3


def without_claim(cell: dict[str, Any]) -> str:
    """Where in ELSEWHERE a cell without a claim belongs."""
    if cell["what"] == MEAN:
        return "edge" if cell["expected"] < 5 else "mean"
    if cell["what"] == DIFFERENCE and cell["differing"] < 20:
        return "few"
    if cell["questions"] < 64:
        return "small"
    if cell["what"] == DIFFERENCE:
        return "discrete"
    return "three" if cell["seeds"] == 3 else "alike"


def tolerance(cell: dict[str, Any], share: float) -> float:
    """Two standard errors of a share in this cell."""
    return 2 * math.sqrt(share * (1 - share) / cell["repeats"])


def tables(cells: list[dict[str, Any]]) -> list[str]:
    """The four tables of docs/comparison.md: claims, what is not claimed, coverage, rejections."""

    def spread(chosen: list[dict[str, Any]]) -> str:
        found = [100 * cell["coverage"] for cell in chosen]
        return f"{min(found):.1f} to {max(found):.1f}" if found else ""

    def most(chosen: list[dict[str, Any]], key: str) -> str:
        return f"{max(100 * cell[key] for cell in chosen):.1f}" if chosen else ""

    lines = ["| 95 % interval of | claims 93 to 97 % with | cells | coverage, % | other cells | coverage, % |",
             "|:--|:--|--:|--:|--:|--:|"]  # fmt: skip
    for (name, whats, seeds), claim in CLAIMS.items():
        its = [cell for cell in cells if cell["what"] in whats and cell["seeds"] in seeds]
        inside, outside = ([cell for cell in its if cell["claimed"] == side] for side in (True, False))
        lines.append(f"| {name} | {claim} | {len(inside)} | {spread(inside)} | {len(outside)} | {spread(outside)} |")
    lines = ["\n".join(lines), "| without a claim | coverage, % | why |\n|:--|--:|:--|"]
    for key, (where, why) in ELSEWHERE.items():
        its = [cell for cell in cells if not cell["claimed"] and without_claim(cell) == key]
        lines[-1] += f"\n| {where} | {spread(its)} | {why} |"
    for title, key in (("coverage, %", "coverage"), ("most true null hypotheses rejected at 5 %, %", "rejects")):
        lines.append(f"| {title} | {' | '.join(f'{q:,}' for q in QUESTIONS)} |\n|:--|" + "--:|" * len(QUESTIONS))
        for what, seeds in dict.fromkeys((cell["what"], cell["seeds"]) for cell in cells if key in cell):
            its = [[c for c in cells if (c["what"], c["seeds"], c["questions"]) == (what, seeds, q)] for q in QUESTIONS]
            shown = [spread(of) if key == "coverage" else most([c for c in of if key in c], key) for of in its]
            lines[-1] += f"\n| {what}, {f'{seeds} seeds' if seeds > 1 else 'one run'} | {' | '.join(shown)} |"
    exact = "rejects_over_seeds"
    of = [most([c for c in cells if c["questions"] == q and exact in c], exact) for q in QUESTIONS]
    lines[-1] += f"\n| exact test over seeds | {' | '.join(of)} |"
    return lines


def simulate(seed: int, repeats: int, jobs: int) -> list[dict[str, Any]]:
    """Every cell; half as many repetitions for methods on the largest benchmark."""
    work: list[tuple[Scenario | Rare, int, int, int, list[int]]] = []
    for questions in QUESTIONS:
        work += [(s, questions, 1, repeats, [seed, questions, 1, i]) for i, s in enumerate(RUNS)]
        fewer = repeats if questions < 1000 else repeats // 2
        work += [
            (s, questions, seeds, fewer, [seed, questions, seeds, i]) for seeds in SEEDS for i, s in enumerate(METHODS)
        ]
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(measure, *zip(*reversed(work), strict=True))  # the largest first
        cells = [cell for part in found for cell in part]
    return sorted(cells, key=lambda cell: (cell["what"], cell["seeds"], cell["questions"], cell["scenario"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=4000)
    parser.add_argument("--jobs", type=int, default=1, help="processes; the result does not depend on it")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=Path("results/bench/coverage.json"))
    parser.add_argument("--measured", type=Path, help="cells measured before; mark and print them again")
    arguments = parser.parse_args()
    started = time.perf_counter()
    if arguments.measured:
        measured = json.loads(arguments.measured.read_text())
    else:
        measured = {"seed": arguments.seed, "repeats": arguments.repeats}
        measured["cells"] = simulate(arguments.seed, arguments.repeats, arguments.jobs)
    cells = [cell | {"claimed": claimed(cell)} for cell in measured["cells"]]
    write_json(arguments.measured or arguments.out, measured | {"cells": cells})
    print("\n\n".join(tables(cells)))
    print(f"{time.perf_counter() - started:.0f} s; written to {arguments.measured or arguments.out}")


if __name__ == "__main__":
    main()
