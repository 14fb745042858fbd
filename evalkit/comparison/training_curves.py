"""What happened during training: the curves of metrics.jsonl, as the paper's figures 1, 2, 4 and 10 plot them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpo.runs.train_run import TrainFolder

# The entropy gate's default threshold, drawn into every entropy plot.
LN2 = math.log(2.0)


class TrainingMetric(NamedTuple):
    """One curve: its key in metrics.jsonl, how to call it, its unit, and a fixed lower and upper end if it has one."""

    key: str
    title: str
    unit: str
    low: float | None = None
    high: float | None = None


# Every curve that the figures and the page can show, in their order.
CURVES = (
    TrainingMetric("reward/accuracy", "Accuracy reward", "points", 0.0),
    TrainingMetric("reward/format", "Format reward", "points", 0.0),
    TrainingMetric("validation/pass@1", "Accuracy on held-out problems", "share", 0.0, 1.0),
    TrainingMetric("entropy/mean", "Mean token entropy", "nats", 0.0),
    TrainingMetric("entropy/above_ln2", "Completions with entropy above ln 2", "share", 0.0, 1.0),
    TrainingMetric("gate/kept", "Kept by the entropy gate", "share", 0.0, 1.0),
    TrainingMetric("conflict/fraction", "Tokens in conflict", "share", 0.0, 1.0),
    TrainingMetric("conflict/forward", "Forward conflict span", "tokens", 0.0),
    TrainingMetric("conflict/backward", "Backward conflict span", "tokens", 0.0),
    TrainingMetric("groups/zero_variance", "Groups with equal rewards", "share", 0.0, 1.0),
    TrainingMetric("completions/length", "Completion length", "tokens", 0.0),
    TrainingMetric("completions/truncated", "Truncated completions", "share", 0.0, 1.0),
    TrainingMetric("kl", "KL to the reference", "nats", 0.0),
    TrainingMetric("kl/untrained", "KL to the untrained model", "nats", 0.0),
    TrainingMetric("loss", "Loss", ""),
    TrainingMetric("grad_norm", "Gradient norm", "", 0.0),
    TrainingMetric("time/step", "Time of a step", "seconds", 0.0),
)


class Band(NamedTuple):
    """One metric over the steps of a method: the mean over its seeds, and how far they go from it. [S], finite.

    low, high: the least and the largest seed; of one seed, the least and the largest of the steps behind a point.
    """

    steps: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seeds: int = 1


def read_curves(train: TrainFolder) -> dict[str, Band]:
    """The curves of one train run by key; values that are missing, null or not finite leave a gap. Raises UserError."""
    points: dict[str, dict[float, float]] = {}
    for step, row in sorted(train.metrics().items()):
        for key, value in row.items():
            if key != "step" and type(value) in (int, float) and math.isfinite(value):
                points.setdefault(key, {})[step] = value
    curves = {}
    for key, of in points.items():
        values = np.array([*of.values()], dtype=np.float64)
        curves[key] = Band(np.array([*of], dtype=np.float64), values, values, values)
    return curves


def bands(curves: list[dict[str, Band]], points: int) -> dict[str, Band]:
    """The curves of a method's train runs by key, of the steps that every seed reached.

    At most `points` values each, which are the means of neighbouring steps.
    """
    joined = {}
    for key in dict.fromkeys(key for one in curves for key in one):
        own = [one[key] for one in curves if key in one]
        first, last = max(curve.steps[0] for curve in own), min(curve.steps[-1] for curve in own)
        steps = np.unique(np.concatenate([curve.steps for curve in own]))
        # Beyond the shortest seed the mean would be of other runs, and would jump where one ends.
        steps = steps[(steps >= first) & (steps <= last)]
        if not steps.size:  # the seeds logged no step in common
            continue
        values = np.stack([np.interp(steps, curve.steps, curve.mean) for curve in own])
        edges = np.linspace(0, steps.size, min(points, steps.size) + 1).astype(int)
        x, means = (np.add.reduceat(of, edges[:-1], axis=-1) / np.diff(edges) for of in (steps, values))
        low, high = means.min(axis=0), means.max(axis=0)
        if len(own) == 1:
            low, high = (least.reduceat(values[0], edges[:-1]) for least in (np.minimum, np.maximum))
        joined[key] = Band(x, means.mean(axis=0), low, high, len(own))
    return joined


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Running mean over at most `window` values up to each step. [S]"""
    total, ends = np.cumsum(np.concatenate([[0.0], values])), np.arange(1, values.size + 1)
    starts = np.maximum(ends - window, 0)
    means: NDArray[np.float64] = (total[ends] - total[starts]) / (ends - starts)
    return means


def end_of_training(train: TrainFolder) -> dict[str, float | None]:
    """The end of training: the mean of the last tenth of the steps of each metric, and where accuracy was best."""
    curves = read_curves(train)
    out: dict[str, float | None] = {"steps": max((float(curve.steps[-1]) for curve in curves.values()), default=0.0)}
    for key in ("reward/accuracy", "reward/format", "entropy/mean", "gate/kept", "conflict/fraction"):
        values = curves[key].mean if key in curves else None
        out[key] = None if values is None else float(values[-max(1, values.size // 10) :].mean())
    if (accuracy := curves.get("reward/accuracy")) is not None:
        smooth = running_mean(accuracy.mean, max(1, accuracy.mean.size // 10))
        out["best accuracy"], out["best step"] = float(smooth.max()), float(accuracy.steps[int(smooth.argmax())])
    return out
