"""What `gtpo eval` prints at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evalkit.evaluation.benchmarks import BENCHMARKS
from evalkit.metrics import DEFINITIONS
from evalkit.results.record import SCORINGS, BenchmarkRecord, EvalRecord, Interval
from rewards.extract import Scoring

UNDECIDED = ("TIMEOUT", "REJECTED")
GROUPS_FROM = 200
"""Questions from which subjects and levels are printed: below, a group is a handful (eval.json has them)."""


def shown_ks(n: int, k: int) -> list[int]:
    """Return the powers of two up to k, and k."""
    powers = [1 << i for i in range(k.bit_length()) if 1 << i <= k]
    return sorted({*powers, min(k, n)})


def _cell(interval: Interval) -> str:
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def print_summary(folder: Path, record: EvalRecord, k: int) -> None:
    """Print the metrics of a run on stdout: one table per benchmark, then what they mean and where they lie."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    for name, entry in record.benchmarks.items():
        n = len(entry.pass_at_k)
        title = f"{name}: {entry.questions} questions, {entry.samples} samples, {record.scoring} scoring"
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in ("k", "pass@k, %", "maj@k, %"):
            table.add_column(column, justify="right")
        for size in shown_ks(n, min(k, n)):
            table.add_row(str(size), _cell(entry.pass_at_k[size]), _cell(entry.maj_at_k[size]))
        console.print(table)
        console.print(_line(record.scoring, entry), markup=False)
        if entry.questions >= GROUPS_FROM and (entry.by_level or entry.by_subject):
            console.print(_groups(entry, min(k, n)))
    console.print(
        "Brackets: 95 % intervals clustered by question; they cover the choice of questions and the sampling "
        "(eval.json has sampling noise alone as well).",
        style="dim",
    )
    console.print(DEFINITIONS, style="dim")
    console.print(f"Results: {folder}", markup=False)
    console.print(f"Next:    gtpo compare {folder} OTHER_RUN...", markup=False)


def _line(headline: Scoring, entry: BenchmarkRecord) -> str:
    (other,) = (scoring for scoring in SCORINGS if scoring != headline)
    parts = [
        f"{title} {100 * rate:.1f} %"
        for title, rate in (
            ("format", entry.format_rate),
            ("cut off", entry.truncation_rate),
            ("no answer", entry.no_answer_rate),
            ("unsimplified", entry.unsimplified_rate),
        )
        if rate is not None
    ]
    if entry.mean_tokens is not None:
        parts.append(f"{entry.mean_tokens:.0f} tokens on average")
    parts.append(f"pass@1 under {other} scoring {100 * entry.by_scoring(other).pass_at_k[1].mean:.1f} %")
    undecided = sum(entry.verdicts.get(verdict, 0) for verdict in UNDECIDED)
    if undecided:
        parts.append(f"{undecided} answers could not be verified and count as wrong")
    if entry.excluded:
        parts.append(f"{len(entry.excluded)} questions left out")
    if entry.labels:
        agree = entry.labels.agree
        parts.append(
            f"the file's own labels agree on {agree['lenient']} of {entry.labels.compared} (lenient), "
            f"{agree['strict']} (strict)"
        )
    return ", ".join(parts)


def _groups(entry: BenchmarkRecord, k: int) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("", "questions", "pass@1", *([f"pass@{k}", f"maj@{k}"] if k > 1 else [])):
        table.add_column(column, justify="left" if column == "" else "right")
    for groups, title in ((entry.by_subject, "{}"), (entry.by_level, "level {}")):
        for value, group in (groups or {}).items():
            cells = [group.pass_at_k[1], *([group.pass_at_k[k], group.maj_at_k[k]] if k > 1 else [])]
            table.add_row(title.format(value), str(group.questions), *(f"{100 * cell:.1f}" for cell in cells))
    return table


def print_benchmarks() -> None:
    """Print the benchmarks that are built in (gtpo eval --list)."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("benchmark", "", "questions", "source", "local file"):
        table.add_column(column, justify="right" if column == "questions" else "left", no_wrap=True)
    for b in BENCHMARKS.values():
        local = f"{b.local}.jsonl" if b.local else ""
        table.add_row(b.name, b.title, str(b.count), b.source, local)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table, width=max(console.width, 100), crop=False)
    console.print(
        "Local files are read from --data-dir or GTPO_DATA_DIR. Your own: a .jsonl, .parquet or .yaml file, or "
        "package.module:NAME."
    )
