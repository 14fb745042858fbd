"""What parts beside a trainer read, set and wrap of TRL's and transformers' private names: all of it, in one place.

A part (`gtpo.callbacks`) never touches a private name by itself. It asks `seam_of(trainer)`, and lets a function of its
own stand for a method of one trainer by `around`. TRL 1.15 and 1.16 agree in all of these; `WRAPPED` and `FIELDS` are
what tests/gtpo/test_trl_contract.py compares with the release that is installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from trl import GRPOTrainer

from gtpo.trainer.group_statistics import GroupLoggingTrainer
from gtpo.trainer.rollout import Rollout

WRAPPED: dict[str, list[str]] = {
    "_generate_and_score_completions": ["inputs"],
    "_get_output_dir": ["trial"],
    "_save_checkpoint": ["model", "trial"],
    "_load_optimizer_and_scheduler": ["checkpoint"],
    "_load_from_checkpoint": ["resume_from_checkpoint", "model"],
}
"""Private methods that parts wrap -> their parameters; beside them `_get_train_sampler` and `_run_epoch`."""

FIELDS = (
    *("_step", "_buffered_inputs", "_last_loaded_step", "_total_train_tokens", "_metrics"),
    *("_tr_loss", "_globalstep_last_logged"),
)
"""Private fields that parts read and set."""


def around(trainer: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Let `wrapper(plain, ...)` stand for a method of this one trainer; `plain` is the method as it was."""
    setattr(trainer, name, functools.partial(wrapper, getattr(trainer, name)))


class Seam:
    """A trainer of any method under names of ours; of what only sampling has, nothing."""

    samples = False
    micro_step = 0
    """Micro-batches so far, of one process."""
    rollout: Rollout | None = None
    """The round of sampling in use, where the trainer keeps it."""
    round_inputs: Any = None
    """The micro-batches of the round of sampling in use."""
    reference_model: Any = None

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.stopwatch: dict[str, float] = trainer.stopwatch if isinstance(trainer, GroupLoggingTrainer) else {}
        """Seconds since the last logged step, by part."""

    @property
    def temperature(self) -> float:
        """Of the sampling; 1 where nothing is sampled."""
        return 1.0

    @property
    def tokens_seen(self) -> int:
        """Tokens that were trained on, as TRL's `num_tokens` counts them (sft)."""
        return int(self.trainer._total_train_tokens)

    @tokens_seen.setter
    def tokens_seen(self, count: int) -> None:
        self.trainer._total_train_tokens = count

    def mid_round(self) -> bool:
        """Return whether a round of sampling still feeds later steps."""
        return False

    def forget_round(self) -> None:
        """Sample anew before the next step, also within a round, from the weights as they are now."""

    def log(self, name: str, value: float) -> None:
        """Let the next line of the log have `value` in its mean of `name`."""
        self.trainer._metrics["train"][name].append(value)

    def open_window(self) -> dict[str, Any] | None:
        """Return what a process has gathered since the last line of the log; None at a line."""
        trainer = self.trainer
        if trainer._globalstep_last_logged >= trainer.state.global_step:
            return None
        return {
            "last_logged": trainer._globalstep_last_logged,
            "loss": trainer._tr_loss.cpu(),
            "metrics": {name: list(values) for name, values in trainer._metrics["train"].items()},
        }

    def reopen_window(self, window: dict[str, Any]) -> None:
        """Go on gathering where `open_window` was. After the trainer has set its counters to 0."""
        trainer = self.trainer
        trainer._globalstep_last_logged = window["last_logged"]
        trainer._tr_loss += window["loss"].to(trainer._tr_loss.device)
        for name, values in window["metrics"].items():
            trainer._metrics["train"][name] = values


class SampledSeam(Seam):
    """A GRPOTrainer, GTPOTrainer among them."""

    samples = True

    @property
    def micro_step(self) -> int:
        """Micro-batches so far, of one process."""
        return int(self.trainer._step)

    @micro_step.setter
    def micro_step(self, count: int) -> None:
        self.trainer._step = count

    @property
    def round_inputs(self) -> Any:
        """The micro-batches of the round of sampling in use."""
        return self.trainer._buffered_inputs

    @round_inputs.setter
    def round_inputs(self, inputs: Any) -> None:
        self.trainer._buffered_inputs = inputs

    @property
    def rollout(self) -> Rollout | None:
        """The round of sampling in use; None for TRL's own trainer, which keeps none."""
        return self.trainer.rollouts.get("train") if isinstance(self.trainer, GroupLoggingTrainer) else None

    @rollout.setter
    def rollout(self, rollout: Rollout | None) -> None:
        assert rollout is not None
        self.trainer.rollouts["train"] = rollout

    @property
    def reference_model(self) -> Any:
        """TRL's reference of its KL term, where it has one as a model of its own."""
        return self.trainer.ref_model

    @property
    def temperature(self) -> float:
        """Of the sampling."""
        return float(self.trainer.temperature)

    def mid_round(self) -> bool:
        """Return whether a round of sampling still feeds later steps."""
        args = self.trainer.args
        return bool(self.micro_step % (args.steps_per_generation * args.num_iterations))

    def forget_round(self) -> None:
        """Sample anew before the next step, also within a round, from the weights as they are now."""
        self.trainer._buffered_inputs = None
        self.trainer._last_loaded_step = -1  # vLLM takes the weights anew


def seam_of(trainer: Any) -> Seam:
    """Return a trainer's seam."""
    return SampledSeam(trainer) if isinstance(trainer, GRPOTrainer) else Seam(trainer)
