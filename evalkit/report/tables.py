"""A comparison in the terminal and as Markdown: the table for a paper first, then, if asked for, the details."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill, wrap
from typing import TYPE_CHECKING

from gtpo.common.terminal import stacked
from gtpo.evalkit.comparison.compare import MethodComparison, Table
from gtpo.evalkit.comparison.verdicts import BETTER, EQUIVALENT, FORMAT, MAJ, PASS, WORSE, Cell, Column
from gtpo.evalkit.report.summary import Rows, answer, caption, legend, short_legend, test_rows, training_rows
from gtpo.evalkit.report.text import bounds, change, header, interval, p_text, percent, spread, visible

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

STYLES = {BETTER: "bold green", WORSE: "bold red", EQUIVALENT: "bold"}
SECTIONS = {PASS: "pass@k", MAJ: "maj@k", FORMAT: "format rate"}


def sections(table: Table) -> list[tuple[str, list[Column]]]:
    """(metric, its columns): pass@k, maj@k, format rate, as far as there are any."""
    found = [(metric, [column for column in table.columns if column.metric == metric]) for metric in SECTIONS]
    return [(metric, columns) for metric, columns in found if columns]


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
    if len(found.runs) > 1:
        label += f" · {len(found.runs)} seeds"
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
    if details:
        head, rows = test_rows(comparison)
        if rows:
            parts += [Text(""), _grid("primary comparisons: what each test covers", head, rows, width, keep=2)]
    for table in comparison.tables if details else [table for table in comparison.tables if table.group]:
        parts += [Text(""), *_details_grid(comparison, table, width)]
    if comparison.trained and (details or not comparison.tables):
        title = "training: mean of the last tenth of the steps"
        parts += [Text(""), _grid(title, *training_rows(comparison), width, keep=2)]
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


def _details_grid(comparison: MethodComparison, table: Table, width: int) -> list[Group]:
    """Every column of one benchmark: pass@k, maj@k, format rate, each as wide as it may be."""
    grids: list[Group] = []
    for metric, columns in sections(table):
        rows: list[list[Text | str]] = [
            [name_text(comparison, name), *(_rich_cell(table.cells[name, column]) for column in columns)]
            for name in table.methods
        ]
        title = header(table) if not grids else ""
        grids.append(_grid(title, [SECTIONS[metric], *(column.label for column in columns)], rows, width, numbers=True))
    return grids


def _grid(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Text | str]],
    width: int,
    *,
    keep: int = 1,
    numbers: bool = False,
) -> Group:
    """A table in pieces that fit, the first `keep` columns in each. numbers: the others are figures."""
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(title=title or None, title_justify="left", title_style="bold")
    for place, name in enumerate(head):
        figures = numbers and place >= keep
        grid.add_column(name, overflow="fold", justify="right" if figures else "left", no_wrap=figures)
    for row in rows:
        texts = (fill(value, max(20, width - 40)) if numbers and isinstance(value, str) else value for value in row)
        grid.add_row(*(Text(value) if isinstance(value, str) else value for value in texts))
    return Group(*stacked(grid, width, keep=keep))


def escaped(text: str) -> str:
    """Text inside a Markdown table: no markup, no cell border, no second line."""
    text = visible(text)
    for mark in "\\|*_<>`[]~#&!":
        text = text.replace(mark, f"\\{mark}")
    return text


def as_markdown(comparison: MethodComparison, *, details: bool = False) -> str:
    """GitHub-flavoured Markdown, as for a pull request: the verdicts, one table a metric, details folded away."""
    lines = [f"- {f'**{escaped(line)}**' if verdict else escaped(line)}" for verdict, line in answer(comparison)]
    lines += [f"\n> **Note:** {escaped(note)}" for note in comparison.all_notes]
    for column in comparison.metrics if comparison.tables else []:
        heads = [f"{escaped(table.benchmark)} ({table.questions:,})" for table in comparison.benchmarks]
        average = len(heads) > 1
        heads += ["average"] * average
        lines += ["", f"**{escaped(caption(comparison, column))}**", "", *_rows(["method", *heads])]
        for method in comparison.methods:
            cells = [_markdown_cell(table, method.name, column) for table in comparison.benchmarks]
            cells += [average_text(comparison, method.name, column)] * average
            lines.append(_row([escaped(name_text(comparison, method.name)), *cells]))
    parts: list[tuple[str, Rows]] = []
    head, rows = test_rows(comparison)
    if details and rows:
        parts.append(("Primary comparisons: what each test covers", (head, [list(map(escaped, row)) for row in rows])))
    for table in comparison.tables if details else [table for table in comparison.tables if table.group]:
        for metric, columns in sections(table):
            rows = [
                [escaped(name_text(comparison, name)), *(_markdown_cell(table, name, column) for column in columns)]
                for name in table.methods
            ]
            title = f"{escaped(header(table))}: {SECTIONS[metric]}"
            parts.append((title, (["method", *(column.label for column in columns)], rows)))
    if comparison.trained and (details or not comparison.tables):
        head, rows = training_rows(comparison)
        title = "Training: mean of the last tenth of the steps"
        parts.append((title, (head, [list(map(escaped, row)) for row in rows])))
    for title, (head, rows) in parts:
        lines += ["", f"<details><summary>{title}</summary>", "", *_rows(head), *map(_row, rows), "", "</details>"]
    if comparison.tables:
        lines += ["", escaped(short_legend(comparison))]
    return "\n".join(lines).strip() + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rows(head: list[str]) -> list[str]:
    return [_row(head), f"|:--|{'--:|' * (len(head) - 1)}"]


def _markdown_cell(table: Table, method: str, column: Column) -> str:
    cell = table.cells.get((method, column))
    if cell is None:
        return "–"
    value, rank = percent(cell.value.mean), table.rank(method, column)
    value = f"**{value}**" if rank == 1 else f"<u>{value}</u>" if rank == 2 else value
    text = " ".join(part for part in (value, spread(cell.value), interval(cell.value), bounds(cell)) if part)
    if cell.paired is None:
        return text
    p = f", {p_text(cell.p_corrected)}" if cell.p_corrected is not None else ""
    return f"{text}<br>**{change(cell)}**{p}" if cell.direction else f"{text}<br>{change(cell)}{p}"
