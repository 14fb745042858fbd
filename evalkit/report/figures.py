"""The figures of `gtpo compare --figures`: PNG and SVG, as in the paper's figures 1, 2, 3, 4 and 10.

curves-<benchmark>    pass@k and maj@k over k with 95 % bands (figures 2 below, 3)
differences           paired differences to the baseline with 95 % intervals, all benchmarks
training              accuracy, format, entropy with the ln 2 line, share kept by the gate, share of conflict
                      tokens, KL where there is one, over the steps (figures 1, 2 above, 4, 10)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalkit.comparison.compare import FORMAT, MAJ, PASS, Column, Comparison
from evalkit.comparison.curves import curves_over_k
from evalkit.comparison.training_curves import LN2, METRICS, read_curves
from evalkit.report.tables import methods
from rewards.support.errors import UserError
from rewards.support.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#8a857c", "#b8860b", "#2b6cb0", "#8b3fb8", "#0f8a8a", "#c02672", "#8a5a2b", "#4f46e5")
DASHES = ("-", (0, (5, 1.5)), "-", (0, (4, 1.2)), (0, (3, 1, 1, 1)), (0, (1, 1)), "-.", ":")
PANELS = ("reward/accuracy", "reward/format", "entropy/mean", "gate/kept", "conflict/fraction", "kl")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e0d9",
    "grid.linewidth": 0.7,
    "axes.edgecolor": "#918c83",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 9.5,
    "legend.frameon": False,
    "svg.hashsalt": "gtpo",
    "figure.dpi": 160,
}


def write_figures(comparison: Comparison, folder: Path) -> list[Path]:
    """Write every figure that the runs have data for; return the files. Raises UserError where there is none."""
    import matplotlib

    matplotlib.use("Agg")
    written = []
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(comparison):
            for kind, metadata in (("png", None), ("svg", {"Date": None})):
                path = folder / f"{name}.{kind}"
                write_bytes(path, _bytes(figure, kind, metadata))
                written.append(path)
    if not written:
        raise UserError("--figures: these runs hold neither evaluations nor training metrics to draw")
    return written


def _bytes(figure: Figure, kind: str, metadata: Any) -> bytes:
    import io

    out = io.BytesIO()
    figure.savefig(out, format=kind, metadata=metadata)
    return out.getvalue()


def _figures(comparison: Comparison) -> Any:
    """Yield (file name, figure)."""
    for table in comparison.tables:
        if not table.group:
            yield f"curves-{re.sub(r'[^A-Za-z0-9._-]+', '-', table.benchmark)}", _curves(comparison, table)
    if any(table.baseline for table in comparison.tables):
        yield "differences", _differences(comparison)
    # Entropy and loss of supervised training are taken on the targets: another quantity.
    curves = {train.name: {} if train.method == "sft" else read_curves(train) for train in comparison.trains}
    if any(key in found for found in curves.values() for key in PANELS):
        yield "training", _training(comparison, curves)


def _styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Line style of each run, and of each train run (that of the eval run made from it)."""
    names = [run.name for run in comparison.runs]
    owner = {run.train.name: run.name for run in comparison.runs if run.train}
    names += [train.name for train in comparison.trains if owner.get(train.name, train.name) not in names]
    found = {name: {"color": COLOURS[i % 8], "linestyle": DASHES[i % 8]} for i, name in enumerate(names)}
    return found | {train: found[run] for train, run in owner.items()}


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, max(1, len(labels))))


def _curves(comparison: Comparison, table: Any) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    panels = figure.subplots(1, 2)
    labels, styles = methods(comparison), _styles(comparison)
    found = curves_over_k(comparison, table)
    for axes, metric in zip(panels, (PASS, MAJ), strict=True):
        for run in table.runs:
            mean, low, high = 100 * np.array(found[run][metric]).T
            k = np.arange(1, mean.size + 1)
            axes.plot(k, mean, label=labels[run], linewidth=1.7, **styles[run])
            axes.fill_between(k, low, high, color=styles[run]["color"], alpha=0.12, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("k")
        axes.set_title(f"{metric}, %")
    figure.suptitle(
        f"{table.benchmark}: {table.questions:,} questions, n = {table.samples}, {comparison.scoring}", fontsize=9
    )
    _legend(figure, panels[0])
    return figure


def _differences(comparison: Comparison) -> Figure:
    from matplotlib.figure import Figure

    tables = [table for table in comparison.tables if table.baseline and not table.group]
    top = {table.benchmark: max(column.k for column in table.columns) for table in tables}
    labels, styles = methods(comparison), _styles(comparison)
    rows = max(len(table.runs) - 1 for table in tables)
    figure = Figure(figsize=(8.4, 0.9 + len(tables) * (0.55 + 0.26 * rows)), layout="constrained")
    grid = figure.subplots(len(tables), 4, squeeze=False, sharex="row")
    for line, table in zip(grid, tables, strict=True):
        best = top[table.benchmark]
        wanted = [Column(PASS, 1), Column(MAJ, best), Column(PASS, best), Column(FORMAT, 0)]
        others = [run for run in table.runs if run != table.baseline]
        for i, (axes, column) in enumerate(zip(line, wanted, strict=True)):
            axes.axvline(0, color="#918c83", linewidth=1)
            for y, run in enumerate(others):
                cell = table.cells.get((run, column))
                if cell is None or cell.paired is None:
                    continue
                d = cell.paired
                axes.plot([100 * d.low, 100 * d.high], [y, y], color=styles[run]["color"], linewidth=2.2)
                face = styles[run]["color"] if cell.significant else "white"
                axes.plot(
                    [100 * d.difference], [y], "o", color=styles[run]["color"], markerfacecolor=face, markersize=6
                )
            axes.set_yticks(range(len(others)), [labels[run] for run in others] if i == 0 else [""] * len(others))
            axes.set_ylim(len(others) - 0.5, -0.5)
            axes.set_title(f"{table.benchmark if i == 0 else ''}\n{column.label}")
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="y", visible=False)
    note = f"points against {comparison.baseline}; filled: significant after Holm's correction"
    figure.supxlabel(note, fontsize=8)
    return figure


def _training(comparison: Comparison, curves: dict[str, Any]) -> Figure:
    from matplotlib.figure import Figure

    titles = {metric.key: metric for metric in METRICS}
    panels = [key for key in PANELS if any(key in found for found in curves.values())]
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
        for train in comparison.trains:
            curve = curves[train.name].get(key)
            if curve is None:
                continue
            color = styles[train.name]["color"]
            window = max(1, curve.values.size // 25)
            axes.plot(curve.steps, scale * curve.values, color=color, alpha=0.18, linewidth=0.7)
            axes.plot(
                curve.steps, scale * curve.smoothed(window), linewidth=1.6, label=train.name, **styles[train.name]
            )
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
    handles: dict[Any, Any] = {}
    for axes in grid[: len(panels)]:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=min(4, max(1, len(handles))))
    return figure
