"""What GTPOTrainer refuses before the model is loaded: a dataset without prompts, a reward that returns no scores."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

from torch.nn import Module

from gtpo.common.log import LOG
from gtpo.rewards.checks import probe_reward


def check_inputs(reward_funcs: Any, train_dataset: Any, *, prompts: int) -> None:
    """Raise ValueError where no rollout can be filled, rows have no `prompt`, or a function returns no scores.

    prompts: those of one rollout, over all processes. Reward functions are called once, with two empty completions of
    the first row; models are not.
    """
    if isinstance(train_dataset, Sized) and len(train_dataset) < prompts:
        raise ValueError(
            f"GTPOTrainer: train_dataset has {len(train_dataset)} rows, and one rollout takes {prompts} prompts "
            "(per_device_train_batch_size x processes x steps_per_generation / num_generations)"
        )
    row = next(iter(train_dataset), None)
    if not isinstance(row, Mapping):
        return  # nothing that TRL takes: it says so
    if "prompt" not in row:
        raise ValueError(
            f"GTPOTrainer: train_dataset has no column prompt; its columns are {', '.join(row)} "
            "(rename_column, or map each row to a prompt: text, or a list of messages)"
        )
    for function in reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]:
        if isinstance(function, str | Module) or not callable(function):
            continue  # a reward model, or what TRL refuses by itself
        probe = probe_reward(getattr(function, "__name__", type(function).__name__), function, row)
        if probe.fault:
            raise ValueError(f"GTPOTrainer: {probe.fault}")
        if probe.raised:
            LOG.warning(f"{probe.raised}; training stops where it raises (return None to leave one unscored)")
