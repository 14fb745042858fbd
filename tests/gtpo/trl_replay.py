"""A run of ours, and TRL's own GRPOTrainer on the rollouts that it sampled: losses and weights side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from test_trainer import SETTINGS
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from gtpo.config import TrainConfig
from gtpo.inputs.dataset import TrainingProblems
from gtpo.rewards import final_reward
from gtpo.train.command import train
from gtpo.trainer.trl_seam import with_special_tokens

TRL_ARGUMENTS: dict[str, dict[str, Any]] = {
    "dapo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "mask_truncated_completions": True},
    "dr-grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "80-20": {
        "loss_type": "dapo",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "mask_truncated_completions": True,
        "top_entropy_quantile": 0.2,
    },
}
"""What a TRL user would write for each layer, from TRL's documentation and not from our config."""


class Replay(NamedTuple):
    """Losses of every micro-batch, and the trained weights, of both."""

    ours: list[float]
    theirs: list[float]
    our_weights: dict[str, torch.Tensor]
    their_weights: dict[str, torch.Tensor]

    def largest_loss_difference(self) -> float:
        """Return the largest |ours - theirs|."""
        return max(abs(a - b) for a, b in zip(self.ours, self.theirs, strict=True))

    def largest_weight_difference(self) -> float:
        """Return the largest difference of a weight."""
        return max(float((w - self.their_weights[name]).abs().max()) for name, w in self.our_weights.items())


def replay(config: TrainConfig, weights: Path, results: Path, trl_arguments: dict[str, Any]) -> Replay:
    """Train `config`, recording its rollouts; train TRL's own GRPOTrainer from `weights` on the same ones."""
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
        reward_funcs=[final_reward],
        args=arguments,
        train_dataset=TrainingProblems(config).dataset(tokenizer)[0],
        processing_class=tokenizer,
    )
    trainer.train()
    trained = AutoModelForCausalLM.from_pretrained(folder / "final", dtype=torch.float32)
    return Replay(ours, theirs, trained.state_dict(), trainer.model.state_dict())
