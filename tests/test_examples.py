"""The scripts in examples/ run as they stand."""

from __future__ import annotations

import subprocess
import sys
from statistics import mean


def test_the_step_in_plain_torch_learns_the_sum(root):
    """The step itself checks its loss against `reference_loss`."""
    command = [sys.executable, str(root / "examples/gtpo_step.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "the gate is on" in done.stdout
    rewards = [float(line.split()[4]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert mean(rewards[:2]) < 14 < 16 < mean(rewards[-2:]), rewards
