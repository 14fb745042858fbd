"""Method grpo with TRL's switches: TRL's own losses, and where two of them coincide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import Dataset
from test_trainer import SETTINGS
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from gtpo.config import TrainConfig, load_config
from gtpo.inputs.dataset import TrainingProblems
from gtpo.train.command import train
from gtpo.trainer.trl_seam import with_special_tokens

ROOT = Path(__file__).resolve().parents[2]
STEPS = 6
"""A rollout of four steps and a half of the next."""


DAPO = {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "mask_truncated_completions": True}
TRL_ARGUMENTS: dict[str, dict[str, Any]] = {
    "dapo": DAPO,
    "dr-grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "80-20": DAPO | {"top_entropy_quantile": 0.2},
}
"""What a TRL user would write for each layer, from TRL's documentation and not from our config."""


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


def replay(config: TrainConfig, weights: Path, results: Path, trl_arguments: dict[str, Any]) -> Any:
    """Train `config`, and TRL's own GRPOTrainer on the same rollouts; return losses and weights of both."""
    rollouts: list[tuple[Any, torch.Tensor]] = []
    ours: list[float] = []
    generate, compute = GRPOTrainer._generate, GRPOTrainer._compute_loss

    def recording_generate(self: Any, prompts: Any) -> Any:
        sampled = generate(self, prompts)
        rollouts.append((sampled, torch.get_rng_state()))  # TRL shuffles the rollout with what comes next
        return sampled

    def recording_loss(self: Any, model: Any, inputs: Any) -> torch.Tensor:
        loss = compute(self, model, inputs)
        ours.append(loss.item())
        return loss

    GRPOTrainer._generate, GRPOTrainer._compute_loss = recording_generate, recording_loss
    try:
        folder = train(config, results_dir=results)
    finally:
        GRPOTrainer._generate, GRPOTrainer._compute_loss = generate, compute

    theirs: list[float] = []

    class Replayed(GRPOTrainer):
        def _generate(self, prompts: Any) -> Any:
            sampled, state = rollouts.pop(0)
            torch.set_rng_state(state)
            return with_special_tokens(self, sampled)  # the texts that the rewards of `config`'s run have seen

        def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
            loss = super()._compute_loss(model, inputs)
            theirs.append(loss.item())
            return loss

    training = config.training
    tokenizer = AutoTokenizer.from_pretrained(weights)
    same = (
        *("learning_rate", "lr_scheduler_type", "adam_beta2", "weight_decay", "max_grad_norm", "num_generations"),
        *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "max_steps"),
        "max_completion_length",
    )
    renamed = {"warmup_steps": training.warmup_ratio, "optim": training.optimizer, "output_dir": str(results / "trl")}
    decided = {"shuffle_dataset": False, "disable_dropout": True, "gradient_checkpointing": False}
    given = {name: getattr(training, name) for name in same}
    arguments = GRPOConfig(**SETTINGS | given | renamed | decided | trl_arguments)
    trainer = Replayed(
        model=AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32),
        reward_funcs=[lengths_reward],
        args=arguments,
        train_dataset=Dataset.from_list(TrainingProblems(config).select(tokenizer)[0]),
        processing_class=tokenizer,
    )
    trainer.train()
    trained = AutoModelForCausalLM.from_pretrained(folder / "final", dtype=torch.float32)
    return (ours, theirs), (trained.state_dict(), trainer.model.state_dict())


@pytest.mark.parametrize("layer", TRL_ARGUMENTS)
def test_layer_trains_as_trls_own_trainer_does(layer: str, folder: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, folder, layer, **{"trainer.reward_funcs": ["test_baselines.lengths_reward"]})
    losses, weights = replay(config, folder, tmp_path, TRL_ARGUMENTS[layer])
    assert len(losses[0]) == STEPS
    assert len({round(loss, 6) for loss in losses[0]}) > 1, "a loss that is always the same shows nothing"
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-6)
    start = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    ours, theirs = weights
    assert max(float((w - start[name]).abs().max()) for name, w in ours.items()) > 1e-3
    assert max(float((w - theirs[name]).abs().max()) for name, w in ours.items()) < 1e-6
