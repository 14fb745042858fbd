"""What is refused before the model is loaded, and `--check-loss`: the fused loss against its specification."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from gtpo.common.log import LOG
from gtpo.fused import fused_linear_gtpo_loss
from gtpo.objective import reference_loss
from gtpo.rewards.loading import probe_reward
from gtpo.trainer import trl_seam
from gtpo.trainer.policy_head import LMHead, policy_forward


def check_inputs(reward_funcs: Any, train_dataset: Any, *, prompts: int) -> None:
    """Raise ValueError if no rollout can be filled, rows lack `prompt` or have images, or a function returns no scores.

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
        return  # TRL refuses it with its own message
    if "prompt" not in row:
        raise ValueError(
            f"GTPOTrainer: train_dataset has no column prompt; its columns are {', '.join(row)} "
            "(rename_column, or map each row to a prompt: text, or a list of messages)"
        )
    prompt = row["prompt"]
    messages = isinstance(prompt, list) and all(isinstance(each, Mapping) and "role" in each for each in prompt)
    if not (messages or isinstance(prompt, str)):
        raise ValueError(
            f"GTPOTrainer: the prompt of the first row is {prompt!r:.80}; expected text, or a list of messages with "
            "role and content"
        )
    # The loss would leave images out in silence.
    if taken := {"prompts", "completions", "completion_ids", "image", "images"} & row.keys():
        raise ValueError(
            f"GTPOTrainer: rename or remove the column {min(taken)} of train_dataset: reward functions are given "
            "prompts, completions and completion_ids of the round, and images are for other models than text models"
        )
    for function in reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]:
        # A reward model, or one that TRL refuses itself.
        if isinstance(function, str | Module) or not callable(function):
            continue
        probe = probe_reward(getattr(function, "__name__", type(function).__name__), function, row)
        if probe.fault:
            raise ValueError(f"GTPOTrainer: {probe.fault}")
        if probe.raised:
            LOG.warning(f"{probe.raised}; training stops where it raises (return None to leave one unscored)")


# Completions are cut to this many tokens for the comparison, which holds all their logits at once.
MAX_TOKENS = 128

# Largest relative difference of the hidden states' gradient that counts as equal, by their dtype.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}


def check_first_group(trainer: Any, batch: dict[str, Any]) -> None:
    """Compare the fused loss of the first group of a scored round with `reference_loss`. All processes take part.

    The reference has all logits at once, in float64 (CPU) or float32 (GPU). Raises ValueError if the gradients of the
    hidden states differ, or the head's log-probabilities from those of the model's own forward.
    """
    accelerator, group, sampler = trainer.accelerator, trl_seam.group_size(trainer), trainer.sampler
    rollout = trainer.groups.rollouts[trl_seam.mode(trainer)]
    ids, mask = rollout.ids[:group, :MAX_TOKENS], rollout.mask[:group, :MAX_TOKENS]
    rows = {"completion_ids": ids, "completion_mask": mask.long()}
    for name in ("prompt_ids", "prompt_mask"):
        rows[name] = accelerator.gather(accelerator.pad_across_processes(batch[name], dim=1, pad_first=True))[:group]
    shared: dict[str, Any] = {
        "completion_ids": ids,
        "completion_mask": mask,
        "rewards": trainer.groups.total_rewards()[:group],
        "num_generations": group,
        "initial_entropy": trainer.initial_entropy,
        "temperature": trainer.temperature,
        "truncated": rollout.truncated[:group],
    }
    apart = sampler.from_own_forward(rows, trainer.logps_of(rows), mask)

    def losses(hidden: Tensor, head: LMHead) -> tuple[str, bool]:
        wide = torch.float32 if hidden.is_cuda else torch.float64
        ours = hidden.detach().clone().requires_grad_()
        theirs = ours.detach().to(wide).requires_grad_()
        bias = None if head.bias is None else head.bias.detach().to(wide)
        exact = head._replace(weight=head.weight.detach().to(wide), bias=bias)
        with torch.enable_grad():
            fused = fused_linear_gtpo_loss(trainer.objective, ours, head.weight, **head.transform(), **shared)
            logits = exact.logits(theirs)
            reference = reference_loss(trainer.objective, logits, **shared)
            (found,) = torch.autograd.grad(fused.loss, ours)
            (wanted,) = torch.autograd.grad(reference.loss, theirs)
        # If there is no gradient at all, the difference is absolute.
        norm = float(wanted.norm())
        gradient = float((found.to(wide) - wanted).norm()) / (norm or 1.0)
        allowed = sampler.allowed(float(logits.detach().abs().mean()))
        passed = gradient <= TOLERANCE.get(hidden.dtype, 2e-2) and apart <= allowed
        line = (
            f"check-loss: the fused loss {'agrees with' if passed else 'DIFFERS from'} the reference on the first "
            f"group: loss {float((fused.loss - reference.loss).detach().abs()):.1e}, "
            f"entropy {float((fused.entropy.to(wide) - reference.entropy).abs().max()):.1e}, "
            f"gradient {gradient:.1e} of its norm, {norm:.1e} (0: equal rewards, or a group that the gate drops); the "
            f"head's log-probabilities lie {apart:.1e} nats from those of the model's own forward (at most "
            f"{allowed:.1e})"
        )
        return line, passed

    with torch.no_grad():
        line, passed = policy_forward(trainer, trainer.model_wrapped, rows, losses).value
    if accelerator.is_main_process:
        LOG.info(line)
    if not passed:
        raise ValueError(line)
