"""A comparison in the terminal and as Markdown: the table for a paper first, then, where asked for, the details."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtpo.common.terminal import stacked
from gtpo.evalkit.comparison.compare import Comparison, Table
from gtpo.evalkit.comparison.scores import FORMAT, MAJ, PASS, Column
from gtpo.evalkit.comparison.verdicts import BETTER, EQUIVALENT, WORSE, Cell
from gtpo.evalkit.report.summary import caption, legend, plan_rows, sentences, test_rows, training_rows
from gtpo.evalkit.report.text import bounds, change, header, interval, p_text, percent, spread, visible

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table as Grid
    from rich.text import Text

STYLES = {BETTER: "bold green", WORSE: "bold red", EQUIVALENT: "bold"}
EMPHASIS: dict[int | None, str] = {1: "bold", 2: "underline"}
SECTIONS = {PASS: "pass@k", MAJ: "maj@k", FORMAT: "format rate"}


def sections(table: Table) -> list[tuple[str, list[Column]]]:
    """(metric, its columns): pass@k, maj@k, format rate, as far as there are any."""
    found = [(metric, [column for column in table.columns if column.metric == metric]) for metric in SECTIONS]
    return [(metric, columns) for metric, columns in found if columns]


def average_text(comparison: Comparison, method: str, column: Column) -> str:
    """45.2 ±0.4, or a dash where a benchmark is missing."""
    found = comparison.average(method, column)
    if found is None:
        return "–"
    return percent(found[0]) + ("" if found[1] is None else f" ±{percent(found[1])}")


def name_text(comparison: Comparison, method: str) -> str:
    """`gtpo · 5 seeds (baseline)`: a method, how many seeds it has, and whether it is the baseline."""
    found = next(m for m in comparison.methods if m.name == method)
    label = visible(method)
    if found.preset and found.preset.lower() not in method.lower():
        label += f" ({visible(found.preset)})"
    if len(found.runs) > 1:
        label += f" · {len(found.runs)} seeds"
    lost = sum(train.collapsed for train in found.trains)
    label += f" · {lost} collapsed" * bool(lost)
    return label + ("  (baseline)" if method == comparison.baseline else "")


def as_rich(comparison: Comparison, width: int = 160, *, details: bool = False) -> Group:
    """The terminal's version."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"note: {visible(note)}", style="yellow") for note in comparison.all_notes]
    if comparison.tables:
        for column in comparison.metrics:
            parts += [Text(""), *_paper_grids(comparison, column, width)]
        for one in sentences(comparison):
            parts.append(Text.assemble((one.head, STYLES.get(one.verdict, "default")), f" {one.rest}"))
    if details:
        head, rows = test_rows(comparison)
        if rows:
            parts += [Text(""), _grid("primary comparisons: what each test covers", head, rows, width, keep=2)]
    for table in comparison.tables if details else [table for table in comparison.tables if table.group]:
        parts += [Text(""), _details_grid(comparison, table, width)]
    if comparison.trained:
        title = "training: mean of the last tenth of the steps"
        parts += [Text(""), _grid(title, *training_rows(comparison), width, keep=2)]
    if comparison.tables:
        parts += [Text(""), *(Text(line, style="dim") for line in legend(comparison))]
    return Group(*parts)


def _paper_grids(comparison: Comparison, column: Column, width: int) -> list[Grid]:
    """The table for a paper, in as many pieces as the width asks for."""
    from rich.table import Table as Grid
    from rich.text import Text

    labels = {method.name: name_text(comparison, method.name) for method in comparison.methods}
    room = max(1, (width - max(map(len, labels.values())) - 4) // 26)
    pieces = [comparison.benchmarks[i : i + room] for i in range(0, len(comparison.benchmarks), room)]
    grids = []
    for i, piece in enumerate(pieces):
        grid = Grid(title=caption(comparison, column) if i == 0 else None, title_justify="left", title_style="bold")
        grid.add_column("method", min_width=12)
        for table in piece:
            grid.add_column(f"{visible(table.benchmark)}\n{table.questions:,} questions", justify="right", no_wrap=True)
        last = i == len(pieces) - 1 and len(comparison.benchmarks) > 1
        if last:
            grid.add_column("average", justify="right", no_wrap=True)
        for name, label in labels.items():
            cells = [_paper_cell(table, name, column) for table in piece]
            grid.add_row(Text(label), *cells, *([average_text(comparison, name, column)] if last else []))
        grids.append(grid)
    return grids


def _paper_cell(table: Table, method: str, column: Column) -> Text:
    from rich.text import Text

    cell = table.cells.get((method, column))
    return Text("–") if cell is None else _rich_cell(cell, EMPHASIS.get(table.rank(method, column), "default"))


def _rich_cell(cell: Cell, emphasis: str = "default") -> Text:
    from rich.text import Text

    style = STYLES.get(cell.verdict or "", "")
    seeds = f" {spread(cell.value)}" if cell.value.seed_sd is not None else ""
    text = Text.assemble((percent(cell.value.mean), emphasis), seeds, " ", (interval(cell.value), "dim"))
    if cell.bounds is not None:
        text.append(f" {bounds(cell)}", style="dim")
    if cell.paired is not None:
        text.append(f"\n{change(cell)}", style=style or "dim")
    return text


def _details_grid(comparison: Comparison, table: Table, width: int) -> Grid:
    """Every column of one benchmark: pass@k, maj@k, format rate, wrapped to the width."""
    from rich.table import Table as Grid
    from rich.text import Text

    labels = {name: name_text(comparison, name) for name in table.methods}
    room = max(1, (width - max(map(len, labels.values())) - 4) // 26)
    grid = Grid(title=header(table), title_justify="left", title_style="bold", show_header=False)
    rows = [
        (metric, columns[i : i + room]) for metric, columns in sections(table) for i in range(0, len(columns), room)
    ]
    most = max(len(columns) for _, columns in rows)
    grid.add_column(min_width=12)
    for _ in range(most):
        grid.add_column(justify="right", no_wrap=True)
    for metric, columns in rows:
        grid.add_row(Text(SECTIONS[metric], style="bold"), *(Text(column.label, style="bold") for column in columns))
        for name in table.methods:
            grid.add_row(Text(labels[name]), *(_rich_cell(table.cells[name, column]) for column in columns))
        grid.add_section()
    return grid


def _grid(title: str, head: list[str], rows: list[list[str]], width: int, *, keep: int = 1) -> Group:
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(title=title or None, title_justify="left", title_style="bold")
    for name in head:
        grid.add_column(name, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(value) for value in row))
    return Group(*stacked(grid, width, keep=keep))


def escaped(text: str) -> str:
    """Text inside a Markdown table: no markup, no cell border, no second line."""
    text = visible(text)
    for mark in "\\|*_<>`[]~#&!":
        text = text.replace(mark, f"\\{mark}")
    return text


def as_markdown(comparison: Comparison, *, details: bool = False) -> str:
    """GitHub-flavoured Markdown."""
    lines = [f"> **Note:** {escaped(note)}\n" for note in comparison.all_notes]
    for column in comparison.metrics if comparison.tables else []:
        heads = [f"{escaped(table.benchmark)} ({table.questions:,})" for table in comparison.benchmarks]
        average = len(heads) > 1
        heads += ["average"] * average
        lines += ["", f"**{escaped(caption(comparison, column))}**", "", *_rows(["method", *heads])]
        for method in comparison.methods:
            cells = [_markdown_cell(table, method.name, column) for table in comparison.benchmarks]
            cells += [average_text(comparison, method.name, column)] * average
            lines.append(_row([escaped(name_text(comparison, method.name)), *cells]))
    lines.append("")
    lines += [f"- **{escaped(one.head)}** {escaped(one.rest)}" for one in sentences(comparison)]
    head, rows = test_rows(comparison)
    if details and rows:
        lines += ["", "### Primary comparisons: what each test covers", "", *_rows(head)]
        lines += [_row([escaped(value) for value in row]) for row in rows]
    for table in comparison.tables if details else [table for table in comparison.tables if table.group]:
        lines += ["", f"### {escaped(header(table))}"]
        for _, columns in sections(table):
            lines += ["", *_rows(["method", *(column.label for column in columns)])]
            for name in table.methods:
                cells = [_markdown_cell(table, name, column) for column in columns]
                lines.append(_row([escaped(name_text(comparison, name)), *cells]))
    if comparison.trained:
        head, rows = training_rows(comparison)
        lines += ["", "### Training: mean of the last tenth of the steps", "", *_rows(head)]
        lines += [_row([escaped(value) for value in row]) for row in rows]
    if comparison.tables:
        lines += ["", *(f"{escaped(line)}\n" for line in legend(comparison))]
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


def plan_as_rich(comparison: Comparison, target: float, width: int = 160) -> Group:
    """What a comparison of these methods would take, one table a benchmark."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"note: {visible(note)}", style="yellow") for note in comparison.notes]
    for title, _, (head, rows) in plan_rows(comparison, target):
        parts += [Text(""), Text(title, style="bold"), _grid("", head, rows, width)]
    parts.append(Text("–: not with 64 seeds of each. Both methods are trained with so many seeds.", style="dim"))
    return Group(*parts)
