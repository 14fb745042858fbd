"""Tests that may be looked at after every line of a run and still keep their error rate: betting against no change.

`Drift` asks whether a metric has left its own past on one side. A value is scored in [0, 1]: 1 if it is on the good
side of a bound that the past gives, less the farther it lies beyond. Under no change the mean score is at least `null`,
a lower confidence bound from the past with some slack; then the wealth of a bet against it, a product of
1 + f (null - score) / (1 - null), is a non-negative supermartingale. Bets start again and again, each with the past as
it is then and a share of the capital. The sum exceeds 1/alpha with probability at most alpha (Ville), however often it
is looked at. This is the e-detector of Shin, Ramdas and Rinaldo (arXiv 2203.03532) with a summable prior on the start,
on bounded bets as in Waudby-Smith and Ramdas (arXiv 2010.09686). Scores are bounded, so that neither heavy tails nor
the number of prompts behind a value matter. If the past is correlated over tau values, the wealth is taken to the
power 1/tau: the geometric mean of the bets on every tau-th value, which is no larger than their arithmetic mean.

What is not exact is what is estimated: tau, and the bound of the past. `bench.health` measures the rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Floats = NDArray[np.float64]

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

# Values of the past that are kept.
KEPT = WINDOWS[-1]

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


def _log_sum(logs: Floats, axis: int) -> Floats:
    """Return log(sum(exp)); scipy's costs ten times as much on arrays as small as these."""
    largest = logs.max(axis, keepdims=True)
    return np.asarray(largest.squeeze(axis) + np.log(np.exp(logs - largest).sum(axis)))


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
        shape = (self.rows, 0)
        # Values seen.
        self.count = past.shape[1]
        self._buffer = np.empty((self.rows, 2 * KEPT))
        self._end = min(self.count, KEPT)
        self._buffer[:, : self._end] = past[:, self.count - self._end :]
        self.started = 0
        # How many values each live bet had for its past.
        self.starts: list[int] = []
        self.means, self.low, self.bound, self.null = (np.empty(shape) for _ in range(4))
        self.tau = np.ones(self.rows)
        self.log_capital = np.empty(0)
        self.log_wealth = np.empty((len(FRACTIONS), *shape))

    @property
    def past(self) -> Floats:
        """The latest values [rows, n], at most KEPT."""
        return self._buffer[:, max(0, self._end - KEPT) : self._end]

    def _append(self, values: Floats) -> None:
        if self._end == 2 * KEPT:
            self._buffer[:, :KEPT] = self._buffer[:, KEPT:]
            self._end = KEPT
        self._buffer[:, self._end] = values
        self._end += 1
        self.count += 1

    def _scores(self, values: Floats, bound: Floats, low: Floats) -> Floats:
        if self.limit is None:
            return np.clip(2 * (values - low) / np.maximum(bound - low, 1e-12) - 1, 0.0, 1.0)
        return np.minimum(bound / np.maximum(values, 1e-12), 1.0) ** 2

    def _start(self) -> None:
        """Start a bet with the past as it is."""
        past = self.past
        lengths = [length for length in WINDOWS if length < past.shape[1]] + [past.shape[1]]
        if self.limit is None:
            # Without what lies far out, which would hide how the rest goes together.
            self.tau = correlation_time(np.minimum(past, 2 * np.maximum(past.mean(1, keepdims=True), 0.0)))
        k = self.started + 2
        best: tuple[Floats, ...] | None = None
        for length in lengths:
            window = past[:, -length:]
            # If a reward may be negative, falls are measured from its least value.
            mean, low = window.mean(1), np.minimum(window.min(1), 0.0)
            if self.limit is None:
                bound = low + self.ratio * (mean - low)
                independent = length / self.tau
                good = self._scores(window, bound[:, None], low[:, None]).mean(1) * independent
                lower = special.betaincinv(np.maximum(good, 1e-9), independent - good + 1.0, PAST_LEVEL / k**1.5)
                level = lower * (bound - low)
            else:
                bound, lower = np.full_like(mean, self.limit), np.full_like(mean, 0.9 / SLACK)
                level = lower / bound
            found: tuple[Floats, ...] = (level, mean, low, bound, np.minimum(SLACK * lower, 0.95))
            if best is not None:
                found = tuple(np.where(level > best[0], new, old) for new, old in zip(found, best, strict=True))
            best = found
        assert best is not None
        live = zip((self.means, self.low, self.bound, self.null), best[1:], strict=True)
        self.means, self.low, self.bound, self.null = (np.column_stack(pair)[:, -LIVE:] for pair in live)
        self.started += 1
        self.starts = [*self.starts, self.count][-LIVE:]
        # 2.11 = sum of 1 / (k log^2 k) over k >= 2.
        capital = -math.log(2.11 * k * math.log(k) ** 2)
        self.log_capital = np.append(self.log_capital, capital)[-LIVE:]
        fresh = np.zeros((len(FRACTIONS), self.rows, 1))
        self.log_wealth = np.concatenate([self.log_wealth, fresh], axis=2)[:, :, -LIVE:]

    def observe(self, values: Floats) -> Floats:
        """Take in a value of each stream [rows]; return the log of the wealth [rows]. Flagged: above log(1/alpha)."""
        wealth = np.full(self.rows, -np.inf)
        if self.starts:
            scores = self._scores(values[:, None], self.bound, self.low)
            odds = (self.null - scores) / (1.0 - self.null)
            self.log_wealth += np.log(1.0 + odds * FRACTIONS)  # numpy has no fast log1p
            wealth = _log_sum(self._capital(), axis=1)
        self._append(values)
        stride = next(stride for until, stride in STRIDES if self.count <= until)
        if self.count >= FIRST and self.count % stride == 0:
            self._start()
        return wealth

    def _capital(self, rows: slice = slice(None)) -> Floats:
        """Return the log of what each live bet [rows, bets] has now."""
        shares = self.log_wealth[:, rows] / self.tau[rows, None] - math.log(len(FRACTIONS))
        return self.log_capital + _log_sum(shares, axis=0)

    def strongest(self, row: int = 0) -> tuple[int, float]:
        """Return (values before it, mean of its past) of the bet of a stream that has won most."""
        at = int(np.argmax(self._capital(slice(row, row + 1))))
        return self.starts[at], float(self.means[row, at])

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on (JSON)."""
        arrays = {name: getattr(self, name).tolist() for name in (*_ARRAYS, "past")}
        return arrays | {"count": self.count, "starts": self.starts, "started": self.started}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.forget(np.array(state["past"], dtype=np.float64))
        self.count, self.starts, self.started = state["count"], list(state["starts"]), state["started"]
        for name in _ARRAYS:
            setattr(self, name, np.array(state[name], dtype=np.float64))


# Fields of the state with one entry per live bet.
_ARRAYS = ("means", "low", "bound", "null", "tau", "log_capital", "log_wealth")


def paired_bound(now: Sequence[float], then: Sequence[float], level: float, share: float = 1.0) -> tuple[float, float]:
    """Return the lower and upper confidence bound of the mean of now - share * then, paired; each errs with `level`."""
    differences = np.asarray(now, dtype=np.float64) - share * np.asarray(then, dtype=np.float64)
    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return -math.inf, math.inf
    half = float(stats.t.isf(level, count - 1)) * float(differences.std(ddof=1)) / math.sqrt(count)
    return mean - half, mean + half


def spent(alpha: float, look: int) -> float:
    """Return the level of the `look`-th look (from 1), such that all looks together err with at most `alpha`."""
    return 6 * alpha / (math.pi * look) ** 2
