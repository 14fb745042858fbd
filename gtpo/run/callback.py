"""The events of transformers' Trainer, handed to the run."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback


class RunCallback(TrainerCallback):
    """Hands them over in the order in which a step ends: completions, validation, stop, metrics."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self._step_begin = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin, or end at once where the checkpoint was the run's last step."""
        self.run.on_begin(state)
        if self.run.stopped_because:  # stopped for good, and killed before its last weights were written
            control.should_training_stop = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the step's clock."""
        self._step_begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the completions, validate, and save and stop where the processes agree to."""
        self.run.step_seconds.append(time.perf_counter() - self._step_begin)
        self.run.log_completions()
        self.run.validate(state)
        if self.run.stop.agree(self.run.trainer.accelerator):
            control.should_save = True
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Hand over the metrics of the steps since the last line."""
        if logs and "loss" in logs:
            self.run.on_metrics(state, control, logs)
