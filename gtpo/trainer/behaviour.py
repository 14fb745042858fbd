"""The statistics of the policy that sampled, where several optimizer steps share its round of sampling.

Then TRL scores the completions before the first of these steps. The ratio's denominator, the gate and the entropy term
stay those of that policy.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gtpo.completions import group_advantages, prepare_completions
from gtpo.fused import FusedLoss, fused_loss
from gtpo.objective import PRESETS, Objective
from gtpo.trainer.group_statistics import loss_mask
from gtpo.trainer.policy_head import LMHead, policy_forward
from gtpo.trainer.trl_seam import seam_of


class BehaviourStatistics:
    """Puts `behaviour_entropy` [B] beside TRL's `old_per_token_logps`, both as the objective has them."""

    def __init__(self, trainer: Any, objective: Objective) -> None:
        self.trainer, self.objective, self.seam = trainer, objective, seam_of(trainer)
        self._scoring = False
        self._entropies: Tensor | None = None
        self.seam.around("statistics", self._statistics)
        self.seam.around("round", self._round)

    def of_the_sampled_distribution(self) -> bool:
        """Return whether the objective takes its log-probabilities at the temperature that was sampled with."""
        return self.objective.temperature(self.seam.temperature) == self.seam.temperature

    def _round(self, plain: Any, inputs: Any) -> dict[str, Any]:
        self._scoring, self._entropies = True, None
        try:
            batch: dict[str, Any] = plain(inputs)
        finally:
            self._scoring = False
        if self._entropies is not None:
            mask = loss_mask(batch)
            batch["behaviour_entropy"] = (self._entropies.float() * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return batch

    def _statistics(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Outside scoring TRL's own; in it, statistics of the distribution that the objective takes them of."""
        if not self._scoring:
            return plain(*args, **kwargs)
        if self.of_the_sampled_distribution() and not self.objective.log_clamp:
            outputs = plain(*args, **kwargs, compute_entropy=True)
        else:  # TRL's are at the sampling temperature: against them the ratio would not be 1 before any update
            outputs = (*self._of_the_objective(*args, **kwargs), None)
        self._entropies = outputs[1]
        return outputs

    def _of_the_objective(
        self, model: Any, ids: Tensor, mask: Tensor, length: int, batch_size: int | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies [N, length] of the last tokens of ids [N, T], as the loss has them."""
        plain = replace(
            PRESETS["grpo"], log_clamp=self.objective.log_clamp, entropy_temperature=self.objective.entropy_temperature
        )

        def statistics(tokens: Tensor, written: Tensor, hidden: Tensor, head: LMHead) -> FusedLoss:
            # No reward enters a statistic: any will do, and every row is its own group.
            scored = group_advantages(plain, torch.zeros(len(hidden), device=hidden.device), 1)
            completions = prepare_completions(plain, scored, tokens, written, 1)
            return fused_loss(
                plain, hidden, head.weight, tokens, written, completions, 1, gate_active=False,
                temperature=self.seam.temperature, bias=head.bias, logit_scale=head.logit_scale, softcap=head.softcap,
            )  # fmt: skip

        found: list[FusedLoss] = []
        size = batch_size or len(ids)
        for rows, kept in zip(ids.split(size), mask.split(size), strict=True):
            batch = {
                "prompt_ids": rows[:, :-length],
                "prompt_mask": kept[:, :-length],
                "completion_ids": rows[:, -length:],
                "completion_mask": kept[:, -length:].bool(),
            }
            loss = functools.partial(statistics, batch["completion_ids"], batch["completion_mask"])
            with torch.no_grad():
                found.append(policy_forward(self.trainer, model, batch, loss).value)
        return torch.cat([part.logps for part in found]), torch.cat([part.token_entropies for part in found])
