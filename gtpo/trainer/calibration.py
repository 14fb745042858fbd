"""The trainer's calibration: H_ini measured before step 0, and the entropy gate's decision (Eq. 6)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from gtpo.common.log import LOG
from gtpo.entropy import SAMPLES, Calibration, calibrate_initial_entropy, describe_gate
from gtpo.objective import Objective, filter_is_active
from gtpo.trainer import trl_seam
from gtpo.trainer.group_statistics import batch_statistics, completion_means, padded_batch

# Tokens of the completions that the trainer's own model samples side by side: a token takes as long for all of them as
# for one on a GPU, and their keys and values take 4 GiB of an 8B model and 0.4 of a 0.5B model.
TOKENS = 1 << 15


class GateCalibration(TrainerCallback, ExportableState):
    """Decides the entropy gate of a GTPOTrainer before its first step, by H_ini if the filter is `auto`.

    The checkpoints hold H_ini and the objective (trainer_state.json): a run goes on with what it began with.
    """

    def __init__(self, trainer: Any, objective: Objective) -> None:
        self.trainer, self.objective = trainer, objective
        known = trainer.args.initial_entropy
        self.calibration = None if known is None else Calibration(known)

    def state(self) -> dict[str, Any]:
        """Return what transformers writes to trainer_state.json."""
        measured = None if self.calibration is None else self.calibration.record()
        return {"args": {}, "attributes": {"objective": asdict(self.objective), "initial_entropy": measured}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Decide; raise ValueError if the run is resumed from a checkpoint of another objective."""
        name = type(self).__name__
        if state.global_step:
            self._resume(args, state.global_step, state.stateful_callbacks.get(name, {}).get("attributes", {}))
        self.ensure()
        # transformers fails at a checkpoint if the one that it resumed from has no place for a callback's state.
        state.stateful_callbacks.setdefault(name, {})
        if self.trainer.accelerator.is_main_process:
            LOG.info(describe_gate(self.objective, self.calibration))

    def _resume(self, args: Any, step: int, state: Mapping[str, Any]) -> None:
        now = asdict(self.objective)
        if changed := [
            f"{name} {value!r}, now {now.get(name)!r}"
            for name, value in state.get("objective", {}).items()
            if value != now.get(name)
        ]:
            raise ValueError(f"GTPOTrainer: checkpoint-{step} was trained with another objective: {', '.join(changed)}")
        measured = state.get("initial_entropy")
        if measured and args.initial_entropy is None:
            self.calibration = Calibration.from_record(measured)
        elif self.objective.filter == "auto" and self.calibration is None:
            LOG.warning(f"checkpoint-{step} has no H_ini; it is measured on the policy as it is now")
        steps = trl_seam.round_steps(args)
        if step % steps and step < self.trainer.state.max_steps:
            LOG.warning(
                f"resumed at step {step}, within a round of sampling that feeds {steps} steps: the rest of it is "
                "sampled again (gtpo.callbacks.ExactCheckpoints writes checkpoints at the end of a round)"
            )

    def active(self) -> bool:
        """Return whether the entropy gate filters (Eq. 6). Raises ValueError before the calibration."""
        return filter_is_active(self.objective, self.trainer.initial_entropy)

    def ensure(self) -> None:
        """Measure H_ini of the policy as it is now, if the filter is `auto` and it is not known.

        On the first training samples. Leaves random numbers, metrics and counters as they were.
        """
        if self.objective.filter != "auto" or self.calibration is not None:
            return
        trainer, begin = self.trainer, time.monotonic()
        rows: list[dict[str, Any]] = list(itertools.islice(iter(trainer.train_dataset), SAMPLES))
        batch = self.sampled_at_once(rows) * trainer.accelerator.num_processes
        with trl_seam.aside(trainer, trainer.args.seed):
            measured = calibrate_initial_entropy(self._completion_entropies, rows, batch_size=batch)
        self.calibration = measured._replace(seconds=round(time.monotonic() - begin, 1))

    def sampled_at_once(self, rows: Sequence[dict[str, Any]]) -> int:
        """Return the completions that a process samples side by side: of vLLM, which bounds its memory, all of them."""
        trainer = self.trainer
        if trainer.use_vllm:
            return len(rows)
        longest = max((str(row.get("prompt", "")) for row in rows), key=len)
        tokens: int = len(trl_seam.tokenizer(trainer)(longest)["input_ids"]) + trainer.max_completion_length
        step = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
        return max(int(step), TOKENS // tokens)

    def _completion_entropies(self, rows: Sequence[dict[str, Any]]) -> Tensor:
        """Sample one completion per row and return <H>_i [n] in nats. The rows are shared out among ranks."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        if accelerator.is_main_process:
            LOG.info(f"measuring H_ini on the untrained policy: sampling {len(rows)} completions")
        # Rollouts are made in this mode, and TRL's group size is its own in the other.
        trainer.model.train()
        with trainer.activity("calibrating", len(rows)):
            prompt_ids, completion_ids, written, _, sampled, *_ = trl_seam.sample(trainer, rows)
            batch = padded_batch(trainer, prompt_ids, completion_ids, written, sampled)
            # Of the distribution that was sampled, whatever the objective takes.
            logps, entropies = batch_statistics(trainer, trainer.model_wrapped, batch, temperature=trainer.temperature)
            trainer.sampler.observe(logps, batch)
        gathered: Tensor = accelerator.gather(completion_means(entropies, batch))[: len(rows)]
        # A completion of an environment alone has no <H>_i, and does not move the mean.
        return torch.where(gathered.isnan(), gathered.nanmean(), gathered)
