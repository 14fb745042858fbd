"""Method grpo with TRL's switches: TRL's own losses, and where two of them coincide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl_replay import TRL_ARGUMENTS, replay

from gtpo.common.errors import UserError
from gtpo.config import BuiltModel, load_config
from gtpo.inputs.tiny import build_tiny_model
from gtpo.run.arguments import trainer_arguments

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


# -- one optimizer step per rollout ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gradient(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the gradient of TRL's loss in float64 on one batch of ragged completions, by its switches."""
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float64)
    arguments = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("out")),
        num_generations=4, per_device_train_batch_size=8, max_completion_length=6, bf16=False, use_cpu=True,
        report_to="none",
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": [[{"role": "user", "content": "1 + 1?"}]] * 8})
    trainer = GRPOTrainer(model=model, reward_funcs=lengths_reward, args=arguments, train_dataset=prompts)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 7, (8,), generator=draw)
    mask = (torch.arange(6) < lengths[:, None]).long()
    batch = {
        "prompt_ids": torch.randint(5, 60, (8, 4), generator=draw),
        "prompt_mask": torch.ones(8, 4, dtype=torch.long),
        "completion_ids": torch.randint(5, 60, (8, 6), generator=draw),
        "completion_mask": mask,
        "advantages": torch.randn(8, generator=draw, dtype=torch.float64),
        "num_items_in_batch": mask.sum(),
    }

    def of(moved: bool = False, **switches: Any) -> torch.Tensor:
        """`moved`: the policy has left the one that sampled, as within a rollout of several steps."""
        switches = {"importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.28, **switches}
        for name, value in switches.items():
            setattr(trainer, name, value)
        inputs = dict(batch)
        if moved:
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            whole = torch.ones_like(ids)
            with torch.no_grad():
                logps = trainer._get_per_token_logps_and_entropies(model, ids, whole, 6)[0]
            inputs["old_per_token_logps"] = logps + 0.3 * torch.randn(
                logps.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
            )
        model.zero_grad()
        trainer._compute_loss(model, inputs).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    return of


PAIRS = {
    "GSPO and GRPO": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
        {"loss_type": "grpo"},
    ),
    "CISPO and DAPO": ({"loss_type": "cispo", "epsilon_high": 5.0}, {"loss_type": "dapo"}),
    "SAPO and GRPO": ({"loss_type": "sapo"}, {"loss_type": "grpo"}),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_two_methods_have_one_gradient_with_one_step_per_rollout_and_two_with_several(pair: str, gradient: Any) -> None:
    one, other = PAIRS[pair]
    first, second = gradient(**one), gradient(**other)
    assert float(first.norm()) > 1e-3
    assert float((first - second).norm() / second.norm()) < 1e-15
    apart = gradient(moved=True, **one) - gradient(moved=True, **other)
    assert float(apart.norm() / second.norm()) > 1e-2


# -- the config --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.loss_type": "sapoo"}, "--training.loss_type must be one of bnpo, cispo, dapo, dr_grpo, grpo,"),
        ({"training.loss_type": "cispo", "training.epsilon_high": 0.3}, "set it above 1"),
        ({"training.loss_type": "luspo"}, "set it to sequence"),
        ({"training.use_adaptive_entropy": True, "training.entropy_coef_min": 2}, "2.0 exceeds entropy_coef_max 1.0"),
        ({"training.scale_rewards": "none"}, 'Did you mean "--objective.scale_rewards"?'),
    ],
)
def test_switches_that_cannot_be_are_refused(changes: dict[str, Any], said: str, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        trainer_arguments(config_of(tmp_path, weights, "dr-grpo", **changes), tmp_path, "float32")
    assert said in str(refused.value)
