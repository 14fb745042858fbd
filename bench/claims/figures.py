"""The figures of docs/results.md, from the committed records alone."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.claims.answers import Answer, Records, effect, pairs
from bench.claims.measures import Record, curve, evaluated, tag_means
from bench.claims.plan import Plan
from bench.claims.questions import PairedTest
from bench.claims.tables import compared, is_share, unit
from gtpo.common.files import write_bytes
from gtpo.evalkit.comparison.training_curves import LN2
from gtpo.evalkit.report.figures import COLOURS, DASHES, STYLE

SHOWN = ("grpo", "gtpo", "gtpo-conflict-only", "gtpo-no-filter", "sft")
PANELS = (
    ("reward/accuracy", "Accuracy reward (points)"),
    ("reward/format", "Format reward (points)"),
    ("entropy/mean", "Mean token entropy (nats)"),
    ("kl/untrained", "KL from the base (nats)"),
)


def write_figures(records: Records, plan: Plan, found: list[Answer]) -> list[Path]:
    """Write training-<regime>.png for each regime with records, and the figures across regimes; return the files."""
    import matplotlib

    matplotlib.use("Agg")
    written = []
    with matplotlib.rc_context(STYLE):
        for regime in dict.fromkeys(regime for regime, _ in plan.seeds):
            runs = {method: list(records[regime, method].values()) for method in SHOWN if (regime, method) in records}
            if runs:
                path = plan.evidence / "figures" / f"training-{regime}.png"
                write_bytes(path, _training(regime, runs))
                written.append(path)
        for name, drawn in (
            ("gtpo-against-grpo", _gtpo_against_grpo(records, plan)),
            ("primary-tests", _primary_tests(found, records)),
        ):
            written.append(plan.evidence / "figures" / f"{name}.png")
            write_bytes(written[-1], drawn)
        return written


def _gtpo_against_grpo(records: Records, plan: Plan) -> bytes:
    """Accuracy of base, GRPO and GTPO in each regime, and GTPO minus GRPO with its interval; a dot per seed."""
    from matplotlib import pyplot as plt

    tests = [PairedTest(regime, "gtpo", "grpo", f"{plan.evaluation(regime)[0]}:pass@1") for regime, _ in plan.seeds]
    found = [effect(records, plan, test) for test in dict.fromkeys(tests)]
    found = [each for each in found if each.difference is not None]
    figure, (means, differences) = plt.subplots(
        1, 2, figsize=(9, 0.6 + 0.42 * max(1, len(found))), layout="constrained", sharey=True
    )
    for row, each in enumerate(found):
        regime = each.test.regime
        measure = evaluated(plan.evaluation(regime)[0], "pass@1")
        seeds = sorted(set(records[regime, "gtpo"]) & set(records[regime, "grpo"]))
        shown = {"gtpo": records[regime, "gtpo"], "grpo": records[regime, "grpo"]}
        bases = {seed: record["of_base"] for seed, record in shown["gtpo"].items()}
        if None not in bases.values():
            shown["base"] = bases
        values = {name: np.array([100 * measure(runs[seed]) for seed in seeds]) for name, runs in shown.items()}
        for name, marker, colour in (("base", "|", "#777"), ("grpo", "o", COLOURS[0]), ("gtpo", "s", COLOURS[1])):
            if name in values:
                label = name if row == 0 else None
                means.plot(
                    values[name].mean(), row, marker, color=colour, label=label, markersize=9 if marker == "|" else 5
                )
        each_seed = values["gtpo"] - values["grpo"]
        differences.plot(each_seed, np.full(each_seed.size, row), "o", color="#aaa", markersize=3)
        low, middle, high = (100 * (value or 0.0) for value in (each.low, each.difference, each.high))
        differences.plot([low, high], [row, row], color=COLOURS[1], linewidth=1.6)
        differences.plot(middle, row, "s", color=COLOURS[1], markersize=5)
    differences.axvline(0, color="#555", linewidth=0.8)
    means.set_yticks(range(len(found)), [f"{each.test.regime} ({each.seeds} seeds)" for each in found])
    means.invert_yaxis()
    means.set_xlim(0, 100)
    means.set_title("pass@1 at the end, mean over seeds (%)")
    differences.set_title("GTPO minus GRPO, points (a dot per seed)")
    if found:
        figure.legend(fontsize=7.5, ncols=3, loc="outside upper right")
    return _png(figure)


def _primary_tests(found: list[Answer], records: Records) -> bytes:
    """A panel per primary test that has an answer: the difference of each seed, their mean and its interval."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    known = [answer for answer in found if answer.effects[0].difference is not None]
    columns = 3
    rows = max(1, -(-len(known) // columns))
    figure, axes = plt.subplots(rows, columns, figsize=(9, 1.25 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat[len(known) :]:
        axis.set_visible(False)
    for axis, answer in zip(axes.flat, known, strict=False):
        primary = answer.effects[0]
        test = primary.test
        scale = 100 if is_share(test.measure) else 1
        seen = pairs(records, test)
        axis.plot(scale * (seen.a - seen.b), np.zeros(len(seen.seeds)), "o", color="#aaa", markersize=3)
        low, middle, high = (scale * (value or 0.0) for value in (primary.low, primary.difference, primary.high))
        axis.plot([low, high], [1, 1], color=COLOURS[1], linewidth=1.6)
        axis.plot(middle, 1, "s", color=COLOURS[1], markersize=5)
        axis.axvline(0, color="#555", linewidth=0.8)
        axis.set_yticks([])
        axis.set_ylim(-0.7, 1.7)
        axis.spines["left"].set_visible(False)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        missing = "" if primary.complete else f", {primary.seeds} of {primary.planned} seeds"
        axis.set_title(f"{test.regime}: {compared(test)}", fontsize=7)
        axis.set_xlabel(f"{re.sub('[_:]', ' ', test.measure)}, {unit(test.measure)}{missing}", fontsize=7.5)
    return _png(figure)


def _training(regime: str, found: dict[str, list[Record]]) -> bytes:
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(2, 3, figsize=(9, 4.6), layout="constrained")
    axes, legend = grid.flat[: len(PANELS) + 1], grid.flat[-1]
    for axis, (key, title) in zip(axes, PANELS, strict=False):
        for method, records in found.items():
            _band(axis, method, records, lambda record, key=key: curve(record, key))
        axis.set_title(title)
        axis.set_xlabel("optimizer step")
        axis.set_ylim(bottom=0)
    if axes[2].get_ylim()[1] > 0.5 * LN2:
        axes[2].axhline(LN2, color="#555", linewidth=0.8, linestyle=(0, (2, 2)))
        axes[2].annotate("ln 2", (0, LN2), xytext=(2, 2), textcoords="offset points", fontsize=7.5, color="#555")
    for method, records in found.items():
        _band(axes[-1], method, records, lambda record: (np.array(record["tags"]["step"], float), tag_means(record)))
    axes[-1].set_title("Tags, log-probability (nats)")
    axes[-1].set_xlabel("optimizer step")
    seeds = {len(records) for records in found.values()}
    count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    figure.suptitle(
        f"{regime}: mean over {count} seed{'s' * (count != '1')}, band from the lowest to the highest",
        x=0.01,
        ha="left",
        fontsize=10,
    )
    legend.axis("off")
    legend.legend(*axes[2].get_legend_handles_labels(), loc="upper left")  # of the panel that has every method
    return _png(figure)


def _png(figure: Any) -> bytes:
    """As PNG with a palette, a third of the size."""
    from matplotlib import pyplot as plt
    from PIL import Image

    drawn, out = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110, metadata={"Software": None})
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(out, format="png", optimize=True)
    return out.getvalue()


def _band(axis: Any, method: str, records: list[Record], read: Callable[[Record], tuple[Any, Any]]) -> None:
    """Mean over seeds, and a band from the least to the largest, at the steps that all seeds have."""
    curves = [(steps, values) for steps, values in map(read, records) if len(steps)]
    if not curves:
        return
    shared = sorted(set.intersection(*(set(steps.tolist()) for steps, _ in curves)))
    values = np.array([np.interp(shared, steps, found) for steps, found in curves])
    i = SHOWN.index(method)
    axis.plot(shared, values.mean(axis=0), color=COLOURS[i], linestyle=DASHES[i], label=method, linewidth=1.4)
    if len(curves) > 1:
        axis.fill_between(shared, values.min(axis=0), values.max(axis=0), color=COLOURS[i], alpha=0.13, linewidth=0)
