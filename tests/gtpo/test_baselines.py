"""Method grpo with TRL's switches: TRL's own losses, and where two of them coincide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForCausalLM
from trl_replay import TRL_ARGUMENTS, replay

from gtpo.config import load_config

ROOT = Path(__file__).resolve().parents[2]
STEPS = 6
"""A rollout of four steps and a half of the next."""


def config_of(out: Path, weights: Path, layer: str, **changes: Any) -> Any:
    values = {
        "extends": str(ROOT / f"configs/recipes/{layer}.yaml"),
        "run_name": layer,
        "model": {"model_name": str(weights), "max_seq_length": 96},
        "dataset": {"name": "arithmetic", "system_instruction": "", "limit": 32},
        "training": {
            "learning_rate": 1e-2,
            "num_generations": 4,
            "per_device_train_batch_size": 16,
            "max_steps": STEPS,
            "max_prompt_length": 64,
            "max_completion_length": 32,
            "log_completions_steps": 0,
        },
    }
    (out / "run.yaml").write_text(yaml.safe_dump(values))
    return load_config(out / "run.yaml", changes)


def lengths_reward(completions: list[Any], **columns: Any) -> list[float]:
    """Rewards that differ, as an untrained model's answers never do."""
    return [float(len(completion[0]["content"]) % 5) for completion in completions]


@pytest.mark.parametrize("layer", TRL_ARGUMENTS)
def test_layer_trains_as_trls_own_trainer_does(
    layer: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trl_replay.final_reward", lengths_reward)
    config = config_of(tmp_path, folder, layer, **{"trainer.reward_funcs": ["test_baselines.lengths_reward"]})
    found = replay(config, folder, tmp_path, TRL_ARGUMENTS[layer])
    assert len(found.ours) == STEPS
    assert len({round(loss, 6) for loss in found.ours}) > 1, "a loss that is always the same shows nothing"
    assert found.largest_loss_difference() < 1e-6
    start = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert max(float((w - start[name]).abs().max()) for name, w in found.our_weights.items()) > 1e-3
    assert found.largest_weight_difference() < 1e-6
