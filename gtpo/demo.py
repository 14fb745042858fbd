"""`gtpo demo`: the commands of a first look, one after the other, each printed as a user would type it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from gtpo.common.log import duration

METHODS = ("sft", "grpo", "gtpo")
SEEDS = (1, 2, 3)
RUNS = ("demo-base", *(f"demo-{method}-s{seed}" for method in METHODS for seed in SEEDS))
TRAIN = tuple(
    ("train", f"demo/{method}", "--run-name", f"demo-{method}-s{seed}", "--model.random_seed", str(seed))
    for seed in SEEDS
    for method in METHODS
)
EVALUATE = ("--benchmarks", "arithmetic,arithmetic_hard", "--k", "32", "--max-tokens", "48")
AGAINST_GRPO = tuple(run for run in RUNS if "-gtpo-" in run or "-grpo-" in run)
COMMANDS = (
    ("train", "demo/base"),
    *TRAIN,
    *(("eval", run, *EVALUATE) for run in RUNS),
    ("compare", *RUNS, "--baseline", "demo-base"),
    ("compare", *AGAINST_GRPO, "--baseline", "demo-grpo"),
)


def run_demo(program: Sequence[str]) -> int:
    """Run the commands and return the exit code of the first that fails, else 0. program: what starts gtpo."""
    # A model this small gains little from a second thread, and loses tenfold with it on a machine that is busy.
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **os.environ}
    begin = time.monotonic()
    for number, command in enumerate(COMMANDS, 1):
        print(f"[{number} of {len(COMMANDS)}, {duration(time.monotonic() - begin)}] gtpo", *command, file=sys.stderr)
        # Twenty runs: what each prints about itself would bury the comparison.
        hidden = command[0] != "compare"
        code = subprocess.run(
            [*program, *command, *(["--quiet"] if hidden else [])],
            env=environment,
            stdout=subprocess.DEVNULL if hidden else None,
            check=False,
        ).returncode
        if code:
            return code
    print(f"demo: {duration(time.monotonic() - begin)}; next: gtpo compare {' '.join(RUNS)} --html page.html",
          file=sys.stderr)  # fmt: skip
    return 0
