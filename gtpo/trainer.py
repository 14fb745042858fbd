"""GTPOTrainer: GTPO on TRL's GRPO engine. A TRL user switches by changing the class name.

Objective (DESIGN section 2; arXiv 2508.03772, Eq. 4-7), per completion o_i of a group of G:

    loss_i = -A'_i / |o_i| / norm_i * sum_t rho_it lambda_it  (+ gamma <H>_i in entropy mode `loss`)
    A'_i   = delta_i (A_i - gamma <H>_i)

rho = pi / stopgrad(pi) = 1 in value; it is pi / pi_old, clipped, only where several optimiser steps share one round
of sampling. There is no reference model and no second forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from trl import GRPOConfig

from gtpo.presets import PRESETS, Objective
from gtpo.rollouts import LN2, GroupStatistics


@dataclass
class GTPOConfig(GRPOConfig):
    """GRPOConfig plus the objective. `loss_type`, `scale_rewards` and `mask_truncated_completions` follow from it.

    Raises ValueError for an unknown preset or field, and for `beta` > 0 (GTPO has no reference model).
    """

    preset: str = field(default="gtpo", metadata={"help": "A preset of docs/method.md."})
    objective: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "Fields of gtpo.objective.Objective that differ from the preset."}
    )
    initial_entropy: float | None = field(
        default=None,
        metadata={"help": "H_ini in nats, if already known; measured before step 0 when the filter is `auto`."},
    )
    learning_rate: float = field(default=1e-6, metadata={"help": "The initial learning rate for AdamW."})
    vllm_importance_sampling_correction: bool = field(
        default=False,
        metadata={"help": "TRL's correction of the mismatch between vLLM and the trainer; costs a second forward."},
    )

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"preset {self.preset!r} is not one of {', '.join(PRESETS)}")
        objective = self.resolved_objective()
        if self.beta:
            raise ValueError(f"beta is {self.beta}, but GTPO has no KL term; set it to 0")
        self.loss_type = "grpo"
        self.scale_rewards = objective.scale_rewards
        self.mask_truncated_completions = objective.mask_truncated
        super().__post_init__()

    def resolved_objective(self) -> Objective:
        """Return the preset with the fields of `objective` changed."""
        return replace(PRESETS[self.preset], **self.objective)


class GTPOTrainer(GroupStatistics):
    """GRPOTrainer with GTPO's objective. Same arguments; `args` is a GTPOConfig."""

    _tag_names = ["trl", "gtpo"]  # noqa: RUF012  # TRL declares it so
    _name = "GTPO"

    def __init__(self, model: Any, reward_funcs: Any = None, args: GTPOConfig | None = None, **kwargs: Any) -> None:
        args = GTPOConfig(output_dir="gtpo-output") if args is None else args
        self.objective: Objective = args.resolved_objective()
        self.positive_weight, self.combine = self.objective.positive_weight, self.objective.combine
        self.initial_entropy = args.initial_entropy
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, **kwargs)

    def gate_active(self) -> bool:
        """Return whether the entropy gate filters (Eq. 6): always, never, or iff H_ini < ln 2."""
        if self.objective.filter != "auto":
            return self.objective.filter == "always"
        if self.initial_entropy is None:
            return False
        return self.initial_entropy < LN2

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        objective = self.objective
        ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], ids], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            ids.size(1),
            compute_entropy=True,
        )
        lengths = mask.sum(dim=1).clamp(min=1)
        entropy = (entropies * mask).sum(dim=1) / lengths
        advantages = inputs["advantages"]
        detached = entropy.detach()

        dropped = torch.zeros_like(advantages, dtype=torch.bool)
        if self.gate_active():
            dropped = detached > objective.entropy_threshold
            if objective.filter_scope == "negative":
                dropped = dropped & (advantages < 0)
        kept = ~dropped
        live = inputs["scored"]
        if objective.skip_zero_variance_groups:
            live = live & inputs["varied"]

        shaped = advantages - objective.gamma * detached if objective.entropy_mode == "advantage" else advantages
        shaped = shaped * (kept & live)
        weights = inputs["conflict_weights"] if objective.conflict else torch.ones_like(logps)
        old = inputs.get("old_per_token_logps")
        if old is None:
            ratio = torch.exp(logps - logps.detach())
            surrogate = shaped[:, None] * ratio
        else:
            ratio = torch.exp(logps - old)
            clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
            surrogate = torch.minimum(shaped[:, None] * ratio, shaped[:, None] * clipped)
        if "importance_sampling_ratio" in inputs:
            surrogate = surrogate * inputs["importance_sampling_ratio"]
        losses = -(surrogate * weights * mask).sum(dim=1) / lengths
        if objective.conflict_norm == "union":
            losses = losses / inputs["conflict_union"].clamp(min=1)
        elif objective.conflict_norm == "max":
            losses = losses / torch.maximum(inputs["conflict_forward"], inputs["conflict_backward"]).clamp(min=1)
        if objective.entropy_mode == "loss":
            gate = kept if objective.entropy_gated else torch.ones_like(kept)
            losses = losses + objective.gamma * entropy * (gate & live)

        loss = losses.mean()
        if objective.group_reduction == "sum":
            loss = loss * self.num_generations
        self._note_completions(inputs["row"], detached, kept)
        accumulation = self.current_gradient_accumulation_steps if self.training_mode else 1
        return loss / accumulation
