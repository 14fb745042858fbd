"""The tables of a comparison as plain HTML: what the page shows without JavaScript."""

from __future__ import annotations

from html import escape

from gtpo.evalkit.comparison.compare import Comparison, Table
from gtpo.evalkit.comparison.scores import Column
from gtpo.evalkit.report.summary import caption, legend, sentences, training_rows
from gtpo.evalkit.report.tables import average_text, name_text
from gtpo.evalkit.report.text import bounds, change, interval, p_text, percent, spread, visible


def static_tables(comparison: Comparison) -> str:
    """Notes, one table per metric, verdicts, training, legend."""
    parts = [f'<p class="note">{_text(note)}</p>' for note in comparison.all_notes]
    parts += [f"<p><b>{_text(one.head)}</b> {_text(one.rest)}</p>" for one in sentences(comparison)]
    parts += [_paper_table(comparison, column) for column in comparison.metrics if comparison.tables]
    if comparison.trained:
        head, rows = training_rows(comparison)
        parts.append(
            _table("Training: mean of the last tenth of the steps", head, [[_text(c) for c in r] for r in rows])
        )
    parts += [f'<p class="soft small">{_text(line)}</p>' for line in legend(comparison) if comparison.tables]
    return "\n".join(parts)


def _text(text: str) -> str:
    return escape(visible(text))


def _table(title: str, head: list[str], rows: list[list[str]]) -> str:
    columns = "".join(f'<th scope="col">{_text(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return (
        f'<table class="numbers paper"><caption>{_text(title)}</caption><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _paper_table(comparison: Comparison, column: Column) -> str:
    average = len(comparison.benchmarks) > 1
    head = ["method", *(table.benchmark for table in comparison.benchmarks), *["average"] * average]
    rows = [
        [
            _text(name_text(comparison, method.name)),
            *(_cell(table, method.name, column) for table in comparison.benchmarks),
            *[_text(average_text(comparison, method.name, column))] * average,
        ]
        for method in comparison.methods
    ]
    return _table(caption(comparison, column), head, rows)


def _cell(table: Table, method: str, column: Column) -> str:
    cell = table.cells.get((method, column))
    if cell is None:
        return "–"
    best, second = table.best.get(column, (None, None))
    value = percent(cell.value.mean)
    value = f"<b>{value}</b>" if method == best else f"<u>{value}</u>" if method == second else value
    text = f"{value} {spread(cell.value)} <small>{interval(cell.value)} {bounds(cell)}</small>"
    if cell.paired is None:
        return text
    p = f", {p_text(cell.p_corrected)}" if cell.p_corrected is not None else ""
    kind = {1: "good", -1: "bad", 0: "soft"}[cell.direction]
    return f'{text}<div class="{kind}">{escape(change(cell) + p)}</div>'
