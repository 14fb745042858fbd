"""`gtpo train`: a run whose policy collapses ends with its status, its sentence and exit code 4."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from test_train_command import gtpo

REWARD = """\
def accuracy_reward(completions, completion_ids=None, **columns):
    \"\"\"10 times the different tokens of 12: a policy that repeats itself, or stops, loses it.\"\"\"
    return [10 * len(set(ids)) / 12 for ids in completion_ids or [[0]] * len(completions)]


accuracy_reward.is_accuracy = True
"""
CONFIG = {
    "method": "grpo",
    "run_name": "run",
    "model": {
        "build": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
        "max_seq_length": 96,
    },
    "dataset": {"name": "arithmetic", "system_instruction": "", "limit": 8},
    "trainer": {"reward_funcs": ["my_reward.accuracy_reward"]},
    "training": {
        "num_generations": 8, "per_device_train_batch_size": 8, "max_prompt_length": 64, "max_completion_length": 12,
        "save_steps": 1000, "log_completions_steps": 0, "max_steps": 80,
        # Reached at the end of the warm-up: the policy is well for a while.
        "learning_rate": 3.0, "lr_scheduler_type": "constant_with_warmup", "warmup_ratio": 0.99,
    },
    "health": {"on_collapse": "stop"},
}  # fmt: skip


@pytest.mark.slow
def test_a_run_that_collapses_and_stops_says_so_at_every_end(tmp_path: Path) -> None:
    (tmp_path / "my_reward.py").write_text(REWARD)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    done = gtpo("train", "run.yaml", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    about = json.loads((tmp_path / "results/train/run/run.json").read_text())
    assert about["status"] == "collapsed"
    assert about["step"] < 80
    last = [line for line in done.stderr.splitlines() if line.strip()][-1]
    assert f"collapsed at step {about['step']} of 80" in last
    assert "reward fell from" in about["stopped_because"]
