"""Make the runs that README.md beside this file plans, one after another, from a checkout without changes.

    python run.py RECORDS.jsonl WORK [--jobs N] [--idle FILE] [--packed FILE.parquet] [--only RUN]

A finished run appends one line to RECORDS.jsonl; what stands there or in --packed is not made again, so that the same
command goes on after any end. WORK holds configs, weights and logs. While the file --idle exists, every process stands
still. The plan is the constants and the functions below: which run comes next follows from the records alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from scipy import optimize, stats

Records = Mapping[str, Mapping[str, Any]]

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
# The effect, in points, that the number of pairs is chosen for. The level of the primary test is below 5 %, since a number
# of pairs that follows from their spread marks equal methods more often than the level says.
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


def read(records: Path, packed: Path | None) -> dict[str, dict[str, Any]]:
    """Return the records of finished runs by name; a line that was cut off is none."""
    rows = pq.read_table(packed).to_pylist() if packed and packed.is_file() else []
    for line in records.read_text().splitlines() if records.is_file() else []:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return {row["run"]: row for row in rows}


# -- one run, in a process of its own ----------------------------------------------------------------------------------


def problem_sets() -> dict[str, list[Any]]:
    """Return the problems of the search and the final ones; training has the first 3,000 of the split `train`."""
    from gtpo.rewards.data.arithmetic import arithmetic_problems

    train = arithmetic_problems("train", 3256)
    return {"search": train[3000:], "final": arithmetic_problems("test", 512)}


def command(*words: str) -> None:
    """Run a command of gtpo in this process. Raises SystemExit if it fails."""
    import typer

    from gtpo.cli import app

    try:
        app(list(words), standalone_mode=False)
    except typer.Exit as ended:
        if ended.exit_code not in (0, 4):  # 4: collapsed, which counts as it is
            raise SystemExit(ended.exit_code) from None


def fingerprint(base: Run) -> str:
    """Return 16 hex digits of a base's weights."""
    return hashlib.sha256(Path(f"results/train/{base.name}/final/model.safetensors").read_bytes()).hexdigest()[:16]


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


def evaluate(run: Run, name: str) -> dict[str, Any]:
    """Return right samples of each problem of a set, lenient and strict, by the last weights."""
    problems, out = problem_sets()[name], Path(f"results/eval/{run.name}-{name}")
    command("eval", run.name, "--checkpoint", "final", "--benchmarks", f"{name}.jsonl", "--k", str(SAMPLES),
            "--max-tokens", "48", "--quiet", "--out", str(out))  # fmt: skip
    rows = [row for part in (out / "samples").glob("*.parquet") for row in pq.read_table(part).to_pylist()]
    right = {scoring: dict.fromkeys((problem.id for problem in problems), 0) for scoring in ("lenient", "strict")}
    for row in rows:
        for scoring, counts in right.items():
            if row[f"verdict_{scoring}"] in ("TIMEOUT", "", None):
                raise SystemExit(f"{run.name}: an answer is unscored")
            counts[row["question_id"]] += row[f"verdict_{scoring}"] == "CORRECT"
    if len(rows) != SAMPLES * len(problems):
        raise SystemExit(f"{run.name}: {len(rows)} samples in place of {SAMPLES * len(problems)}")
    counted = {scoring: list(counts.values()) for scoring, counts in right.items()}
    return {"set": name, "samples": SAMPLES, **counted, "tokens": float(np.mean([row["tokens"] for row in rows]))}


LOGGED = ("entropy/mean", "gate/kept", "conflict/fraction", "completions/length", "reward/accuracy", "reward/format",
          "groups/zero_variance")  # fmt: skip


def curves(run: Run) -> dict[str, Any]:
    """Return steps, tokens sampled so far and strict accuracy at each validation; and means of the log between them."""
    folder = Path(f"results/train/{run.name}")
    about = json.loads((folder / "run.json").read_text())
    sampled, unscored, since = 0.0, 0.0, list[list[float]]()
    found: dict[str, list[Any]] = {"step": [0], "sampled": [0.0], "validation": [about["validation"]["untrained"]]}
    found |= {name: [] for name in LOGGED}
    for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        if "completions/length" in row:  # the first step of a rollout
            sampled += BATCH * row["completions/length"]
            unscored += row["reward/unscored"] + row["reward/timeout"]
            since.append([row.get(name, np.nan) for name in LOGGED])
        if "validation/pass@1" in row:
            for name, value in (("step", row["step"]), ("sampled", sampled), ("validation", row["validation/pass@1"])):
                found[name].append(value)
            means = np.mean(since, axis=0) if since else np.full(len(LOGGED), np.nan)
            for name, mean in zip(LOGGED, means, strict=True):
                found[name].append(None if np.isnan(mean) else round(float(mean), 5))
            since = []
    kept = {key: about.get(key) for key in ("status", "step", "initial_entropy", "gate")}
    return found | {"unscored": unscored, "about": json.dumps(kept)}


def execute(run: Run, base: str) -> dict[str, Any]:
    """Train and evaluate; return the record. A run whose weights are no numbers any more has no answer right."""
    from gtpo.common.provenance import cpu_model, git_commit, now, package_versions

    record: dict[str, Any] = {**run._asdict(), "run": run.name, "base": base, "git_commit": git_commit()}
    record["started"] = now()
    record["machine"] = json.dumps({"cpu": cpu_model(), **package_versions("torch", "transformers", "trl", "gtpo")})
    name, status = "search" if run.phase == "search" else "final", "finished"
    try:
        train(run)
        record |= evaluate(run, name)
    except SystemExit as error:
        if run.phase == "base" or "no numbers" not in Path(f"results/train/{run.name}/run.json").read_text():
            raise SystemExit(f"{run.name}: {error}") from None
        status, nothing = "broken", [0] * len(problem_sets()[name])
        record |= {"set": name, "samples": SAMPLES, "lenient": nothing, "strict": nothing, "tokens": 0.0}
    if run.phase != "base":
        record |= curves(run)
    return record | {"status": status, "seconds": time.process_time()}


def child(run: Run, base: str, records: Path) -> int:
    """Make a run in a forked process, with its output in a file; return its process id."""
    if made := os.fork():
        return made
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with Path(f"logs/{run.name}.log").open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            line = json.dumps(execute(run, base)) + "\n"
            if run.phase != "base":
                shutil.rmtree(f"results/train/{run.name}", ignore_errors=True)
            with records.open("a") as handle:  # one write: whole, or cut off and no JSON
                handle.write(line)
                handle.flush()
                os.fsync(handle.fileno())
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def next_run(records: Records, busy: Mapping[int, Run], failed: set[str]) -> Run | None:
    """Return the next run that can start: its base if that is missing, else itself."""
    names = {run.name for run in busy.values()}
    for run in planned(records):
        if run.name in records or {run.name, run.base.name} & (names | failed):
            continue
        whole = run.base.name in records and Path(f"results/train/{run.base.name}/final").is_dir()
        return run if whole else run.base
    return None


def main() -> None:
    """Make what is planned and not recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--jobs", type=Path, help="a file that holds the number of processes, 1 without it")
    parser.add_argument("--idle", type=Path)
    parser.add_argument("--packed", type=Path)
    parser.add_argument("--only", help="make one run, PHASE:MODEL:SEED:ARM:STEPS:RATE, whatever the plan says")
    given = parser.parse_args()
    paths = {key: value.resolve() for key in ("records", "jobs", "idle", "packed") if (value := getattr(given, key))}
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    (given.work / "logs").mkdir(parents=True, exist_ok=True)
    os.chdir(given.work)
    for name, problems in problem_sets().items():
        rows = ({"id": each.id, "problem": each.problem, "answer": each.answer} for each in problems)
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for module in ("gtpo.run.session", "gtpo.evalkit.evaluation.command", "gtpo.evalkit.engines.transformers"):
        importlib.import_module(module)  # forked processes find it

    single = None
    if given.only:
        phase, model, seed, arm, steps, rate = given.only.split(":")
        single = [Run(phase, model, int(seed), arm, int(steps), float(rate))]
    busy: dict[int, Run] = {}
    failed: set[str] = set()
    while True:
        records = read(paths["records"], paths.get("packed"))
        jobs = int(paths["jobs"].read_text()) if "jobs" in paths and paths["jobs"].is_file() else 1
        if "idle" in paths and paths["idle"].exists():
            for process in busy:
                os.kill(process, signal.SIGSTOP)
            while paths["idle"].exists():
                time.sleep(1)
            for process in busy:
                os.kill(process, signal.SIGCONT)
        run = None
        if len(busy) < jobs:
            if single is None:
                run = next_run(records, busy, failed)
            elif single[0].name not in records and not busy and not failed:
                base = single[0].base
                run = single[0] if Path(f"results/train/{base.name}/final").is_dir() else base
        if run is not None:
            base = "" if run.phase == "base" else fingerprint(run.base)
            busy[child(run, base, paths["records"])] = run
            print(time.strftime("%H:%M:%S"), "started", run.name, flush=True)
            continue
        if not busy:
            break
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            ended = busy.pop(process)
            failed |= {ended.name} if status else set()
            print(time.strftime("%H:%M:%S"), "FAILED" if status else "ended", ended.name, flush=True)
        else:
            time.sleep(1)
    print("not made:" if failed else "nothing left to make", *sorted(failed))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
