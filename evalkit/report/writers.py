r"""A comparison in tables, and as text: for the terminal, as Markdown, LaTeX, CSV and JSON.

Each table is one grid of typed cells, which the writers and the page draw. LaTeX is one booktabs table* a grid, for
pdfLaTeX, XeLaTeX and LuaLaTeX: it spans the text width of a one-column article and both columns of a two-column one,
and what is still wider is scaled down to it. Names in scripts other than Latin need XeLaTeX or LuaLaTeX, and a font
that has them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from html import escape
from textwrap import fill, wrap
from typing import Any, NamedTuple

import numpy as np
from rich.cells import set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table as Drawn
from rich.text import Text

from gtpo.common.terminal import stacked, visible
from gtpo.evalkit.comparison.columns import METRICS, Column, difference, p_text
from gtpo.evalkit.comparison.compare import MethodComparison
from gtpo.evalkit.comparison.methods import DECLARED, Member, Method
from gtpo.evalkit.comparison.questions import ALPHA, BETTER, EQUIVALENT, UNDECIDED, WORSE, Cell, Table
from gtpo.evalkit.comparison.training_curves import end_of_training
from gtpo.evalkit.design import Estimate, Parts, parts, strength
from gtpo.evalkit.report.summary import answer, is_judged, legend, points_text, sentences, short_legend

MARKS = {BETTER: "▲", WORSE: "▼", EQUIVALENT: "≈"}
# None: there is no value.
Entry = str | Cell | None


def texts_of(cell: Cell) -> tuple[str, str, str, str]:
    """Return a cell as it is written: 45.2, ±0.8, [43.1, 47.3] {41.9, 43.1}, +2.1 [+0.7, +3.5] ▲.

    ±: over seeds. {}: what missing samples could make of it. What it does not have is empty.
    """
    text, (value, low, high, *_), sd = cell.column.metric.text, cell.value, cell.value.seed_sd
    interval = "" if math.isnan(low) else f"[{text(low)}, {text(high)}]"
    if cell.bounds is not None:
        interval = _join(interval, "{" + ", ".join(map(text, cell.bounds)) + "}")
    change = "" if cell.paired is None else _join(difference(cell.paired), MARKS.get(cell.verdict or "", ""))
    return text(value), "" if sd is None or math.isnan(sd) else f"±{text(sd)}", interval, change


class Grid(NamedTuple):
    """One table."""

    name: str
    title: str
    head: list[str]
    rows: Sequence[Sequence[Entry]]
    # What its columns are, if it is one of several tables of a benchmark.
    section: str = ""
    # The methods at the heads of its rows, if it holds figures.
    methods: Sequence[str] = ()


def paper_grids(comparison: MethodComparison) -> list[Grid]:
    """Return the tables for a paper: one a metric, methods by benchmarks."""
    tables, methods = comparison.benchmarks, [method.name for method in comparison.methods]
    several = len(tables) > 1
    grids = []
    for column in comparison.metrics if comparison.tables else ():
        head = ["method", *(f"{visible(table.benchmark)} ({table.questions:,})" for table in tables)]
        rows: list[list[Entry]] = []
        for name in methods:
            rows.append([method_name(comparison, name), *(table.cells.get((name, column)) for table in tables)])
            if several:
                means = average(comparison, name, column)
                rows[-1].append(means and " ±".join(column.metric.text(one) for one in means if one is not None))
        title = f"{column.label}, {column.metric.unit}, scoring {comparison.scoring}"
        if comparison.baseline and column.metric.tested:
            title += f"; differences in points against {visible(comparison.baseline)}"
        title += "; not tested" * (column != comparison.metrics[0])
        grids.append(Grid(column.label, title, head + ["average"] * several, rows, methods=methods))
    return grids


def section_grids(comparison: MethodComparison, table: Table) -> list[Grid]:
    """Return every column of a benchmark: one table a metric."""
    grids = []
    for title in dict.fromkeys(metric.title for metric in METRICS):
        if columns := [column for column in table.columns if column.metric.title == title]:
            rows: list[list[Entry]] = [
                [method_name(comparison, name), *(table.cells[name, column] for column in columns)]
                for name in table.sides
            ]
            head, over = ["method", *(column.label for column in columns)], f"{header(table)}: {title}"
            grids.append(Grid(f"{table.title} {title}", over, head, rows, title, list(table.sides)))
    noise = None if table.group else _noise_grid(comparison, table)
    return [*grids, noise] if noise and noise.rows else grids


def _noise_grid(comparison: MethodComparison, table: Table) -> Grid:
    """What questions, samples and seeds add to each primary comparison, and what twice as many would buy."""
    column, rows = comparison.metrics[0], list[list[str]]()
    head = ["method", "noise", "points (80 % range)", "of the variance", "seen with 80 %", "with twice as many"]
    for name in table.sides:
        if (measured := table.cells[name, column].noise) is None:
            continue
        noise, design = measured
        every = [parts(noise, design, end) for end in range(3)]
        total, planned = sum(max(part, 0.0) for part in every[0]) or 1.0, noise.at_least_zero(design)
        for source, has in zip(Parts._fields, (True, noise.samples, noise.training), strict=True):
            if not has:
                continue
            what = source if noise.samples or source == "seeds" else "questions and samples"
            twice = design._replace(**{source: 2 * getattr(design, source)})
            mean, low, high = (max(getattr(each, source), 0.0) for each in every)
            rows.append([
                visible(name), what, points_text(Estimate(*map(math.sqrt, (mean, low, high)))),
                f"{100 * mean / total:.0f} %",
                *(points_text(Estimate.exactly(strength(planned, of).detectable())) for of in (design, twice)),
            ])  # fmt: skip
    title = f"{header(table)}: where the noise of a difference in {column.label} comes from"
    return Grid(f"{table.title} noise", title, head, rows, "noise")


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


def _test_grid(comparison: MethodComparison) -> Grid:
    head = ["method", "benchmark", "verdict", "difference", "p, Holm", "p", "p, equivalent", "covers", "t, df", "seeds"]
    rows: list[list[Entry]] = []
    for table, name, cell, d in comparison.primary():
        a, b = (str(count) if count else "given" for count in d.seeds)
        rows.append([
            visible(name), visible(table.benchmark), cell.verdict, difference(d),
            *(None if p is None else p_text(p).removeprefix("p ").removeprefix("= ")
              for p in (cell.p_corrected, float(d.p_value), cell.p_equivalent)),
            d.covers, f"{d.freedom:.1f}",
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
    out = []
    for table in comparison.tables:
        for (name, column), cell in table.cells.items():
            d, value, bounds, side = cell.paired, cell.value, cell.bounds or (None, None), table.sides[name]
            record = {
                "benchmark": table.benchmark, "group": table.group or None, "method": name,
                "preset": side.method.preset or None, "runs": len(side.runs),
                "metric": column.metric.name, "k": column.k or None,
                "unit": "fraction" if column.metric.unit == "%" else column.metric.unit,
                "scoring": comparison.scoring, "questions": table.questions, "samples": table.samples,
                "mean": value.mean, "low": value.low, "high": value.high, "covers_training": value.covers_training,
                "worst": bounds[0], "best": bounds[1], "seed_sd": value.seed_sd,
                "baseline": d and table.baseline, "family": d and ("primary" if cell.primary else "exploratory"),
                "verdict": cell.verdict, "speaks_of": d and d.scope, "judged": d and d.judged,
                "difference": d and d.difference, "se": d and d.se, "freedom": d and d.freedom,
                "difference_low": d and d.low, "difference_high": d and d.high, "interval_level": d and d.level,
                "seeds_paired": d and d.seeds_paired, "covers": d and d.covers, "p": d and d.p_value,
                "p_holm": cell.p_corrected, "margin": comparison.margin if cell.primary else None,
                "p_equivalent": cell.p_equivalent, "significant": bool(cell.direction) if d and cell.primary else None,
                "checkpoints": cell.checkpoints, "checkpoints_move": cell.selected if d else None,
                "only_method": d and d.only_a, "only_baseline": d and d.only_b,
            }  # fmt: skip
            out.append({key: plain(value) for key, value in record.items()})
    return out


def plain(value: Any, digits: int | None = None) -> Any:
    """Return numpy's number as Python's, rounded; None for one that is not finite, which JSON does not have."""
    value = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if not isinstance(value, float):
        return value
    return None if not math.isfinite(value) else value if digits is None else round(value, digits)


def average(comparison: MethodComparison, method: str, column: Column) -> tuple[float, float | None] | None:
    """Return a method's mean over the benchmarks, and its standard deviation over seeds; None if one is missing."""
    cells = [table.cells.get((method, column)) for table in comparison.benchmarks]
    values = [cell.value for cell in cells if cell is not None and not math.isnan(cell.value.mean)]
    if len(values) < len(cells):
        return None
    sides = [table.sides[method] for table in comparison.benchmarks]
    # Of other draws on another benchmark, a mean over benchmarks is of no training.
    draws = {tuple(side.method.draws[side.runs[places[0]].name] for places in side.draws) for side in sides}
    mean, by_seed = float(np.mean([value.mean for value in values])), np.zeros(1)
    if len(draws) == 1:
        by_seed = np.mean([value.seed_means for value in values], axis=0)
    return mean, float(by_seed.std(ddof=1)) if by_seed.size > 1 else None


def method_name(comparison: MethodComparison, name: str, *, role: bool = True) -> str:
    """Return `gtpo · 5 seeds  (baseline)`: a method, how many seeds it has, and its role."""
    method = next(m for m in comparison.methods if m.name == name)
    text = visible(name)
    if method.preset and method.preset.lower() not in name.lower():
        text += f" ({visible(method.preset)})"
    text += f" · {method.counted}" * bool(method.counted)
    lost = sum(train.collapsed for train in method.trains)
    text += f" · {lost} collapsed" * bool(lost)
    return text + "  (baseline)" * (role and name == comparison.baseline)


def header(table: Table) -> str:
    """Return `gsm8k: 1,319 questions, 64 samples each`."""
    several, each = table.questions != 1, table.samples != 1
    text = f"{table.questions:,} question{'s' * several}, {table.samples:,} sample{'s' * each} each"
    return f"{visible(table.title)}: {text}"


STYLES = {BETTER: "bold green", WORSE: "bold red", EQUIVALENT: "bold"}
JSON_SCHEMA_VERSION = 8


def _join(*texts: str) -> str:
    return " ".join(filter(None, texts))


def as_terminal(
    comparison: MethodComparison, width: int = 160, *, details: bool = False, explain: bool = False
) -> Group:
    """Return the terminal's version: the verdicts, one table, and how to read it."""
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
    rows: dict[str, list[tuple[str, str, Text]]] = {}
    for table in comparison.benchmarks:
        of_table = rows[f"{column.label}, {column.metric.unit}   {header(table)}, {comparison.scoring}"] = []
        for name in table.sides:
            cell = table.cells[name, column]
            value, _, interval, change = texts_of(cell)
            styled = Text("baseline" if name == table.baseline else change, style=STYLES.get(cell.verdict or "", ""))
            of_table.append((method_name(comparison, name, role=False), _join(value, interval), styled))
    names, values, changes = (max(len(row[i]) for of in rows.values() for row in of) for i in range(3))
    room, parts = max(12, min(names, width - values - changes - 6)), list[RenderableType]()
    for title, of_table in rows.items():
        parts.append(Text(title, style="bold"))
        for name, value, styled in of_table:
            first, *more = wrap(name, room)
            parts.append(Text.assemble(f"  {set_cell_size(first, room)}  {set_cell_size(value, values)}  ", styled))
            parts += [Text(f"  {rest}") for rest in more]
    return parts


def draw(grid: Grid, width: int) -> Group:
    """Draw a table in frames, in pieces that fit, each with what the rows are."""
    figures = bool(grid.methods)
    keep = 1 if figures else 2
    drawn = Drawn(title=grid.title, title_justify="left", title_style="bold")
    for place, head in enumerate(grid.head):
        right = figures and place >= keep
        drawn.add_column(head, overflow="fold", justify="right" if right else "left", no_wrap=right)
    for row in grid.rows:
        drawn.add_row(*(
            _draw_cell(entry) if isinstance(entry, Cell)
            else Text(fill(entry or "–", max(20, width - 40)) if figures else entry or "–")
            for entry in row
        ))  # fmt: skip
    return Group(*stacked(drawn, width, keep=keep))


def _draw_cell(cell: Cell) -> Text:
    value, spread, interval, change = texts_of(cell)
    drawn = Text.assemble(_join(value, spread), " ", (interval, "dim"))
    if change:
        drawn.append(f"\n{change}", style=STYLES.get(cell.verdict or "", "dim"))
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
        # Inside a tag Markdown is not read.
        title = f"<details><summary>{escape(visible(grid.title))}</summary>"
        lines += ["", title, "", *_markdown_table(grid), "", "</details>"]
    if comparison.tables:
        lines += ["", markdown_text(short_legend(comparison))]
    return "\n".join(lines).strip() + "\n"


def markdown_text(text: str) -> str:
    """Return text inside a Markdown table: no markup, no cell border, no second line."""
    return re.sub(r"([\\|*_<>`\[\]~#&!])", r"\\\1", visible(text))


def _markdown_table(grid: Grid) -> list[str]:
    rows = [[_markdown_cell(e) if isinstance(e, Cell) else markdown_text(e or "–") for e in r] for r in grid.rows]
    head, *body = (f"| {' | '.join(row)} |" for row in (map(markdown_text, grid.head), *rows))
    return [head, f"|:--|{'--:|' * (len(grid.head) - 1)}", *body]


def _markdown_cell(cell: Cell) -> str:
    *parts, change = texts_of(cell)
    p = "" if cell.p_corrected is None else f", {p_text(cell.p_corrected)}"
    bold = "**" if cell.direction else ""
    return _join(*parts) + (f"<br>{bold}{change}{bold}{p}" if change else "")


# A shown difference has a mark for each of these that its corrected p does not exceed.
_STARS = (0.05, 0.01, 0.001)
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
    lines = [["", *map(latex_text, grid.head[1:])], [r"\midrule"]]
    for row in grid.rows:
        lines.append([_latex_cell(e) if isinstance(e, Cell) else latex_text(e or "–") for e in row])
        # A figure's interval and its difference go below it, small.
        cells = [entry if isinstance(entry, Cell) else None for entry in row]
        intervals = [cell and latex_text(texts_of(cell)[2]) for cell in cells]
        differences = [cell and cell.paired and f"${difference(cell.paired)}$" for cell in cells]
        lines += [[_small(text or "") for text in line] for line in (intervals, differences) if any(line)]
        lines.append([r"\addlinespace[2pt]"])
    letters = (c if c.isalnum() else "-" for c in grid.name.replace("@", "-at-"))
    label = "".join(c if c.isascii() else f"u{ord(c):x}" for c in letters)
    return [
        r"\begin{table*}",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\sbox0{{\begin{{tabular}}{{@{{}}l{'r' * (len(grid.head) - 1)}@{{}}}}",
        r"\toprule",
        *(" & ".join(line) + r" \\" * (len(line) > 1) for line in lines[:-1]),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\ifdim\wd0>\textwidth\resizebox{\textwidth}{!}{\usebox0}\else\usebox0\fi",
        rf"\caption{{{latex_text(text)}}}",
        rf"\label{{tab:{label}}}",
        r"\end{table*}",
    ]


def _small(text: str) -> str:
    return rf"{{\scriptsize {text}}}" if text else ""


def _latex_cell(cell: Cell) -> str:
    value, spread, *_ = texts_of(cell)
    marks = {EQUIVALENT: r"$^{\approx}$", UNDECIDED: "$^{?}$"}.get(cell.verdict or "", "")
    if cell.direction and cell.p_corrected is not None:
        count = sum(cell.p_corrected <= level for level in _STARS)
        marks = f"$^{{{('*' if cell.direction > 0 else chr(92) + 'dagger ') * count}}}$"
    return _join(value + marks, _small(latex_text(spread)))


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

    def noise(cell: Cell) -> dict[str, list[float]] | None:
        every = [parts(*cell.noise, end) for end in range(3)] if cell.noise else []
        return {source: [getattr(each, source) for each in every] for source in Parts._fields} if every else None

    primary, own = comparison.metrics[0], ("scoring", "baseline", "baseline_reason", "margin", "looks", "notes")
    return {
        "schema_version": JSON_SCHEMA_VERSION, "alpha": ALPHA, "primary_metric": primary.label,
        **{name: getattr(comparison, name) for name in own},
        "metrics": [column.label for column in comparison.metrics], "settings": comparison.shared_settings,
        "methods": [
            {"name": method.name, "preset": method.preset or None, "seeds_declared": method.chosen_by == DECLARED,
             "seeds_unknown": method.doubt or None, "runs": [run(method, member) for member in method.members]}
            for method in comparison.methods
        ],
        "tables": [
            {"benchmark": table.benchmark, "group": table.group or None, "questions": table.questions,
             "samples": table.samples, "notes": table.notes,
             "seed_means": {name: {c.label: [plain(mean) for mean in table.cells[name, c].value.seed_means]
                                   for c in table.columns} for name in table.sides},
             "noise": {name: noise(table.cells[name, primary]) for name in table.sides
                       if table.baseline not in (None, name)}}
            for table in comparison.tables
        ],
        "records": records(comparison), "verdicts": [one._asdict() for one in sentences(comparison)],
        "averages": {
            method.name: {column.label: average(comparison, method.name, column) for column in comparison.metrics}
            for method in comparison.methods
        },
        "training": {train.name: end_of_training(train) for method in comparison.trained for train in method.trains},
        "legend": legend(comparison),
    }  # fmt: skip
