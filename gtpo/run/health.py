"""The health of a run, from its metrics alone: collapse, best step, early stop. No trainer, no files.

A run has collapsed where one of its metrics has left the run's own past, beyond what chance explains
(`gtpo.run.sequential`): the accuracy or the format reward has fallen; or entropy or length has left it on either
side, or KL a limit, while the accuracy reward is lower than it was. All tests together raise a false alarm in at most
`health.false_alarms` of the runs whose policy does not change. A loss that is not finite is collapse at once.

Where the run validates, the held-out problems judge: the same problems, against the best validation and the one before
the first step. What the training rewards say is then only a reason to validate.

`best/` follows a lower bound: what replaces it must be better beyond the noise of both, the untrained model included.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gtpo.config import HealthSection
from gtpo.presets import LN2
from gtpo.run.sequential import WINDOWS, Drift, paired_bound, spent

BETTER = 0.025
"""Chance at one look that what replaces the best is not better."""

LOST = 0.5
"""Held-out pass@1 surely below this share of the best is a collapse."""

WORSE = 0.9
"""So is held-out pass@1 surely below this share of the untrained model's."""

KL_LIMIT = 0.2
"""Nats per token from the untrained policy. A policy beyond it that has learned nothing is coming apart."""

MAX_ROLLBACKS = 3
"""After this many rollbacks a collapsing run is stopped."""

STREAK = 3
"""Lines in a row without a finite gradient, entropy or KL that are a collapse."""


class Signal(NamedTuple):
    """One test: a metric by its names (the first that a run has), and what counts as having left its past."""

    names: tuple[str, ...]
    share: float
    """Of the false alarms."""
    settings: Mapping[str, Any]
    words: str


_REST = 0.5 / 6
ACCURACY = ("reward/accuracy", "reward")
SIGNALS = {
    "accuracy": Signal(ACCURACY, 0.5, {"side": "low", "ratio": 0.9}, "the accuracy reward fell"),
    "format": Signal(("reward/format",), _REST, {"side": "low", "ratio": 0.8}, "the format reward fell"),
    "entropy gone": Signal(("entropy/mean", "entropy"), _REST, {"side": "low", "ratio": 0.2}, "entropy fell"),
    "entropy": Signal(
        ("entropy/mean", "entropy"), _REST, {"side": "high", "ratio": 2.0, "beyond": LN2}, "entropy rose"
    ),
    "short": Signal(
        ("completions/length", "completions/mean_length"), _REST, {"side": "low", "ratio": 0.5}, "completions shrank"
    ),
    "long": Signal(
        ("completions/length", "completions/mean_length"), _REST, {"side": "high", "ratio": 2.0}, "completions grew"
    ),
    "kl": Signal(("kl/untrained", "kl"), _REST, {"side": "high", "limit": KL_LIMIT}, "the KL divergence grew"),
}
"""Name -> test. Half of the false alarms is for the accuracy, the other half shared evenly."""

ALONE = ("accuracy", "format")
"""Tests that need nothing else; the others count while the accuracy reward is lost too."""


@dataclass(frozen=True)
class Verdict:
    """What one step's metrics, or one validation, say."""

    collapsed: str | None = None
    """Why the run counts as collapsed at this step; None while it is well. Said once per fall."""
    broken: bool = False
    """Whether that is a value that is not finite, which no validation needs to confirm."""
    new_best: bool = False
    out_of_patience: bool = False
    overfitted: str | None = None
    """Why the training reward says nothing any more. Said once per fall."""


def _value(row: Mapping[str, Any], names: Sequence[str]) -> float | None:
    return next((float(row[name]) for name in names if isinstance(row.get(name), int | float)), None)


class Watch:
    """The tests of all metrics; raises an alarm for each at most once until `forgive`."""

    def __init__(self, false_alarms: float) -> None:
        self.tests = {name: Drift(false_alarms * signal.share, **signal.settings) for name, signal in SIGNALS.items()}
        self.streak = 0
        self.said: list[str] = []

    def observe(self, step: int, row: Mapping[str, Any]) -> str | None:
        """Take in one line of metrics; return what is wrong, None while nothing is or where it was said."""
        loss = row.get("loss")
        if loss is not None and not math.isfinite(loss):
            return f"the loss is {loss}, not finite, at step {step}"
        rest = ("grad_norm", *(name for signal in SIGNALS.values() for name in signal.names))
        lost = [name for name in rest if isinstance(row.get(name), float) and not math.isfinite(row[name])]
        self.streak = self.streak + 1 if lost else 0
        if self.streak == STREAK:
            return f"{', '.join(dict.fromkeys(lost))} is not finite in {STREAK} lines up to step {step}"
        found = [name for name in SIGNALS if self._left(name, row)]
        new = [text for name in found if (text := self._counts(name, step)) is not None]
        return new[0] if new else None

    def _left(self, name: str, row: Mapping[str, Any]) -> bool:
        value, test = _value(row, SIGNALS[name].names), self.tests[name]
        if value is None or not math.isfinite(value):
            return False
        return bool(test.observe(np.array([value]))[0] >= -math.log(test.alpha)) and name not in self.said

    def _counts(self, name: str, step: int) -> str | None:
        test, accuracy = self.tests[name], self.tests["accuracy"]
        start, mean = test.strongest()
        if name not in ALONE and accuracy.past and not self._accuracy_lost(name, len(test.past) - start):
            return None
        self.said.append(name)
        recent = float(np.mean([value[0] for value in test.past[start:]]))
        return (
            f"at step {step} {SIGNALS[name].words} from {mean:.3g} to {recent:.3g} (means of {start} lines and of the "
            f"{len(test.past) - start} lines after them); a policy that does not change does this in fewer than "
            f"{100 * test.alpha:.2g} % of runs"
        )

    def _accuracy_lost(self, name: str, since: int) -> bool:
        """Return whether the accuracy reward of the last `since` lines lies below what it was before them.

        The divergence from the untrained policy only grows, so there it is enough not to lie above the first lines.
        """
        rewards = np.array([value[0] for value in self.tests["accuracy"].past[-4 * WINDOWS[-1] :]])
        since = min(since, len(rewards) - 1)
        if since < 1:
            return False
        now = rewards[-since:]
        before = rewards[:-since][: max(10, since)] if name == "kl" else rewards[:-since][-max(10, since) :]
        noise = math.hypot(now.std() / math.sqrt(len(now)), before.std() / math.sqrt(len(before)))
        return bool(now.mean() <= before.mean() + (noise if name == "kl" else -2 * noise))

    def forgive(self, *, keep_past: bool) -> None:
        """Begin anew. keep_past: with the past up to where the strongest bet began, which is that of a well run."""
        for test in self.tests.values():
            start = test.strongest()[0] if keep_past and test.starts and hasattr(test, "latest") else 0
            past = [value for value in test.past[:start] if np.isfinite(value).all()]
            test.forget(np.array(past).T.reshape(1, -1))
        self.said, self.streak = [], 0

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on."""
        tests = {name: test.state() for name, test in self.tests.items()}
        return {"tests": tests, "said": self.said, "streak": self.streak}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.said, self.streak = list(state["said"]), state["streak"]
        for name, test in state["tests"].items():
            self.tests[name].load(test)


class Health:
    """The watch, the best step and the patience of a run; its state travels with the checkpoints.

    metric: what selects `best/`: `validation/pass@1` where the run validates, else `reward/accuracy`, or (sft) `loss`,
    of which lower is better. logging_steps: how many steps a line stands for.
    """

    def __init__(self, section: HealthSection, metric: str = "reward/accuracy", logging_steps: int = 1) -> None:
        self.section, self.metric, self.logging_steps = section, metric, logging_steps
        self.lines = math.ceil(section.smoothing_steps / logging_steps)
        """Lines that a running mean covers."""
        self.validates = metric.startswith("validation/")
        # Half of the false alarms for each of two judges.
        self.alpha = section.false_alarms / 2 if self.validates else section.false_alarms
        self.watch = Watch(self.alpha)
        self.window: deque[float] = deque(maxlen=self.lines)
        """The latest values of what selects `best/`, without validation."""
        self.accuracy: deque[float] = deque(maxlen=self.lines)
        self.best_accuracy = 0.0
        self.recent: deque[list[float]] = deque(maxlen=section.smoothing_evaluations)
        """pass@1 by problem of the latest validations."""
        self.first: list[float] | None = None
        """pass@1 by problem before the first step."""
        self.best: list[float] | None = None
        """What the best value is the mean of: lines, or problems."""
        self.best_step = 0
        self.looks = self.seen = self.rollbacks = 0
        self.fallen = self.judged = self.overfitted = False

    @property
    def best_value(self) -> float | None:
        """Mean of what selected the best weights."""
        return None if self.best is None else float(np.mean(self.best))

    @property
    def first_value(self) -> float | None:
        """Held-out pass@1 of the untrained model."""
        return None if self.first is None else float(np.mean(self.first))

    def covered(self) -> dict[str, int]:
        """Return what the mean that selects `best/` covers now, as best.json says it."""
        if self.validates:
            return {"smoothing_evaluations": max(1, len(self.recent))}
        return {"smoothing_steps": len(self.window) * self.logging_steps}

    def about_best(self) -> dict[str, Any]:
        """Return best.json of the weights that are the best now."""
        step = self.best_step
        why = (
            f"its running mean of {self.metric} is better than the best before, beyond the noise of both; the weights "
            f"are those of step {step}, the last of that mean's window"
        )
        return {
            "schema_version": 1,
            "step": step,
            "metric": self.metric,
            "value": self.best_value,
            **self.covered(),
            "why": why if step else "the untrained model: nothing is better beyond noise so far",
        }

    def observe(self, step: int, row: Mapping[str, Any]) -> Verdict:
        """Take in one line of metrics.jsonl."""
        self.seen += 1
        said = self.watch.observe(step, row)
        broken = said is not None and "not finite" in said
        self.fallen |= said is not None
        accuracy, value = _value(row, ACCURACY), row.get(self.metric)
        if accuracy is not None and math.isfinite(accuracy):
            self.accuracy.append(accuracy)
            if len(self.accuracy) == self.lines:
                self.best_accuracy = max(self.best_accuracy, float(np.mean(self.accuracy)))
        if self.validates:
            return Verdict(said, broken)
        if value is not None and math.isfinite(value):
            self.window.append(float(value))
        # Neighbouring windows share all values but two, so looking at every line would only write more often.
        due = len(self.window) == self.lines and self.seen % max(1, self.lines // 2) == 0
        new_best = due and not self.fallen and self._beats(list(self.window))
        if new_best:
            self.best, self.best_step = list(self.window), step
        return Verdict(said, broken, new_best, self._patience(step))

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

    def validated(self, step: int, passed: Sequence[float]) -> Verdict:
        """Take in a validation: pass@1 of each held-out problem, always the same. Step 0: the untrained model."""
        values = [float(value) for value in passed]
        if step == 0 or self.best is None:
            self.best, self.best_step = values, step
            self.first = values if step == 0 else None
            return Verdict(new_best=True)
        self.looks += 1
        self.recent.append(values)
        said = next(self._fallen_since(step, values), None)
        before, self.fallen = self.judged, self.fallen or said is not None
        self.judged = self.judged or said is not None
        window = np.mean(list(self.recent), axis=0).tolist()
        low, _ = paired_bound(window, self.best, BETTER)
        full = len(self.recent) == self.recent.maxlen
        new_best = full and not self.fallen and low > 0
        overfitted = self._overfit(step, window)
        if new_best:
            self.best, self.best_step = window, step
        return Verdict(None if before else said, False, new_best, self._patience(step), overfitted)

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

    def _overfit(self, step: int, window: list[float]) -> str | None:
        """Return why the training reward says nothing any more: it is at its best, the held-out accuracy fell."""
        assert self.best is not None
        fell = paired_bound(window, self.best, spent(0.05, self.looks))[1] < 0
        at_best = bool(self.accuracy) and float(np.mean(self.accuracy)) >= 0.98 * self.best_accuracy
        before, self.overfitted = self.overfitted, fell and at_best
        if not self.overfitted or before:
            return None
        then, now = 100 * float(np.mean(self.best)), 100 * float(np.mean(window))
        return (
            f"at step {step} the training accuracy reward is at its best ({float(np.mean(self.accuracy)):.2f}) while "
            f"the held-out pass@1 (mean of {len(self.recent)} validations) fell from "
            f"{then:.1f} % at step {self.best_step} to {now:.1f} %: "
            "the reward no longer measures what was to be learned"
        )

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
        """Begin anew with the past of the weights that were put back."""
        self.rollbacks += 1
        self.fallen = self.judged = self.overfitted = False
        self.watch.forgive(keep_past=True)
        self.window.clear()
        self.accuracy.clear()
        self.recent.clear()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on."""
        lists = {name: list(getattr(self, name)) for name in _DEQUES}
        return {name: getattr(self, name) for name in _STATE} | lists | {"watch": self.watch.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint; what an earlier version did not keep stays as it is."""
        for name in _STATE:
            setattr(self, name, state.get(name, getattr(self, name)))
        for name in _DEQUES:
            getattr(self, name).clear()
            getattr(self, name).extend(state.get(name, []) if isinstance(state.get(name), list) else [])
        if "watch" in state:
            self.watch.load(state["watch"])


_STATE = (
    *("best", "best_step", "best_accuracy", "first", "looks", "seen", "rollbacks"),
    *("fallen", "judged", "overfitted"),
)
_DEQUES = ("window", "accuracy", "recent")
"""Fields of Health that a checkpoint keeps besides the watch."""
