"""What GTPOTrainer refuses, or warns of, that a user would not see otherwise.

Before the model is loaded: a dataset without prompts, a reward that returns no scores. In training: a checkpoint of
another objective, the rest of a round that is lost, a step that learns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.nn import Module
from transformers import TrainerCallback

from gtpo.common.files import read_json, write_json
from gtpo.common.log import LOG
from gtpo.presets import Objective
from gtpo.rewards.checks import probe_reward
from gtpo.trainer.trl_seam import seam_of

OBJECTIVE_FILE = "objective.json"
"""In each checkpoint: a run is resumed with the objective that it has."""


def check_inputs(reward_funcs: Any, train_dataset: Any, *, prompts: int) -> None:
    """Raise ValueError where no rollout can be filled, rows have no `prompt`, or a function returns no scores.

    prompts: those of one rollout, over all processes. Reward functions are called once, with two empty completions of
    the first row; models are not.
    """
    if isinstance(train_dataset, Sized) and len(train_dataset) < prompts:
        raise ValueError(
            f"GTPOTrainer: train_dataset has {len(train_dataset)} rows, and one rollout takes {prompts} prompts "
            "(per_device_train_batch_size x processes x steps_per_generation / num_generations)"
        )
    row = next(iter(train_dataset), None)
    if not isinstance(row, Mapping):
        return  # TRL refuses it with its own message
    if "prompt" not in row:
        raise ValueError(
            f"GTPOTrainer: train_dataset has no column prompt; its columns are {', '.join(row)} "
            "(rename_column, or map each row to a prompt: text, or a list of messages)"
        )
    for function in reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]:
        if isinstance(function, str | Module) or not callable(function):
            continue  # a reward model, or one that TRL refuses itself
        probe = probe_reward(getattr(function, "__name__", type(function).__name__), function, row)
        if probe.fault:
            raise ValueError(f"GTPOTrainer: {probe.fault}")
        if probe.raised:
            LOG.warning(f"{probe.raised}; training stops where it raises (return None to leave one unscored)")


class ObjectiveGuard(TrainerCallback):
    """Keeps the objective beside each checkpoint and refuses to resume with another; says what learns nothing."""

    def __init__(self, trainer: Any, objective: Objective) -> None:
        self.objective, self.seam, self.dropped = objective, seam_of(trainer), False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise ValueError where the checkpoint is that of another objective; warn of a round that is lost."""
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / OBJECTIVE_FILE
        if not state.global_step:
            return
        if path.is_file() and (found := read_json(path)) != (now := asdict(self.objective)):
            changed = [
                f"{name} {value!r}, now {now.get(name)!r}" for name, value in found.items() if value != now.get(name)
            ]
            raise ValueError(f"GTPOTrainer: {path.parent} was trained with another objective: {', '.join(changed)}")
        round_steps = args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps
        if round_steps > 1 and state.global_step % round_steps and self.seam.round_inputs is None:
            LOG.warning(
                f"resumed at step {state.global_step}, within a round of sampling that feeds {round_steps} steps: the "
                "rest of it is sampled again (gtpo.callbacks.ExactCheckpoints keeps it)"
            )

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the objective beside the checkpoint: a run must not be resumed with another."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            write_json(folder / OBJECTIVE_FILE, asdict(self.objective))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Say that nothing was learned, once until something is again."""
        dropped = bool(logs) and logs.get("gate/kept") == 0
        if dropped and not self.dropped and state.is_world_process_zero:
            objective = self.objective
            LOG.warning(
                f"step {state.global_step}: every completion was left out by the entropy gate (mean entropy "
                f"{logs.get('entropy/mean', float('nan')):.2f} nats, threshold {objective.entropy_threshold:.2f}): "
                "nothing is learned from them"
            )
        if logs and "gate/kept" in logs:
            self.dropped = dropped
