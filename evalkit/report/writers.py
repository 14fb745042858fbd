r"""A comparison as text: for the terminal, as Markdown, LaTeX, CSV and JSON. Each draws the grids of grid.py.

LaTeX is one booktabs table* a grid, for pdfLaTeX, XeLaTeX and LuaLaTeX: it spans the text width of a one-column article
and both columns of a two-column one, and what is still wider is scaled down to it. Names in scripts other than Latin
need XeLaTeX or LuaLaTeX, and a font that has them.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any

from gtpo.common.terminal import stacked, visible
from gtpo.evalkit.comparison.columns import Column
from gtpo.evalkit.comparison.compare import ALPHA, BETTER, EQUIVALENT, UNDECIDED, WORSE, Cell, MethodComparison, Table
from gtpo.evalkit.comparison.methods import Member, Method
from gtpo.evalkit.comparison.training_curves import end_of_training
from gtpo.evalkit.design import Parts, parts
from gtpo.evalkit.report.grid import (
    Entry,
    Figure,
    Grid,
    detail_grids,
    difference,
    header,
    method_name,
    p_text,
    paper_grids,
    plain,
    records,
)
from gtpo.evalkit.report.summary import answer, is_judged, legend, sentences, short_legend

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

STYLES = {BETTER: "bold green", WORSE: "bold red", EQUIVALENT: "bold"}
JSON_SCHEMA_VERSION = 8


def _text(entry: Entry) -> str:
    """Return what is no figure as text."""
    return str(entry or "–")


def _join(*texts: str) -> str:
    return " ".join(filter(None, texts))


def as_terminal(
    comparison: MethodComparison, width: int = 160, *, details: bool = False, explain: bool = False
) -> Group:
    """Return the terminal's version: the verdicts, one table, and how to read it."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(line, style=STYLES.get(verdict, "default")) for verdict, line in answer(comparison)
    ]
    parts += [Text(f"note: {visible(note)}", style="yellow") for note in comparison.all_notes]
    metrics = comparison.metrics if details or comparison.metrics_chosen else comparison.metrics[:1]
    for column in metrics if comparison.tables else []:
        parts += _draw_short(comparison, column, width)
    for grid in detail_grids(comparison, details):
        parts += [Text(""), draw(grid, width)]
    if comparison.tables:
        lines = legend(comparison) if explain else [short_legend(comparison)]
        more = " --explain" * (not explain)
        lines.append(f"More:{' --details' * (not details)}{more} --html page.html")
        parts += [Text(line, style="dim") for line in lines]
    return Group(*parts)


def _draw_short(comparison: MethodComparison, column: Column, width: int) -> list[RenderableType]:
    """Draw one column of every benchmark without frames, each line as wide: method, figure, difference."""
    from rich.table import Table as Drawn
    from rich.text import Text

    tables = [table for table in comparison.benchmarks if column in table.columns]
    blocks = []
    for figures in ([Figure(table, name, column) for name in table.methods] for table in tables):
        blocks.append([
            (method_name(comparison, figure.method).text, _join(of.value, of.interval, of.bounds),
             "baseline" if figure.method == figure.table.baseline else of.change, figure.cell.verdict or "")
            for figure in figures for of in [figure.texts]
        ])  # fmt: skip
    names, values, changes = (max((len(row[i]) for rows in blocks for row in rows), default=0) for i in range(3))
    room = max(12, min(names, width - values - changes - 6))
    parts: list[RenderableType] = []
    for table, rows in zip(tables, blocks, strict=True):
        title = f"{column.label}, {column.metric.unit}   {header(table)}, {comparison.scoring}"
        drawn = Drawn.grid(padding=(0, 2, 0, 0))
        drawn.add_column(width=room + 2, overflow="fold")
        for least in (values, changes):
            drawn.add_column(min_width=least, no_wrap=True)
        for name, value, change, verdict in rows:
            lines = Text("\n".join(f"  {line}" for line in wrap(name, room)))
            drawn.add_row(lines, value, Text(change, style=STYLES.get(verdict, "")))
        parts += [Text(title, style="bold"), drawn]
    return parts


def draw(grid: Grid, width: int) -> Group:
    """Draw a table in frames, in pieces that fit, each with what the rows are."""
    from rich.console import Group
    from rich.table import Table as Drawn
    from rich.text import Text

    figures = any(isinstance(entry, Figure) for row in grid.rows for entry in row)
    keep = 1 if figures else 2
    drawn = Drawn(title=grid.title, title_justify="left", title_style="bold")
    for place, head in enumerate(grid.head):
        right = figures and place >= keep
        drawn.add_column(head, overflow="fold", justify="right" if right else "left", no_wrap=right)
    for row in grid.rows:
        drawn.add_row(*(
            _draw_figure(entry) if isinstance(entry, Figure)
            else Text(fill(_text(entry), max(20, width - 40)) if figures else _text(entry))
            for entry in row
        ))  # fmt: skip
    return Group(*stacked(drawn, width, keep=keep))


def _draw_figure(figure: Figure) -> Text:
    from rich.text import Text

    texts = figure.texts
    drawn = Text.assemble(_join(texts.value, texts.spread), " ", (_join(texts.interval, texts.bounds), "dim"))
    if texts.change:
        drawn.append(f"\n{texts.change}", style=STYLES.get(figure.cell.verdict or "", "dim"))
    return drawn


def as_markdown(comparison: MethodComparison, *, details: bool = False) -> str:
    """Return GitHub-flavoured Markdown, as for a pull request: the verdicts, one table a metric, details folded."""
    lines = [
        f"- {f'**{markdown_text(line)}**' if verdict else markdown_text(line)}" for verdict, line in answer(comparison)
    ]
    lines += [f"\n> **Note:** {markdown_text(note)}" for note in comparison.all_notes]
    for grid in paper_grids(comparison):
        lines += ["", f"**{markdown_text(grid.title)}**", "", *_markdown_table(grid)]
    for grid in detail_grids(comparison, details):
        title = f"<details><summary>{markdown_text(grid.title)}</summary>"
        lines += ["", title, "", *_markdown_table(grid), "", "</details>"]
    if comparison.tables:
        lines += ["", markdown_text(short_legend(comparison))]
    return "\n".join(lines).strip() + "\n"


def markdown_text(text: str) -> str:
    """Return text inside a Markdown table: no markup, no cell border, no second line."""
    return re.sub(r"([\\|*_<>`\[\]~#&!])", r"\\\1", visible(text))


def _markdown_table(grid: Grid) -> list[str]:
    rows = [[_markdown_figure(e) if isinstance(e, Figure) else markdown_text(_text(e)) for e in r] for r in grid.rows]
    head, *body = (f"| {' | '.join(row)} |" for row in (map(markdown_text, grid.head), *rows))
    return [head, f"|:--|{'--:|' * (len(grid.head) - 1)}", *body]


def _markdown_figure(figure: Figure) -> str:
    *parts, change = figure.texts
    p = "" if figure.cell.p_corrected is None else f", {p_text(figure.cell.p_corrected)}"
    bold = "**" if figure.cell.direction else ""
    return _join(*parts) + (f"<br>{bold}{change}{bold}{p}" if change else "")


# A corrected p up to which a shown difference has so many marks.
_STARS = ((0.001, 3), (0.01, 2), (0.05, 1))
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}", "·": r"$\cdot$", "±": r"$\pm$", "×": r"$\times$", "–": "--", "-": "{-}",
    "▲": r"$\uparrow$", "≈": r"$\approx$", "▼": r"$\downarrow$", "†": r"$\dagger$",
}  # fmt: skip


def latex_text(text: str) -> str:
    """Return text that LaTeX sets as it is written, whatever it holds."""
    return "".join(_LATEX.get(c, c) for c in visible(text))


def as_latex(comparison: MethodComparison, *, details: bool = False) -> str:
    """Return the tables for a paper, and with `details` those of every test and k."""
    lines = [r"% \usepackage{booktabs,graphicx,textcomp}"]
    lines += [f"% note: {visible(note)}" for note in comparison.all_notes]
    lines += [f"% verdict: {one.head}: {one.rest}. {one.further}".rstrip() for one in sentences(comparison)]
    lines += [f"% {line.replace('▲ better, ▼ worse', '* better, † worse')}" for line in legend(comparison)]
    stars = ""
    if is_judged(comparison):
        equal = "≈ equivalent; " * (comparison.margin is not None)
        stars = f" * better, † worse: corrected p <= 0.05 (doubled 0.01, tripled 0.001); {equal}? undecided."
    # A caption is read beside the table: what it all means stands above, for the text.
    for grid in paper_grids(comparison):
        lines += ["", *_latex_table(grid, f"{grid.title}.{stars}")]
    for grid in detail_grids(comparison, details):
        lines += ["", *_latex_table(grid, f"{grid.title}, scoring {comparison.scoring}.")]
    return "\n".join(lines) + "\n"


def _latex_table(grid: Grid, text: str) -> list[str]:
    body = [_latex_line(["", *map(latex_text, grid.head[1:])]), r"\midrule"]
    for row in grid.rows:
        body.append(_latex_line(_latex_figure(e) if isinstance(e, Figure) else latex_text(_text(e)) for e in row))
        # A figure's interval and its difference go below it, small.
        figures = [entry if isinstance(entry, Figure) else None for entry in row]
        intervals = [f and latex_text(_join(f.texts.interval, f.texts.bounds)) for f in figures]
        differences = [f and f.cell.paired and f"${difference(f.cell.paired)}$" for f in figures]
        body += [_latex_line(_small(text or "") for text in line) for line in (intervals, differences) if any(line)]
        body.append(r"\addlinespace[2pt]")
    label = "".join(c if c.isascii() and c.isalnum() else "-" for c in grid.name.replace("@", "-at-"))
    return [
        r"\begin{table*}",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\sbox0{{\begin{{tabular}}{{@{{}}l{'r' * (len(grid.head) - 1)}@{{}}}}",
        r"\toprule",
        *body[:-1],
        r"\bottomrule",
        r"\end{tabular}}",
        r"\ifdim\wd0>\textwidth\resizebox{\textwidth}{!}{\usebox0}\else\usebox0\fi",
        rf"\caption{{{latex_text(text)}}}",
        rf"\label{{tab:{label}}}",
        r"\end{table*}",
    ]


def _latex_line(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _small(text: str) -> str:
    return rf"{{\scriptsize {text}}}" if text else ""


def _latex_figure(figure: Figure) -> str:
    cell, marks = figure.cell, ""
    if cell.direction and cell.p_corrected is not None:
        count = next((stars for level, stars in _STARS if cell.p_corrected <= level), 0)
        marks = f"$^{{{('*' if cell.direction > 0 else chr(92) + 'dagger ') * count}}}$"
    elif cell.verdict in (EQUIVALENT, UNDECIDED):
        marks = r"$^{\approx}$" if cell.verdict == EQUIVALENT else "$^{?}$"
    return _join(figure.texts.value + marks, _small(latex_text(figure.texts.spread)))


def as_csv(comparison: MethodComparison, *, details: bool = False) -> str:
    """Return `records`, one per line, with a header; empty cells if there is no value."""
    rows = records(comparison)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["benchmark"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _csv_value(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _csv_value(value: Any) -> Any:
    """Return text that a spreadsheet would take for a formula as text."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def as_json(comparison: MethodComparison, *, details: bool = False) -> str:
    """Return everything, for programs; no NaN, and marks of writing direction as escapes."""
    text = json.dumps(_document(comparison), indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(c if c == "\n" or visible(c) == c else json.dumps(c)[1:-1] for c in text) + "\n"


def _document(comparison: MethodComparison) -> dict[str, Any]:
    def run(method: Method, member: Member) -> dict[str, Any]:
        return {
            "name": member.name, "training": method.draws.get(member.name), "seed": member.seed,
            "folder": str(member.run.folder) if member.run else None,
            "train_run": member.train and member.train.name, "collapsed": member.train and member.train.collapsed,
        }  # fmt: skip

    def seed_means(table: Table, name: str) -> dict[str, list[Any]]:
        return {c.label: [plain(mean) for mean in table.cells[name, c].value.seed_means] for c in table.columns}

    def noise(cell: Cell) -> dict[str, list[float]] | None:
        every = [parts(*cell.noise, end) for end in range(3)] if cell.noise else []
        return {source: [getattr(each, source) for each in every] for source in Parts._fields} if every else None

    primary, own = comparison.metrics[0], ("scoring", "baseline", "baseline_reason", "margin", "looks", "notes")
    return {
        "schema_version": JSON_SCHEMA_VERSION,
        **{name: getattr(comparison, name) for name in own},
        "alpha": ALPHA,
        "metrics": [column.label for column in comparison.metrics],
        "primary_metric": primary.label,
        "settings": comparison.shared_settings,
        "methods": [
            {"name": method.name, "preset": method.preset or None, "seeds_declared": method.declared,
             "seeds_unknown": method.doubt or None, "runs": [run(method, member) for member in method.members]}
            for method in comparison.methods
        ],
        "tables": [
            {"benchmark": table.benchmark, "group": table.group or None, "questions": table.questions,
             "samples": table.samples, "notes": table.notes,
             "seed_means": {name: seed_means(table, name) for name in table.methods},
             "noise": {name: noise(table.cells[name, primary]) for name in table.methods
                       if table.baseline not in (None, name)}}
            for table in comparison.tables
        ],
        "records": records(comparison),
        "verdicts": [one._asdict() for one in sentences(comparison)],
        "averages": {
            method.name: {column.label: comparison.average(method.name, column) for column in comparison.metrics}
            for method in comparison.methods
        },
        "training": {train.name: end_of_training(train) for method in comparison.trained for train in method.trains},
        "legend": legend(comparison),
    }  # fmt: skip
