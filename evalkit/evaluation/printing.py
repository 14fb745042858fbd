"""What `gtpo eval` prints at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evalkit.evaluation.benchmarks import BENCHMARKS
from evalkit.metrics import DEFINITIONS

UNDECIDED = ("TIMEOUT", "REJECTED")
GROUPS_FROM = 200
"""Questions from which subjects and levels are printed: below, a group is a handful (eval.json has them)."""


def shown_ks(n: int, k: int) -> list[int]:
    """Return the powers of two up to k, and k."""
    powers = [1 << i for i in range(k.bit_length()) if 1 << i <= k]
    return sorted({*powers, min(k, n)})


def _cell(interval: dict[str, Any]) -> str:
    return f"{100 * interval['mean']:.1f} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def print_summary(folder: Path, record: dict[str, Any], k: int) -> None:
    """Print the metrics of a run on stdout: one table a benchmark, then what they mean and where they lie."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    for name, entry in record["benchmarks"].items():
        n = len(entry["pass@k"])
        title = f"{name}: {entry['questions']} questions, {entry['samples']} samples, {record['scoring']} scoring"
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in ("k", "pass@k, %", "maj@k, %"):
            table.add_column(column, justify="right")
        for size in shown_ks(n, min(k, n)):
            table.add_row(str(size), _cell(entry["pass@k"][str(size)]), _cell(entry["maj@k"][str(size)]))
        console.print(table)
        console.print(_line(record, entry), markup=False)
        if entry["questions"] >= GROUPS_FROM and ("by_level" in entry or "by_subject" in entry):
            console.print(_groups(entry, min(k, n)))
    console.print(
        "Brackets: 95 % intervals clustered by question; they cover the choice of questions and the sampling "
        "(eval.json has sampling noise alone as well).",
        style="dim",
    )
    console.print(DEFINITIONS, style="dim")
    console.print(f"Results: {folder}", markup=False)
    console.print(f"Next:    gtpo compare {folder} OTHER_RUN...", markup=False)


def _line(record: dict[str, Any], entry: dict[str, Any]) -> str:
    other = "lenient" if record["scoring"] == "strict" else "strict"
    parts = [
        f"format {100 * entry['format_rate']:.1f} %",
        f"cut off {100 * entry['truncation_rate']:.1f} %",
        f"no answer {100 * entry['no_answer_rate']:.1f} %",
        f"unsimplified {100 * entry['unsimplified_rate']:.1f} %",
    ]
    if entry["mean_tokens"] is not None:
        parts.append(f"{entry['mean_tokens']:.0f} tokens on average")
    parts.append(f"pass@1 under {other} scoring {100 * entry[other]['pass@k']['1']['mean']:.1f} %")
    undecided = sum(entry["verdicts"].get(verdict, 0) for verdict in UNDECIDED)
    if undecided:
        parts.append(f"{undecided} answers could not be verified and count as wrong")
    if entry.get("excluded"):
        parts.append(f"{len(entry['excluded'])} questions left out")
    labels = entry.get("labels")
    if labels:
        agree = labels["agree"]
        parts.append(
            f"the file's own labels agree on {agree['lenient']} of {labels['compared']} (lenient), "
            f"{agree['strict']} (strict)"
        )
    return ", ".join(parts)


def _groups(entry: dict[str, Any], k: int) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("", "questions", "pass@1", *([f"pass@{k}", f"maj@{k}"] if k > 1 else [])):
        table.add_column(column, justify="left" if column == "" else "right")
    for label, title in (("by_subject", "{}"), ("by_level", "level {}")):
        for value, group in entry.get(label, {}).items():
            cells = [group["pass@k"]["1"], *([group["pass@k"][str(k)], group["maj@k"][str(k)]] if k > 1 else [])]
            table.add_row(title.format(value), str(group["questions"]), *(f"{100 * cell:.1f}" for cell in cells))
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
