"""Modules of a user's that are named rewards, evalkit and cli stay theirs, in every process that gtpo starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import python

RUN = """\
run_name: own
model:
  build: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 1}
  max_seq_length: 128
dataset: {name: arithmetic, system_instruction: ""}
trainer: {reward_funcs: [rewards.my_reward, gtpo.rewards.final_reward]}
training: {max_steps: 1, num_generations: 4, per_device_train_batch_size: 4, max_prompt_length: 64,
  max_completion_length: 16, save_steps: 1, logging_steps: 1}
"""

REWARDS = """\
OWNER = "user"


def my_reward(completions, **kwargs):
    return [0.25] * len(completions)
"""

CHECK = r"""
import cli, evalkit, rewards
from multiprocessing import get_context
import gtpo.cli, gtpo.evalkit.metrics, gtpo.rewards
from gtpo.rewards.verify import Verdict, Verifier

assert cli.OWNER == evalkit.OWNER == rewards.OWNER == "user"
with get_context("spawn").Pool(1) as pool:  # functions of both travel to another process
    assert pool.map(gtpo.rewards.extract_answer, ["<answer>1</answer>"]) == ["1"]
    assert pool.apply(rewards.my_reward, (["a"],)) == [0.25]
assert Verifier(workers=1).verify(r"\frac{1}{2}", "0.5") is Verdict.CORRECT  # in a worker process
print("the user's modules are theirs")
"""


def write_own_modules(folder: Path) -> None:
    """Write the user's modules, and run.yaml, which names a reward among them."""
    (folder / "rewards.py").write_text(REWARDS)
    for name in ("evalkit.py", "cli.py"):
        (folder / name).write_text('OWNER = "user"\n')
    (folder / "run.yaml").write_text(RUN)


def test_the_users_modules_are_theirs(tmp_path: Path) -> None:
    write_own_modules(tmp_path)
    assert python("-c", CHECK, cwd=tmp_path).stdout == "the user's modules are theirs\n"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["", "-m torch.distributed.run --standalone --nproc_per_node 2"])
def test_a_reward_of_the_users_scores_a_run(launcher: str, tmp_path: Path) -> None:
    write_own_modules(tmp_path)
    python(*launcher.split(), "-m", "gtpo", "train", "run.yaml", cwd=tmp_path)
    logged = json.loads((tmp_path / "results/train/own/metrics.jsonl").read_text())
    assert logged["rewards/my_reward/mean"] == 0.25
