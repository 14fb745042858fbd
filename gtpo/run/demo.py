"""`gtpo demo`: the commands of a first look, one after the other, each printed as a user would type it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

RUNS = ("demo-base", "demo-sft", "demo-grpo", "demo-gtpo")
EVALUATE = ("--benchmarks", "arithmetic,arithmetic_hard", "--k", "64", "--max-tokens", "48")
COMMANDS = (
    *(("train", run.replace("-", "/")) for run in RUNS),
    *(("eval", run, *EVALUATE) for run in RUNS),
    ("compare", *RUNS, "--baseline", "demo-base"),
)


def run_demo(program: Sequence[str]) -> int:
    """Run the commands and return the exit code of the first that fails, else 0. program: what starts gtpo."""
    # A model this small gains little from a second thread, and loses tenfold with it on a machine that is busy.
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **os.environ}
    begin = time.monotonic()
    for command in COMMANDS:
        print("$ gtpo", *command, file=sys.stderr, flush=True)
        code = subprocess.run([*program, *command], env=environment, check=False).returncode
        if code:
            return code
    seconds = round(time.monotonic() - begin)
    print(f"demo: {seconds // 60}:{seconds % 60:02d} min; next: gtpo compare {' '.join(RUNS)} --html page.html",
          file=sys.stderr)  # fmt: skip
    return 0
