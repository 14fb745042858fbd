"""The trainer's calibration: H_ini measured before step 0, and the entropy gate's decision (Eq. 6)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from datasets import IterableDataset
from torch import Tensor
from transformers import TrainerCallback
from trl.trainer.utils import pad

from gtpo.common.files import read_json, write_json
from gtpo.common.log import LOG
from gtpo.entropy import SAMPLES, Calibration, calibrate_initial_entropy, describe_gate
from gtpo.fused import fused_linear_gtpo_loss
from gtpo.inputs.model import rounded_away, widen_adapters
from gtpo.inputs.model_shape import router_loss_obstacle
from gtpo.objective import PRESETS, filter_is_active
from gtpo.trainer.group_statistics import GroupLoggingTrainer
from gtpo.trainer.gtpo_config import GTPOConfig
from gtpo.trainer.policy_head import LMHead, PolicyOutput, add_policy_head

CALIBRATION_FILE = "initial_entropy.json"
OBJECTIVE_FILE = "objective.json"
"""In each checkpoint: a run is resumed with the objective that it has."""
REPORT_SECONDS = 5.0
"""Progress is reported at most this often."""


class _GateAndResume(TrainerCallback):
    """Calibrates before the first step, and says what else a user would not see."""

    def __init__(self, trainer: CalibratedTrainer) -> None:
        self.trainer, self.dropped = trainer, False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._check_resumed(args, state)
        self.trainer.ensure_calibrated()

    def _check_resumed(self, args: Any, state: Any) -> None:
        """Raise ValueError where the checkpoint is that of another objective; warn of a round that is lost."""
        trainer, path = self.trainer, Path(args.output_dir) / f"checkpoint-{state.global_step}" / OBJECTIVE_FILE
        if not state.global_step:
            return
        if path.is_file() and (found := read_json(path)) != (now := asdict(trainer.objective)):
            changed = [
                f"{name} {value!r}, now {now.get(name)!r}" for name, value in found.items() if value != now.get(name)
            ]
            raise ValueError(f"GTPOTrainer: {path.parent} was trained with another objective: {', '.join(changed)}")
        round_steps = args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps
        if round_steps > 1 and state.global_step % round_steps and trainer._buffered_inputs is None:
            LOG.warning(
                f"resumed at step {state.global_step}, within a round of sampling that feeds {round_steps} steps: the "
                "rest of it is sampled anew (gtpo.callbacks.ExactCheckpoints keeps it)"
            )

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the objective beside the checkpoint: a run must not be resumed with another."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            write_json(folder / OBJECTIVE_FILE, asdict(self.trainer.objective))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Say that nothing was learned, once until something is again."""
        dropped = bool(logs) and logs.get("gate/kept") == 0
        if dropped and not self.dropped and state.is_world_process_zero:
            objective = self.trainer.objective
            LOG.warning(
                f"step {state.global_step}: every completion was left out by the entropy gate (mean entropy "
                f"{logs.get('entropy/mean', float('nan')):.2f} nats, threshold {objective.entropy_threshold:.2f}): "
                "nothing is learned from them"
            )
        if logs and "gate/kept" in logs:
            self.dropped = dropped


class CalibrationFile:
    """Where the calibration is kept for a resumed run: it must be that of the untrained policy."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, *, resumed: bool) -> Calibration | None:
        """Return what is kept, or None: a new run in a used folder measures its own."""
        return Calibration.from_record(read_json(self.path)) if resumed and self.path.is_file() else None

    def store(self, calibration: Calibration) -> None:
        """Keep a calibration."""
        write_json(self.path, calibration.record())

    def decided(self, gate: Mapping[str, Any]) -> None:
        """Take note of the gate's decision: nothing here."""


class CalibratedTrainer(GroupLoggingTrainer):
    """GroupLoggingTrainer with an objective whose entropy gate is decided before the first step.

    The model's forward takes a loss of hidden states and lm_head (`gtpo.trainer.policy_head`).
    """

    def __init__(self, model: Any, reward_funcs: Any, args: GTPOConfig, **kwargs: Any) -> None:
        self.objective = args.resolved_objective()
        self.calibration = None if args.initial_entropy is None else Calibration(args.initial_entropy)
        self._reported = 0.0
        self.between_batches: Callable[[], None] = lambda: None
        """Called after each batch of the calibration, by all processes; what it raises ends the training."""
        self.while_measuring: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered around the calibration."""
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, **kwargs)
        policy: Any = self.model
        if getattr(policy, "is_quantized", False):
            widen_adapters(policy)
        for text in rounded_away(args, policy):
            LOG.warning(text)
        if self.aux_loss_enabled and (obstacle := router_loss_obstacle(policy.config, self.router_aux_loss_coef)):
            raise ValueError(f"GTPOTrainer: {obstacle}")
        add_policy_head(policy.get_base_model() if is_peft_model(policy) else policy)
        self.calibration_file = CalibrationFile(Path(str(args.output_dir)) / CALIBRATION_FILE)
        self.add_callback(_GateAndResume(self))

    @property
    def initial_entropy(self) -> float | None:
        """H_ini in nats, None before the calibration."""
        return self.calibration.initial_entropy if self.calibration else None

    def gate_active(self) -> bool:
        """Return whether the entropy gate filters (Eq. 6). Raises ValueError before the calibration."""
        return filter_is_active(self.objective, self.initial_entropy)

    def report_calibration(self, done: int, total: int) -> None:
        """Show how many samples H_ini has been measured on."""
        self.between_batches()
        now = time.monotonic()
        if self.accelerator.is_main_process and (done == total or now - self._reported >= REPORT_SECONDS):
            self._reported = now
            LOG.info(f"measuring H_ini on the untrained policy: {done}/{total} samples")

    def ensure_calibrated(self) -> None:
        """Measure H_ini before step 0 where the filter is `auto`, or take up what the resumed run stored."""
        arguments: Any = self.args
        main = self.accelerator.is_main_process
        if self.objective.filter == "auto" and arguments.initial_entropy is None:
            stored = self.calibration_file.load(resumed=bool(self.state.global_step))
            if stored is None:
                if self.state.global_step and main:
                    LOG.warning(f"no H_ini in {self.calibration_file.path}; measuring it on the policy as it is now")
                self.calibration = self.calibration or self._measure()
                if main:
                    self.calibration_file.store(self.calibration)
            else:
                self.calibration = stored
                if main:
                    LOG.info(f"H_ini taken from {self.calibration_file.path}")
        if main:
            LOG.info(describe_gate(self.objective, self.calibration))
            objective = self.objective
            self.calibration_file.decided(
                {"filter": objective.filter, "active": self.gate_active(), "scope": objective.filter_scope}
            )

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; before any training the gate is decided by H_ini of the policy as it is now, which is not kept."""
        if self.objective.filter == "auto" and self.calibration is None:
            self.calibration = self._measure()
            if self.accelerator.is_main_process:
                LOG.info(describe_gate(self.objective, self.calibration))
        return super().evaluate(*args, **kwargs)

    def calibration_prompts(self) -> list[Any]:
        """Return the prompts that H_ini is measured on."""
        rows: Any = self.train_dataset
        count = SAMPLES if isinstance(rows, IterableDataset) else min(SAMPLES, len(rows))
        return [row["prompt"] for row in itertools.islice(iter(rows), count)]

    def _measure(self) -> Calibration:
        """Sample and score the first training samples; leaves random numbers, metrics and counters as they were.

        vLLM samples all of them at once, and bounds its memory by itself. The trainer's own model samples a training
        batch at a time: its cache of all of them could be larger than anything that the training holds.
        """
        prompts = self.calibration_prompts()
        batch = self.args.per_device_train_batch_size * self.accelerator.num_processes
        if self.use_vllm:
            batch = len(prompts)
            if self.accelerator.is_main_process:
                LOG.info(f"measuring H_ini on the untrained policy: sampling {batch} completions")
        with self.while_measuring(), self.sampling_aside(self.args.seed):
            return calibrate_initial_entropy(
                self._completion_entropies, prompts, batch_size=batch, progress=self.report_calibration
            )

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
        size = self.args.per_device_train_batch_size  # what a step's forward holds, without its gradients
        local = []
        for start in range(0, len(mine), size):
            rows = slice(start, start + size)
            local.append(self._entropies(prompt_ids[rows], completion_ids[rows]))
            if self.use_vllm:
                self.report_calibration(min((start + size) * world, len(prompts)), len(prompts))
        ranks = accelerator.gather(torch.cat(local)).view(world, -1)
        return ranks.T.reshape(-1)[: len(prompts)]

    def _entropies(self, prompt_ids: Sequence[Any], completion_ids: Sequence[Any]) -> Tensor:
        """Return <H>_i [n] in nats of n completions under the policy, in one forward."""
        padding = self._tokenizer.pad_token_id
        left = pad([torch.tensor(ids) for ids in prompt_ids], padding_value=padding, padding_side="left")
        right = pad([torch.tensor(ids) for ids in completion_ids], padding_value=padding, padding_side="right")
        left_mask = pad([torch.ones(len(ids), dtype=torch.long) for ids in prompt_ids], 0, "left")
        right_mask = pad([torch.ones(len(ids), dtype=torch.long) for ids in completion_ids], 0, "right")
        rows = {"prompt_ids": left, "prompt_mask": left_mask, "completion_ids": right, "completion_mask": right_mask}
        batch = {name: value.to(self.accelerator.device) for name, value in rows.items()}

        def mean_entropy(hidden: Tensor, head: LMHead) -> Tensor:
            # Of the distribution that was sampled, whatever the objective takes; no reward enters it.
            ids, mask, rewards = batch["completion_ids"], batch["completion_mask"], torch.zeros(len(hidden))
            return fused_linear_gtpo_loss(
                PRESETS["grpo"], hidden, head.weight, ids, mask, rewards, 1,
                temperature=self.temperature, bias=head.bias, logit_scale=head.logit_scale, softcap=head.softcap,
            ).entropy  # fmt: skip

        with torch.no_grad():
            entropies: Tensor = self.policy_forward(self.model_wrapped, batch, mean_entropy).value
        return entropies

    def policy_forward(
        self, model: Any, batch: Mapping[str, Any], loss: Callable[[Tensor, LMHead], Any]
    ) -> PolicyOutput:
        """Run the model's forward; return what `loss` makes of the hidden states [B, L, D] that predict the tokens."""
        length = batch["completion_ids"].size(1)
        router = {"output_router_logits": True} if self.aux_loss_enabled else {}
        with self.accelerator.autocast():
            output: PolicyOutput = model(
                input_ids=torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                attention_mask=torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                policy_loss=lambda hidden, head: loss(hidden[:, -length - 1 : -1], head),
                **router,
            )
        return output
