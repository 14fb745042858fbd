"""Method grpo with TRL's switches: TRL's own losses, and where two of them coincide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForCausalLM
from trl_replay import TRL_ARGUMENTS, replay

from gtpo.config import BuiltModel, load_config
from gtpo.inputs.tiny import build_tiny_model

ROOT = Path(__file__).resolve().parents[2]
STEPS = 6
"""A rollout of four steps and a half of the next."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "model"
    spec = BuiltModel(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model, tokenizer = build_tiny_model(spec, max_seq_length=96, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config_of(folder: Path, weights: Path, layer: str, **changes: Any) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
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
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    return load_config(folder / "run.yaml", changes)


def lengths_reward(completions: list[Any], **columns: Any) -> list[float]:
    """Rewards that differ, as an untrained model's answers never do."""
    return [float(len(completion[0]["content"]) % 5) for completion in completions]


@pytest.mark.parametrize("layer", TRL_ARGUMENTS)
def test_layer_trains_as_trls_own_trainer_does(
    layer: str, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trl_replay.final_reward", lengths_reward)
    config = config_of(tmp_path, weights, layer, **{"trainer.reward_funcs": ["test_baselines.lengths_reward"]})
    found = replay(config, weights, tmp_path, TRL_ARGUMENTS[layer])
    assert len(found.ours) == STEPS
    assert len({round(loss, 6) for loss in found.ours}) > 1, "a loss that is always the same shows nothing"
    assert found.largest_loss_difference() < 1e-6
    start = AutoModelForCausalLM.from_pretrained(weights).state_dict()
    assert max(float((w - start[name]).abs().max()) for name, w in found.our_weights.items()) > 1e-3
    assert found.largest_weight_difference() < 1e-6
