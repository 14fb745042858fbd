"""The health of a run, only from its metrics: collapse, best step, early stop. No trainer, no files.

A run has collapsed if one of its metrics has left the run's own past, beyond what chance explains
(`gtpo.run.watch`). A loss that is not finite is collapse at once.

If the run validates, the held-out problems judge: the same problems, against the best validation and the one before
the first step. What the training rewards say is then only a reason to validate.

`best/` follows a lower bound: what replaces it must be better beyond the noise of both, the untrained model included.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gtpo.config import HealthSection
from gtpo.run.sequential import paired_bound, spent
from gtpo.run.watch import Watch

# Chance at one look that weights that replace the best are not better.
BETTER = 0.025

# Held-out pass@1 surely below this share of the best is a collapse.
LOST = 0.5

# Held-out pass@1 surely below this share of the untrained model's is one too.
WORSE = 0.9

# After this many rollbacks a collapsing run is stopped.
MAX_ROLLBACKS = 3


@dataclass(frozen=True)
class Judgement:
    """What one step's metrics, or one validation, say."""

    collapsed: str | None = None
    """Why the run counts as collapsed at this step; None while it is well. Said once per fall."""
    broken: bool = False
    """Whether that is a value that is not finite, which no validation needs to confirm."""
    new_best: bool = False
    out_of_patience: bool = False


class Health:
    """The watch, the best step and the patience of a run; its state travels with the checkpoints.

    metric: what selects `best/`: `validation/pass@1` if the run validates, else `reward/accuracy`, or (sft) `loss`,
    of which lower is better. logging_steps: how many steps a line covers.
    """

    def __init__(self, section: HealthSection, metric: str = "reward/accuracy", logging_steps: int = 1) -> None:
        self.section, self.metric, self.logging_steps = section, metric, logging_steps
        # Lines that a running mean covers.
        self.lines = math.ceil(section.smoothing_steps / logging_steps)
        self.validates = metric.startswith("validation/")
        # Half of the false alarms for each of two judges.
        self.alpha = section.false_alarms / 2 if self.validates else section.false_alarms
        self.watch = Watch(self.alpha)
        # The latest values of what selects `best/`, without validation.
        self.window: deque[float] = deque(maxlen=self.lines)
        # pass@1 by problem of the latest validations.
        self.recent: deque[list[float]] = deque(maxlen=section.smoothing_evaluations)
        # pass@1 by problem before the first step.
        self.first: list[float] | None = None
        # What the best value is the mean of: lines, or problems.
        self.best: list[float] | None = None
        self.best_step = 0
        self.looks = self.seen = self.rollbacks = 0
        self.fallen = self.judged = False

    @property
    def best_value(self) -> float | None:
        """Mean of what selected the best weights."""
        return None if self.best is None else float(np.mean(self.best))

    @property
    def first_value(self) -> float | None:
        """Held-out pass@1 of the untrained model."""
        return None if self.first is None else float(np.mean(self.first))

    def about_best(self) -> dict[str, Any]:
        """Return best.json of the weights that are the best now."""
        step = self.best_step
        # What the mean that selects it covers.
        covered = {"smoothing_steps": len(self.window) * self.logging_steps}
        if self.validates:
            covered = {"smoothing_evaluations": max(1, len(self.recent))}
        why = (
            f"its running mean of {self.metric} is better than the best before, beyond the noise of both; the weights "
            f"are those of step {step}, the last of that mean's window"
        )
        return {
            "schema_version": 1,
            "step": step,
            "metric": self.metric,
            "value": self.best_value,
            **covered,
            "why": why if step else "the untrained model: nothing is better beyond noise so far",
        }

    def observe(self, step: int, row: Mapping[str, Any]) -> Judgement:
        """Take in one line of metrics.jsonl."""
        self.seen += 1
        said = self.watch.observe(step, row)
        broken = said is not None and "not finite" in said
        self.fallen |= said is not None
        if self.validates:
            return Judgement(said, broken)
        value = row.get(self.metric)
        if value is not None and math.isfinite(value):
            self.window.append(float(value))
        # Neighbouring windows share all values but two, so looking at every line would only write more often.
        due = len(self.window) == self.lines and self.seen % max(1, self.lines // 2) == 0
        new_best = due and not self.fallen and self._beats(list(self.window))
        if new_best:
            self.best, self.best_step = list(self.window), step
        return Judgement(said, broken, new_best, self._patience(step))

    def last_is_best(self, step: int) -> bool:
        """Take the last lines of a run too short for a best, unless it collapsed; return whether there are any."""
        values = list(self.window) or (self.recent[-1] if self.recent else [])
        if self.fallen or not values:
            return False
        self.best, self.best_step = list(values), step
        return True

    def _beats(self, values: list[float]) -> bool:
        """Return whether a window of training lines is better than the best one beyond the noise of both."""
        if self.best is None:
            return True
        gain = (np.mean(values) - np.mean(self.best)) * (-1 if self.metric == "loss" else 1)
        noise = math.hypot(*(np.std(each, ddof=1) / math.sqrt(len(each)) if len(each) > 1 else 0.0
                             for each in (values, self.best)))  # fmt: skip
        return bool(gain > 2 * noise and gain > 0)

    def validated(self, step: int, passed: Sequence[float]) -> Judgement:
        """Take in a validation: pass@1 of each held-out problem, always the same. Step 0: the untrained model."""
        values = [float(value) for value in passed]
        if step == 0 or self.best is None:
            self.best, self.best_step = values, step
            self.first = values if step == 0 else None
            return Judgement(new_best=True)
        self.looks += 1
        self.recent.append(values)
        said = next(self._fallen_since(step, values), None)
        before, self.fallen = self.judged, self.fallen or said is not None
        self.judged = self.judged or said is not None
        window = np.mean(list(self.recent), axis=0).tolist()
        low, _ = paired_bound(window, self.best, BETTER)
        full = len(self.recent) == self.recent.maxlen
        new_best = full and not self.fallen and low > 0
        if new_best:
            self.best, self.best_step = window, step
        return Judgement(None if before else said, False, new_best, self._patience(step))

    def _fallen_since(self, step: int, values: list[float]) -> Iterator[str]:
        """Yield what the held-out problems say of a collapse."""
        level, now = spent(self.alpha / 2, self.looks), 100 * float(np.mean(values))
        for then, share, what in ((self.best, LOST, "the best"), (self.first, WORSE, "the untrained model")):
            if then is not None and paired_bound(values, then, level, share)[1] < 0:
                yield (
                    f"at step {step} held-out pass@1 is {now:.1f} %, surely below {share:.0%} of {what} "
                    f"({100 * float(np.mean(then)):.1f} %), paired by problem"
                )

    def _patience(self, step: int) -> bool:
        patience = self.section.early_stop_patience
        return patience is not None and self.best is not None and step - self.best_step >= patience

    def gain(self) -> tuple[float, float, float] | None:
        """Return held-out pass@1 of the best weights less that of the untrained model, with its 95 % interval."""
        if self.first is None or self.best is None:
            return None
        return float(np.mean(self.best) - np.mean(self.first)), *paired_bound(self.best, self.first, 0.025)

    def unconfirmed(self) -> None:
        """Go on after an alarm of the training metrics that the held-out problems do not confirm."""
        self.fallen = False
        self.watch.forgive(keep_past=False)

    def after_rollback(self) -> None:
        """Start again with the past of the weights that were restored."""
        self.rollbacks += 1
        self.fallen = self.judged = False
        self.watch.forgive(keep_past=True)
        self.window.clear()
        self.recent.clear()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on."""
        lists = {name: list(getattr(self, name)) for name in _DEQUES}
        return {name: getattr(self, name) for name in _STATE} | lists | {"watch": self.watch.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint."""
        for name in _STATE:
            setattr(self, name, state[name])
        for name in _DEQUES:
            getattr(self, name).clear()
            getattr(self, name).extend(state[name])
        self.watch.load(state["watch"])


# Fields of Health that a checkpoint keeps besides the watch.
_STATE = ("best", "best_step", "first", "looks", "seen", "rollbacks", "fallen", "judged")
_DEQUES = ("window", "recent")
