"""The watch on the metrics of a run: which of them has left its own past, beyond what chance explains.

Two tests (`gtpo.run.sequential`): the accuracy reward has fallen; or the KL divergence from the untrained policy has
passed a limit while the accuracy reward is lower than it was. Together they raise a false alarm in at most
`health.false_alarms` of the runs whose policy does not change. Values that are not finite are said too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gtpo.run.sequential import KEPT, Drift, Floats

# Nats per token from the untrained policy. A policy beyond it that has become worse is coming apart.
KL_LIMIT = 0.1

# A policy beyond this need not have become worse: it is enough that it has learned nothing.
KL_FAR = 0.2

# Lines from the start of a run that the KL divergence is compared with.
FIRST_LINES = 64

# Standard errors by which the logarithm of the KL divergence must have grown since then.
GROWN = 3.0

# Lines in a row without a finite gradient, entropy or KL that are a collapse.
STREAK = 3


# Names of the metrics of the two tests; the first that a run has counts.
ACCURACY, KL = ("reward/accuracy", "reward"), ("kl/untrained", "kl")

# Share of the false alarms that each test may have.
SHARES = {"accuracy": 0.25, "kl": 0.5 / 6}

WORDS = {"accuracy": "the accuracy reward fell", "kl": "the KL divergence grew"}

# Below this share of its past the accuracy reward counts as fallen.
FALLEN = 0.6


def metric_value(row: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """Return the first of `names` that a line has as a number, None if it has none."""
    return next((float(row[name]) for name in names if isinstance(row.get(name), int | float)), None)


class Watch:
    """The tests of one run, or of `rows` at once; each raises an alarm at most once until `forgive`."""

    def __init__(self, false_alarms: float, rows: int = 1) -> None:
        self.tests = {
            "accuracy": Drift(false_alarms * SHARES["accuracy"], ratio=FALLEN, rows=rows),
            "kl": Drift(false_alarms * SHARES["kl"], limit=KL_LIMIT, rows=rows),
        }
        self.said = {name: np.zeros(rows, dtype=bool) for name in self.tests}
        # The first FIRST_LINES values of each run, by line.
        self.first: dict[str, list[list[float]]] = {name: [] for name in self.tests}
        self.streak = 0

    def observe(self, step: int, row: Mapping[str, Any]) -> str | None:
        """Take in one line of metrics; return what is wrong, None while nothing is or if it was said."""
        loss = row.get("loss")
        if loss is not None and not math.isfinite(loss):
            return f"the loss is {loss}, not finite, at step {step}"
        watched = ("grad_norm", "entropy/mean", "entropy", *ACCURACY, *KL)
        lost = [name for name in watched if isinstance(row.get(name), float) and not math.isfinite(row[name])]
        self.streak = self.streak + 1 if lost else 0
        if self.streak == STREAK:
            return f"{', '.join(lost)} is not finite in {STREAK} lines up to step {step}"
        values = {"accuracy": metric_value(row, ACCURACY), "kl": metric_value(row, KL)}
        found = self.look(
            {name: np.array([value]) for name, value in values.items() if value is not None and math.isfinite(value)}
        )
        new = [name for name, alarms in found.items() if alarms[0]]
        return self._words(new[0], step) if new else None

    def look(self, values: Mapping[str, Floats]) -> dict[str, NDArray[np.bool_]]:
        """Take in one value per run [rows] for each test that has one; return by test which runs it flags now."""
        found = {}
        for name, value in values.items():
            test = self.tests[name]
            found[name] = (test.observe(value) >= -math.log(test.alpha)) & ~self.said[name]
            if len(self.first[name]) < FIRST_LINES:
                self.first[name].append(value.tolist())
        for at in np.flatnonzero(found.get("kl", ())):
            found["kl"][at] = self._accuracy_lost(int(at))
        for name, alarms in found.items():
            self.said[name] |= alarms
        return found

    def _words(self, name: str, step: int) -> str:
        test = self.tests[name]
        start, mean = test.strongest()
        later = test.count - start
        return (
            f"at step {step} {WORDS[name]} from {mean:.3g} to {test.past[0, -later:].mean():.3g} (means of "
            f"{start} lines and of the {later} lines after them); a policy that does not change does this in fewer "
            f"than {100 * test.alpha:.2g} % of runs"
        )

    def _accuracy_lost(self, at: int) -> bool:
        """Return whether the accuracy reward of run `at` is lower than before its KL divergence passed the limit.

        The divergence must have grown since the first lines, and the accuracy lie below that of these lines; beyond
        KL_FAR it must not lie above.
        """
        test, accuracy = self.tests["kl"], self.tests["accuracy"]
        later = test.count - test.strongest(at)[0]
        since = min(math.ceil(later * accuracy.count / test.count), KEPT // 2)  # it may be logged less often
        rewards = accuracy.past[at]
        if not 0 < since < len(rewards):
            return False
        memory = math.sqrt(max(accuracy.tau[at], test.tau[at]))
        first = np.array([values[at] for values in self.first["kl"][: test.count - later]])
        logs = [np.log(np.maximum(values, KL_LIMIT / 10)) for values in (test.past[at, -later:], first)]
        if logs[0].mean() <= logs[1].mean() + GROWN * memory * _standard_error(*logs):
            return False
        now = rewards[-since:]
        before = np.array([values[at] for values in self.first["accuracy"][: accuracy.count - since]])
        noise = memory * _standard_error(now, before)
        return bool(now.mean() <= before.mean() + (noise if logs[0].mean() > math.log(KL_FAR) else -2 * noise))

    def forgive(self, *, keep_past: bool) -> None:
        """Start the tests again. keep_past: with the past up to the start of the strongest bet, that of a well run."""
        for name, test in self.tests.items():
            later = test.count - test.strongest()[0] if keep_past and test.starts else test.count
            test.forget(test.past[:, : max(0, test.past.shape[1] - later)])
            self.said[name][:] = False
        self.streak = 0
        if not keep_past:
            self.first = {name: [] for name in self.first}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on."""
        tests = {name: test.state() for name, test in self.tests.items()}
        said = {name: values.tolist() for name, values in self.said.items()}
        return {"tests": tests, "said": said, "first": self.first, "streak": self.streak}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.first, self.streak = {name: list(values) for name, values in state["first"].items()}, state["streak"]
        for name, test in state["tests"].items():
            self.tests[name].load(test)
            self.said[name] = np.array(state["said"][name])


def _standard_error(*samples: Floats) -> float:
    """Of the difference of their means. The variance of a short one says little: each has the larger."""
    return math.sqrt(max(values.var() for values in samples) * sum(1 / len(values) for values in samples))
