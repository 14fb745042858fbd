"""What the intervals and verdicts of `gtpo compare` are worth, by simulation: coverage, marks, power, equivalence.

Two methods whose true difference is known, 1 to 10 training seeds each, 30 to 1,319 questions, 1 to 64 samples.
Questions are drawn from a population of difficulties, seeds from one of training runs, samples from the chances;
"true" is the mean over those populations. Kinds of training:

    alike      seeds of both methods lie 0.3 logits apart
    unequal    those of the first 0.45, of the second 0.15
    collapse   as alike, and half of the runs of either method collapse: 3 logits lower
    weights    two models that were not trained here: no seed

Marked: a difference is shown. Equivalent: declared within a margin that is the true difference, so every one is wrong.
`promises` says what is promised, `promised` where; a test holds the published file to it within two standard errors.

    python -m bench.coverage [--repeats N] [--jobs N] [--seed N] [--out FILE]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from bench.common import parser, save, table
from gtpo.evalkit.differences import compare_columns
from gtpo.evalkit.statistics import mean_interval, method_mean
from gtpo.evalkit.training_variance import borrowed, seed_variance

Array = NDArray[np.float64]
Cell = dict[str, Any]

SEED = 20261124
QUESTIONS, SAMPLES, DIFFERENCES = (30, 100, 1319), (1, 16, 64), (0.0, 0.02, 0.1)
SPREADS = {"alike": (0.3, 0.3), "unequal": (0.45, 0.15), "collapse": (0.3, 0.3), "weights": (0.0, 0.0)}
OF_RUN_AND_QUESTION, DROP = 0.3, 3.0
"""Logits: what a run finds easier or harder than others of its method; what a collapse takes."""
ALPHA, BETA = 0.6, 0.8
"""Chances of the questions."""
LARGEST = 12_000_000
"""Numbers held at once."""


class Design(NamedTuple):
    """Seeds of the two methods compared, whether those pair, and of the other methods of the table."""

    a: int
    b: int
    paired: bool = False
    others: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """`3 v 10`, `5 v 5 paired`, `1 v 1 beside 3, 3`."""
        beside = f" beside {', '.join(map(str, self.others))}" if self.others else ""
        return f"{self.a} v {self.b}{' paired' * self.paired}{beside}"


DESIGNS = (
    *(Design(a, b) for a, b in ((1, 1), (1, 3), (1, 5), (1, 10), (2, 2), (2, 4), (2, 10), (3, 3), (3, 10), (5, 5))),
    Design(10, 10), Design(3, 3, True), Design(5, 5, True), Design(10, 10, True),
    Design(1, 1, others=(3, 3)), Design(1, 3, others=(3, 3)), Design(2, 2, others=(3, 3)),
)  # fmt: skip


@lru_cache(maxsize=256)
def mean_score(shift: float, spread: float, collapse: bool) -> float:
    """The expected score of a method, by quadrature."""
    chance = special.betaincinv(ALPHA, BETA, (np.arange(2000) + 0.5) / 2000)
    logit = special.logit(np.clip(chance, 1e-9, 1 - 1e-9))
    normal, weights = np.polynomial.hermite_e.hermegauss(31)
    wide = math.hypot(spread, OF_RUN_AND_QUESTION) * normal[:, None]
    means = [
        weights @ special.expit(logit + shift - drop + wide).mean(axis=1) for drop in ((0, DROP) if collapse else (0,))
    ]
    return float(np.mean(means) / weights.sum())


@lru_cache(maxsize=64)
def shift_for(kind: str, difference: float) -> float:
    """How much easier the questions are for the first method, in logits."""
    (first, second), collapse = SPREADS[kind], kind == "collapse"
    goal = mean_score(0.0, second, collapse) + difference
    return float(optimize.brentq(lambda shift: mean_score(shift, first, collapse) - goal, -1, 4))


def draw(
    rng: np.random.Generator, kind: str, design: Design, questions: int, samples: int, difference: float, repeats: int
) -> list[Array]:
    """[repeats, S, Q] scores of each method of the table."""
    logit = special.logit(np.clip(rng.beta(ALPHA, BETA, (repeats, 1, questions)), 1e-9, 1 - 1e-9)).astype(np.float32)
    first, second = SPREADS[kind]
    out = []
    for i, seeds in enumerate((design.a, design.b, *design.others)):
        moved = (shift_for(kind, difference) if i == 0 else 0.0) + (second, first)[i in (0, 2)] * rng.normal(
            size=(repeats, seeds, 1)
        )
        if kind == "collapse":
            moved -= DROP * (rng.random((repeats, seeds, 1)) < 0.5)
        own = OF_RUN_AND_QUESTION * rng.standard_normal((repeats, seeds, questions), dtype=np.float32)
        chances = special.expit(logit + moved.astype(np.float32) + own)
        out.append(rng.binomial(samples, chances) / samples)
    return out


def in_lots(repeats: int, numbers: int, run: Callable[[int], dict[str, Array]]) -> dict[str, Array]:
    """Return what `run(count)` returns over all repeats, done in lots. numbers: of one repeat."""
    at_once = max(1, LARGEST // numbers)
    lots = [run(min(at_once, repeats - start)) for start in range(0, repeats, at_once)]
    return {name: np.concatenate([lot[name] for lot in lots]) for name in lots[0]}


def measure(
    kind: str, design: Design, questions: int, samples: int, difference: float, repeats: int, seed: list[int]
) -> Cell:
    """One cell: a difference, in one setting."""
    rng, by_training = np.random.default_rng(seed), kind != "weights"

    def lot(count: int) -> dict[str, Array]:
        x = draw(rng, kind, design, questions, samples, difference, count)
        pool = borrowed([seed_variance(scores) for scores in x if scores.shape[1] > 1]) if by_training else None
        got = compare_columns(
            x[0], x[1], seeds_paired=design.paired, exact_too=False, p_too=False, trained=(by_training, by_training),
            pool=pool,
        )  # fmt: skip
        return {
            "judged": np.full(count, got.basis.judged),
            "coverage": (got.low <= difference + 1e-12) & (got.high >= difference - 1e-12),
            "marked": got.shown != 0,
            "found": got.shown == 1,
            "equivalent": got.equivalent(difference or 0.02, 0.05) & (got.shown == 0) & got.basis.judged,
        }

    found = in_lots(repeats, (design.a + design.b + sum(design.others)) * questions, lot)
    about = {
        "kind": kind, "design": design.name, "seeds": [design.a, design.b], "questions": questions, "samples": samples,
        "difference": difference, "repeats": repeats, "judged": bool(found.pop("judged").all()),
    }  # fmt: skip
    return about | {name: round(float(values.mean()), 4) for name, values in found.items()}


def measure_mean(kind: str, seeds: int, questions: int, samples: int, repeats: int, seed: list[int]) -> Cell:
    """One cell: the interval of a method's mean."""
    rng, truth = np.random.default_rng(seed), mean_score(0.0, SPREADS[kind][0], False)

    def lot(count: int) -> dict[str, Array]:
        scores, _ = draw(rng, kind, Design(seeds, 1), questions, samples, 0.0, count)
        found = [mean_interval(x[0]) if kind == "weights" else method_mean(x) for x in scores]
        return {"coverage": np.array([one.low <= truth <= one.high for one in found])}

    covered = in_lots(repeats, (seeds + 1) * questions, lot)["coverage"].mean()
    return {"kind": "mean", "design": "one model" if kind == "weights" else f"{seeds} seeds", "seeds": [seeds],
            "questions": questions, "samples": samples, "repeats": repeats,
            "coverage": round(float(covered), 4)}  # fmt: skip


def promised(cell: Cell) -> bool:
    """Return whether the promises hold for the design of this cell; elsewhere docs/comparison.md has what was found."""
    if cell["kind"] == "mean":
        return cell["questions"] >= 100
    if not cell["judged"]:
        return False
    return not (cell["kind"] == "unequal" and min(cell["seeds"]) < 3)


def promises(cells: list[Cell]) -> str:
    """The table of what is promised, with the worst cell of each."""
    kept = [cell for cell in cells if promised(cell)]
    wide = [100 * cell["coverage"] for cell in kept if covers_as_promised(cell) and cell["kind"] != "mean"]
    equal = [cell for cell in kept if cell.get("difference") == 0]
    worst = {kind: max(100 * c["marked"] for c in equal if c["kind"] == kind) for kind in SPREADS}
    wrongly = max(100 * cell["equivalent"] for cell in kept if cell.get("difference"))
    rest = max(share for kind, share in worst.items() if kind != "collapse")
    rows = [("a difference covers the truth", "93 to 97.5 %", f"{min(wide):.1f} to {max(wide):.1f} %"),
            ("equal methods are marked", "at most 6 %", f"{rest:.1f} % at most"),
            ("the same where half of the runs collapse", "at most 8 %", f"{worst['collapse']:.1f} % at most"),
            ("methods are wrongly declared equivalent", "at most 5 %", f"{wrongly:.1f} % at most")]  # fmt: skip
    return table(("where it is promised", ">promise", ">measured"), rows)


def covers_as_promised(cell: Cell) -> bool:
    """Return whether the interval is promised to be neither too narrow nor too wide: where runs collapse it is wide."""
    of_three = cell["kind"] == "alike" and min(cell["seeds"]) == 3  # two estimates must agree, of few seeds
    return promised(cell) and cell["kind"] in ("alike", "weights", "mean") and cell["questions"] >= 100 and not of_three


def tolerance(cell: Cell, share: float) -> float:
    """Two standard errors of a share in this cell."""
    return 2 * math.sqrt(share * (1 - share) / cell["repeats"])


def tables(cells: list[Cell]) -> list[str]:
    """The tables of docs/comparison.md: by kind and design, least to most over questions and samples, in percent."""

    def spread(chosen: list[Cell], key: str) -> str:
        found = [100 * cell[key] for cell in chosen]
        return "" if not found else f"{min(found):.1f} to {max(found):.1f}" if len(found) > 1 else f"{found[0]:.1f}"

    def most(chosen: list[Cell], key: str) -> str:
        return f"{max(100 * cell[key] for cell in chosen):.1f}" if chosen else ""

    columns = ("seeds", ">marked, equal methods", ">coverage, 0 points", ">2 points", ">10 points", ">found, 2 points",
               ">found, 10 points", ">wrongly equivalent")  # fmt: skip
    out = []
    for kind in SPREADS:
        rows = []
        of_kind = [cell for cell in cells if cell["kind"] == kind]
        for name in dict.fromkeys(cell["design"] for cell in of_kind):
            its = [cell for cell in of_kind if cell["design"] == name]
            zero, two, ten = by_difference = [[cell for cell in its if cell["difference"] == d] for d in DIFFERENCES]
            label = name if its[0]["judged"] else f"{name} (not judged)"
            rows.append((label, most(zero, "marked"), *(spread(each, "coverage") for each in by_difference),
                         spread(two, "found"), spread(ten, "found"), most(two + ten, "equivalent")))  # fmt: skip
        out.append(table(columns, rows))
    means = [cell for cell in cells if cell["kind"] == "mean"]
    rows = []
    for name in dict.fromkeys(cell["design"] for cell in means):
        its = [[c for c in means if c["design"] == name and c["questions"] == q] for q in QUESTIONS]
        rows.append((name, *(spread(of, "coverage") for of in its)))
    return [*out, table(("mean of", *(f">{q:,}{' questions' * (q == 30)}" for q in QUESTIONS)), rows)]


def simulate(seed: int, repeats: int, jobs: int) -> list[Cell]:
    """Every cell: everything on 100 questions, and on 30 and 1,319 what differs most from it."""
    work: list[tuple[Any, ...]] = []
    for q, n in product(QUESTIONS, SAMPLES):
        kinds = ("alike", "unequal", "collapse") if n == 16 else ("alike",)
        for (i, design), (k, kind) in product(enumerate(DESIGNS), enumerate(kinds)):
            whole = q == 100 or (n, kind) == (16, "alike")
            differences = DIFFERENCES if whole else DIFFERENCES[:1] if q == 30 or n == 16 else ()
            work += [(kind, design, q, n, d, repeats, [seed, q, n, i, k, int(100 * d)]) for d in differences]
        work += [("weights", Design(1, 1), q, n, d, repeats, [seed, q, n, int(100 * d)]) for d in DIFFERENCES]
    means = [
        (kind, seeds, q, n, repeats, [seed, q, n, seeds])
        for kind, seeds in (("weights", 1), ("alike", 3), ("alike", 5), ("alike", 10))
        for q, n in product(QUESTIONS, SAMPLES)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        found = list(pool.map(measure, *zip(*reversed(work), strict=True)))[::-1]
        return found + list(pool.map(measure_mean, *zip(*means, strict=True)))


def main() -> None:
    out = Path("results/bench/coverage.json")
    arguments = parser(__doc__, repeats=1000, jobs=1, seed=SEED, out=out).parse_args()
    cells = simulate(arguments.seed, arguments.repeats, arguments.jobs)
    print("\n\n".join([promises(cells), *tables(cells)]))
    save(arguments.out, {"seed": arguments.seed, "repeats": arguments.repeats, "cells": cells})


if __name__ == "__main__":
    main()
