"""`python -m bench.claims.run`: run what the plan lists and is not recorded yet.

Each run is a process of its own with one thread: `gtpo train`, `gtpo eval` of its last weights, the log-probability of
the tags, its record. A run whose record is there is done; one that was cut off resumes from its last checkpoint. One
that fails is reported, and the others go on.

--jobs: runs at a time, one thread each. --prefix, --evidence: of the runs' names and records, in place of the plan's.
--list prints the runs that are left, --pack packs the plan's records into the repository; neither runs anything.
--execute: one run, in this process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from bench.claims.pinned import raising
from bench.claims.plan import PLAN, TRAIN_RUNS, Plan, Run, load_plan
from bench.claims.record import find_record, pack, write_record
from bench.claims.texts import FILE, TASKS, tag_log_probabilities, write_varied
from bench.common import parser
from gtpo.common.errors import UserError
from gtpo.common.files import flatten
from gtpo.common.provenance import git_commit
from gtpo.config import load_config

LOGS = Path("results/claims/logs")
FREE_KEYS = (
    "training.save_steps",
    "training.save_total_limit",
    "training.log_completions_steps",
    "rollout.logp_difference_alarm",
)
"""Keys that change no number of a run (the last one: of a run that samples without vLLM)."""
FORMER_NAMES = {"['rewards.final_reward']": ["gtpo.rewards.final_reward"]}
"""What records say, by what it is called now."""


def is_done(plan: Plan, run: Run) -> bool:
    """Return whether the run's record is there. UserError where it was made with another config than the plan's."""
    path, record = plan.record(run), find_record(plan, run)
    if record is None:
        return False
    before = flatten(record["config"])
    before = {key: FORMER_NAMES.get(str(value), value) for key, value in before.items()}
    now = flatten(load_config(run.write_config()).as_dict())
    # A key that the record does not hold came later; the run took what is its default now.
    differing = [key for key in before if key not in FREE_KEYS and before[key] != now.get(key)]
    if differing:
        key = differing[0]
        raise UserError(
            f"{path} was recorded with {key} {before.get(key)}, the plan now says {now.get(key)}: restore the plan, or "
            "give the changed regime a new name"
        )
    return True


def execute(plan: Plan, run: Run) -> None:
    """Train, evaluate and record one run, in this process. Raises UserError."""
    from gtpo.cli import app

    command = raising(app)
    if is_done(plan, run) and (run.weights is None or run.weights.is_dir()):
        return  # the checkpoints that its record was made from are gone
    if run.regime in stopped_regimes(plan):
        return  # decided while this command was running
    if plan.commit not in (None, git_commit()):
        raise UserError(
            f"this plan's runs are made at commit {plan.commit}, without changes; here is {git_commit()}: "
            f"python -m bench.claims.pinned"
        )
    if not FILE.is_file():
        write_varied()
    begin = time.monotonic()
    config = load_config(run.write_config())
    folder = TRAIN_RUNS / run.name
    command(["train", str(run.write_config()), "--quiet"], standalone_mode=False)
    if run.weights is not None and run.weights != folder / "final":
        shutil.copytree(folder / "final", run.weights, dirs_exist_ok=True)
        if run.half:
            round_to_half(run.weights)
    if run.evaluate is not None:
        given = [text for key, value in run.evaluate.items() for text in (f"--{key.replace('_', '-')}", str(value))]
        # The last weights, not the best: what is asked is how a run ends. A base: those that its runs start from.
        # Those are a folder of their own, so the prompt comes from the config.
        rounded = [str(run.weights), "--dtype", "float32", "--prompt", config.dataset.system_instruction]
        model = rounded if run.half else [run.name, "--checkpoint", "final"]
        command(["eval", *model, "--quiet", *given], standalone_mode=False)
    checkpoints = sorted((folder / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    steps: list[Any] = [int(path.name.split("-")[1]) for path in checkpoints]
    tags = None
    if run.base is not None and config.dataset.name in TASKS and not plan.thin:
        assert run.base.weights is not None
        measured = [tag_log_probabilities(path, config.dataset.name) for path in (run.base.weights, *checkpoints)]
        tags = {"step": [0, *steps], **{tag: [row[tag] for row in measured] for tag in measured[0]}}
    write_record(plan, run, tags, time.monotonic() - begin)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def round_to_half(folder: Path) -> None:
    """Write a model's weights again as float16."""
    import torch
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)


def _spawn(plan: Plan, run: Run) -> int:
    """Execute one run in a process of its own; its output goes to a file."""
    LOGS.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **plan.environment}
    command = [sys.executable, "-m", "bench.claims.run", *plan.arguments, "--execute", run.name]
    with (LOGS / f"{run.name}.log").open("a") as log:
        return subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False).returncode


def run_all(plan: Plan, runs: list[Run], jobs: int) -> list[str]:
    """Execute the runs, `jobs` at a time, each after its base. Returns the names of those that failed."""
    begin, futures, failed = time.monotonic(), dict[str, Future[bool]](), []

    def one(run: Run) -> bool:
        # A plan has each base before the runs that need it, so the one waited for is never behind this in the queue.
        base = futures.get(run.base.name) if run.base else None
        return (base is None or base.result()) and _spawn(plan, run) == 0

    with ThreadPoolExecutor(jobs) as pool:
        for run in runs:  # one at a time: a run that starts at once must find its base's
            futures[run.name] = pool.submit(one, run)
        names = {future: name for name, future in futures.items()}
        for finished, future in enumerate(as_completed(names), start=1):
            name, done = names[future], future.result()
            failed += [] if done else [name]
            left = (time.monotonic() - begin) / finished * (len(runs) - finished) / 60
            outcome = "done" if done else f"FAILED, see {LOGS / f'{name}.log'}"
            print(f"[{finished}/{len(runs)}] {name} {outcome} ({left:.0f} min left)", flush=True)
    return failed


def pending(plan: Plan, runs: list[Run]) -> list[Run]:
    """The runs without a record, with the bases whose weights they need and are not on this disk."""
    stopped = stopped_regimes(plan)
    todo = [run for run in runs if not is_done(plan, run) and run.regime not in stopped]
    needed = {run.base.name for run in todo if run.base and run.base.weights and not run.base.weights.is_dir()}
    names = {run.name for run in todo} | needed
    return [run for run in runs if run.name in names]


def stopped_regimes(plan: Plan) -> set[str]:
    """The regimes that the look at half has decided; none of a plan without looks."""
    if not plan.tests:
        return set()
    from bench.claims.sequential import settled
    from bench.claims.statistics import read_records

    return settled(read_records(plan), plan)


def main() -> None:
    made = parser(__doc__, plan=PLAN, prefix=str, evidence=Path, jobs=2, list=False, pack=False, execute=str)
    made.add_argument("runs", nargs="*", help="names of the plan (default: all); the bases they need come along")
    asked = made.parse_args()
    plan = load_plan(asked.plan, prefix=asked.prefix, evidence=asked.evidence)
    if asked.execute:
        execute(plan, next(run for run in plan.runs if run.name == asked.execute))
        return
    if asked.pack:
        if plan.packed is None:
            raise UserError(f"{asked.plan}: its records are committed as they are; --pack is for a plan with `packed`")
        print(", ".join(f"{regime}: {count} runs" for regime, count in pack(plan).items()))
        return
    chosen = plan.choose(asked.runs)
    todo = pending(plan, chosen)
    if asked.list:
        print("\n".join(run.name for run in todo))
        return
    print(f"{len(chosen) - len(todo)} of {len(chosen)} runs are recorded; {len(todo)} to go", flush=True)
    failed = run_all(plan, todo, asked.jobs)
    if failed:
        sys.exit(f"{len(failed)} runs failed: {', '.join(failed)}; the same command tries them again")


def as_program(run: Callable[[], None]) -> None:
    """Run a command; a UserError is one sentence and exit code 2."""
    try:
        run()
    except UserError as mistake:
        print(f"bench.claims: {mistake}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    as_program(main)
