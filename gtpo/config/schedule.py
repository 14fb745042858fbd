"""How many processes train, how many prompts a rollout takes, how many optimizer steps a dataset makes."""

from __future__ import annotations

import math
import os

from gtpo.common.errors import UserError
from gtpo.config.schema import TrainConfig


def launched_processes() -> int:
    """Return the training processes that torchrun or accelerate started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def micro_batches_per_rollout(config: TrainConfig) -> int:
    """Return the micro-batches that share one rollout (TRL's steps_per_generation)."""
    return config.training.steps_per_generation or config.training.gradient_accumulation_steps


def one_step_per_rollout(config: TrainConfig) -> bool:
    """Return whether each rollout feeds one optimizer step, so that the policy trained is the one that sampled."""
    per_rollout = micro_batches_per_rollout(config) * config.training.num_iterations
    return config.training.gradient_accumulation_steps % per_rollout == 0


def prompts_per_rollout(config: TrainConfig, world_size: int) -> int:
    """Return the prompts that one rollout takes over all processes; a resolved config has complete groups."""
    training = config.training
    completions = training.per_device_train_batch_size * micro_batches_per_rollout(config) * world_size
    return completions // training.num_generations


def optimizer_steps(config: TrainConfig, rows: int, world_size: int) -> int:
    """Return the optimizer steps that a run over `rows` usable rows takes."""
    training = config.training
    if training.max_steps > 0:
        return training.max_steps
    if config.method == "sft":
        micro = math.ceil(rows / (training.per_device_train_batch_size * world_size))
    else:  # an incomplete last rollout is left out
        rollouts = rows // prompts_per_rollout(config, world_size)
        micro = rollouts * micro_batches_per_rollout(config) * training.num_iterations
    return math.ceil(training.num_train_epochs * math.ceil(micro / training.gradient_accumulation_steps))


def require_a_rollout(config: TrainConfig, rows: int, world_size: int) -> None:
    """Raise UserError if the usable rows do not fill one rollout."""
    if config.method == "sft" or rows >= prompts_per_rollout(config, world_size):
        return
    training = config.training
    raise UserError(
        f"{rows} usable problems do not fill one rollout, which takes "
        f"{prompts_per_rollout(config, world_size)} (training.per_device_train_batch_size "
        f"{training.per_device_train_batch_size} x {micro_batches_per_rollout(config)} micro-batch(es) x {world_size} "
        f"process(es) / num_generations {training.num_generations}); lower the batch or use more problems"
    )
