"""A comparison as text: terminal, Markdown, LaTeX (booktabs), CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import TYPE_CHECKING, Any

from evalkit.comparison.compare import ALPHA, FORMAT, MAJ, PASS, Cell, Column, Comparison, Table, p_text, verdict
from evalkit.comparison.training_curves import summary

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

JSON_SCHEMA_VERSION = 1
SECTIONS = {PASS: "pass@k", MAJ: "maj@k", FORMAT: "format rate"}
ARROWS = {1: "▲", -1: "▼", 0: ""}


def percent(value: float) -> str:
    """45.2 for 0.452."""
    return f"{100 * value:.1f}"


def value_text(cell: Cell) -> str:
    """45.2."""
    return percent(cell.interval.mean)


def interval_text(cell: Cell) -> str:
    """[43.1, 47.3]."""
    return f"[{percent(cell.interval.low)}, {percent(cell.interval.high)}]"


def difference_text(cell: Cell) -> str:
    """+2.1 [+0.7, +3.5]; empty for the baseline."""
    if cell.paired is None:
        return ""
    d = cell.paired
    return f"{100 * d.difference:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"


def sections(table: Table) -> list[tuple[str, list[Column]]]:
    """(metric, its columns): pass@k, maj@k, format rate."""
    return [(metric, [column for column in table.columns if column.metric == metric]) for metric in SECTIONS]


def legend(comparison: Comparison) -> list[str]:
    """What the numbers mean, in full: printed under every table."""
    lines = [
        f"Percent, scoring {comparison.scoring}. [low, high]: 95 % interval, clustered by question; it covers the "
        "choice of questions as well as sampling noise. pass@k is unbiased; maj@k is the exact expectation over all "
        "k-subsets of the n samples, ties shared evenly. Format rate: share of samples in the asked-for format."
    ]
    if comparison.baseline:
        lines.append(
            f"Baseline: {comparison.baseline} ({comparison.baseline_reason}). Second line of a cell: difference to "
            "it in points, paired by question, with its 95 % interval. Tests: exact McNemar where every question "
            "scores 0 or 1, sign flips of the per-question differences elsewhere, "
            "Holm-corrected over the differences of one table. Bold with ▲ better or ▼ worse: corrected "
            f"p <= {ALPHA}; nothing else is emphasised."
        )
    return lines


def header(table: Table) -> str:
    """gsm8k: 1,319 questions, n = 64, 63 tests."""
    tests = f", {table.tests} tests" if table.tests else ""
    return f"{table.title}: {table.questions:,} questions, {table.samples} samples each{tests}"


def methods(comparison: Comparison) -> dict[str, str]:
    """Label of each run: its name, with its method where the name does not say it, and a mark for the baseline."""
    out = {}
    for run in comparison.runs:
        label = run.name if run.method.lower() in run.name.lower() else f"{run.name} ({run.method})"
        out[run.name] = label
    return out


def verdicts(table: Table) -> list[tuple[str, dict[str, list[str]]]]:
    """(run, its verdict) for every run but the baseline."""
    if table.baseline is None:
        return []
    return [(run, verdict(table, run)) for run in table.runs if run != table.baseline]


def as_rich(comparison: Comparison, width: int = 160) -> Group:
    """The terminal's version; on one too narrow for the intervals of the differences they are left to the verdicts."""
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"note: {note}", style="yellow") for note in comparison.notes]
    labels = methods(comparison)
    for table in comparison.tables:
        most = max(len(columns) for _, columns in sections(table))
        narrow = width < max(map(len, labels.values())) + 14 + 24 * most
        grid = Grid(title=header(table), title_justify="left", title_style="bold", show_header=False)
        grid.add_column(min_width=12)
        for _ in range(most):
            grid.add_column(justify="right", no_wrap=True)
        for metric, columns in sections(table):
            heads = [column.label for column in columns] if metric != FORMAT else ["format"]
            grid.add_row(Text(SECTIONS[metric], style="bold"), *(Text(head, style="bold") for head in heads))
            for run in table.runs:
                name = Text(labels[run] + ("  (baseline)" if run == table.baseline else ""))
                grid.add_row(name, *(_rich_cell(table.cells[run, column], narrow) for column in columns))
            if table.baseline is not None:
                found = [table.detectable(column) for column in columns]
                shown = ["" if value is None else f"±{percent(value)}" for value in found]
                grid.add_row(Text("detectable", style="dim"), *(Text(text, style="dim") for text in shown))
            grid.add_section()
        parts += [Text(""), grid]
        parts += [Text(f"  note: {note}", style="yellow") for note in table.notes]
        for run, verdict_words in verdicts(table):
            parts.append(Text.assemble((labels[run], "bold"), f" against {labels[str(table.baseline)]}, in points:"))
            for word, phrases in verdict_words.items():
                style = {"better": "bold green", "worse": "bold red"}.get(word, "dim")
                parts += [Text.assemble((f"  {word:20}", style), phrase) for phrase in phrases]
    if comparison.trains:
        parts += [Text(""), _rich_training(comparison)]
    parts.append(Text(""))
    parts += [Text(line, style="dim") for line in legend(comparison)] if comparison.tables else []
    if any(table.baseline for table in comparison.tables):
        parts.append(
            Text(
                "detectable: the smallest true difference shown with 80 % power at p <= 0.05, uncorrected.", style="dim"
            )
        )
    return Group(*parts)


def _rich_cell(cell: Cell, narrow: bool) -> Any:
    from rich.text import Text

    style = {1: "bold green", -1: "bold red", 0: ""}[cell.direction]
    interval = interval_text(cell)[1:-1].replace(", ", "–") if narrow else interval_text(cell)
    text = Text.assemble((value_text(cell), style or "default"), "\n" if narrow else " ", (interval, "dim"))
    if cell.paired is not None:
        change = difference_text(cell).split(" ")[0] if narrow else difference_text(cell)
        text.append(f"\n{ARROWS[cell.direction]}{change}", style=style or "dim")
    return text


def _rich_training(comparison: Comparison) -> Any:
    from rich.table import Table as Grid

    grid = Grid(title="training: mean of the last tenth of the steps", title_justify="left", title_style="bold")
    head, rows = training_rows(comparison)
    for name in head:
        grid.add_column(name, justify="left" if name == "run" else "right")
    for row in rows:
        grid.add_row(*row)
    return grid


def training_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of training runs."""
    head = ["run", "method", "steps", "accuracy reward", "best (step)", "format reward", "entropy, nats", "kept %"]
    head.append("conflict %")
    rows = []
    for train in comparison.trains:
        end = summary(train)

        def show(key: str, scale: float = 100.0, digits: int = 1, end: dict[str, float | None] = end) -> str:
            value = end.get(key)
            return "–" if value is None else f"{scale * value:.{digits}f}"

        best = "–" if end.get("best accuracy") is None else f"{show('best accuracy', 1, 2)} ({show('best step', 1, 0)})"
        rows.append(
            [
                train.name,
                train.preset or train.method,
                show("steps", 1, 0),
                show("reward/accuracy", 1, 2),
                best,
                show("reward/format", 1, 2),
                show("entropy/mean", 1, 3),
                show("gate/kept"),
                show("conflict/fraction"),
            ]
        )
    return head, rows


def _escaped(text: str) -> str:
    """A run's name inside a Markdown table."""
    for mark in "\\|*_<>`[]":
        text = text.replace(mark, f"\\{mark}")
    return text


def as_markdown(comparison: Comparison) -> str:
    """GitHub-flavoured Markdown."""
    labels = {name: _escaped(label) for name, label in methods(comparison).items()}
    lines: list[str] = []
    lines += [f"> **Note:** {_escaped(note)}" for note in comparison.notes]
    for table in comparison.tables:
        lines += ["", f"### {header(table)}"]
        lines += [f"> **Note:** {_escaped(note)}" for note in table.notes]
        for metric, columns in sections(table):
            heads = [column.label for column in columns] if metric != FORMAT else ["format rate"]
            lines += ["", f"| run | {' | '.join(heads)} |", f"|:--|{'--:|' * len(heads)}"]
            for run in table.runs:
                cells = [_markdown_cell(table.cells[run, column]) for column in columns]
                mark = " (baseline)" if run == table.baseline else ""
                lines.append(f"| {labels[run]}{mark} | {' | '.join(cells)} |")
            if table.baseline is not None:
                found = [table.detectable(column) for column in columns]
                shown = ["" if value is None else f"±{percent(value)}" for value in found]
                lines.append(f"| *smallest difference that could be shown* | {' | '.join(shown)} |")
        lines += [""] * (table.baseline is not None)
        for run, verdict_words in verdicts(table):
            sentence = "; ".join(f"{word}: {', '.join(phrases)}" for word, phrases in verdict_words.items())
            lines.append(f"- **{labels[run]}** against {labels[str(table.baseline)]}, in points: {sentence}.")
    if comparison.trains:
        head, rows = training_rows(comparison)
        lines += ["", "### Training: mean of the last tenth of the steps", ""]
        lines += [f"| {' | '.join(head)} |", f"|:--|:--|{'--:|' * (len(head) - 2)}"]
        lines += [f"| {' | '.join(_escaped(value) for value in row)} |" for row in rows]
    lines += ["", *legend(comparison)]
    return "\n".join(lines).strip() + "\n"


def _markdown_cell(cell: Cell) -> str:
    if cell.paired is None:
        return f"{value_text(cell)} {interval_text(cell)}"
    change = f"{difference_text(cell)}, {p_text(cell.p_holm)}"
    if cell.significant:
        return f"**{value_text(cell)}** {interval_text(cell)}<br>**{change} {ARROWS[cell.direction]}**"
    return f"{value_text(cell)} {interval_text(cell)}<br>{change}"


_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "·": r"$\cdot$",
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)


def as_latex(comparison: Comparison) -> str:
    """One table environment a benchmark; needs \\usepackage{booktabs,amssymb}."""
    labels = {name: _latex(label) for name, label in methods(comparison).items()}
    lines = [r"% \usepackage{booktabs,amssymb}"]
    lines += [f"% note: {note}" for note in comparison.notes]
    for table in comparison.tables:
        width = max(len(columns) for _, columns in sections(table))
        lines += ["", r"\begin{table}", r"\centering\small", rf"\begin{{tabular}}{{l{'r' * width}}}", r"\toprule"]
        for i, (metric, columns) in enumerate(sections(table)):
            heads = [column.label for column in columns] if metric != FORMAT else ["format"]
            heads += [""] * (width - len(heads))
            lines += [r"\midrule"] * (i > 0) + [f"{SECTIONS[metric]} & {' & '.join(heads)} \\\\", r"\midrule"]
            for run in table.runs:
                cells = [table.cells[run, column] for column in columns]
                blank = [""] * (width - len(cells))
                values = [f"{_latex_value(cell)} {{\\scriptsize {interval_text(cell)}}}" for cell in cells]
                lines.append(f"{labels[run]} & {' & '.join(values + blank)} \\\\")
                if table.baseline not in (None, run):
                    changes = [
                        f"{{\\scriptsize {_latex(ARROWS[c.direction])} ${difference_text(c)}$}}" if c.paired else ""
                        for c in cells
                    ]
                    lines.append(f"& {' & '.join(changes + blank)} \\\\")
        caption = _latex(" ".join([f"{header(table)}.", *table.notes, *legend(comparison)]))
        label = "".join(c if c.isalnum() else "-" for c in table.title)
        lines += [
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{label}}}",
            r"\end{table}",
        ]
    return "\n".join(lines) + "\n"


def _latex_value(cell: Cell) -> str:
    value = value_text(cell)
    return {1: rf"\textbf{{{value}}}", -1: rf"\textit{{{value}}}", 0: value}[cell.direction]


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """One flat record a run, benchmark, group, metric and k; fractions, None where there is no value."""
    by_name = {run.name: run for run in comparison.runs}
    out = []
    for table in comparison.tables:
        for (name, column), cell in table.cells.items():
            d = cell.paired
            record = {
                "benchmark": table.benchmark,
                "group": table.group or None,
                "run": name,
                "method": by_name[name].method or None,
                "metric": column.metric,
                "k": column.k or None,
                "scoring": comparison.scoring,
                "questions": table.questions,
                "samples": table.samples,
                "mean": cell.interval.mean,
                "low": cell.interval.low,
                "high": cell.interval.high,
                "baseline": table.baseline if d else None,
                "difference": d.difference if d else None,
                "se": d.se if d else None,
                "difference_low": d.low if d else None,
                "difference_high": d.high if d else None,
                "test": d.test if d else None,
                "p": d.p_value if d else None,
                "p_holm": cell.p_holm if d else None,
                "significant": cell.significant if d else None,
                "only_run": d.only_a if d else None,
                "only_baseline": d.only_b if d else None,
                "detectable": d.detectable if d else None,
            }
            out.append({key: _finite(value) for key, value in record.items()})
    return out


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_csv(comparison: Comparison) -> str:
    """`records`, one a line, with a header; empty cells where there is no value."""
    rows = records(comparison)
    out = io.StringIO()
    names = list(rows[0]) if rows else ["benchmark"]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Everything, for programs: runs, notes, legend, `records`, verdicts and the end of training."""
    return {
        "schema_version": JSON_SCHEMA_VERSION,
        "scoring": comparison.scoring,
        "baseline": comparison.baseline,
        "baseline_reason": comparison.baseline_reason,
        "alpha": ALPHA,
        "notes": comparison.notes,
        "settings": comparison.shared_settings,
        "runs": [
            {
                "name": run.name,
                "method": run.method or None,
                "folders": [str(folder) for folder in run.folders],
                "train_run": run.train.name if run.train else None,
            }
            for run in comparison.runs
        ],
        "tables": [
            {
                "benchmark": table.benchmark,
                "group": table.group or None,
                "questions": table.questions,
                "samples": table.samples,
                "tests": table.tests,
                "notes": table.notes,
                "verdicts": dict(verdicts(table)),
            }
            for table in comparison.tables
        ],
        "records": records(comparison),
        "training": {train.name: summary(train) for train in comparison.trains},
        "legend": legend(comparison),
    }


def as_json(comparison: Comparison) -> str:
    """`as_document` as text; no NaN."""
    return json.dumps(as_document(comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


TEXT_FORMATS = {"markdown": as_markdown, "latex": as_latex, "csv": as_csv, "json": as_json}
"""What --format prints to stdout, besides `table`."""
