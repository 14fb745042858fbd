"""`gtpo train`: a run that collapses, and one whose policy does not change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from test_train_command import gtpo

pytestmark = pytest.mark.slow

REWARD = """\
def accuracy_reward(completions, completion_ids=None, **columns):
    \"\"\"10 times the different tokens of 12: a policy that repeats itself, or stops, loses it.\"\"\"
    return [10 * len(set(ids)) / 12 for ids in completion_ids or [[0]] * len(completions)]


def noisy(completions, completion_ids=None, **columns):
    return [10.0 * (sum(ids) % 3 == 0) for ids in completion_ids or [[0]] * len(completions)]


noisy.__name__ = "accuracy_reward"
"""


def config(folder: Path, reward: str, **training: object) -> Path:
    (folder / "my_reward.py").write_text(REWARD)
    path = folder / "run.yaml"
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings = {
        "num_generations": 8, "per_device_train_batch_size": 8, "max_prompt_length": 64, "max_completion_length": 12,
        "save_steps": 1000, "log_completions_steps": 0, "lr_scheduler_type": "constant",
    }  # fmt: skip
    path.write_text(
        yaml.safe_dump(
            {
                "method": "grpo",
                "run_name": "run",
                "model": {"build": shape, "max_seq_length": 96},
                "dataset": {"name": "arithmetic", "system_instruction": "", "limit": 8},
                "trainer": {"reward_funcs": [f"my_reward.{reward}"]},
                "training": settings | training,
                "health": {"on_collapse": "stop"},
            }
        )
    )
    return path


def test_a_run_that_collapses_and_stops_says_so_at_every_end(tmp_path: Path) -> None:
    config(
        tmp_path,
        "accuracy_reward",
        learning_rate=3.0,  # reached at the end of the warm-up: the policy is well for a while
        lr_scheduler_type="constant_with_warmup",
        warmup_ratio=0.99,
        max_steps=80,
    )
    done = gtpo("train", "run.yaml", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    about = json.loads((tmp_path / "results/train/run/run.json").read_text())
    assert about["status"] == "collapsed"
    assert about["step"] < 80
    last = [line for line in done.stderr.splitlines() if line.strip()][-1]
    assert f"collapsed at step {about['step']} of 80" in last
    assert "reward fell from" in about["stopped_because"]


def test_a_policy_that_does_not_change_raises_no_alarm(tmp_path: Path) -> None:
    config(tmp_path, "noisy", learning_rate=1e-12, max_steps=150)
    done = gtpo("train", "run.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "collapse" not in done.stderr
    folder = tmp_path / "results/train/run"
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    accuracies = [row["reward/accuracy"] for row in rows]
    assert len(accuracies) == 150
    assert min(accuracies) == 0.0, "one prompt a step is noisy"
    assert max(accuracies) >= 6.0
