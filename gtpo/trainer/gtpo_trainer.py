"""GTPOTrainer: GTPO on TRL's GRPO engine. A TRL user switches by changing the class name.

Objective (docs/method.md; arXiv 2508.03772, Eq. 4-7), per completion o_i of a group of G:

    loss_i = -A'_i / |o_i| / norm_i * sum_t rho_it lambda_it  (+ gamma <H>_i in entropy mode `loss`)
    A'_i   = delta_i (A_i - gamma <H>_i)

rho = pi / stopgrad(pi) = 1 in value; it is pi / pi_old, clipped, only where several optimizer steps share one round
of sampling. There is no reference model and no second forward.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import Tensor

from gtpo.common.log import LOG, start_logging
from gtpo.fused import FusedLoss, fused_loss
from gtpo.inputs.model import rounded_away, widen_adapters
from gtpo.inputs.model_shape import router_loss_obstacle
from gtpo.objective import Objective, entropy_gate
from gtpo.trainer.adapter_sync import vllm_of
from gtpo.trainer.behaviour import BehaviourStatistics
from gtpo.trainer.calibration import GateCalibration
from gtpo.trainer.check_inputs import ObjectiveGuard, check_inputs
from gtpo.trainer.check_loss import FirstGroupCheck
from gtpo.trainer.group_statistics import GroupStatistics, loss_mask
from gtpo.trainer.gtpo_config import GTPOConfig
from gtpo.trainer.policy_head import LMHead, add_policy_head, policy_forward
from gtpo.trainer.rollout import BATCH_ROWS, from_batch, without_empty_columns
from gtpo.trainer.trl_seam import OwnLossTrainer, round_nothing_in_fsdp2, seam_of

_TEXT_KEYS = frozenset(
    {
        *("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages", "row"),
        *BATCH_ROWS.values(),
        *("num_items_in_batch", "old_per_token_logps", "behaviour_entropy"),
        *("importance_sampling_ratio", "sampling_per_token_logps"),
    }
)
"""What a batch of text holds; images or other modalities would otherwise be dropped silently."""


class GTPOTrainer(OwnLossTrainer):
    """GRPOTrainer with GTPO's objective. Same arguments; `args` is a GTPOConfig.

    It is the loss alone. What is measured, logged and checked around it are parts, each an attribute.
    """

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
        if not LOG.hasHandlers():  # a TRL user's script that sets up no logging still sees the gate's decision
            start_logging()
        if train_dataset is not None and kwargs.get("environment_factory") is None:  # environments own their prompts
            prompts = (args.generation_batch_size or 0) // (args.num_generations or 1)
            check_inputs(reward_funcs, train_dataset, prompts=prompts)
        with vllm_of(args):
            super().__init__(model=model, reward_funcs=reward_funcs, args=args, train_dataset=train_dataset, **kwargs)
        round_nothing_in_fsdp2(self.accelerator)
        self.objective: Objective = args.resolved_objective()
        self._prepare_model(args)
        self.seam = seam_of(self)
        self.guard = ObjectiveGuard(self, self.objective)
        self.groups = GroupStatistics(self, self.objective)
        self.gate = GateCalibration(self, self.objective, self.groups)
        self.behaviour = BehaviourStatistics(self, self.objective)
        for part in (self.guard, self.groups, self.gate):
            self.add_callback(part)
        if args.check_loss:
            FirstGroupCheck(self, self.groups, self.gate)

    def _prepare_model(self, args: GTPOConfig) -> None:
        """Let the model take the loss in its forward, and hold adapters of 4-bit weights in float32."""
        policy: Any = self.model
        if getattr(policy, "is_quantized", False):
            widen_adapters(policy)
        for text in rounded_away(args, policy):
            LOG.warning(text)
        if self.aux_loss_enabled and (obstacle := router_loss_obstacle(policy.config, self.router_aux_loss_coef)):
            raise ValueError(f"GTPOTrainer: {obstacle}")
        add_policy_head(policy.get_base_model() if is_peft_model(policy) else policy)

    @property
    def initial_entropy(self) -> float | None:
        """H_ini in nats, None before the calibration."""
        return self.gate.initial_entropy

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; before any training the gate is decided by H_ini of the policy as it is now."""
        self.gate.ensure_for_evaluation()
        return super().evaluate(*args, **kwargs)

    def policy_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return the loss (a scalar) of a micro-batch."""
        if unknown := set(inputs) - _TEXT_KEYS:
            raise ValueError(f"GTPOTrainer trains text models; this batch has {', '.join(sorted(unknown))}")
        inputs = without_empty_columns(inputs)  # padded to the longest of the round, not of this micro-batch
        output, aux_loss = policy_forward(self, model, inputs, functools.partial(self._fused_loss, inputs))
        self._log(output, inputs)
        if aux_loss is None:
            loss: Tensor = output.loss
            return loss
        self.seam.log("aux_loss", self.accelerator.gather(aux_loss.detach()).mean().item())
        return output.loss + self.router_aux_loss_coef * aux_loss / self._accumulation()

    def _accumulation(self) -> int:
        """Return how many micro-batches make up the gradient that a micro-batch is a part of."""
        return self.current_gradient_accumulation_steps if self.seam.mode == "train" else 1

    def _fused_loss(self, inputs: dict[str, Any], hidden: Tensor, head: LMHead) -> FusedLoss:
        """Return the loss of a micro-batch, from the hidden states [B, L, D] of its tokens."""
        completions, gate_active = from_batch(inputs), self.gate.active()
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
            self.seam.group_size,
            gate_active=gate_active,
            # The micro-batches of a step add up, the ranks are averaged: B of the step is this many per rank.
            groups=len(hidden) * self._accumulation() / self.seam.group_size,
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            temperature=self.temperature,
            bias=head.bias,
            logit_scale=head.logit_scale,
            softcap=head.softcap,
        )

    def _log(self, output: FusedLoss, inputs: dict[str, Any]) -> None:
        """Log what the forward has found: entropies, the gate's choice, clipping, the distance from the sampler."""
        if self.behaviour.of_the_sampled_distribution():  # vLLM's are: at another temperature they are not comparable
            self.groups.log_mismatch(output.logps, inputs)
        if inputs.get("old_per_token_logps") is not None:
            self._log_clipping(output, inputs)
        self.groups.log_completions(inputs["row"], inputs.get("behaviour_entropy", output.entropy), output.kept)
        tokens = self.accelerator.gather(loss_mask(inputs).sum()).sum()
        self.seam.log("entropy", (self.accelerator.gather(output.token_entropies.sum()).sum() / tokens).item())

    def _log_clipping(self, output: FusedLoss, inputs: dict[str, Any]) -> None:
        """Log the share of tokens whose policy gradient the clipping takes away, under TRL's names."""
        mask = loss_mask(inputs).bool()
        ratio, shaped = (output.logps - inputs["old_per_token_logps"]).exp(), output.shaped_advantages[:, None]
        low = mask & (ratio < 1 - self.epsilon_low) & (shaped < 0)
        high = mask & (ratio > 1 + self.epsilon_high) & (shaped > 0)
        counts = self.accelerator.gather(torch.stack([low.sum(), high.sum(), mask.sum()])).view(-1, 3).sum(dim=0)
        shares = (counts[:2] / counts[2].clamp(min=1)).tolist()
        for name, share in zip(("low_mean", "high_mean", "region_mean"), (*shares, sum(shares)), strict=True):
            self.seam.log(f"clip_ratio/{name}", share)
