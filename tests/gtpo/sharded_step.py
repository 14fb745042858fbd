"""One optimizer step of GTPOTrainer under `accelerate launch`: its weights afterwards, saved whole.

Run by test_launch.py: sharded_step.py FOLDER PRESET BATCH. The optimizer is plain SGD at STEP, so that the gradient can
be read off the weights whoever holds them: (before - after) / STEP.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from launched_on_cpu import shard_on_cpu
from step_gradients import step_gradients

from gtpo.train.environment import end_process

STEP = 1e3
"""So large that the old weights are rounding errors beside the update."""

if __name__ == "__main__":
    shard_on_cpu()
    folder, preset, batch = sys.argv[1:]
    torch.set_num_threads(1)
    out = Path(folder)
    step_gradients(
        out / "ignored.pt", preset, int(batch), 1,
        weights=out / "after", optim="sgd", learning_rate=STEP, lr_scheduler_type="constant",
    )  # fmt: skip
    torch.distributed.destroy_process_group()
    end_process()
