"""The runs on a real model that pretrained.md beside this file plans: `python pretrained.py RECORDS.jsonl WORK`.

WORK/smollm2-135m holds the model: `python -m bench.real_model smollm2-135m WORK/smollm2-135m`. Whether a rollout feeds
four optimizer steps or one follows from results.json, the runs from the records.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))
from driver import Records, Study, command, drive

# Rates spaced by 3, by optimizer steps a rollout.
GRIDS = {1: (6.7e-5, 2e-4, 6e-4), 4: (2.2e-5, 6.7e-5, 2e-4)}
SEARCH_SEEDS, FIRST_PAIR = (301, 302), 401
# Rates added on one side of a grid whose edge is best, for both methods.
MOST_ADDED = 1
# Points that the best rate of each method must gain in the search; otherwise there are no pairs.
LIFT = 5.0
# Pairs at the look, at the end, and at the end if the spread of the first PAIRS is above WIDE points.
LOOK, PAIRS, MOST, WIDE = 4, 8, 12, 4.0
# Levels of the look (O'Brien and Fleming) and of the end, which is lower since the number of pairs follows from their
# spread.
LOOK_LEVEL, LEVEL = 0.0052, 0.039
MARGIN = 3.0

STEPS, BATCH, SAMPLES = 60, 32, 4
ARMS = {"gtpo": ("--method", "gtpo", "--objective.filter", "always"), "grpo": ("--method", "grpo")}


class Run(NamedTuple):
    """One run: `base` is the warm start, from whose weights all others begin."""

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
        """The one warm start."""
        return Run("base", self.model, SEARCH_SEEDS[0])


BASE = Run("base", "135m", SEARCH_SEEDS[0])


def steps_of_the_plan() -> int:
    """Return 4 if the small models showed that it matters which method reuses its rollouts, else 1."""
    file = Path(__file__).parent / "results.json"
    verdict = json.loads(file.read_text())["tests"]["4 steps"].get("verdict") if file.is_file() else None
    if verdict is None:
        raise SystemExit(
            "results.json has no verdict of the primary test on small models yet, from which these runs follow"
        )
    return 4 if verdict in ("better", "worse") else 1


def accuracy(row: Mapping[str, Any], scored: str = "lenient") -> float:
    """Return the lenient pass@1 of a run's last weights, in percent."""
    return 100 * float(np.mean(row[scored])) / row["samples"]


def search_runs(steps: int, grid: Sequence[float]) -> list[Run]:
    """Return the runs of the search."""
    return [Run("search", "135m", seed, arm, steps, rate) for seed in SEARCH_SEEDS for rate in grid for arm in ARMS]


def means_of(records: Records, steps: int, arm: str, grid: Sequence[float]) -> list[float]:
    """Return an arm's mean accuracy at each rate."""
    runs = [[Run("search", "135m", seed, arm, steps, rate) for seed in SEARCH_SEEDS] for rate in grid]
    return [float(np.mean([accuracy(records[run.name]) for run in each])) for each in runs]


def grid_of(records: Records, steps: int) -> tuple[tuple[float, ...], bool]:
    """Return the rates of the search as far as the records decide them, and whether all of their runs are recorded."""
    grid, added = GRIDS[steps], 0
    while True:
        if not all(run.name in records for run in search_runs(steps, grid)):
            return grid, False
        best = {int(np.argmax(means_of(records, steps, arm, grid))) for arm in ARMS}
        beyond = [grid[0] / 3] * (0 in best) + [3 * grid[-1]] * (len(grid) - 1 in best)
        if not beyond or added == MOST_ADDED:
            return grid, True
        grid, added = tuple(sorted({*grid, *beyond})), added + 1


def rates_of(records: Records, steps: int) -> dict[str, float] | None:
    """Return each method's rate; None before the end of the search, empty if a method gains less than LIFT."""
    grid, whole = grid_of(records, steps)
    if not whole or BASE.name not in records:
        return None
    means = {arm: means_of(records, steps, arm, grid) for arm in ARMS}
    before = max(accuracy(row, "lenient_search") for row in records.values() if row["phase"] == "base")
    if any(max(each) - before < LIFT for each in means.values()):
        return {}
    return {arm: grid[int(np.argmax(each))] for arm, each in means.items()}


def differences(records: Records, steps: int, rates: Mapping[str, float], count: int) -> np.ndarray | None:
    """Return GTPO's accuracy less GRPO's, in points, of the first pairs; None before they are recorded."""
    runs = [
        [Run("pairs", "135m", FIRST_PAIR + at, arm, steps, rates[arm]) for arm in ("gtpo", "grpo")]
        for at in range(count)
    ]
    if not all(run.name in records for pair in runs for run in pair):
        return None
    for pair in runs:
        if len({records[run.name]["base"] for run in pair}) > 1:
            raise SystemExit(f"{pair[0].name} and {pair[1].name} began from different warm starts: make both again")
    return np.array([accuracy(records[one.name]) - accuracy(records[other.name]) for one, other in runs])


def pairs_of_the_end(records: Records, steps: int, rates: Mapping[str, float]) -> int:
    """Return after how many pairs the experiment ends, as far as the records say: LOOK, PAIRS or MOST."""
    first, half = differences(records, steps, rates, LOOK), differences(records, steps, rates, PAIRS)
    if first is None or stats.ttest_1samp(first, 0).pvalue <= LOOK_LEVEL:
        return LOOK
    return MOST if half is not None and half.std(ddof=1) > WIDE else PAIRS


def design(draws: int = 20_000) -> dict[str, Any]:
    """Return how often the test marks equal methods, differences of 3 and 5 points and equivalence, by the spread.

    Pairs are normal; the look and the number of pairs are those of a draw.
    """
    rng = np.random.default_rng(2)
    out: dict[str, Any] = {}
    for spread in (2.0, 3.0, 4.0, 5.0, 7.0):
        found: dict[str, float] = {}
        d = rng.normal(0, spread, (draws, MOST))
        wide = d[:, :PAIRS].std(1, ddof=1) > WIDE
        for by in (0, 3, 5):
            early, half, end = (stats.ttest_1samp(d[:, :count] + by, 0, axis=1).pvalue for count in (LOOK, PAIRS, MOST))
            found[f"{by} points"] = float(((early <= LOOK_LEVEL) | (np.where(wide, end, half) <= LEVEL)).mean())
        same = [equivalent(d[:, :count]) for count in (PAIRS, MOST)]
        out[str(spread)] = found | {"equal called equivalent": float(np.where(wide, same[1], same[0]).mean())}
    return out


def equivalent(d: np.ndarray) -> Any:
    """Return whether the 90 % interval of differences [..., pairs] lies within MARGIN points."""
    count = d.shape[-1]
    half = stats.t.ppf(0.95, count - 1) * d.std(-1, ddof=1) / count**0.5
    return np.abs(d.mean(-1)) + half < MARGIN


def planned(records: Records) -> Iterator[Run]:
    """Yield the runs in their order, as far as the records decide them."""
    steps = steps_of_the_plan()
    grid, _ = grid_of(records, steps)
    yield from search_runs(steps, grid)
    rates = rates_of(records, steps)
    for at in range(pairs_of_the_end(records, steps, rates) if rates else 0):
        arms = sorted(ARMS)
        random.Random(f"pretrained {FIRST_PAIR + at}").shuffle(arms)
        yield from (Run("pairs", "135m", FIRST_PAIR + at, arm, steps, rates[arm]) for arm in arms if rates)


def problem_sets() -> dict[str, list[Any]]:
    """Return the problems of the search and the final ones; training has the first 3,000 of the split `train`."""
    from gtpo.rewards.data.arithmetic import arithmetic_problems

    return {"search": arithmetic_problems("train", 3128)[3000:], "final": arithmetic_problems("test", 500)}


def train(run: Run) -> None:
    """Train a run into results/train."""
    shared = ("--run-name", run.name, "--model.random_seed", str(run.seed), "--quiet", "--model.lora_rank", "32")
    if run.phase == "base":
        steps = ("--training.max_steps", "20", "--training.save_steps", "20")
        command("train", "laptop/first-steps-sft", *shared, "--model-name", "smollm2-135m", *steps)
        return
    flags = {
        "model.model_name": f"results/train/{run.base.name}/final", "training.learning_rate": repr(run.rate),
        "training.per_device_train_batch_size": 8, "training.gradient_accumulation_steps": BATCH // 8,
        "training.num_iterations": run.steps,
        "training.max_steps": STEPS, "training.save_steps": STEPS, "training.lr_scheduler_type": "constant_with_warmup",
        "training.log_completions_steps": 0, "dataset.validation_file": "search.jsonl", "training.eval_samples": 1,
        # A record has one mean length for each stretch between validations; the plan looks at that of ten steps.
        "training.eval_steps": 10 if run.phase == "pairs" else 20,
        "training.share_prefixes": run.phase == "pairs",
    }  # fmt: skip
    words = (word for key, value in flags.items() for word in (f"--{key}", str(value)))
    command("train", "laptop/first-steps", *ARMS[run.arm], *shared, *words)


STUDY = Study(planned, train, problem_sets, Run, BATCH, SAMPLES)

if __name__ == "__main__":
    if "--design" in sys.argv:
        print(json.dumps(design(), indent=1))
    else:
        drive(STUDY)
