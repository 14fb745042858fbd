"""A comparison in tables: each is one grid of typed cells, which the writers and the page draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from gtpo.common.terminal import visible
from gtpo.evalkit.comparison.columns import METRICS, Column, round_half_up
from gtpo.evalkit.comparison.compare import BETTER, EQUIVALENT, WORSE, Cell, MethodComparison, Table
from gtpo.evalkit.comparison.training_curves import end_of_training
from gtpo.evalkit.design import Design, Estimate, Noise, parts, strength
from gtpo.evalkit.statistics import METHODS, PairedDifference

MARKS = {BETTER: "▲", WORSE: "▼", EQUIVALENT: "≈"}


class MethodName(NamedTuple):
    """A method at the head of its row."""

    method: str
    text: str
    role: str

    def __str__(self) -> str:
        return self.text + self.role


class Texts(NamedTuple):
    """A figure as it is written: 45.2, ±0.8, [43.1, 47.3], {41.9, 43.1}, +2.1 [+0.7, +3.5] ▲.

    spread: over seeds. bounds: what missing samples could make of it. What it does not have is empty.
    """

    value: str
    spread: str
    interval: str
    bounds: str
    change: str


class Figure(NamedTuple):
    """What was measured of a method: its cell in one column of a benchmark."""

    table: Table
    method: str
    column: Column

    @property
    def cell(self) -> Cell:
        """Return the numbers."""
        return self.table.cells[self.method, self.column]

    @property
    def texts(self) -> Texts:
        """Return how they are written."""
        text, cell, (value, low, high, *_) = self.column.metric.text, self.cell, self.cell.value
        sd = math.nan if cell.value.seed_sd is None else cell.value.seed_sd
        return Texts(
            text(value),
            "" if math.isnan(sd) else f"±{text(sd)}",
            "" if math.isnan(low) else f"[{text(low)}, {text(high)}]",
            "" if cell.bounds is None else f"{{{text(cell.bounds[0])}, {text(cell.bounds[1])}}}",
            "" if cell.paired is None else f"{difference(cell.paired)} {MARKS.get(cell.verdict or '', '')}".rstrip(),
        )


# None: there is no value.
Entry = str | MethodName | Figure | None


class Grid(NamedTuple):
    """One table."""

    name: str
    title: str
    head: list[str]
    rows: Sequence[Sequence[Entry]]
    # What its columns are, if it is one of several tables of a benchmark.
    section: str = ""


def paper_grids(comparison: MethodComparison) -> list[Grid]:
    """Return the tables for a paper: one a metric, methods by benchmarks."""
    tables = comparison.benchmarks
    several = len(tables) > 1
    head = ["method", *(f"{visible(table.benchmark)} ({table.questions:,})" for table in tables)]
    return [
        Grid(column.label, caption(comparison, column), head + ["average"] * several, [
            [method_name(comparison, method.name), *(_figure(table, method.name, column) for table in tables),
             *[average(comparison, method.name, column)] * several]
            for method in comparison.methods
        ])
        for column in comparison.metrics if comparison.tables
    ]  # fmt: skip


def section_grids(comparison: MethodComparison, table: Table) -> list[Grid]:
    """Return every column of a benchmark: one table a metric."""
    grids = []
    for title in dict.fromkeys(metric.title for metric in METRICS):
        if columns := [column for column in table.columns if column.metric.title == title]:
            rows = [
                [method_name(comparison, name), *(_figure(table, name, column) for column in columns)]
                for name in table.methods
            ]
            head, over = ["method", *(column.label for column in columns)], f"{header(table)}: {title}"
            grids.append(Grid(f"{table.title} {title}", over, head, rows, title))
    noise = None if table.group else _noise_grid(comparison, table)
    return [*grids, noise] if noise and noise.rows else grids


def _noise_grid(comparison: MethodComparison, table: Table) -> Grid:
    """What questions, samples and seeds add to each primary comparison, and what twice as many would buy."""
    column, rows = comparison.metrics[0], []
    for name in table.methods:
        if (cell := table.cells.get((name, column))) and cell.noise:
            rows += [[visible(name), *line] for line in _sources(*cell.noise)]
    head = ["method", "noise", "points (80 % range)", "of the variance", "seen with 80 %", "with twice as many"]
    title = f"{header(table)}: where the noise of a difference in {column.label} comes from"
    return Grid(f"{table.title} noise", title, head, rows, "noise")


def _sources(noise: Noise, design: Design) -> Iterator[list[str]]:
    """Yield a row for each source: the standard deviation that it gives to a difference, and its share of V."""
    every = [parts(noise, design, end) for end in range(3)]
    total = sum(max(part, 0.0) for part in every[0]) or 1.0
    planned = noise.at_least_zero(design)
    now = strength(planned, design).detectable()
    names = {"questions": "questions", "samples": "samples", "seeds": "seeds"}
    if noise.samples is None:
        names = {"questions": "questions and samples", "seeds": "seeds"}
    for source, name in names.items():
        if source != "seeds" or noise.training is not None:
            twice = strength(planned, design._replace(**{source: 2 * getattr(design, source)})).detectable()
            mean, low, high = (max(getattr(each, source), 0.0) for each in every)
            yield [
                name, points_text(Estimate(*(math.sqrt(variance) for variance in (mean, low, high)))),
                f"{100 * mean / total:.0f} %", points_text(Estimate.exactly(now)), points_text(Estimate.exactly(twice)),
            ]  # fmt: skip


def detail_grids(comparison: MethodComparison, details: bool) -> list[Grid]:
    """Return the tables behind those for a paper: every test, every column, the end of training.

    Without details, what was asked for: subjects; training if nothing was evaluated.
    """
    grids = [grid] if details and (grid := _test_grid(comparison)).rows else []
    for table in comparison.tables:
        grids += section_grids(comparison, table) if details or table.group else []
    if comparison.trained and (details or not comparison.tables):
        grids.append(_training_grid(comparison))
    return grids


def _figure(table: Table, method: str, column: Column) -> Figure | None:
    return Figure(table, method, column) if (method, column) in table.cells else None


def _test_grid(comparison: MethodComparison) -> Grid:
    head = ["method", "benchmark", "verdict", "difference", "p, Holm", "p", "p, equivalent", "covers", "t, df", "seeds"]
    rows: list[list[Entry]] = []
    for method in comparison.methods:
        for table in comparison.benchmarks:
            cell = table.cells.get((method.name, comparison.metrics[0]))
            if cell is None or cell.paired is None or cell.verdict is None:
                continue
            d = cell.paired
            a, b = (str(count) if count else "given" for count in d.seeds)
            rows.append([
                visible(method.name), visible(table.benchmark), cell.verdict, difference(d),
                *(None if p is None else p_text(p).removeprefix("p ").removeprefix("= ")
                  for p in (cell.p_corrected, float(d.p_value), cell.p_equivalent)),
                covers(d), f"{d.freedom:.1f}",
                f"{a} against {b}{', paired' * d.seeds_paired}" if d.known else "not known",
            ])  # fmt: skip
    return Grid("tests", "Primary comparisons: what each test covers", head, rows)


# Column -> how it is written, by the names of `end_of_training`.
_TRAINING = {
    "steps": "{steps:.0f}", "accuracy reward": "{reward/accuracy:.2f}",
    "best (step)": "{best accuracy:.2f} ({best step:.0f})", "format reward": "{reward/format:.2f}",
    "entropy, nats": "{entropy/mean:.3f}", "kept %": "{gate/kept:.1%}", "conflict %": "{conflict/fraction:.1%}",
}  # fmt: skip


def _training_grid(comparison: MethodComparison) -> Grid:
    rows: list[list[Entry]] = []
    for name, member in ((method.name, member) for method in comparison.trained for member in method.members):
        if (train := member.train) is not None:
            end = {"best accuracy": None, "best step": None} | end_of_training(train)
            end = {key: math.nan if value is None else value for key, value in end.items()}
            texts = (text.format_map(end).removesuffix("%") for text in _TRAINING.values())
            rows.append([
                visible(name), visible(train.name) + " (collapsed)" * train.collapsed, member.seed, train.preset,
                *(None if "nan" in text else text for text in texts),
            ])  # fmt: skip
    head = ["method", "run", "seed", "preset", *_TRAINING]
    return Grid("training", "Training: mean of the last tenth of the steps", head, rows)


def records(comparison: MethodComparison) -> list[dict[str, Any]]:
    """Return one flat record for each figure, for programs; None if there is no value."""
    presets = {method.name: method.preset for method in comparison.methods}
    out = []
    for table in comparison.tables:
        for (name, column), cell in table.cells.items():
            d, value, bounds = cell.paired, cell.value, cell.bounds or (None, None)
            record = {
                "benchmark": table.benchmark, "group": table.group or None, "method": name,
                "preset": presets[name] or None, "runs": len(table.parts[name]),
                "metric": column.metric.name, "k": column.k or None,
                "unit": "fraction" if column.metric.unit == "%" else column.metric.unit,
                "scoring": comparison.scoring, "questions": table.questions, "samples": table.samples,
                "mean": value.mean, "low": value.low, "high": value.high, "covers_training": value.covers_training,
                "worst": bounds[0], "best": bounds[1], "seed_sd": value.seed_sd,
                "baseline": d and table.baseline, "family": d and ("primary" if cell.primary else "exploratory"),
                "verdict": cell.verdict, "speaks_of": d and d.scope, "judged": d and d.judged,
                "difference": d and d.difference, "se": d and d.se, "freedom": d and d.freedom,
                "difference_low": d and d.low, "difference_high": d and d.high, "interval_level": d and d.level,
                "seeds_paired": d and d.seeds_paired, "covers": d and covers(d), "p": d and d.p_value,
                "p_holm": cell.p_corrected, "margin": comparison.margin if cell.primary else None,
                "p_equivalent": cell.p_equivalent, "significant": bool(cell.direction) if d and cell.primary else None,
                "checkpoints": cell.checkpoints, "checkpoints_move": cell.selected if d else None,
                "only_method": d and d.only_a, "only_baseline": d and d.only_b,
            }  # fmt: skip
            out.append({key: plain(value) for key, value in record.items()})
    return out


def plain(value: Any) -> Any:
    """Return numpy's number as Python's; None for one that is not finite, which JSON does not have."""
    value = value.item() if isinstance(value, np.generic | np.ndarray) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def average(comparison: MethodComparison, method: str, column: Column) -> str | None:
    """Return `45.2 ±0.4`, a method's mean over the benchmarks; None if one is missing."""
    mean, text = comparison.average(method, column), column.metric.text
    return None if mean is None else text(mean[0]) + ("" if mean[1] is None else f" ±{text(mean[1])}")


def method_name(comparison: MethodComparison, name: str) -> MethodName:
    """Return `gtpo · 5 seeds`: a method, and how many seeds it has."""
    method = next(m for m in comparison.methods if m.name == name)
    text = visible(name)
    if method.preset and method.preset.lower() not in name.lower():
        text += f" ({visible(method.preset)})"
    text += f" · {method.counted}" * bool(method.counted)
    lost = sum(train.collapsed for train in method.trains)
    text += f" · {lost} collapsed" * bool(lost)
    return MethodName(name, text, "  (baseline)" * (name == comparison.baseline))


def caption(comparison: MethodComparison, column: Column) -> str:
    """Return `pass@1, %, scoring strict; differences in points against grpo`."""
    role = "" if column == comparison.metrics[0] else "; not tested"
    base = comparison.baseline if column.metric.tested else None
    against = f"; differences in points against {visible(base)}" if base else ""
    return f"{column.label}, {column.metric.unit}, scoring {comparison.scoring}{against}{role}"


def header(table: Table) -> str:
    """Return `gsm8k: 1,319 questions, 64 samples each`."""
    questions, samples = (
        f"{n:,} {what}{'s' * (n != 1)}" for n, what in ((table.questions, "question"), (table.samples, "sample"))
    )
    return f"{visible(table.title)}: {questions}, {samples} each"


def signed(value: SupportsFloat) -> str:
    """Return +2.1 for 0.021; +0.0 for what rounds to nothing."""
    text = round_half_up(100 * float(value), 1)
    return ("-" if float(value) < 0 and text != "0.0" else "+") + text


def difference(paired: PairedDifference, unit: str = "") -> str:
    """Return +2.1 [+0.7, +3.5]; with a unit +2.1 points [+0.7, +3.5]."""
    return f"{signed(paired.difference)}{unit} [{signed(paired.low)}, {signed(paired.high)}]"


def points(value: float) -> str:
    """Return 2 for 0.02, 0.5 for 0.005: a margin or a planned difference as it was given."""
    return f"{100 * value:.4g}"


def points_text(spread: Estimate) -> str:
    """Return `4.2 (3.1 to 6.0)`: points that are seen."""
    mean, low, high = (f"{100 * one:.1f}" if one <= 1 else "over 100" for one in spread)
    return mean if low == high else f"{mean} ({low} to {high})"


def p_text(p: float) -> str:
    """Return `p = 0.031`, `p = 0.0004`, `p < 0.0001`."""
    return "p < 0.0001" if p < 1e-4 else f"p = {round_half_up(p, 2 if p >= 0.1 else 3 if p >= 0.001 else 4)}"


def covers(paired: PairedDifference) -> str:
    """Return what the test of a difference covers."""
    return "seeds, questions and samples" if paired.scope == METHODS else "questions and samples"


def join_names(names: Iterable[str]) -> str:
    """Return `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
