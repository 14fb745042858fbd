"""GTPOTrainer: GTPO on TRL's GRPO engine. A TRL user switches by changing the class name.

Objective (DESIGN section 2; arXiv 2508.03772, Eq. 4-7), per completion o_i of a group of G:

    loss_i = -A'_i / |o_i| / norm_i * sum_t rho_it lambda_it  (+ gamma <H>_i in entropy mode `loss`)
    A'_i   = delta_i (A_i - gamma <H>_i)

rho = pi / stopgrad(pi) = 1 in value; it is pi / pi_old, clipped, only where several optimizer steps share one round
of sampling. There is no reference model and no second forward.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from gtpo.common.log import LOG, start_logging
from gtpo.completions import group_advantages, prepare_completions
from gtpo.fused import FusedLoss, fused_loss
from gtpo.objective import PRESETS, entropy_gate
from gtpo.trainer.calibration import CalibratedTrainer
from gtpo.trainer.check_inputs import check_inputs
from gtpo.trainer.check_loss import Check, compare_losses
from gtpo.trainer.group_statistics import loss_mask
from gtpo.trainer.gtpo_config import GTPOConfig
from gtpo.trainer.policy_head import LMHead
from gtpo.trainer.rollout import BATCH_ROWS, from_batch

_TEXT_KEYS = frozenset(
    {
        *("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages", "row"),
        *BATCH_ROWS.values(),
        *("num_items_in_batch", "old_per_token_logps", "behaviour_entropy"),
        *("importance_sampling_ratio", "sampling_per_token_logps"),
    }
)
"""What a batch of text holds; images or other modalities would be dropped in silence otherwise."""

_CITATION = """\
@article{simoni2025gtpo,
    title        = {{GTPO: Stabilizing Group Relative Policy Optimization via Gradient and Entropy Control}},
    author       = {Marco Simoni and Aleksandar Fontana and Giulio Rossolini and Andrea Saracino and Paolo Mori},
    year         = 2025,
    eprint       = {arXiv:2508.03772},
}"""


class GTPOTrainer(CalibratedTrainer):
    """GRPOTrainer with GTPO's objective. Same arguments; `args` is a GTPOConfig."""

    _tag_names = ["trl", "gtpo"]  # noqa: RUF012  # TRL declares it so
    _name = "GTPO"
    _paper = {  # noqa: RUF012
        "title": "GTPO: Stabilizing Group Relative Policy Optimization via Gradient and Entropy Control",
        "id": "2508.03772",
        "citation": f"{_CITATION}\n\n{GRPOTrainer._paper['citation']}",
    }
    """What the model card cites: GTPO, and GRPO, which it stands on."""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GTPOConfig | None = None,
        train_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        args = GTPOConfig(output_dir="gtpo-output") if args is None else args
        if not isinstance(args, GTPOConfig):
            raise ValueError(f"GTPOTrainer: args must be a GTPOConfig; found {type(args).__name__}")
        if not LOG.hasHandlers():  # a TRL user's script without logging of its own still sees the gate's decision
            start_logging()
        if train_dataset is not None and kwargs.get("environment_factory") is None:  # environments own their prompts
            prompts = (args.generation_batch_size or 0) // (args.num_generations or 1)
            check_inputs(reward_funcs, train_dataset, prompts=prompts)
        self._scoring = False
        self._behaviour_entropies: Tensor | None = None
        self.check_loss = args.check_loss
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, train_dataset=train_dataset, **kwargs)

    # -- the loss ----------------------------------------------------------------------------------------------------

    def _advantages(self, own: Tensor, trl: Tensor) -> Tensor:
        """Return A [N] of Eq. 1; TRL's where each reward function is to be normalised by itself."""
        return own if self.multi_objective_aggregation == "sum_then_normalize" else trl

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """Outside scoring TRL's own; in it, statistics of the distribution that the objective takes them of."""
        if not self._scoring:
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._of_the_sampled_distribution() and not self.objective.log_clamp:
            outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs, compute_entropy=True)
        else:  # TRL's are at the sampling temperature: against them the ratio would not be 1 before any update
            outputs = (*self._policy_statistics(*args, **kwargs), None)
        self._behaviour_entropies = outputs[1]
        return outputs

    def _of_the_sampled_distribution(self) -> bool:
        """Return whether the objective takes its log-probabilities at the temperature that was sampled with."""
        return self.objective.temperature(self.temperature) == self.temperature

    def _policy_statistics(
        self, model: Any, ids: Tensor, mask: Tensor, length: int, batch_size: int | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies [N, length] of the last tokens of ids [N, T], as the loss has them."""
        plain = replace(
            PRESETS["grpo"],
            log_clamp=self.objective.log_clamp,
            entropy_temperature=self.objective.entropy_temperature,
        )

        def statistics(tokens: Tensor, written: Tensor, hidden: Tensor, head: LMHead) -> FusedLoss:
            # No reward enters a statistic: any do, and every row is a group of its own.
            scored = group_advantages(plain, torch.zeros(len(hidden), device=hidden.device), 1)
            completions = prepare_completions(plain, scored, tokens, written, 1)
            return fused_loss(
                plain, hidden, head.weight, tokens, written, completions, 1, gate_active=False,
                temperature=self.temperature, bias=head.bias, logit_scale=head.logit_scale, softcap=head.softcap,
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
                found.append(self.policy_forward(model, batch, loss).value)
        return torch.cat([part.logps for part in found]), torch.cat([part.token_entropies for part in found])

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._scoring, self._behaviour_entropies = True, None
        try:
            batch = super()._generate_and_score_completions(inputs)
        finally:
            self._scoring = False
        if self._behaviour_entropies is not None:
            # Several optimizer steps share this round: the gate and the entropy term stay those of the policy that
            # sampled it.
            mask = loss_mask(batch)
            total = (self._behaviour_entropies.float() * mask).sum(dim=1)
            batch["behaviour_entropy"] = total / mask.sum(dim=1).clamp(min=1)
        if self.check_loss:
            self.check_loss = False
            found = self.check_first_group(batch)
            if self.accelerator.is_main_process:
                LOG.info(found.line())
            if not found.passed:
                raise ValueError(found.line())
        return batch

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if unknown := set(inputs) - _TEXT_KEYS:
            raise ValueError(f"GTPOTrainer trains text models; this batch has {', '.join(sorted(unknown))}")
        output, aux_loss = self.policy_forward(model, inputs, functools.partial(self._fused_loss, inputs))
        mode = self._mode()
        if self._of_the_sampled_distribution():  # vLLM's are: at another temperature they are not comparable
            self._log_mismatch(output.logps, inputs)
        if inputs.get("old_per_token_logps") is not None:
            self._log_clipping(output, inputs)
        entropy = inputs.get("behaviour_entropy", output.entropy)
        self._log_completions(inputs["row"], entropy, output.kept)
        tokens = self.accelerator.gather(loss_mask(inputs).sum()).sum()
        self._metrics[mode]["entropy"].append(
            (self.accelerator.gather(output.token_entropies.sum()).sum() / tokens).item()
        )
        if aux_loss is None:
            loss: Tensor = output.loss
            return loss
        self._metrics[mode]["aux_loss"].append(self.accelerator.gather(aux_loss.detach()).mean().item())
        return output.loss + self.router_aux_loss_coef * aux_loss / self._accumulation()

    def _accumulation(self) -> int:
        """Return how many micro-batches make up the gradient that a micro-batch is a part of."""
        return self.current_gradient_accumulation_steps if self.training_mode else 1

    def _fused_loss(self, inputs: dict[str, Any], hidden: Tensor, head: LMHead) -> FusedLoss:
        """Return the loss of a micro-batch from the hidden states [B, L, D] that predict its tokens."""
        completions, gate_active = from_batch(inputs), self.gate_active()
        if completions.old_entropy is not None:
            completions = completions._replace(
                old_keep_mask=entropy_gate(
                    self.objective, completions.old_entropy, completions.advantages, gate_active=gate_active
                )
            )
        return fused_loss(
            self.objective,
            hidden,
            head.weight,
            inputs["completion_ids"],
            loss_mask(inputs),
            completions,
            self._group_size(),
            gate_active=gate_active,
            # The micro-batches of a step add up, the ranks are averaged: B of the step is this many per rank.
            groups=len(completions.advantages) * self._accumulation() / self._group_size(),
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            temperature=self.temperature,
            bias=head.bias,
            logit_scale=head.logit_scale,
            softcap=head.softcap,
        )

    def _log_clipping(self, output: FusedLoss, inputs: dict[str, Any]) -> None:
        """Log the share of tokens whose policy gradient the clipping takes away, under TRL's names."""
        mask = loss_mask(inputs).bool()
        ratio, shaped = (output.logps - inputs["old_per_token_logps"]).exp(), output.shaped_advantages[:, None]
        low = mask & (ratio < 1 - self.epsilon_low) & (shaped < 0)
        high = mask & (ratio > 1 + self.epsilon_high) & (shaped > 0)
        counts = self.accelerator.gather(torch.stack([low.sum(), high.sum(), mask.sum()])).view(-1, 3).sum(dim=0)
        shares = (counts[:2] / counts[2].clamp(min=1)).tolist()
        for name, share in zip(("low_mean", "high_mean", "region_mean"), (*shares, sum(shares)), strict=True):
            self._metrics[self._mode()][f"clip_ratio/{name}"].append(share)

    def check_first_group(self, batch: dict[str, Any]) -> Check:
        """Compare the fused loss with the reference on the first group of a round. All processes take part."""
        group, rows = self._group_size(), {}
        names = {"prompt_ids": True, "prompt_mask": True, "completion_ids": False, "completion_mask": False}
        for name, left in names.items():
            whole = self.accelerator.pad_across_processes(batch[name], dim=1, pad_first=left)
            rows[name] = self.accelerator.gather(whole)[:group]
        lengths = rows["completion_mask"].sum(dim=1)
        truncated = self.rollouts[self._mode()].truncated[:group]
        loss = functools.partial(
            compare_losses,
            self.objective,
            completion_ids=rows["completion_ids"],
            completion_mask=torch.arange(rows["completion_ids"].size(1), device=lengths.device) < lengths[:, None],
            rewards=self.total_rewards()[:group],
            initial_entropy=self.initial_entropy,
            temperature=self.temperature,
            truncated=truncated,
        )
        with torch.no_grad():
            found: Check = self.policy_forward(self.model_wrapped, rows, loss).value
        return found
