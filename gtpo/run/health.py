"""The health of a run, from its metrics alone: collapse, best step, early stop. No trainer, no files.

Collapse (GTPO paper, figures 6 and 7): the format reward falls from its best while entropy rises past ln 2. Both are
running means over `smoothing_steps`. A loss that is not finite is collapse at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gtpo.config import HealthSection
from gtpo.presets import LN2

FORMAT_DROP = 0.8
"""Collapse needs the smoothed format reward below this share of its best."""

MAX_ROLLBACKS = 3
"""After this many rollbacks a collapsing run is stopped."""


@dataclass(frozen=True)
class Verdict:
    """What one step's metrics say."""

    collapsed: str | None = None
    """Why the run counts as collapsed at this step; None while it is well. Said once per fall."""
    new_best: bool = False
    out_of_patience: bool = False


class Health:
    """Running means and what follows from them; its state travels with the checkpoints.

    higher_is_better metric: `reward/accuracy` where completions are sampled, else (sft) `loss`, lower is better.
    """

    def __init__(self, section: HealthSection, metric: str = "reward/accuracy") -> None:
        self.section = section
        self.metric = metric
        self.sign = -1.0 if metric == "loss" else 1.0
        self.window: dict[str, deque[float]] = {
            name: deque(maxlen=section.smoothing_steps) for name in (metric, "reward/format", "entropy/mean")
        }
        self.best_value: float | None = None
        self.best_step = 0
        self.best_format: float | None = None
        self.entropy_at_best_format = 0.0
        self.fallen = False
        self.rollbacks = 0
        self.seen = 0

    def smoothed(self, name: str) -> float | None:
        """Return the running mean of a watched metric, None before its first value."""
        values = self.window[name]
        return sum(values) / len(values) if values else None

    def observe(self, step: int, row: Mapping[str, Any]) -> Verdict:
        """Take in one line of metrics.jsonl."""
        self.seen += 1
        loss = row.get("loss")
        if loss is not None and not math.isfinite(loss):
            return Verdict(collapsed=f"the loss is {loss} at step {step}")
        for name, values in self.window.items():
            value = row.get(name)
            if value is not None and math.isfinite(value):
                values.append(float(value))
        return Verdict(self._collapse(step), self._best(step), self._patience(step))

    def _collapse(self, step: int) -> str | None:
        form, entropy = self.smoothed("reward/format"), self.smoothed("entropy/mean")
        if form is None or entropy is None or len(self.window["reward/format"]) < self.section.smoothing_steps:
            return None
        if self.best_format is None or form >= self.best_format:
            self.best_format, self.entropy_at_best_format = form, entropy
        low = form < FORMAT_DROP * self.best_format
        high = entropy > max(LN2, self.entropy_at_best_format)
        before, self.fallen = self.fallen, low and high
        if self.fallen and not before:
            return (
                f"at step {step} the format reward (mean of {self.section.smoothing_steps} steps) fell from "
                f"{self.best_format:.2f} to {form:.2f} while entropy rose from {self.entropy_at_best_format:.2f} to "
                f"{entropy:.2f} nats (ln 2 = {LN2:.2f})"
            )
        return None

    def _best(self, step: int) -> bool:
        # Neighbouring running means share all values but two, so looking at every step would only write more often.
        stride = max(1, self.section.smoothing_steps // 2)
        value = self.smoothed(self.metric)
        if value is None or self.seen % stride or len(self.window[self.metric]) < self.section.smoothing_steps:
            return False
        if self.best_value is None or self.sign * value > self.sign * self.best_value:
            self.best_value, self.best_step = value, step
            return True
        return False

    def _patience(self, step: int) -> bool:
        patience = self.section.early_stop_patience
        return patience is not None and self.best_value is not None and step - self.best_step >= patience

    def after_rollback(self) -> None:
        """Forget the running means: the weights are others now."""
        self.rollbacks += 1
        self.fallen = False
        for values in self.window.values():
            values.clear()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on."""
        plain = ("best_value", "best_step", "best_format", "entropy_at_best_format", "fallen", "rollbacks", "seen")
        return {name: getattr(self, name) for name in plain} | {"window": {k: list(v) for k, v in self.window.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint."""
        for name, value in state.items():
            if name == "window":
                for metric, values in value.items():
                    self.window[metric].clear()
                    self.window[metric].extend(values)
            else:
                setattr(self, name, value)
