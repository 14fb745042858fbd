"""The figures of docs/results.md, from the committed records alone."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.claims.measures import Record, curve, tag_means
from bench.claims.plan import Plan
from bench.claims.statistics import Answer, Records, pairs
from bench.claims.tables import compared, is_share, short_measure, unit
from gtpo.common.files import write_bytes
from gtpo.evalkit.comparison.training_curves import LN2
from gtpo.evalkit.report.figures import COLOURS, DASHES, STYLE

NARROW = 4.6
"""Inches: type of 9 points is legible where a page is as wide as a phone."""
SHOWN = ("grpo", "gtpo", "gtpo-conflict-only", "gtpo-no-filter", "sft")
Panel = tuple[str | Callable[[Record], tuple[Any, Any]], str]
"""A curve of the record, or what reads (steps, values) of it; and the panel's title."""
REWARDS_AND_ENTROPY: tuple[Panel, ...] = (
    ("reward/accuracy", "Accuracy reward (points)"),
    ("reward/format", "Format reward (points)"),
    ("entropy/mean", "Mean token entropy (nats)"),
)


def write_figures(records: Records, plan: Plan, found: list[Answer]) -> list[Path]:
    """Write training-<regime>.png for each regime and question-<name>.png for each question; return the files."""
    import matplotlib

    matplotlib.use("Agg")
    written = []
    panels: tuple[Panel, ...] = (
        *REWARDS_AND_ENTROPY,
        ("kl/untrained", "KL from the base (nats)"),
        (lambda record: (np.array(record["tags"]["step"], float), tag_means(record)), "Tags, log-probability (nats)"),
    )
    with matplotlib.rc_context(STYLE):
        for regime in plan.regimes:
            runs = {method: list(records[regime, method].values()) for method in SHOWN if (regime, method) in records}
            if runs:
                path = plan.evidence / "figures" / f"training-{regime}.png"
                write_bytes(path, training_figure(regime, runs, panels))
                written.append(path)
        for question in dict.fromkeys(answer.question.name for answer in found):
            its = [a for a in found if a.question.name == question and a.effects[0].difference is not None]
            if its:
                written.append(plan.evidence / "figures" / f"question-{question}.png")
                write_bytes(written[-1], _question(its, records, plan))
        return written


def _question(found: list[Answer], records: Records, plan: Plan) -> bytes:
    """One question, a row per scale: the difference of each seed, their mean and its interval, and the verdict."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axis = plt.subplots(figsize=(NARROW, 1.1 + 0.5 * len(found)), layout="constrained")
    for row, answer in enumerate(found):
        primary = answer.effects[0]
        scale = 100 if is_share(primary.test.measure) else 1
        seen = pairs(records, primary.test)
        axis.plot(scale * (seen.a - seen.b), np.full(len(seen.seeds), row + 0.2), "o", color="#aaa", markersize=3.5)
        low, middle, high = (scale * (value or 0.0) for value in (primary.low, primary.difference, primary.high))
        axis.plot([low, high], [row - 0.15, row - 0.15], color=COLOURS[1], linewidth=2)
        axis.plot(middle, row - 0.15, "s", color=COLOURS[1], markersize=6)
    test = found[0].effects[0].test
    axis.axvline(0, color="#555", linewidth=0.8)
    axis.set_yticks(range(len(found)), [f"{a.scale}:\n{a.verdict}" for a in found], fontsize=9)
    axis.set_ylim(len(found) - 0.4, -0.6)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.tick_params(labelsize=9)
    figure.suptitle(
        textwrap.fill(found[0].question.short.replace("`", ""), 52), x=0.01, ha="left", fontsize=10, fontweight="bold"
    )
    said = f"{compared(test)}: {short_measure(test, plan)}, {unit(test.measure)}"
    axis.set_xlabel(textwrap.fill(said, 52), fontsize=9)
    return _png(figure)


def training_figure(title: str, found: dict[str, list[Record]], panels: Sequence[Panel]) -> bytes:
    """As PNG: a panel for each of up to five quantities over training, method -> records. The third has all
    methods; `title` ends before the number of seeds."""
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(3, 2, figsize=(NARROW, 6.4), layout="constrained")
    axes, legend = grid.flat[: len(panels)], grid.flat[-1]
    for axis, (shown, name) in zip(axes, panels, strict=True):
        for method, records in found.items():
            _band(axis, method, [curve(r, shown) if isinstance(shown, str) else shown(r) for r in records])
        axis.set_title(name)
        axis.set_xlabel("optimizer step")
        if axis.dataLim.y0 >= 0:
            axis.set_ylim(bottom=0)
    if axes[2].get_ylim()[1] > 0.5 * LN2:
        axes[2].axhline(LN2, color="#555", linewidth=0.8, linestyle=(0, (2, 2)))
        axes[2].annotate("ln 2", (0, LN2), xytext=(2, 2), textcoords="offset points", fontsize=7.5, color="#555")
    seeds = {len(records) for records in found.values()}
    count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    figure.suptitle(
        f"{title}: mean over {count} seed{'s' * (count != '1')},\nband from the lowest to the highest",
        x=0.01,
        ha="left",
        fontsize=10,
    )
    legend.axis("off")
    legend.legend(*axes[2].get_legend_handles_labels(), loc="upper left")
    return _png(figure)


def _png(figure: Any) -> bytes:
    """As PNG with a palette, a third of the size."""
    from matplotlib import pyplot as plt
    from PIL import Image

    drawn, out = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=160, metadata={"Software": None})
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(out, format="png", optimize=True)
    return out.getvalue()


def _band(axis: Any, method: str, found: list[tuple[Any, Any]]) -> None:
    """Mean over seeds, and a band from the least to the largest, at the steps that all seeds have.

    found: (steps, values) of each seed.
    """
    curves = [(steps, values) for steps, values in found if len(steps)]
    if not curves:
        return
    shared = sorted(set.intersection(*(set(steps.tolist()) for steps, _ in curves)))
    values = np.array([np.interp(shared, steps, its) for steps, its in curves])
    i = SHOWN.index(method)
    axis.plot(shared, values.mean(axis=0), color=COLOURS[i], linestyle=DASHES[i], label=method, linewidth=1.4)
    if len(curves) > 1:
        axis.fill_between(shared, values.min(axis=0), values.max(axis=0), color=COLOURS[i], alpha=0.13, linewidth=0)
