"""The runs that README.md beside this file plans on small models: `python run.py RECORDS.jsonl WORK` (driver.py).

The plan is the constants and functions below: which run comes next follows from the records and nothing else.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats

sys.path.insert(0, str(Path(__file__).parent))
from driver import Records, Study, command, drive

# Rates spaced by 2, by (model, optimizer steps a rollout).
GRIDS = {
    ("130k", 4): (2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4),
    ("130k", 8): (2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4),
    ("130k", 1): (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3),
    ("2.2m", 4): (1.25e-5, 2.5e-5, 5e-5, 1e-4, 2e-4),
}
SEARCH_SEEDS = (101, 102)
FIRST_PAIR = 201
# Pairs of the primary comparison, least and most; of the secondary ones by name.
LEAST, MOST = 24, 48
PAIRS = {"8 steps": 24, "1 step": 24, "common rate": 24, "larger model": 16, "arms": 16}
# Rates added on one side of a grid whose edge is best, for every arm of the search.
MOST_ADDED = 3
# The effect, in points, that the number of pairs is chosen for. The level of the primary test is below 5 %, since a
# number of pairs that follows from their spread marks equal methods more often than the level says.
EFFECT, POWER, ALPHA = 1.0, 0.9, 0.043

STEPS = 240
# Completions of a rollout, and samples a problem of an evaluation.
BATCH, SAMPLES = 128, 8
ARMS = {
    "gtpo": ("demo/gtpo",),
    "grpo": ("demo/grpo",),
    "conflict": ("demo/gtpo", "--objective.preset", "gtpo-conflict-only"),
    "gate": ("demo/gtpo", "--objective.preset", "grpo", "--objective.filter", "always"),
    "dapo": ("demo/grpo", "--training.loss_type", "dapo", "--training.epsilon_high", "0.28",
             "--objective.mask_truncated", "true"),
    "dr-grpo": ("demo/grpo", "--training.loss_type", "dr_grpo", "--objective.scale_rewards", "none"),
    # Outside the tests: README.md, "Token credit side by side".
    "rsi": ("demo/gtpo", "--objective.preset", "rsi"),
    "ntf": ("demo/gtpo", "--objective.preset", "ntf"),
    "entropy-band": ("demo/gtpo", "--objective.preset", "entropy-band"),
}  # fmt: skip
LARGER = ("--model.build.hidden_size", "192", "--model.build.intermediate_size", "640",
          "--model.build.num_hidden_layers", "4", "--training.learning_rate", "2e-3")  # fmt: skip
BASES = {"130k": (), "2.2m": LARGER}


class Run(NamedTuple):
    """One run: `base` trains a base, `search` and `pairs` train from it."""

    phase: str
    model: str
    seed: int
    arm: str = ""
    steps: int = 0
    """Optimizer steps a rollout."""
    rate: float = 0.0

    @property
    def name(self) -> str:
        """What records and folders call it."""
        if self.phase == "base":
            return f"base-{self.model}-s{self.seed}"
        return f"{self.phase}-{self.model}-{self.steps}-{self.arm}-{self.rate:.3g}-s{self.seed}"

    @property
    def base(self) -> Run:
        """Every seed has a base of its own; of the larger model one serves the search and one the pairs."""
        if self.model == "130k":
            return Run("base", self.model, self.seed)
        return Run("base", self.model, FIRST_PAIR if self.seed >= FIRST_PAIR else SEARCH_SEEDS[0])


def accuracy(row: Mapping[str, Any]) -> float:
    """Return the lenient pass@1 of a run's last weights, in percent."""
    return 100 * float(np.mean(row["lenient"])) / row["samples"]


def grid_of(records: Records, model: str, steps: int, arms: Sequence[str]) -> tuple[tuple[float, ...], bool]:
    """Return the rates of a search as far as the records decide them, and whether all of their runs are recorded."""
    grid, added = GRIDS[model, steps], 0
    while True:
        if not all(run.name in records for run in search_runs(model, steps, arms, grid)):
            return grid, False
        best = {best_of(records, model, steps, arm, grid) for arm in arms}
        beyond = [grid[0] / 2] * (grid[0] in best) + [2 * grid[-1]] * (grid[-1] in best)
        if not beyond or added == MOST_ADDED:
            return grid, True
        grid, added = tuple(sorted({*grid, *beyond})), added + 1


def search_runs(model: str, steps: int, arms: Sequence[str], grid: Sequence[float]) -> list[Run]:
    """Return the runs of a search."""
    return [Run("search", model, seed, arm, steps, rate) for seed in SEARCH_SEEDS for rate in grid for arm in arms]


def best_of(records: Records, model: str, steps: int, arm: str, grid: Sequence[float]) -> float:
    """Return the rate with the largest mean accuracy over the seeds of the search; of equal ones the smallest."""
    means = [
        np.mean([accuracy(records[Run("search", model, seed, arm, steps, rate).name]) for seed in SEARCH_SEEDS])
        for rate in grid
    ]
    return grid[int(np.argmax(means))]


def rates_of(records: Records, model: str, steps: int) -> dict[str, float] | None:
    """Return the rates of GTPO and GRPO, chosen by their search; None before its end."""
    grid, whole = grid_of(records, model, steps, ("gtpo", "grpo"))
    return {arm: best_of(records, model, steps, arm, grid) for arm in ("gtpo", "grpo")} if whole else None


def pairs(model: str, steps: int, rates: Mapping[str, float], seeds: Sequence[int]) -> Iterator[Run]:
    """Yield the runs of each seed in random order."""
    for seed in seeds:
        arms = sorted(rates)
        random.Random(f"{model} {steps} {arms} {seed}").shuffle(arms)
        yield from (Run("pairs", model, seed, arm, steps, rates[arm]) for arm in arms)


def differences(records: Records, one: Run, other: Run, seeds: Sequence[int]) -> np.ndarray:
    """Return the accuracy of a run less that of another, in points, of each seed; the runs name all but the seed."""
    return np.array([accuracy(records[one._replace(seed=seed).name]) - accuracy(records[other._replace(seed=seed).name])
                     for seed in seeds])  # fmt: skip


def power(count: int, spread: float, effect: float = EFFECT) -> float:
    """Return the chance that the two-sided t test at ALPHA over pairs shows a true difference."""
    bound, shift = stats.t.ppf(1 - ALPHA / 2, count - 1), effect * count**0.5 / spread
    if shift > bound + 6:  # scipy's noncentral t has no number there
        return 1.0
    return float(stats.nct.sf(bound, count - 1, shift) + stats.nct.cdf(-bound, count - 1, shift))


def pairs_needed(spread: float) -> int:
    """Return the pairs that show EFFECT with POWER at the spread of the first LEAST, within LEAST and MOST."""
    return next((n for n in range(LEAST, MOST) if power(n, spread) >= POWER), MOST)


def least_spread(n: int) -> float:
    """Return the spread of a pair at which n pairs show EFFECT with POWER."""
    return float(optimize.brentq(lambda spread: power(n, spread) - POWER, 0.01, 20))


def seeds_of(count: int) -> range:
    """Return the seeds of the first pairs."""
    return range(FIRST_PAIR, FIRST_PAIR + count)


def planned(records: Records) -> Iterator[Run]:
    """Yield the runs in their order, as far as the records decide them; bases are made when a run needs them."""
    for part in ("4 steps", "8 steps", "1 step", "common rate", "arms", "larger model"):
        model, steps = ("2.2m", 4) if part == "larger model" else ("130k", int(part[0]) if part[0].isdigit() else 4)
        if part in ("4 steps", "8 steps", "1 step", "larger model"):
            grid, whole = grid_of(records, model, steps, ("gtpo", "grpo"))
            yield from search_runs(model, steps, ("gtpo", "grpo"), grid)
            rates = rates_of(records, model, steps)
            if not whole or rates is None:
                return
            first = list(pairs(model, steps, rates, seeds_of(PAIRS.get(part, LEAST))))
            yield from first
            if part == "4 steps":
                if not all(run.name in records for run in first):
                    return
                one, other = (Run("pairs", model, 0, arm, steps, rates[arm]) for arm in ("gtpo", "grpo"))
                spread = differences(records, one, other, seeds_of(LEAST)).std(ddof=1)
                yield from pairs(model, steps, rates, seeds_of(pairs_needed(spread))[LEAST:])
        elif part == "common rate":
            rates = rates_of(records, "130k", 4)
            if rates is not None and rates["gtpo"] != rates["grpo"]:
                common = float(np.sqrt(rates["gtpo"] * rates["grpo"]))
                yield from pairs(model, steps, dict.fromkeys(("gtpo", "grpo"), common), seeds_of(PAIRS[part]))
        else:
            grid, _ = grid_of(records, model, steps, ("gtpo", "grpo"))
            for arm in ("conflict", "gate", "dapo", "dr-grpo"):
                search = search_runs(model, steps, (arm,), grid)
                yield from search
                if not all(run.name in records for run in search):
                    return
                yield from pairs(
                    model, steps, {arm: best_of(records, model, steps, arm, grid)}, seeds_of(PAIRS["arms"])
                )


def problem_sets() -> dict[str, list[Any]]:
    """Return the problems of the search and the final ones; training has the first 3,000 of the split `train`."""
    from gtpo.rewards.data.arithmetic import arithmetic_problems

    train = arithmetic_problems("train", 3256)
    return {"search": train[3000:], "final": arithmetic_problems("test", 512)}


def train(run: Run) -> None:
    """Train a run into results/train."""
    seed = ("--run-name", run.name, "--model.random_seed", str(run.seed), "--quiet")
    if run.phase == "base":
        command("train", "demo/base", *seed, *BASES[run.model])
        return
    flags = {
        "model.model_name": f"results/train/{run.base.name}/final", "training.learning_rate": repr(run.rate),
        "training.num_iterations": run.steps, "training.max_steps": STEPS, "training.save_steps": STEPS,
        "training.log_completions_steps": 0, "dataset.validation_file": "search.jsonl", "training.eval_steps": 24,
        "training.eval_samples": 1,
    }  # fmt: skip
    command(
        "train", *ARMS[run.arm], *seed, *(word for key, value in flags.items() for word in (f"--{key}", str(value)))
    )


STUDY = Study(planned, train, problem_sets, Run, BATCH, SAMPLES)

if __name__ == "__main__":
    drive(STUDY)
