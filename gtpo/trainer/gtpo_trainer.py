"""GTPOTrainer: GTPO on TRL's GRPO engine. A TRL user switches by changing the class name.

Objective (DESIGN section 2; arXiv 2508.03772, Eq. 4-7), per completion o_i of a group of G:

    loss_i = -A'_i / |o_i| / norm_i * sum_t rho_it lambda_it  (+ gamma <H>_i in entropy mode `loss`)
    A'_i   = delta_i (A_i - gamma <H>_i)

rho = pi / stopgrad(pi) = 1 in value; it is pi / pi_old, clipped, only where several optimiser steps share one round
of sampling. There is no reference model and no second forward.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from datasets import IterableDataset
from torch import Tensor
from transformers import TrainerCallback
from trl.trainer.utils import pad

from gtpo.entropy import SAMPLES, Calibration, calibrate_initial_entropy, completion_entropy, describe_gate
from gtpo.fused import FusedLoss, fused_loss
from gtpo.kernels.completions import Completions
from gtpo.objective import Objective, entropy_gate, filter_is_active, group_advantages
from gtpo.run.progress import PLAIN_SECONDS
from gtpo.trainer.check_loss import Check, compare_losses
from gtpo.trainer.group_statistics import GroupStatistics
from gtpo.trainer.gtpo_config import GTPOConfig
from gtpo.trainer.policy_head import HeadWeights, add_policy_head
from rewards.support.files import read_json, write_json

_TEXT_KEYS = frozenset(
    {
        *("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages", "row"),
        *("conflict_weights", "conflict_forward", "conflict_backward", "conflict_union", "excluded"),
        *("num_items_in_batch", "old_per_token_logps", "behaviour_entropy"),
        *("importance_sampling_ratio", "sampling_per_token_logps"),
    }
)
"""What a batch of text holds; images or other modalities would be dropped in silence otherwise."""


CALIBRATION_FILE = "initial_entropy.json"


def _loss_mask(batch: dict[str, Any]) -> Tensor:
    """Return which tokens [B, L] the policy wrote: those of the completion, without what tools answered."""
    mask: Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


class _CalibrateFirst(TrainerCallback):
    """Calibrates when the model is wrapped and loaded, before the first step."""

    def __init__(self, trainer: GTPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.ensure_calibrated()


class GTPOTrainer(GroupStatistics):
    """GRPOTrainer with GTPO's objective. Same arguments; `args` is a GTPOConfig."""

    _tag_names = ["trl", "gtpo"]  # noqa: RUF012  # TRL declares it so
    _name = "GTPO"

    def __init__(self, model: Any, reward_funcs: Any = None, args: GTPOConfig | None = None, **kwargs: Any) -> None:
        args = GTPOConfig(output_dir="gtpo-output") if args is None else args
        self.objective: Objective = args.resolved_objective()
        self.calibration = None if args.initial_entropy is None else Calibration(args.initial_entropy)
        self._told = 0.0
        self._scoring = False
        self._behaviour_entropies: Tensor | None = None
        self.check_loss = args.check_loss
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, **kwargs)
        policy: Any = self.model
        add_policy_head(policy.get_base_model() if is_peft_model(policy) else policy)
        self.add_callback(_CalibrateFirst(self))

    @property
    def initial_entropy(self) -> float | None:
        """H_ini in nats, None before the calibration."""
        return self.calibration.initial_entropy if self.calibration else None

    # -- the gate ----------------------------------------------------------------------------------------------------

    def gate_active(self) -> bool:
        """Return whether the entropy gate filters (Eq. 6). Raises ValueError before the calibration."""
        return filter_is_active(self.objective, self.initial_entropy)

    def load_calibration(self) -> Calibration | None:
        """Return the calibration that an earlier session of this run stored in `output_dir`, or None."""
        path = Path(str(self.args.output_dir)) / CALIBRATION_FILE
        return Calibration.from_record(read_json(path)) if path.is_file() else None

    def store_calibration(self, calibration: Calibration) -> None:
        """Keep the calibration for when the run is resumed: it must be that of the untrained policy."""
        write_json(Path(str(self.args.output_dir)) / CALIBRATION_FILE, calibration.record())

    def report(self, message: str) -> None:
        """Say something about the run; prints on stderr."""
        print(message, file=sys.stderr, flush=True)

    def report_calibration(self, done: int, total: int) -> None:
        """Show how many samples H_ini has been measured on."""
        now = time.monotonic()
        if self.accelerator.is_main_process and (done == total or now - self._told >= PLAIN_SECONDS):
            self._told = now
            self.report(f"measuring H_ini on the untrained policy: {done}/{total} samples")

    def ensure_calibrated(self) -> None:
        """Measure H_ini before step 0 where the filter is `auto`, or take up what an earlier session stored."""
        if self.objective.filter == "auto" and self.calibration is None:
            self.calibration = self.load_calibration()
            if self.calibration is None:
                if self.state.global_step:
                    self.report("no stored H_ini to resume with; measuring it on the policy as it is now")
                self.calibration = self._measure()
                if self.accelerator.is_main_process:
                    self.store_calibration(self.calibration)
        if self.accelerator.is_main_process:
            self.report(describe_gate(self.objective, self.calibration))

    def _measure(self) -> Calibration:
        """Sample and score the first training samples; leaves random numbers, metrics and counters as they were."""
        rows: Any = self.train_dataset
        count = SAMPLES if isinstance(rows, IterableDataset) else min(SAMPLES, len(rows))
        prompts = [row["prompt"] for row in itertools.islice(iter(rows), count)]
        generations, seen = self.num_generations, self.state.num_input_tokens_seen
        self.num_generations = 1
        try:
            with torch.random.fork_rng():
                torch.manual_seed(self.args.seed + self.accelerator.process_index)
                return calibrate_initial_entropy(
                    self._completion_entropies,
                    prompts,
                    batch_size=self.args.per_device_train_batch_size * self.accelerator.num_processes,
                    progress=self.report_calibration,
                )
        finally:
            self.num_generations = generations
            self.state.num_input_tokens_seen = seen
            self._metrics["train"].clear()
            self.stopwatch.clear()

    def _completion_entropies(self, prompts: Sequence[Any]) -> Tensor:
        """Sample one completion per prompt and return <H>_i [n] in nats. The prompts are shared out among ranks."""
        accelerator = self.accelerator
        world = accelerator.num_processes
        # Every rank must take part in every forward of a sharded model, so a short batch is filled up.
        filled = [*prompts, *([prompts[-1]] * (-len(prompts) % world))]
        mine = filled[accelerator.process_index :: world]
        assert self.model is not None
        self.model.train()
        prompt_ids, completion_ids, *_ = self._generate(list(mine))
        padding = self._tokenizer.pad_token_id
        left = pad([torch.tensor(ids) for ids in prompt_ids], padding_value=padding, padding_side="left")
        right = pad([torch.tensor(ids) for ids in completion_ids], padding_value=padding, padding_side="right")
        left_mask = pad([torch.ones(len(ids), dtype=torch.long) for ids in prompt_ids], 0, "left")
        right_mask = pad([torch.ones(len(ids), dtype=torch.long) for ids in completion_ids], 0, "right")
        mask = right_mask.to(accelerator.device)
        with torch.no_grad():
            _, entropies, _ = self._get_per_token_logps_and_entropies(
                self.model_wrapped,
                torch.cat([left, right], dim=1).to(accelerator.device),
                torch.cat([left_mask, right_mask], dim=1).to(accelerator.device),
                right.size(1),
                compute_entropy=True,
            )
        assert entropies is not None
        local = completion_entropy(entropies.cpu(), mask.cpu())  # not every device has the float64 of this
        ranks = accelerator.gather(local.float().to(accelerator.device)).view(world, -1)
        return ranks.T.reshape(-1)[: len(prompts)]

    # -- the loss ----------------------------------------------------------------------------------------------------

    def _advantages(self, local: Tensor, advantages: Tensor) -> Tensor:
        """Return A [N] of Eq. 1: exactly 0 for unscored completions and for groups of equal rewards."""
        if self.multi_objective_aggregation != "sum_then_normalize":
            return advantages
        return group_advantages(self.objective, self.total_rewards(), self._group_size()).advantages

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if self._scoring:  # TRL's pass for the log-probabilities of the sampling policy: take the entropies along
            kwargs["compute_entropy"] = True
        outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._scoring:
            self._behaviour_entropies = outputs[1]
        return outputs

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._scoring, self._behaviour_entropies = True, None
        try:
            batch = super()._generate_and_score_completions(inputs)
        finally:
            self._scoring = False
        if self._behaviour_entropies is not None:
            # Several optimiser steps share this round: the gate and the entropy term stay those of the policy that
            # sampled it.
            mask = _loss_mask(batch)
            total = (self._behaviour_entropies.float() * mask).sum(dim=1)
            batch["behaviour_entropy"] = total / mask.sum(dim=1).clamp(min=1)
        if self.check_loss:
            self.check_loss = False
            found = self.check_first_group(batch)
            if self.accelerator.is_main_process:
                self.report(found.line())
            if not found.passed:
                raise ValueError(found.line())
        return batch

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.aux_loss_enabled or not _TEXT_KEYS.issuperset(inputs):
            raise ValueError(
                f"GTPOTrainer trains dense text models; this batch has "
                f"{sorted(set(inputs) - _TEXT_KEYS) or 'a mixture-of-experts loss'}"
            )
        output = self._policy_forward(model, inputs, functools.partial(self._fused_loss, inputs))
        mode = self._mode()
        if "sampling_per_token_logps" in inputs:
            self._note_mismatch(output.logps, inputs)
        entropy = inputs.get("behaviour_entropy", output.entropy)
        self._note_completions(inputs["row"], entropy, output.kept)
        tokens = self.accelerator.gather(_loss_mask(inputs).sum()).sum()
        self._metrics[mode]["entropy"].append(
            (self.accelerator.gather(output.token_entropies.sum()).sum() / tokens).item()
        )
        return output.loss

    def _policy_forward(self, model: Any, inputs: dict[str, Any], loss: Any) -> Any:
        """Run the model's forward on a batch; `loss` gets the hidden states that predict its completion tokens."""
        length = inputs["completion_ids"].size(1)
        with self.accelerator.autocast():
            return model(
                input_ids=torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                attention_mask=torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
                policy_loss=lambda hidden, head: loss(hidden[:, -length - 1 : -1], head),
            )

    def _fused_loss(self, inputs: dict[str, Any], hidden: Tensor, head: HeadWeights) -> FusedLoss:
        """Return the loss of a micro-batch from the hidden states [B, L, D] that predict its tokens."""
        advantages = inputs["advantages"]
        frozen = inputs.get("behaviour_entropy")
        kept = None if frozen is None else entropy_gate(self.objective, frozen, advantages, self.initial_entropy)
        accumulation = self.current_gradient_accumulation_steps if self.training_mode else 1
        return fused_loss(
            self.objective,
            hidden,
            head.weight,
            inputs["completion_ids"],
            _loss_mask(inputs),
            Completions(
                advantages,
                inputs["conflict_weights"],
                inputs["conflict_forward"],
                inputs["conflict_backward"],
                inputs["conflict_union"],
                inputs["excluded"],
                frozen,
                kept,
                inputs.get("old_per_token_logps"),
                inputs.get("importance_sampling_ratio"),
            ),
            self._group_size(),
            gate_active=self.gate_active(),
            # The micro-batches of a step add up, the ranks are averaged: B of the step is this many per rank.
            groups=len(advantages) * accumulation / self._group_size(),
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            temperature=self.temperature,
            bias=head.bias,
            logit_scale=head.logit_scale,
            softcap=head.softcap,
        )

    def _note_mismatch(self, logps: Tensor, inputs: dict[str, Any]) -> None:
        """Log how far the trainer's log-probabilities are from the sampling engine's: the alarm for stale weights."""
        sampled = inputs["sampling_per_token_logps"]
        known = _loss_mask(inputs).bool() & ~sampled.isnan()
        gap = torch.where(known, logps - sampled, 0.0).abs()
        totals = self.accelerator.gather(torch.stack([gap.sum(), known.sum().to(gap.dtype)])).view(-1, 2).sum(dim=0)
        self._metrics[self._mode()]["sampling/logp_difference"].append((totals[0] / totals[1].clamp(min=1)).item())

    def check_first_group(self, batch: dict[str, Any]) -> Check:
        """Compare the fused loss with the reference on the first group of a round. All processes take part."""
        group, rows = self._group_size(), {}
        names = {"prompt_ids": True, "prompt_mask": True, "completion_ids": False, "completion_mask": False}
        for name, left in names.items():
            whole = self.accelerator.pad_across_processes(batch[name], dim=1, pad_first=left)
            rows[name] = self.accelerator.gather(whole)[:group]
        lengths = rows["completion_mask"].sum(dim=1)
        truncated = self.round["truncated"][:group]
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
            found: Check = self._policy_forward(self.model_wrapped, rows, loss)
        return found
