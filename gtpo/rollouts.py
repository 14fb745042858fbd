"""What GTPO and the GRPO baseline both see of a round of sampling: group statistics under the same names.

`GroupStatistics` observes TRL's GRPOTrainer and changes none of its numbers. It reads the rewards and ids of a round
right after scoring, before TRL shuffles the completions into micro-batches, and lets what belongs to a completion
travel as extra rows of the batch dict:

    conflict_weights [B, L]   lambda
    conflict_forward, conflict_backward, conflict_union [B]   span lengths
    scored [B] bool           the reward could be computed
    varied [B] bool           the rewards of the completion's group differ
    row [B]                   index among all completions of the round, rank-major (group = row // G)
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import Any

import torch
from trl import GRPOTrainer

from gtpo.plain_spans import conflict_weights
from gtpo.presets import LN2
from rewards.completions import completion_text
from rewards.format import format_score


class GroupStatistics(GRPOTrainer):
    """GRPOTrainer that logs `reward/*`, `entropy/*`, `conflict/*`, `groups/*` and `completions/*`."""

    positive_weight = 2.0
    combine: Any = "or"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.stopwatch: dict[str, float] = defaultdict(float)
        """Seconds spent since the last logged step, by part."""
        self.round: dict[str, Any] = {}
        """The round of sampling in use, gathered over ranks: what the completions log writes."""
        super().__init__(*args, **kwargs)

    @property
    def training_mode(self) -> bool:
        """Whether the model is being trained (as opposed to evaluated)."""
        return bool(self.model is not None and self.model.training)

    def _mode(self) -> str:
        return "train" if self.training_mode else "eval"

    def _group_size(self) -> int:
        size = self.num_generations if self.training_mode else self.num_generations_eval
        assert size is not None
        return size

    # -- sampling and scoring --------------------------------------------------------------------------------------

    def _generate(self, prompts: list) -> Any:
        begin = time.perf_counter()
        generated = super()._generate(prompts)
        self.stopwatch["time/generation"] += time.perf_counter() - begin
        return generated

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        begin = time.perf_counter()
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        rewards = self._mark_unscored(rewards)
        mode = self._mode()
        device = self.accelerator.device
        form = self.accelerator.gather(
            torch.tensor([format_score(completion_text(c)) for c in completions], device=device, dtype=torch.float32)
        )
        accuracy = self._accuracy(rewards, form)
        metrics = self._metrics[mode]
        metrics["reward/format"].append(form.mean().item())
        if accuracy is not None:
            metrics["reward/accuracy"].append(accuracy.nanmean().item())
        unscored = rewards.isnan().all(dim=1)
        metrics["reward/unscored"].append(unscored.float().mean().item())
        self.round = {
            "step": self.state.global_step + 1,
            "rewards": rewards,
            "format": form,
            "accuracy": accuracy,
            "prompts": prompts,
        }
        self.stopwatch["time/reward"] += time.perf_counter() - begin
        return rewards

    def _mark_unscored(self, rewards: torch.Tensor) -> torch.Tensor:
        """Hook: make whole rows NaN where a function failed. The public trainers keep TRL's meaning of None."""
        return rewards

    def _accuracy(self, rewards: torch.Tensor, form: torch.Tensor) -> torch.Tensor | None:
        """Return the accuracy reward [N], from the column that holds it or as `final_reward` less the format part."""
        names = self.reward_func_names
        if "accuracy_reward" in names:
            return rewards[:, names.index("accuracy_reward")]
        if "final_reward" in names:
            return rewards[:, names.index("final_reward")] - form
        return None

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        mode = self._mode()
        group = self._group_size()
        accelerator = self.accelerator
        local, length = batch["completion_ids"].shape

        # A group may span ranks, so its ids are brought together before its spans are sought.
        ids, mask = batch["completion_ids"], batch["completion_mask"]
        ids = accelerator.gather(accelerator.pad_across_processes(ids, dim=1))
        mask = accelerator.gather(accelerator.pad_across_processes(mask, dim=1))
        rewards = self.round["rewards"]
        advantages = accelerator.gather(batch["advantages"])
        spans = conflict_weights(
            ids, mask.bool(), advantages, group, positive_weight=self.positive_weight, combine=self.combine
        )
        totals = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
        scored = ~rewards.isnan().all(dim=1)
        by_group = totals.masked_fill(~scored, math.nan).view(-1, group)
        low = torch.where(by_group.isnan(), math.inf, by_group).amin(dim=1)
        high = torch.where(by_group.isnan(), -math.inf, by_group).amax(dim=1)
        varied = ((high - low) > 1e-8).repeat_interleave(group)

        mine = slice(accelerator.process_index * local, (accelerator.process_index + 1) * local)
        batch["conflict_weights"] = spans.weights[mine, :length]
        batch["conflict_forward"] = spans.forward[mine]
        batch["conflict_backward"] = spans.backward[mine]
        batch["conflict_union"] = spans.union[mine]
        batch["scored"] = scored[mine]
        batch["varied"] = varied[mine]
        batch["row"] = torch.arange(len(ids), device=ids.device)[mine]

        lengths = mask.sum(dim=1)
        metrics = self._metrics[mode]
        metrics["conflict/forward"].append(spans.forward.float().mean().item())
        metrics["conflict/backward"].append(spans.backward.float().mean().item())
        metrics["conflict/fraction"].append((spans.union.sum() / lengths.sum().clamp(min=1)).item())
        metrics["groups/zero_variance"].append(1.0 - varied.float().mean().item())
        metrics["completions/length"].append(metrics["completions/mean_length"][-1])
        metrics["completions/truncated"].append(metrics["completions/clipped_ratio"][-1])
        self.round |= {
            "ids": ids,
            "mask": mask.bool(),
            "advantages": advantages,
            "weights": spans.weights,
            "entropy": torch.full_like(advantages, math.nan),
            "kept": torch.ones_like(advantages, dtype=torch.bool),
        }
        return batch

    # -- the loss --------------------------------------------------------------------------------------------------

    def _note_completions(self, rows: torch.Tensor, entropy: torch.Tensor, kept: torch.Tensor | None) -> None:
        """Log the entropies [B] of a micro-batch (nats, mean over each completion's tokens) and the gate's choice."""
        mode = self._mode()
        columns = [rows.double(), entropy.double()] + ([kept.double()] if kept is not None else [])
        table = self.accelerator.gather(torch.stack(columns, dim=1))
        finite = table[:, 1][~table[:, 1].isnan()]
        metrics = self._metrics[mode]
        if len(finite):
            metrics["entropy/mean"].append(finite.mean().item())
            metrics["entropy/above_ln2"].append((finite > LN2).double().mean().item())
        if kept is not None:
            metrics["gate/kept"].append(table[:, 2].mean().item())
        if "entropy" in self.round:
            where = table[:, 0].long()
            self.round["entropy"][where] = table[:, 1].to(self.round["entropy"].dtype)
            if kept is not None:
                self.round["kept"][where] = table[:, 2].bool()


class ObservedGRPOTrainer(GroupStatistics):
    """TRL's GRPO with the group statistics beside it: its loss and gradients are TRL's own."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self._observed = inputs
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if kwargs.get("compute_entropy") and outputs[1] is not None:
            mask = self._observed["completion_mask"]
            entropy = (outputs[1].detach() * mask).sum(dim=1) / mask.sum(dim=1)
            self._note_completions(self._observed["row"], entropy, None)
        return outputs
