"""A comparison in the terminal and as Markdown: the table for a paper first, then, where asked for, the details."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from gtpo.common.terminal import stacked
from gtpo.evalkit.comparison.compare import Comparison, Table
from gtpo.evalkit.comparison.scores import FORMAT, MAJ, PASS, Column
from gtpo.evalkit.comparison.verdicts import BETTER, EQUIVALENT, WORSE, Cell
from gtpo.evalkit.report.summary import caption, legend, plan_rows, sentences, test_rows, training_rows
from gtpo.evalkit.report.text import bounds, change, header, interval, p_text, percent, spread, visible

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

STYLES = {BETTER: "bold green", WORSE: "bold red", EQUIVALENT: "bold"}
EMPHASIS = {None: "default", 1: "bold", 2: "underline"}
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
            parts += [Text(""), _paper_grid(comparison, column, width)]
        for one in sentences(comparison):
            parts.append(Text.assemble((one.head, STYLES.get(one.verdict, "default")), f" {one.rest}"))
    if details:
        head, rows = test_rows(comparison)
        if rows:
            parts += [Text(""), _grid("primary comparisons: what each test covers", head, rows, width, keep=2)]
    for table in comparison.tables if details else [table for table in comparison.tables if table.group]:
        parts += [Text(""), *_details_grid(comparison, table, width)]
    if comparison.trained:
        title = "training: mean of the last tenth of the steps"
        parts += [Text(""), _grid(title, *training_rows(comparison), width, keep=2)]
    if comparison.tables:
        parts += [Text(""), *(Text(line, style="dim") for line in legend(comparison))]
    return Group(*parts)


def _paper_grid(comparison: Comparison, column: Column, width: int) -> Group:
    """The table for a paper, in as many pieces as the width asks for."""
    from rich.text import Text

    tables, average = comparison.benchmarks, len(comparison.benchmarks) > 1
    heads = [f"{visible(table.benchmark)}\n{table.questions:,} questions" for table in tables]
    rows: list[list[Text | str]] = []
    for name in (method.name for method in comparison.methods):
        found = [(table.cells.get((name, column)), EMPHASIS[table.rank(name, column)]) for table in tables]
        cells = [Text("–") if cell is None else _rich_cell(cell, emphasis) for cell, emphasis in found]
        rows.append([name_text(comparison, name), *cells, *([average_text(comparison, name, column)] * average)])
    return _grid(caption(comparison, column), ["method", *heads, *["average"] * average], rows, width, numbers=True)


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


def _details_grid(comparison: Comparison, table: Table, width: int) -> list[Group]:
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
