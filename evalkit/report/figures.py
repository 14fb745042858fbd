"""The figures of `gtpo compare --figures`: PDF, SVG and PNG, as in the paper's figures 1, 2, 3, 4 and 10.

curves-<benchmark>: pass@k and maj@k over k (2 below, 3). differences: those to the baseline, on all benchmarks.
training: PANELS over the steps, with a band from the least to the largest seed of a method (1, 2 above, 4, 10).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gtpo.common.errors import UserError
from gtpo.common.files import write_bytes
from gtpo.common.terminal import visible
from gtpo.evalkit.comparison.columns import METRICS
from gtpo.evalkit.comparison.compare import MethodComparison
from gtpo.evalkit.comparison.questions import Table
from gtpo.evalkit.comparison.training_curves import CURVES, LN2, Band, TrainingMetric, bands, read_curves, running_mean
from gtpo.evalkit.report.page import POINTS, curve_ks, curves_over_k

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A method's name, x, its mean with the ends of the band over x, and how it is drawn.
Line = tuple[str, Any, Any, dict[str, Any]]
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
                out = io.BytesIO()
                figure.savefig(out, format=kind, metadata=metadata)
                written.append(folder / f"{name}.{kind}")
                write_bytes(written[-1], out.getvalue())
    if not written:
        raise UserError("--figures: these runs hold neither evaluations nor training metrics to draw")
    return written


def _figures(comparison: MethodComparison) -> Iterator[tuple[str, Figure]]:
    """Yield (file name, figure)."""
    names = dict.fromkeys(method.name for method in (*comparison.methods, *comparison.trained))
    styles = {name: {"color": COLOURS[i % 8], "linestyle": DASHES[i % 8]} for i, name in enumerate(names)}
    for table in comparison.benchmarks:
        name = re.sub(r"[^\w.-]+", "-", table.benchmark)
        yield f"curves-{name}", _curves(table, comparison.scoring, styles)
    if any(table.baseline for table in comparison.benchmarks):
        yield "differences", _differences(comparison, styles)
    # Entropy and loss of supervised training are taken on the targets: another quantity.
    rl = [method for method in comparison.trained if not any(train.preset == "sft" for train in method.trains)]
    by_method = {method.name: bands(list(map(read_curves, method.trains)), POINTS) for method in rl}
    if drawn := [one for one in CURVES if one.key in PANELS and any(one.key in of for of in by_method.values())]:
        yield "training", _training(drawn, by_method, styles)


def _panels(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, each of this size in inches."""
    from matplotlib.figure import Figure

    lines = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * lines + 0.5), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel().tolist()
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _draw(figure: Figure, panels: Sequence[Axes], lines: Sequence[Sequence[Line]]) -> None:
    """Draw the lines of each panel with their bands, and one legend for all."""
    handles: dict[str, Any] = {}
    for axes, of_panel in zip(panels, lines, strict=True):
        for name, x, (mean, low, high), style in of_panel:
            (handles[label(name)],) = axes.plot(x, mean, linewidth=1.7, **style)
            axes.fill_between(x, low, high, color=style["color"], alpha=0.13, linewidth=0)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=min(4, max(1, len(handles))))


def _curves(table: Table, scoring: str, styles: dict[str, dict[str, Any]]) -> Figure:
    by_k, ks, curves = [metric for metric in METRICS if metric.by_k], curve_ks(table), curves_over_k(table)
    figure, panels = _panels(len(by_k), len(by_k), 3.6, 2.7)
    _draw(figure, panels, [
        [(name, ks, 100 * np.array(of[metric.name]).T, styles[name]) for name, of in curves.items()] for metric in by_k
    ])  # fmt: skip
    for axes, metric in zip(panels, by_k, strict=True):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("k")
        axes.set_title(f"{metric.title}, %")
    about = f"{table.questions:,} questions, n = {table.samples}, {scoring}"
    figure.suptitle(f"{label(table.benchmark)}: {about}", fontsize=9)
    return figure


def _differences(comparison: MethodComparison, styles: dict[str, dict[str, Any]]) -> Figure:
    tables, primary = [table for table in comparison.benchmarks if table.baseline], comparison.metrics[0]
    figure, panels = _panels(len(tables), 1, 5.5, 0.55 + 0.26 * max(len(table.sides) for table in tables))
    for axes, table in zip(panels, tables, strict=True):
        others = [name for name in table.sides if name != table.baseline]
        axes.axvline(0, color="#918c83", linewidth=1)
        for y, name in enumerate(others):
            cell, color = table.cells[name, primary], styles[name]["color"]
            if (d := cell.paired) is not None:
                axes.plot([100 * d.low, 100 * d.high], [y, y], color=color, linewidth=2.2)
                face = color if cell.direction else "white"
                axes.plot([100 * d.difference], [y], "o", color=color, markerfacecolor=face, markersize=6)
        axes.set_yticks(range(len(others)), map(label, others))
        axes.set_ylim(len(others) - 0.5, -0.5)
        axes.set_title(label(table.benchmark))
        axes.grid(axis="y", visible=False)
    note = f"points against {label(str(comparison.baseline))}; filled: differs after Holm's correction"
    figure.supxlabel(f"{primary.label}: {note}", fontsize=8)
    return figure


def _training(
    metrics: list[TrainingMetric], by_method: dict[str, dict[str, Band]], styles: dict[str, dict[str, Any]]
) -> Figure:
    lines: list[list[Line]] = []
    for metric in metrics:
        lines.append([])
        for name, band in ((name, of[metric.key]) for name, of in by_method.items() if metric.key in of):
            window, scale = max(1, band.mean.size // 25), 100 if metric.unit == "share" else 1
            curve = [scale * running_mean(values, window) for values in band[1:4]]
            lines[-1].append(
                (f"{name} ({band.seeds} seeds)" if band.seeds > 1 else name, band.steps, curve, styles[name])
            )
    figure, panels = _panels(len(metrics), min(3, len(metrics)), 2.9, 2.4)
    _draw(figure, panels, lines)
    for axes, metric in zip(panels, metrics, strict=True):
        if metric.key == "entropy/mean":
            axes.axhline(LN2, color="#b3341f", linestyle="--", linewidth=1)
            at = (1, LN2)
            axes.annotate("ln 2", at, xycoords=("axes fraction", "data"), ha="right", va="bottom", color="#b3341f")
        if metric.unit == "share":
            axes.set_ylim(max(axes.get_ylim()[0], -2), min(axes.get_ylim()[1], 102))
        axes.set_title(", ".join(filter(None, (metric.title, "%" if metric.unit == "share" else metric.unit))))
        axes.set_xlabel("step")
    return figure
