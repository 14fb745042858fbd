"""A comparison in tables: each is made once, and written for the terminal, as Markdown and (latex.py) as LaTeX."""

from __future__ import annotations

import re
from textwrap import fill, wrap
from typing import TYPE_CHECKING, NamedTuple

from gtpo.common.terminal import stacked
from gtpo.evalkit.comparison.columns import METRICS, Column
from gtpo.evalkit.comparison.compare import MethodComparison, Table
from gtpo.evalkit.comparison.training_curves import summary
from gtpo.evalkit.comparison.verdicts import BETTER, EQUIVALENT, WORSE, Cell
from gtpo.evalkit.report.summary import answer, caption, legend, short_legend
from gtpo.evalkit.report.text import (
    bounds,
    change,
    covers,
    difference,
    header,
    interval,
    p_text,
    percent,
    spread,
    visible,
)

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

STYLES = {BETTER: "bold green", WORSE: "bold red", EQUIVALENT: "bold"}


class Grid(NamedTuple):
    """One table: a name, a title, the head, and rows of texts and cells; None is a cell that has no value."""

    name: str
    title: str
    head: list[str]
    rows: list[list[str | Cell | None]]


def paper_grids(comparison: MethodComparison) -> list[Grid]:
    """The tables for a paper: one a metric, methods by benchmarks."""
    found = []
    tables = comparison.benchmarks
    average = ["average"] * (len(tables) > 1)
    head = ["method", *(f"{visible(table.benchmark)} ({table.questions:,})" for table in tables), *average]
    for column in comparison.metrics if comparison.tables else []:
        rows: list[list[str | Cell | None]] = [
            [name_text(comparison, method.name), *(table.cells.get((method.name, column)) for table in tables),
             *(average_text(comparison, method.name, column) for _ in average)]
            for method in comparison.methods
        ]  # fmt: skip
        found.append(Grid(column.label, caption(comparison, column), head, rows))
    return found


def detail_grids(comparison: MethodComparison, details: bool) -> list[Grid]:
    """The tables behind them: every test, every column of a benchmark, the end of training; else what was asked for."""
    found = [grid] if details and (grid := _test_grid(comparison)).rows else []
    for table in comparison.tables if details else [table for table in comparison.tables if table.group]:
        for metric in METRICS:
            columns = [column for column in table.columns if column.metric == metric]
            rows: list[list[str | Cell | None]] = [
                [name_text(comparison, name), *(table.cells[name, column] for column in columns)]
                for name in table.methods
            ]
            if columns:
                head = ["method", *(column.label for column in columns)]
                found.append(Grid(f"{table.title} {metric.title}", f"{header(table)}: {metric.title}", head, rows))
    if comparison.trained and (details or not comparison.tables):
        found.append(_training_grid(comparison))
    return found


def _test_grid(comparison: MethodComparison) -> Grid:
    head = ["method", "benchmark", "verdict", "difference", "p, Holm", "p", "p, equivalent", "covers", "t, df", "seeds"]
    rows: list[list[str | Cell | None]] = []
    for method in comparison.methods:
        for table in comparison.benchmarks:
            cell = table.cells.get((method.name, comparison.metrics[0]))
            if cell is None or cell.paired is None or cell.verdict is None:
                continue
            d = cell.paired
            given = [str(count) if count else "given" for count in d.seeds]
            seeds = f"{given[0]} against {given[1]}{', paired' * d.seeds_paired}" if d.known else "not known"
            rows.append([
                visible(method.name), visible(table.benchmark), cell.verdict, difference(d),
                *("–" if p is None else p_text(p).removeprefix("p ").removeprefix("= ")
                  for p in (cell.p_corrected, float(d.p_value), cell.p_equivalent)),
                covers(d), f"{d.freedom:.1f}", seeds,
            ])  # fmt: skip
    return Grid("tests", "Primary comparisons: what each test covers", head, rows)


def _training_grid(comparison: MethodComparison) -> Grid:
    head = ["method", "run", "seed", "preset", "steps", "accuracy reward", "best (step)", "format reward",
            "entropy, nats", "kept %", "conflict %"]  # fmt: skip
    rows: list[list[str | Cell | None]] = []
    for method in comparison.trained:
        for member in method.members:
            if member.train is None:
                continue
            end = summary(member.train)

            def show(key: str, scale: float = 1.0, digits: int = 2, end: dict[str, float | None] = end) -> str:
                value = end.get(key)
                return "–" if value is None else f"{scale * value:.{digits}f}"

            best = "–" if end.get("best accuracy") is None else f"{show('best accuracy')} ({show('best step', 1, 0)})"
            rows.append([
                visible(method.name), visible(member.train.name) + " (collapsed)" * member.train.collapsed,
                member.seed or "–", member.train.preset, show("steps", 1, 0),
                show("reward/accuracy"), best, show("reward/format"), show("entropy/mean", 1, 3),
                show("gate/kept", 100, 1), show("conflict/fraction", 100, 1),
            ])  # fmt: skip
    return Grid("training", "Training: mean of the last tenth of the steps", head, rows)


def average_text(comparison: MethodComparison, method: str, column: Column) -> str:
    """45.2 ±0.4, or a dash if a benchmark is missing."""
    found = comparison.average(method, column)
    if found is None:
        return "–"
    return percent(found[0]) + ("" if found[1] is None else f" ±{percent(found[1])}")


def name_text(comparison: MethodComparison, method: str, *, baseline: bool = True) -> str:
    """`gtpo · 5 seeds (baseline)`: a method, how many seeds it has, and whether it is the baseline."""
    found = next(m for m in comparison.methods if m.name == method)
    label = visible(method)
    if found.preset and found.preset.lower() not in method.lower():
        label += f" ({visible(found.preset)})"
    label += f" · {found.counted}" * bool(found.counted)
    lost = sum(train.collapsed for train in found.trains)
    label += f" · {lost} collapsed" * bool(lost)
    return label + ("  (baseline)" if baseline and method == comparison.baseline else "")


def as_rich(comparison: MethodComparison, width: int = 160, *, details: bool = False, explain: bool = False) -> Group:
    """The terminal's version: the verdicts, one table, and how to read it."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(line, style=STYLES.get(verdict, "default")) for verdict, line in answer(comparison)
    ]
    parts += [Text(f"note: {visible(note)}", style="yellow") for note in comparison.all_notes]
    metrics = comparison.metrics if details or comparison.metrics_chosen else comparison.metrics[:1]
    for column in metrics if comparison.tables else []:
        parts += _short_grids(comparison, column, width)
    for grid in detail_grids(comparison, details):
        parts += [Text(""), _rich_grid(grid, width)]
    if comparison.tables:
        lines = legend(comparison) if explain else [short_legend(comparison)]
        more = " --explain" * (not explain)
        lines.append(f"More:{' --details' * (not details)}{more} --html page.html")
        parts += [Text(line, style="dim") for line in lines]
    return Group(*parts)


def _short_grids(comparison: MethodComparison, column: Column, width: int) -> list[RenderableType]:
    """One metric: for each benchmark a line of what was measured and a row for each method."""
    from rich.table import Table as Grid
    from rich.text import Text

    names = {method.name: name_text(comparison, method.name, baseline=False) for method in comparison.methods}
    rows: list[tuple[Table, list[tuple[str, str, str, Cell]]]] = []
    for table in comparison.benchmarks:
        found = []
        for name in table.methods:
            cell = table.cells.get((name, column))
            if cell is not None:
                value = " ".join(filter(None, (percent(cell.value.mean), interval(cell.value), bounds(cell))))
                against = "baseline" if name == table.baseline else change(cell)
                found.append((names[name], value, against, cell))
        rows.append((table, found))
    values, changes = (max((len(str(row[i])) for _, found in rows for row in found), default=0) for i in (1, 2))
    room = max(12, min(max(map(len, names.values()), default=0), width - values - changes - 6))
    parts: list[RenderableType] = []
    for table, found in rows:
        parts.append(Text(f"{column.label}, %   {header(table)}, {comparison.scoring}", style="bold"))
        grid = Grid.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=room + 2, overflow="fold")
        grid.add_column(min_width=values, no_wrap=True)
        grid.add_column(min_width=changes, no_wrap=True)
        for name, value, against, cell in found:
            style = STYLES.get(cell.verdict or "", "")
            grid.add_row(Text("\n".join(f"  {line}" for line in wrap(name, room))), value, Text(against, style=style))
        parts.append(grid)
    return parts


def _rich_grid(grid: Grid, width: int) -> Group:
    """A table in pieces that fit, each with what the rows are."""
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    figures = any(isinstance(value, Cell) for row in grid.rows for value in row)
    keep = 1 if figures else 2
    drawn = Grid(title=grid.title, title_justify="left", title_style="bold")
    for place, name in enumerate(grid.head):
        right = figures and place >= keep
        drawn.add_column(name, overflow="fold", justify="right" if right else "left", no_wrap=right)
    for row in grid.rows:
        drawn.add_row(*(
            _rich_cell(value) if isinstance(value, Cell)
            else Text(fill(value or "–", max(20, width - 40)) if figures else value or "–")
            for value in row
        ))  # fmt: skip
    return Group(*stacked(drawn, width, keep=keep))


def _rich_cell(cell: Cell) -> Text:
    from rich.text import Text

    style = STYLES.get(cell.verdict or "", "")
    seeds = f" {spread(cell.value)}" if cell.value.seed_sd is not None else ""
    text = Text.assemble(percent(cell.value.mean), seeds, " ", (interval(cell.value), "dim"))
    if cell.bounds is not None:
        text.append(f" {bounds(cell)}", style="dim")
    if cell.paired is not None:
        text.append(f"\n{change(cell)}", style=style or "dim")
    return text


def escaped(text: str) -> str:
    """Text inside a Markdown table: no markup, no cell border, no second line."""
    return re.sub(r"([\\|*_<>`\[\]~#&!])", r"\\\1", visible(text))


def as_markdown(comparison: MethodComparison, *, details: bool = False) -> str:
    """GitHub-flavoured Markdown, as for a pull request: the verdicts, one table a metric, details folded away."""
    lines = [f"- {f'**{escaped(line)}**' if verdict else escaped(line)}" for verdict, line in answer(comparison)]
    lines += [f"\n> **Note:** {escaped(note)}" for note in comparison.all_notes]
    for grid in paper_grids(comparison):
        lines += ["", f"**{escaped(grid.title)}**", "", *_markdown_grid(grid)]
    for grid in detail_grids(comparison, details):
        summary = f"<details><summary>{escaped(grid.title)}</summary>"
        lines += ["", summary, "", *_markdown_grid(grid), "", "</details>"]
    if comparison.tables:
        lines += ["", escaped(short_legend(comparison))]
    return "\n".join(lines).strip() + "\n"


def _markdown_grid(grid: Grid) -> list[str]:
    rows = [[_markdown_cell(v) if isinstance(v, Cell) else escaped(v or "–") for v in row] for row in grid.rows]
    head, *body = (f"| {' | '.join(row)} |" for row in ([*map(escaped, grid.head)], *rows))
    return [head, f"|:--|{'--:|' * (len(grid.head) - 1)}", *body]


def _markdown_cell(cell: Cell) -> str:
    text = " ".join(
        part for part in (percent(cell.value.mean), spread(cell.value), interval(cell.value), bounds(cell)) if part
    )
    if cell.paired is None:
        return text
    p = f", {p_text(cell.p_corrected)}" if cell.p_corrected is not None else ""
    return f"{text}<br>**{change(cell)}**{p}" if cell.direction else f"{text}<br>{change(cell)}{p}"
