"""The figures of `gtpo compare --figures`: PDF, SVG and PNG, as in the paper's figures 1, 2, 3, 4 and 10.

curves-<benchmark>    pass@k and maj@k over k with 95 % bands (figures 2 below, 3)
differences           paired differences to the baseline with 95 % intervals, all benchmarks
training              accuracy, format, entropy with the ln 2 line, share kept by the gate, share of conflict
                      tokens, KL if there is one, over the steps; a band from the least to the largest seed of a
                      method (figures 1, 2 above, 4, 10)
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gtpo.common.errors import UserError
from gtpo.common.files import write_bytes
from gtpo.common.terminal import visible
from gtpo.evalkit.comparison.columns import METRICS
from gtpo.evalkit.comparison.compare import MethodComparison
from gtpo.evalkit.comparison.training_curves import CURVES, LN2, Band, bands, read_curves, running_mean
from gtpo.evalkit.report.payload import POINTS, curve_ks, curves_over_k, key_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#8a857c", "#b8860b", "#2b6cb0", "#8b3fb8", "#0f8a8a", "#c02672", "#8a5a2b", "#4f46e5")
DASHES = ("-", (0, (5, 1.5)), "-", (0, (4, 1.2)), (0, (3, 1, 1, 1)), (0, (1, 1)), "-.", ":")
PANELS = ("reward/accuracy", "reward/format", "entropy/mean", "gate/kept", "conflict/fraction", "kl")
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e0d9",
    "grid.linewidth": 0.7, "axes.edgecolor": "#918c83", "axes.titlelocation": "left", "axes.titleweight": "bold",
    "axes.titlesize": 9.5, "legend.frameon": False, "svg.hashsalt": "gtpo", "figure.dpi": 160,
}  # fmt: skip


def label(name: str) -> str:
    """A name as matplotlib draws it: `$` would begin mathematics."""
    return visible(name).replace("$", "\\$")


def write_figures(comparison: MethodComparison, folder: Path) -> list[Path]:
    """Write every figure that the runs have data for; return the files. Raises UserError if there is none."""
    import matplotlib

    # No window: a cluster's node has no display.
    matplotlib.use("Agg")
    written = []
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(comparison):
            for kind, metadata in (("png", None), ("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
                path = folder / f"{name}.{kind}"
                out = io.BytesIO()
                figure.savefig(out, format=kind, metadata=metadata)
                write_bytes(path, out.getvalue())
                written.append(path)
    if not written:
        raise UserError("--figures: these runs hold neither evaluations nor training metrics to draw")
    return written


def _figures(comparison: MethodComparison) -> Iterator[tuple[str, Figure]]:
    """Yield (file name, figure)."""
    for table in comparison.tables:
        if not table.group:
            yield f"curves-{re.sub(r'[^A-Za-z0-9._-]+', '-', table.benchmark)}", _curves(comparison, table)
    if any(table.baseline for table in comparison.tables):
        yield "differences", _differences(comparison)
    # Entropy and loss of supervised training are taken on the targets: another quantity.
    rl = [method for method in comparison.trained if not any(train.preset == "sft" for train in method.trains)]
    found = {method.name: bands(list(map(read_curves, method.trains)), POINTS) for method in rl}
    if any(key in of for of in found.values() for key in PANELS):
        yield "training", _training(comparison, found)


def _styles(comparison: MethodComparison) -> dict[str, dict[str, Any]]:
    """Line style of each method."""
    names = dict.fromkeys(method.name for method in (*comparison.methods, *comparison.trained))
    return {name: {"color": COLOURS[i % 8], "linestyle": DASHES[i % 8]} for i, name in enumerate(names)}


def _legend(figure: Figure, panels: Iterable[Axes]) -> None:
    """One legend for all panels."""
    handles: dict[Any, Any] = {}
    for axes in panels:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=min(4, max(1, len(handles))))


def _curves(comparison: MethodComparison, table: Any) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    by_k = [metric for metric in METRICS if metric.by_k]
    panels = figure.subplots(1, len(by_k))
    styles = _styles(comparison)
    found, ks = curves_over_k(table), curve_ks(table)
    for axes, metric in zip(panels, by_k, strict=True):
        for name in table.methods:
            mean, low, high = 100 * np.array(found[name][metric.name]).T
            axes.plot(ks, mean, label=label(name), linewidth=1.7, **styles[name])
            axes.fill_between(ks, low, high, color=styles[name]["color"], alpha=0.12, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("k")
        axes.set_title(f"{metric.title}, %")
    figure.suptitle(
        f"{label(table.benchmark)}: {table.questions:,} questions, n = {table.samples}, {comparison.scoring}",
        fontsize=9,
    )
    _legend(figure, panels[:1])
    return figure


def _differences(comparison: MethodComparison) -> Figure:
    from matplotlib.figure import Figure

    tables = [table for table in comparison.benchmarks if table.baseline]
    styles = _styles(comparison)
    keys = [key_columns(comparison, table) for table in tables]
    rows, most = max(len(table.methods) - 1 for table in tables), max(map(len, keys))
    figure = Figure(figsize=(2.1 * most + 1, 0.9 + len(tables) * (0.55 + 0.26 * rows)), layout="constrained")
    # Every panel is in points of the same table: one scale per benchmark.
    grid = figure.subplots(len(tables), most, squeeze=False, sharex="row")
    for line, table, columns in zip(grid, tables, keys, strict=True):
        others = [name for name in table.methods if name != table.baseline]
        for i, axes in enumerate(line):
            if i >= len(columns):
                axes.set_visible(False)
                continue
            axes.axvline(0, color="#918c83", linewidth=1)
            for y, name in enumerate(others):
                cell = table.cells[name, columns[i]]
                if cell.paired is None:
                    continue
                d, color = cell.paired, styles[name]["color"]
                axes.plot([100 * d.low, 100 * d.high], [y, y], color=color, linewidth=2.2)
                face = color if cell.direction else "white"
                axes.plot([100 * d.difference], [y], "o", color=color, markerfacecolor=face, markersize=6)
            axes.set_yticks(range(len(others)), [label(name) if i == 0 else "" for name in others])
            axes.set_ylim(len(others) - 0.5, -0.5)
            axes.set_title(f"{label(table.benchmark) if i == 0 else ''}\n{columns[i].label}")
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="y", visible=False)
    primary = comparison.metrics[0].label
    note = f"points against {label(str(comparison.baseline))}; filled: {primary} differs after Holm's correction"
    figure.supxlabel(note, fontsize=8)
    return figure


def _training(comparison: MethodComparison, by_method: dict[str, dict[str, Band]]) -> Figure:
    from matplotlib.figure import Figure

    titles = {metric.key: metric for metric in CURVES}
    panels = [key for key in PANELS if any(key in found for found in by_method.values())]
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(2.9 * columns, 2.4 * lines + 0.4), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    styles = _styles(comparison)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes, key in zip(grid, panels, strict=False):
        metric = titles[key]
        scale = 100 if metric.unit == "share" else 1
        for name, found in by_method.items():
            band = found.get(key)
            if band is None:
                continue
            color = styles[name]["color"]
            window = max(1, band.mean.size // 25)
            if band.seeds > 1:
                low, high = running_mean(band.low, window), running_mean(band.high, window)
                axes.fill_between(band.steps, scale * low, scale * high, color=color, alpha=0.15, linewidth=0)
            else:
                axes.plot(band.steps, scale * band.mean, color=color, alpha=0.18, linewidth=0.7)
            seeds = f" ({band.seeds} seeds)" * (band.seeds > 1)
            mean = scale * running_mean(band.mean, window)
            axes.plot(band.steps, mean, linewidth=1.6, label=label(name) + seeds, **styles[name])
        if key == "entropy/mean":
            axes.axhline(LN2, color="#b3341f", linestyle="--", linewidth=1)
            axes.annotate(
                "ln 2", (1, LN2), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="#b3341f"
            )
        if scale == 100:
            axes.set_ylim(max(axes.get_ylim()[0], -2), min(axes.get_ylim()[1], 102))
        unit = "%" if metric.unit == "share" else metric.unit
        axes.set_title(f"{metric.title}, {unit}" if unit else metric.title)
        axes.set_xlabel("step")
    _legend(figure, grid[: len(panels)])
    return figure
