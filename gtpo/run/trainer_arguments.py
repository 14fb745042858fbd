"""From a TrainConfig to the arguments of the three trainers: one place, so that they differ by method alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig, SFTConfig

from gtpo.common.errors import UserError
from gtpo.common.packages import installed
from gtpo.config import TrainConfig
from gtpo.config.baselines import CLIPPING, SWITCHES
from gtpo.inputs.model import compute_precision
from gtpo.trainer import GTPOConfig

_SAME = (
    "learning_rate", "lr_scheduler_type", "adam_beta1", "adam_beta2", "weight_decay", "max_grad_norm",
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
    "gradient_checkpointing", "logging_steps", "save_steps", "save_total_limit",
)  # fmt: skip
_SAME_SAMPLED = (
    "num_generations", "steps_per_generation", "num_iterations", "max_completion_length", "temperature", "beta",
)  # fmt: skip
"""Keys of `training` that TRL has under the same names: of any method, and of those that sample."""


def rollout_engine(config: TrainConfig) -> str:
    """Return the engine that `rollout.engine` comes to here: transformers, vllm or vllm_server."""
    engine = config.rollout.engine
    if engine == "auto":
        return "vllm" if installed("vllm") and torch.cuda.is_available() else "transformers"
    return engine


def _common(config: TrainConfig, output: Path) -> dict[str, Any]:
    training = config.training
    return {
        "output_dir": str(output),
        "run_name": config.run_name,
        **{name: getattr(training, name) for name in _SAME},
        "warmup_steps": training.warmup_ratio,  # a float below 1 is a share of all steps
        "optim": training.optimizer,
        "logging_nan_inf_filter": False,  # a loss that is not finite must be seen
        "save_strategy": "steps",
        "report_to": list(training.report_to) or "none",
        "seed": config.model.random_seed,
        "use_cpu": not torch.accelerator.is_available(),
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "ddp_find_unused_parameters": False,
        **compute_precision(config.model),
    }


def _sampled(config: TrainConfig) -> dict[str, Any]:
    training, rollout = config.training, config.rollout
    engine = rollout_engine(config)
    return {
        **{name: getattr(training, name) for name in (*_SAME_SAMPLED, *CLIPPING)},
        "reward_weights": config.trainer.reward_weights,
        "disable_dropout": True,
        "shuffle_dataset": False,
        "use_vllm": engine != "transformers",
        "vllm_mode": "server" if engine == "vllm_server" else "colocate",
        "vllm_server_host": rollout.server_host,
        "vllm_server_port": rollout.server_port,
        "vllm_tensor_parallel_size": rollout.tensor_parallel_size,
        "vllm_gpu_memory_utilization": config.model.gpu_memory_utilization,
        "vllm_max_model_length": config.model.max_seq_length,
        # The same for both methods, which then differ by method alone.
        "vllm_importance_sampling_correction": rollout.importance_sampling_correction,
        "trust_remote_code": config.model.trust_remote_code,
    }


def trainer_arguments(config: TrainConfig, output: Path, *, check_loss: bool = False) -> Any:
    """Return the GTPOConfig, GRPOConfig or SFTConfig of a run; checkpoints go to `output`.

    Raises UserError where this machine or batch cannot do what the config asks.
    """
    try:
        if config.method == "sft":
            return SFTConfig(**_common(config, output), max_length=config.model.max_seq_length)
        arguments = _common(config, output) | _sampled(config)
        objective = config.resolved_objective()
        if config.method == "gtpo":
            arguments.pop("beta")
            return GTPOConfig(
                **arguments,
                preset=config.preset_name(),
                objective=objective,
                check_loss=check_loss,
                max_padding=config.training.max_padding,
            )
        return GRPOConfig(
            **arguments,
            **{name: getattr(config.training, name) for name in SWITCHES},
            scale_rewards=objective.scale_rewards,
            mask_truncated_completions=objective.mask_truncated,
        )
    except ValueError as error:
        raise UserError(f"training: {error}") from None
