"""The health of a run, from its metrics only: collapse, best step, early stop. No trainer, no files.

**Drift** bets against no change, and may be looked at after every line. It asks whether a metric has left its own past
on one side. A value is scored in [0, 1]: 1 if it is on the good side of a bound that the past gives, less the farther
it lies beyond. Under no change the mean score is at least `null`, a lower confidence bound from the past with some
slack; then the wealth of a bet against it, a product of 1 + f (null - score) / (1 - null), is a non-negative
supermartingale. Bets start again and again, each with the past as it is then and a share of the capital. The sum
exceeds 1/alpha with probability at most alpha (Ville), however often it is looked at. This is the e-detector of Shin,
Ramdas and Rinaldo (arXiv 2203.03532) with a summable prior on the start, on bounded bets as in Waudby-Smith and Ramdas
(arXiv 2010.09686). Scores are bounded, so that neither heavy tails nor the number of prompts behind a value matter. If
the past is correlated over tau values, the wealth is taken to the power 1/tau: the geometric mean of the bets on every
tau-th value, which is no larger than their arithmetic mean. What is not exact is what is estimated: tau, and the bound
of the past. `bench.health` measures the rates.

**Watch** has two: the accuracy reward has fallen; or the KL divergence from the untrained policy has passed a limit
while the accuracy reward is lower than it was. Together they raise a false alarm in at most `health.false_alarms` of
the runs whose policy does not change. Values that are not finite are collapse too; a loss, at once.

**Health** says what follows: collapse, best step, patience. If the run validates, the held-out problems judge: the same
problems, against the best validation and the one before the first step. What the training rewards say is then only a
reason to validate. `best/` follows a lower bound: what replaces it must be better beyond the noise of both, the
untrained model included.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from gtpo.config import HealthSection

Floats = NDArray[np.float64]

# -- a test that may be looked at after every line ---------------------------------------------------------------------

# Shares of the largest safe bet, a third of the capital on each.
FRACTIONS = np.array([0.15, 0.5, 0.9])[:, None, None]
# The mean score may fall to this share of what the past shows before it counts against no change.
SLACK = 0.9
# The past's lower confidence bound has level PAST_LEVEL / k^1.5 at the k-th start: the more there are, the surer.
PAST_LEVEL = 0.1
# Values before the first bet.
FIRST = 4
# (n, every): a bet starts every so many values until there are n.
STRIDES = ((48, 4), (256, 8), (math.inf, 16))
# Lengths of the past that a bet may refer to: the one whose level is safest is taken.
WINDOWS = (64, 256, 1024)
# Values that a bet, or a mean, goes back to at most.
BACK = WINDOWS[-1]
# Bets that run at a time; the oldest go, with their capital.
LIVE = 64
# Length of the segments in which correlation is measured.
SEGMENT = 128
# Factor on what tau has above 1: correlations are cut off at the noise, so that it comes out too small.
CAUTION = 2.0


def correlation_time(values: Floats) -> Floats:
    """Return tau of each row [R, n]: 1 + 2 sum of the autocorrelations up to the first that is within noise.

    They are taken within segments, without the most correlated one, so that a change of level does not look
    like a long memory.
    """
    count = values.shape[1]
    length = min(max(3 * FIRST, count // 4), SEGMENT)
    tau = np.ones(values.shape[0])
    if count < 3 * FIRST:
        return tau
    cut = values[:, count % length :].reshape(values.shape[0], -1, length)
    cut = cut - cut.mean(2, keepdims=True)
    spectrum = np.fft.rfft(cut, 2 * length, axis=2)
    products = np.fft.irfft(np.abs(spectrum) ** 2, axis=2)[:, :, : length // 2]
    most = np.argmax(products[:, :, 1:].sum(2), axis=1)
    products = products.sum(1) - products[np.arange(len(tau)), most] * (cut.shape[1] > 2)
    known = products[:, 0] > 1e-12
    rho = products[known, 1:] / products[known, :1] * length / (length - np.arange(1, length // 2))
    noise = 1.5 / math.sqrt(count)
    # What the mean of a segment takes away from a first-order process (Marriott and Pope 1954).
    first = np.where(rho[:, 0] > noise, np.clip((length * rho[:, 0] + 1) / (length - 3), 0.0, 0.95), 0.0)
    rho = rho + (1 - rho) * (1 + 2 * np.maximum(rho[:, :1], 0)) / length
    later = (rho * np.cumprod(rho > noise, axis=1)).sum(1)
    tau[known] = np.maximum(1 + 2 * CAUTION * later, (1 + first) / (1 - first))
    return tau


class Drift:
    """Whether `rows` streams have fallen below `ratio` of their past, or risen above `limit`, beyond chance.

    alpha: chance that a stream which stays as it is is ever flagged. ratio: the bound of a fall as a multiple of the
    past's mean, below 1. limit: the bound of a rise, which needs no past; under no change at most a tenth of the values
    lie beyond it.
    """

    def __init__(self, alpha: float, *, ratio: float = 1.0, limit: float | None = None, rows: int = 1) -> None:
        self.alpha, self.ratio, self.limit, self.rows = alpha, ratio, limit, rows
        self.forget(np.empty((rows, 0)))

    def forget(self, past: Floats) -> None:
        """End all bets; [rows, n] is the past of the next ones."""
        # All values [rows, n], and their number.
        self.past, self.count = past, past.shape[1]
        self.started = 0
        # How many values each live bet had for its past; what `_bet` returned of it.
        self.starts: list[int] = []
        self.bets = np.empty((4, self.rows, 0))
        self.tau = np.ones(self.rows)
        self.log_capital, self.log_wealth = np.empty(0), np.empty((len(FRACTIONS), self.rows, 0))

    def _scores(self, values: Floats, bound: Floats, low: Floats) -> Floats:
        if self.limit is None:
            return np.clip(2 * (values - low) / np.maximum(bound - low, 1e-12) - 1, 0.0, 1.0)
        return np.minimum(bound / np.maximum(values, 1e-12), 1.0) ** 2

    def _start(self) -> None:
        """Start a bet with the past as it is."""
        past = self.past[:, -BACK:]
        lengths = [length for length in WINDOWS if length < past.shape[1]] + [past.shape[1]]
        if self.limit is None:
            # Without what lies far out, which would hide how the rest goes together.
            self.tau = correlation_time(np.minimum(past, 2 * np.maximum(past.mean(1, keepdims=True), 0.0)))
        k = self.started + 2
        bets = np.array([self._bet(past[:, -length:], PAST_LEVEL / k**1.5) for length in lengths])
        # The first of equals is the shortest.
        chosen = bets[bets[:, 0].argmax(axis=0), 1:, np.arange(self.rows)].T
        self.bets = np.concatenate([self.bets, chosen[:, :, None]], axis=2)[:, :, -LIVE:]
        self.started += 1
        self.starts = [*self.starts, self.count][-LIVE:]
        # 2.11 = sum of 1 / (k log^2 k) over k >= 2.
        capital = -math.log(2.11 * k * math.log(k) ** 2)
        self.log_capital = np.append(self.log_capital, capital)[-LIVE:]
        fresh = np.zeros((len(FRACTIONS), self.rows, 1))
        self.log_wealth = np.concatenate([self.log_wealth, fresh], axis=2)[:, :, -LIVE:]

    def _bet(self, window: Floats, level: float) -> Floats:
        """Return (how safe it is, mean, low, bound, null) [5, rows] of a bet that refers to a window of the past."""
        # If a reward may be negative, falls are measured from its least value.
        mean, low = window.mean(1), np.minimum(window.min(1), 0.0)
        if self.limit is not None:  # nine tenths of the values lie within, whatever the past
            return np.stack([np.ones_like(mean), mean, low, np.full_like(mean, self.limit), np.full_like(mean, 0.9)])
        bound, independent = low + self.ratio * (mean - low), window.shape[1] / self.tau
        good = self._scores(window, bound[:, None], low[:, None]).mean(1) * independent
        lower = special.betaincinv(np.maximum(good, 1e-9), independent - good + 1.0, level)
        return np.stack([lower * (bound - low), mean, low, bound, np.minimum(SLACK * lower, 0.95)])

    def observe(self, values: Floats) -> Floats:
        """Take in a value of each stream [rows]; return the log of the wealth [rows]. Flagged: above log(1/alpha)."""
        wealth = np.full(self.rows, -np.inf)
        if self.starts:
            _, low, bound, null = self.bets
            odds = (null - self._scores(values[:, None], bound, low)) / (1.0 - null)
            self.log_wealth += np.log(1.0 + odds * FRACTIONS)  # numpy has no fast log1p
            wealth = np.logaddexp.reduce(self._capital(), axis=1)
        self.past = np.column_stack([self.past, values])
        self.count += 1
        stride = next(stride for until, stride in STRIDES if self.count <= until)
        if self.count >= FIRST and self.count % stride == 0:
            self._start()
        return wealth

    def _capital(self, rows: slice = slice(None)) -> Floats:
        """Return the log of what each live bet [rows, bets] has now."""
        shares = self.log_wealth[:, rows] / self.tau[rows, None] - math.log(len(FRACTIONS))
        return np.asarray(self.log_capital + np.logaddexp.reduce(shares, axis=0))

    def strongest(self, row: int = 0) -> tuple[int, float]:
        """Return (values before it, mean of its past) of the bet of a stream that has won most."""
        at = int(np.argmax(self._capital(slice(row, row + 1))))
        return self.starts[at], float(self.bets[0, row, at])


def paired_bound(now: Sequence[float], then: Sequence[float], level: float, share: float = 1.0) -> tuple[float, float]:
    """Return the lower and upper confidence bound of the mean of now - share * then, paired; each errs with `level`."""
    differences = np.asarray(now, dtype=np.float64) - share * np.asarray(then, dtype=np.float64)
    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return -math.inf, math.inf
    half = float(stats.t.isf(level, count - 1)) * float(differences.std(ddof=1)) / math.sqrt(count)
    return mean - half, mean + half


def look_level(alpha: float, look: int) -> float:
    """Return the level of the `look`-th look (from 1), such that all looks together err with at most `alpha`."""
    return 6 * alpha / (math.pi * look) ** 2


# -- the metrics that are watched --------------------------------------------------------------------------------------

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
# Below this share of its past the accuracy reward counts as fallen.
FALLEN = 0.6
# Names of the metrics of the two tests; the first that a run has counts.
ACCURACY, KL = ("reward/accuracy", "reward"), ("kl/untrained", "kl")
# Test -> the metric's names, what is said of it, and the share of the false alarms that it may have.
TESTS = {
    "accuracy": (ACCURACY, "the accuracy reward fell", 0.25),
    "kl": (KL, "the KL divergence grew", 0.5 / 6),
}


class Watch:
    """The tests of one run, or of `rows` at once; each raises an alarm at most once until `forgive`."""

    def __init__(self, false_alarms: float, rows: int = 1) -> None:
        bounds: dict[str, Any] = {"accuracy": {"ratio": FALLEN}, "kl": {"limit": KL_LIMIT}}
        self.tests = {
            name: Drift(false_alarms * share, rows=rows, **bounds[name]) for name, (_, _, share) in TESTS.items()
        }
        self.flagged = {name: np.zeros(rows, dtype=bool) for name in self.tests}
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
        values = {}
        for test, (names, _, _) in TESTS.items():
            value = next((float(row[name]) for name in names if isinstance(row.get(name), int | float)), math.nan)
            if math.isfinite(value):
                values[test] = np.array([value])
        alarms_of = self.look(values)
        name = next((name for name, alarms in alarms_of.items() if alarms[0]), None)
        if name is None:
            return None
        drift = self.tests[name]
        start, mean = drift.strongest()
        later = drift.count - start
        return (
            f"at step {step} {TESTS[name][1]} from {mean:.3g} to {drift.past[0, -later:][-BACK:].mean():.3g} (means of "
            f"{start} lines and of the {later} lines after them); a policy that does not change does this in fewer "
            f"than {100 * drift.alpha:.2g} % of runs"
        )

    def look(self, values: Mapping[str, Floats]) -> dict[str, NDArray[np.bool_]]:
        """Take in one value per run [rows] for each test that has one; return by test which runs it flags now."""
        flags = {}
        for name, value in values.items():
            test = self.tests[name]
            flags[name] = (test.observe(value) >= -math.log(test.alpha)) & ~self.flagged[name]
        for at in np.flatnonzero(flags.get("kl", ())):
            flags["kl"][at] = self._accuracy_lost(int(at))
        for name, alarms in flags.items():
            self.flagged[name] |= alarms
        return flags

    def _accuracy_lost(self, at: int) -> bool:
        """Return whether the accuracy reward of run `at` is lower than before its KL divergence passed the limit.

        The divergence must have grown since the first lines, and the accuracy lie below that of these lines; beyond
        KL_FAR it must not lie above.
        """
        test, accuracy = self.tests["kl"], self.tests["accuracy"]
        later = test.count - test.strongest(at)[0]
        since = min(math.ceil(later * accuracy.count / test.count), BACK // 2)  # it may be logged less often
        if not 0 < since < accuracy.count:
            return False
        memory = math.sqrt(max(accuracy.tau[at], test.tau[at]))
        before, now = test.past[at, :-later][:FIRST_LINES], test.past[at, -later:][-BACK:]
        logs = [np.log(np.maximum(values, KL_LIMIT / 10)) for values in (now, before)]
        if logs[0].mean() <= logs[1].mean() + GROWN * memory * _standard_error(*logs):
            return False
        before, now = accuracy.past[at, :-since][:FIRST_LINES], accuracy.past[at, -since:]
        noise = memory * _standard_error(now, before)
        return bool(now.mean() <= before.mean() + (noise if logs[0].mean() > math.log(KL_FAR) else -2 * noise))

    def forgive(self, *, keep_past: bool) -> None:
        """Start the tests again. keep_past: with the past up to the start of the strongest bet, that of a well run."""
        for name, test in self.tests.items():
            later = test.count - test.strongest()[0] if keep_past and test.starts else test.count
            test.forget(test.past[:, : test.count - later])
            self.flagged[name][:] = False
        self.streak = 0


def _standard_error(*samples: Floats) -> float:
    """Of the difference of their means. The variance of a short one says little: each has the larger."""
    return math.sqrt(max(values.var() for values in samples) * sum(1 / len(values) for values in samples))


# -- what follows for the run ------------------------------------------------------------------------------------------

# Chance at one look that weights that replace the best are not better.
BETTER = 0.025
# Lines of the log from whose spread noise is known.
NOISE_LINES = 8
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
    """The watch, the best step and the patience of a run. A resumed run gets there by its lines and validations again.

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
        # The latest values of what selects `best/`, without validation: the mean is of the last `lines` of them.
        self.window: deque[float] = deque(maxlen=max(self.lines, NOISE_LINES))
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

    def about_best(self) -> dict[str, Any]:
        """Return best.json of the weights that are the best now."""
        step, covered = self.best_step, {"smoothing_steps": self.lines * self.logging_steps}
        if self.validates:
            covered = {"smoothing_evaluations": max(1, len(self.recent))}
        why = (
            f"its running mean of {self.metric} is the first, or better than the best before beyond the noise of both, "
            f"which {NOISE_LINES} lines tell; the weights are those of step {step}, the last of that mean's window"
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
        alarm = self.watch.observe(step, row)
        broken = alarm is not None and "not finite" in alarm
        self.fallen |= alarm is not None
        if self.validates:
            return Judgement(alarm, broken)
        value = row.get(self.metric)
        if value is not None and math.isfinite(value):
            self.window.append(float(value))
        # Neighbouring windows share all values but two, so looking at every line would only write more often.
        due = len(self.window) >= self.lines and self.seen % max(1, self.lines // 2) == 0
        values = list(self.window)[-self.lines :]
        new_best = due and not self.fallen and self._beats(values)
        if new_best:
            self.best, self.best_step = values, step
        return Judgement(alarm, broken, new_best, self._patience(step))

    def _beats(self, values: list[float]) -> bool:
        """Return whether a window of training lines is better than the best one beyond the noise of both."""
        if self.best is None:
            return True
        if len(self.window) < NOISE_LINES:
            return False
        gain = (np.mean(values) - np.mean(self.best)) * (-1 if self.metric == "loss" else 1)
        # Of differences of neighbours: a trend is no noise.
        lines = (each if len(each) >= NOISE_LINES else list(self.window) for each in (values, self.best))
        noise = math.sqrt(sum(np.mean(np.diff(each) ** 2) / 2 for each in lines) / self.lines)
        return bool(gain > 2 * noise and gain > 0)

    def observe_validation(self, step: int, passed: Sequence[float]) -> Judgement:
        """Take in a validation: pass@1 of each held-out problem, always the same. Step 0: the untrained model."""
        values = [float(value) for value in passed]
        if step == 0 or self.best is None:
            self.best, self.best_step = values, step
            self.first = values if step == 0 else None
            return Judgement(new_best=True)
        self.looks += 1
        self.recent.append(values)
        alarm, level = None, look_level(self.alpha / 2, self.looks)
        for then, share, what in ((self.first, WORSE, "the untrained model"), (self.best, LOST, "the best")):
            if then is not None and paired_bound(values, then, level, share)[1] < 0:
                alarm = (
                    f"at step {step} held-out pass@1 is {100 * float(np.mean(values)):.1f} %, surely below {share:.0%} "
                    f"of {what} ({100 * float(np.mean(then)):.1f} %), paired by problem"
                )
        before, self.fallen = self.judged, self.fallen or alarm is not None
        self.judged = self.judged or alarm is not None
        window = np.mean(list(self.recent), axis=0).tolist()
        low, _ = paired_bound(window, self.best, BETTER)
        full = len(self.recent) == self.recent.maxlen
        new_best = full and not self.fallen and low > 0
        if new_best:
            self.best, self.best_step = window, step
        return Judgement(None if before else alarm, False, new_best, self._patience(step))

    def _patience(self, step: int) -> bool:
        patience = self.section.early_stop_patience
        return patience is not None and self.best is not None and step - self.best_step >= patience

    def gain(self) -> tuple[float, float, float] | None:
        """Return held-out pass@1 of the best weights less that of the untrained model, with its 95 % interval."""
        if self.first is None or self.best is None:
            return None
        return float(np.mean(self.best) - np.mean(self.first)), *paired_bound(self.best, self.first, 0.025)

    def dismiss_alarm(self) -> None:
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
