"""What a run's metrics say about its settings: a warning with what to change, before a day of GPU time is spent.

Unlike collapse (`gtpo.train.health`), none of this is a matter of a run's own best: it is wrong from its first steps.
"""

from __future__ import annotations

import re
import traceback
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainerCallback

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.config import TrainConfig
from gtpo.runs.train_run import TrainFolder, last_checkpoint
from gtpo.train.resume import out_of_space

# Logged steps that must agree before a warning.
STEPS = 5

# Sum of the shares of groups with equal rewards, over so many logged steps, from which on a warning is due. A test
# holds it to the recorded runs: no warning if training is calm, one if it fails.
EQUAL, EQUAL_STEPS = 8, 10

# Mean share of truncated completions above which most of them are.
TRUNCATED = 0.5


class Advice(TrainerCallback):
    """Warns of what learns nothing: `trainer.add_callback(Advice(trainer))`, for a GTPOTrainer or TRL's GRPOTrainer.

    Each warning is given once in a run, and names what GTPOConfig and the configs of `gtpo train` both have.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=EQUAL_STEPS)
        self.warned: set[str] = set()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Look at a line of metrics."""
        if logs and "loss" in logs:
            for text in self.observe(logs):
                LOG.warning(text)

    def observe(self, row: Mapping[str, Any]) -> list[str]:
        """Take in one line of metrics; return what is to be said now."""
        self.recent.append(row)
        if len(self.recent) < STEPS:
            return []
        faults = self._faults()
        new = [text for name, text in faults.items() if name not in self.warned]
        # A cause that comes and goes is still one cause: in a log of 300 steps the same text stood six times.
        self.warned |= set(faults)
        return new

    def _values(self, *names: str, steps: int = STEPS) -> list[float]:
        """Return a metric of the last steps under the first of its names that they have; none if a step lacks it."""
        values = [next((row[name] for name in names if name in row), None) for row in list(self.recent)[-steps:]]
        return [] if None in values else [float(value) for value in values if value is not None]

    def _faults(self) -> dict[str, str]:
        since, faults = f"in the last {STEPS} logged steps", dict[str, str]()
        if (passing := self._values("gate/kept")) and max(passing) == 0:
            faults["gate"] = (
                f"the entropy gate dropped every completion {since}: their entropy is "
                f"{sum(self._values('entropy/mean')) / STEPS:.2f} nats, the threshold "
                f"{self.trainer.objective.entropy_threshold:.2f}, and nothing is learned. Raise the objective's "
                "entropy_threshold, lower temperature, or take the preset gtpo-no-filter"
            )
        truncated = sum(self._values("completions/truncated", "completions/clipped_ratio")) / STEPS
        if truncated > TRUNCATED:
            faults["truncated"] = (
                f"{truncated:.0%} of the completions were cut off at max_completion_length "
                f"{self.trainer.args.max_completion_length} {since}, so their answers are missing. Raise it (in a "
                "config max_seq_length too), ask for shorter answers in the system prompt, or leave them out of the "
                "loss with the objective's mask_truncated"
            )
        equal = self._values("groups/zero_variance", "frac_reward_zero_std", steps=EQUAL_STEPS)
        if sum(equal) >= EQUAL:
            names = {name: name.removeprefix("reward/") for name in ("reward/format", "reward/accuracy")}
            names |= {f"rewards/{name}/mean": name for name in self.trainer.reward_func_names}
            means = {shown: self._values(name, steps=EQUAL_STEPS) for name, shown in names.items()}
            shown = ", ".join(f"{name} {sum(each) / len(each):.2f}" for name, each in means.items() if each)
            faults["equal"] = (
                f"in {sum(equal) / len(equal):.0%} of the groups every completion earned the same reward in the last "
                f"{len(equal)} logged steps (mean: {shown or 'unknown'}), so no completion is preferred to another. "
                "Read some completions. If the reward is low, or what a part of the task earns, start from an sft run, "
                "take easier problems, raise num_generations or lower learning_rate. If it is high, take harder "
                "problems. Else the reward function returns a constant"
            )
        return faults


# What helps if a GPU's memory is used up (docs/one_gpu.md).
_LESS_MEMORY = (
    "Lower, in this order: training.per_device_train_batch_size, and raise training.gradient_accumulation_steps by the "
    "same factor; training.max_completion_length (sft: model.max_seq_length); model.gpu_memory_utilization, vLLM's "
    "share. Or set training.gradient_checkpointing: true, model.lora_rank: 64 (adapters only), model.load_in_4bit: true"
)

# Messages of weights that are not finite: from torch as it samples, and from our own checks of statistics.
_NO_NUMBERS = re.compile("probability tensor contains either|(?:is|are) not finite")


def explain(error: Exception, config: TrainConfig, folder: TrainFolder, step: int) -> UserError | None:
    """Return what the user can do about an error that ended a run after `step`; None if nothing is known of it."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        first = ". ".join(str(error).split(". ", maxsplit=2)[:2])
        return UserError(f"out of GPU memory ({first}). {_LESS_MEMORY}")
    last = last_checkpoint(folder.checkpoints)
    if out_of_space(error):
        return UserError(
            f"no room on disk in {folder.root} ({str(error).splitlines()[0]}). "
            + (f"{last.name} is whole: " if last else "There is no checkpoint yet: ")
            + "free some space (or raise ulimit -f, if it is set); the same command resumes the run"
        )
    if any("/vllm/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)):
        return UserError(
            f"rollout.engine vllm: vLLM fails: {' '.join(str(error).split())[:400]}. Set rollout.engine: transformers, "
            "which samples with the trainer's own model"
        )
    # Of all other errors the traceback says more than a sentence could.
    if not _NO_NUMBERS.search(str(error)):
        return None
    why = "the weights of model.model_name hold NaN or infinity, or overflow in model.dtype"
    if step:
        why = "the weights have overflowed: lower training.learning_rate and choose another run_name"
    return UserError(f"step {step + 1}: the policy's probabilities are no numbers ({error}); {why}")
