"""What one record says in one number. Each function takes a record and returns a float; NaN where it does not apply.

Curves are block means (record.py). "At the end" is the last tenth of the blocks; a running mean covers four blocks,
which is a twentieth of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gtpo.evalkit.comparison.training_curves import smoothed

RUNNING = 4
LOST = 0.5
"""A run has collapsed once the running mean of its accuracy reward is below this share of its best, and ends there."""

VALIDATION = "validation/pass@1"
"""Held-out accuracy, at the steps of the validations."""

Record = dict[str, Any]


def curve(record: Record, key: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(last step of each block, block means) of a metric, blocks without a value left out; empty without the metric."""
    curves = record["curves"]
    found = curves["metrics"].get(key)
    if found is None:
        return np.empty(0), np.empty(0)
    pairs = [(s, v) for s, v in zip(curves["last_step_of_block"], found["mean"], strict=True) if v is not None]
    steps, values = np.array(pairs, dtype=np.float64).T
    return steps, values


def scores(record: Record, benchmark: str, metric: str) -> NDArray[np.float64]:
    """[Q] scores in [0, 1] of a record: pass@1, pass@n, maj@n or format, in the order of the question ids."""
    found = record["evaluation"][benchmark]
    n, correct = found["n"], np.array(found["correct"], dtype=np.float64)
    return {
        "pass@1": correct / n,
        "pass@n": (correct > 0).astype(np.float64),
        "maj@n": np.array(found["maj"], dtype=np.float64),
        "format": np.array(found["format_ok"], dtype=np.float64) / n,
    }[metric]


def mean_of(key: str, part: int = 1) -> Callable[[Record], float]:
    """The mean of a curve, or of its last `part`-th."""

    def measure(record: Record) -> float:
        _, values = curve(record, key)
        return float(values[-max(1, values.size // part) :].mean()) if values.size else math.nan

    return measure


def at_end(key: str) -> Callable[[Record], float]:
    """The mean of the last tenth of a curve."""
    return mean_of(key, 10)


def running(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of each value and the three before it, fewer at the start."""
    return smoothed(values, RUNNING)


def collapse_step(record: Record) -> float:
    """The step at which the accuracy reward falls below half of its best and does not end above it; else NaN."""
    steps, values = curve(record, "reward/accuracy")
    if not values.size:
        return math.nan
    smooth = running(values)
    best = np.maximum.accumulate(smooth)
    below = smooth < LOST * best
    if not below[-1]:
        return math.nan
    return float(steps[int(np.flatnonzero(below)[0])])


def collapsed(record: Record) -> float:
    """1 where the run collapsed, else 0."""
    return float(not math.isnan(collapse_step(record)))


def lead_over_kl(record: Record) -> float:
    """Steps by which entropy is ahead of KL on the way to a collapse; NaN where the run did not collapse.

    For each of the two: the first step at which it has gone half of the way from its start to its value at the
    collapse. Returned: that of KL minus that of entropy.
    """
    end = collapse_step(record)
    halves = []
    for key in ("entropy/mean", "kl/untrained"):
        steps, values = curve(record, key)
        inside = steps <= end
        if math.isnan(end) or inside.sum() < 3:
            return math.nan
        steps, way = steps[inside], running(values[inside])
        way = way - way[0]
        halves.append(steps[int(np.flatnonzero(np.abs(way) >= 0.5 * abs(way[-1]))[0])])
    return float(halves[1] - halves[0])


def tag_means(record: Record) -> NDArray[np.float64]:
    """Mean over the four tags and the end, per checkpoint; the first is the base."""
    if not record["tags"]:
        return np.full(2, np.nan)
    columns = [values for name, values in record["tags"].items() if name != "step"]
    return np.mean(np.array(columns, dtype=np.float64), axis=0)


def evaluated(benchmark: str, metric: str) -> Callable[[Record], float]:
    """The mean score on a benchmark."""

    def measure(record: Record) -> float:
        return float(scores(record, benchmark, metric).mean())

    return measure


def lost_at(record: Record) -> float:
    """The step of the first validation below half of the base's accuracy; infinite where there is none."""
    steps, values = curve(record, VALIDATION)
    below = np.flatnonzero(values < LOST * scores(record["of_base"], "arithmetic", "pass@1").mean())
    return float(steps[below[0]]) if below.size else math.inf


MEASURES: dict[str, Callable[[Record], float]] = {
    "format reward at the end": at_end("reward/format"),
    "entropy at the end": at_end("entropy/mean"),
    "entropy over training": mean_of("entropy/mean"),
    "KL at the end": at_end("kl/untrained"),
    "kept by the gate": mean_of("gate/kept"),
    "collapsed": collapsed,
    "lead of entropy over KL": lead_over_kl,
    "tags over training": lambda record: float(tag_means(record)[1:].mean()),  # after the start
    "accuracy over training": mean_of(VALIDATION),
    "accuracy at the end": lambda record: float(curve(record, VALIDATION)[1][-1]),
    "log entropy at the end": lambda record: math.log(max(at_end("entropy/mean")(record), 1e-4)),
    "log time to half of the accuracy": lambda record: math.log(min(lost_at(record), curve(record, VALIDATION)[0][-1])),
}
"""Name -> measure, for the tests of both plans. The difference of two logarithms is that of a ratio."""
