"""Modules of a user's that are named rewards, evalkit and cli stay theirs, in every process that gtpo starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from own_modules import CHECK, write_own_modules


def test_the_users_modules_are_theirs(tmp_path: Path) -> None:
    write_own_modules(tmp_path)
    done = subprocess.run([sys.executable, "-c", CHECK], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "the user's modules are theirs\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        [],
        ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"],
        ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    ],
    ids=["python", "accelerate", "torchrun"],
)
def test_a_reward_of_the_users_scores_a_run(launcher: list[str], tmp_path: Path) -> None:
    write_own_modules(tmp_path)
    command = [sys.executable, *launcher, "-m", "gtpo", "train", "run.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    logged = json.loads((tmp_path / "results/train/own/metrics.jsonl").read_text())
    assert logged["rewards/my_reward/mean"] == 0.25
