"""The health of a run, from its metrics alone: collapse, best step, early stop. No trainer, no files.

All are running means over `smoothing_steps`, in whole lines of metrics.jsonl (one each `logging_steps`). A run has
collapsed if

    the format reward falls from its best while entropy rises past ln 2 (GTPO paper, figures 6 and 7), or
    the accuracy reward falls below half of its best and a symptom says how: entropy above ln 2 (its mean, or that of
    most completions), entropy gone, one text for many prompts, or completions that grow without end; or
    the accuracy reward falls below a quarter of its best: a policy can be wrong in perfect format.

A loss that is not finite is collapse at once. Where the run validates, `best/` follows the held-out accuracy, and a
training reward that stays at its best while the held-out accuracy falls is worth a warning.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gtpo.config import HealthSection
from gtpo.presets import LN2

FORMAT_DROP = 0.8
"""Collapse needs the smoothed format reward below this share of its best, or"""

ACCURACY_DROP = 0.5
"""the smoothed accuracy reward below this share of its best and a symptom, or"""

ACCURACY_LOST = 0.25
"""below this share without one."""

ENTROPY_GONE = 0.1
"""Entropy below this share of what it was at the best accuracy counts as gone."""

MANY = 0.5
"""Share of completions above ln 2, repeated across prompts, or truncated, above which it is most of them."""

LENGTH_GROWTH = 2.0
"""Completions this many times as long as at the best accuracy count as exploding."""

SATURATED = 0.98
"""A training reward above this share of its best has not fallen."""

MAX_ROLLBACKS = 3
"""After this many rollbacks a collapsing run is stopped."""

WATCHED = (
    "reward/format",
    "reward/accuracy",
    "entropy/mean",
    "entropy/above_ln2",
    "completions/length",
    "completions/truncated",
    "completions/repeated",
)
"""Metrics whose running means are watched besides the one that selects `best/`."""


@dataclass(frozen=True)
class Verdict:
    """What one step's metrics say."""

    collapsed: str | None = None
    """Why the run counts as collapsed at this step; None while it is well. Said once per fall."""
    new_best: bool = False
    out_of_patience: bool = False
    overfitted: str | None = None
    """Why the training reward says nothing any more. Said once per fall."""


class Health:
    """Running means and what follows from them; its state travels with the checkpoints.

    metric: what selects `best/`. `validation/pass@1` (smoothed over validations) where there is one, else
    `reward/accuracy`, or (sft) `loss`, of which lower is better. logging_steps: how many steps a line stands for.
    """

    def __init__(self, section: HealthSection, metric: str = "reward/accuracy", logging_steps: int = 1) -> None:
        self.section = section
        self.logging_steps = logging_steps
        self.lines = math.ceil(section.smoothing_steps / logging_steps)
        """Lines that a running mean covers."""
        self.metric = metric
        self.validates = metric.startswith("validation/")
        self.sign = -1.0 if metric == "loss" else 1.0
        self.window: dict[str, deque[float]] = {name: deque(maxlen=self.lines) for name in (metric, *WATCHED)}
        if self.validates:
            self.window[metric] = deque(maxlen=section.smoothing_evaluations)
        self.best_value: float | None = None
        self.best_step = 0
        self.best_format: float | None = None
        self.entropy_at_best_format = 0.0
        self.best_accuracy: dict[str, float] = {}
        """The running means at the best accuracy reward."""
        self.fallen = False
        self.overfitted = False
        self.rollbacks = 0
        self.seen = 0

    def smoothed(self, name: str) -> float | None:
        """Return the running mean of a watched metric, None before its first value."""
        values = self.window[name]
        return sum(values) / len(values) if values else None

    def covered(self) -> dict[str, int]:
        """Return what the mean that selects `best/` covers now, as best.json says it."""
        count = len(self.window[self.metric])
        if self.validates:
            return {"smoothing_evaluations": count}
        return {"smoothing_steps": count * self.logging_steps}

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
        new_best = self._best(step, row)
        return Verdict(self._collapse(step), new_best, self._patience(step, row), self._overfit(step, row))

    def _full(self, name: str) -> bool:
        return len(self.window[name]) == self.window[name].maxlen

    def _collapse(self, step: int) -> str | None:
        said = next(self._falls(step), None)
        before, self.fallen = self.fallen, said is not None
        return None if before else said

    def _falls(self, step: int) -> Iterator[str]:
        """Yield what says that the run has collapsed."""
        steps, means = self.lines * self.logging_steps, {name: self.smoothed(name) for name in WATCHED}
        form, entropy, accuracy = means["reward/format"], means["entropy/mean"], means["reward/accuracy"]
        if form is not None and entropy is not None and self._full("reward/format"):
            if self.best_format is None or form >= self.best_format:
                self.best_format, self.entropy_at_best_format = form, entropy
            if form < FORMAT_DROP * self.best_format and entropy > max(LN2, self.entropy_at_best_format):
                yield (
                    f"at step {step} the format reward (mean of {steps} steps) fell from {self.best_format:.2f} to "
                    f"{form:.2f} while entropy rose from {self.entropy_at_best_format:.2f} to {entropy:.2f} nats "
                    f"(ln 2 = {LN2:.2f})"
                )
        if accuracy is None or not self._full("reward/accuracy"):
            return
        if accuracy >= self.best_accuracy.get("reward/accuracy", -math.inf):
            self.best_accuracy = {name: mean for name, mean in means.items() if mean is not None}
        best = self.best_accuracy["reward/accuracy"]
        symptoms = list(_symptoms(self.best_accuracy, {n: m for n, m in means.items() if m is not None}))
        if accuracy < ACCURACY_DROP * best and (symptoms or accuracy < ACCURACY_LOST * best):
            how = " and ".join(symptoms) or f"format is {form or 0:.2f} and entropy {entropy or 0:.2f} nats"
            yield (
                f"at step {step} the accuracy reward (mean of {steps} steps) fell from {best:.2f} to {accuracy:.2f} "
                f"while {how}"
            )

    def _best(self, step: int, row: Mapping[str, Any]) -> bool:
        value = self.smoothed(self.metric)
        if value is None or not self._full(self.metric):
            return False
        # Neighbouring running means share all values but two, so looking at every line would only write more often.
        due = row.get(self.metric) is not None if self.validates else self.seen % max(1, self.lines // 2) == 0
        if due and (self.best_value is None or self.sign * value > self.sign * self.best_value):
            self.best_value, self.best_step = value, step
            return True
        return False

    def _patience(self, step: int, row: Mapping[str, Any]) -> bool:
        patience = self.section.early_stop_patience
        if self.validates and row.get(self.metric) is None:
            return False  # nothing is known of this step
        return patience is not None and self.best_value is not None and step - self.best_step >= patience

    def _overfit(self, step: int, row: Mapping[str, Any]) -> str | None:
        """Return why the training reward says nothing any more: it is at its best, the held-out accuracy fell."""
        if not self.validates or row.get(self.metric) is None or self.best_value is None:
            return None
        accuracy, value = self.smoothed("reward/accuracy"), self.smoothed(self.metric)
        if accuracy is None or value is None or not self.best_accuracy:
            return None
        # The mean of the window must lie below the best by more than one validation's own noise.
        noise = (row[f"{self.metric}_high"] - row[f"{self.metric}_low"]) / 2 / math.sqrt(len(self.window[self.metric]))
        fell = value < self.best_value - noise
        saturated = accuracy >= SATURATED * self.best_accuracy["reward/accuracy"]
        before, self.overfitted = self.overfitted, fell and saturated
        if not self.overfitted or before:
            return None
        return (
            f"at step {step} the training accuracy reward is at its best ({accuracy:.2f}) while the held-out pass@1 "
            f"(mean of {len(self.window[self.metric])} validations) fell from {100 * self.best_value:.1f} % at step "
            f"{self.best_step} to {100 * value:.1f} %: the reward no longer measures what was to be learned"
        )

    def after_rollback(self) -> None:
        """Forget the running means: the weights are others now."""
        self.rollbacks += 1
        self.fallen = self.overfitted = False
        for values in self.window.values():
            values.clear()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on."""
        return {name: getattr(self, name) for name in _STATE} | {"window": {k: list(v) for k, v in self.window.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint; what an earlier version did not keep stays as it is."""
        for name in _STATE:
            setattr(self, name, state.get(name, getattr(self, name)))
        for metric, values in state["window"].items():
            self.window[metric].clear()
            self.window[metric].extend(values)


_STATE = (
    "best_value",
    "best_step",
    "best_format",
    "entropy_at_best_format",
    "best_accuracy",
    "fallen",
    "overfitted",
    "rollbacks",
    "seen",
)
"""Fields of Health that a checkpoint keeps besides the windows."""


def _symptoms(then: Mapping[str, float], now: Mapping[str, float]) -> Iterator[str]:
    """Yield how the running means of a fallen run differ from those at its best accuracy."""

    def mostly(name: str) -> bool:
        return now.get(name, 0.0) > max(MANY, then.get(name, 0.0))

    entropy, before = now.get("entropy/mean"), then.get("entropy/mean")
    if entropy is not None and before is not None:
        if entropy < ENTROPY_GONE * before:
            yield f"entropy fell from {before:.3f} to {entropy:.3f} nats: hardly anything is left to explore"
        elif entropy > max(LN2, before) or mostly("entropy/above_ln2"):
            share = now.get("entropy/above_ln2", math.nan)
            yield (
                f"entropy went from {before:.2f} to {entropy:.2f} nats, {100 * share:.0f} % of the completions above "
                f"ln 2 = {LN2:.2f}"
            )
    if mostly("completions/repeated"):
        yield f"{100 * now['completions/repeated']:.0f} % of the completions repeat what another prompt was given"
    length, usual = now.get("completions/length", 0.0), then.get("completions/length", math.inf)
    if length > LENGTH_GROWTH * usual or mostly("completions/truncated"):
        yield (
            f"completions grew from {usual:.0f} to {length:.0f} tokens "
            f"({100 * now.get('completions/truncated', 0.0):.0f} % cut off)"
        )
