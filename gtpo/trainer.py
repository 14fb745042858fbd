"""GTPOTrainer: GTPO on TRL's GRPO engine. A TRL user switches by changing the class name.

Objective (DESIGN section 2; arXiv 2508.03772, Eq. 4-7), per completion o_i of a group of G:

    loss_i = -A'_i / |o_i| / norm_i * sum_t rho_it lambda_it  (+ gamma <H>_i in entropy mode `loss`)
    A'_i   = delta_i (A_i - gamma <H>_i)

rho = pi / stopgrad(pi) = 1 in value; it is pi / pi_old, clipped, only where several optimiser steps share one round
of sampling. There is no reference model and no second forward.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from transformers import TrainerCallback
from trl import GRPOConfig
from trl.trainer.utils import pad

from gtpo.entropy import SAMPLES, Calibration, calibrate_initial_entropy, describe_gate, gate_active
from gtpo.presets import PRESETS, Objective
from gtpo.rollouts import GroupStatistics
from rewards.support.files import read_json, write_json

CALIBRATION_FILE = "initial_entropy.json"


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
        self.positive_weight, self.combine = self.objective.positive_weight, self.objective.combine
        self.calibration = None if args.initial_entropy is None else Calibration(args.initial_entropy, SAMPLES)
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, **kwargs)
        self.add_callback(_CalibrateFirst(self))

    # -- the gate ----------------------------------------------------------------------------------------------------

    def gate_active(self) -> bool:
        """Return whether the entropy gate filters (Eq. 6). Raises ValueError before the calibration."""
        return gate_active(self.objective, self.calibration.initial_entropy if self.calibration else None)

    def load_calibration(self) -> Calibration | None:
        """Return the calibration that an earlier session of this run stored in `output_dir`, or None."""
        path = Path(str(self.args.output_dir)) / CALIBRATION_FILE
        return Calibration(**read_json(path)) if path.is_file() else None

    def store_calibration(self, calibration: Calibration) -> None:
        """Keep the calibration for when the run is resumed: it must be that of the untrained policy."""
        write_json(Path(str(self.args.output_dir)) / CALIBRATION_FILE, calibration._asdict())

    def report(self, message: str) -> None:
        """Say something about the run; prints on stderr."""
        print(message, file=sys.stderr, flush=True)

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
                )
        finally:
            self.num_generations = generations
            self.state.num_input_tokens_seen = seen
            self._metrics["train"].clear()
            self.stopwatch.clear()

    def _completion_entropies(self, prompts: Sequence[Any]) -> torch.Tensor:
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
        local = (entropies.float() * mask).sum(dim=1) / mask.sum(dim=1)
        ranks = accelerator.gather(local).view(world, -1)
        return ranks.T.reshape(-1)[: len(prompts)]

    # -- the loss ----------------------------------------------------------------------------------------------------

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
