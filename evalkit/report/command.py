"""What `gtpo compare` does with its arguments: find the runs, compare, print, write."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.files import check_writable
from gtpo.common.packages import require
from gtpo.common.terminal import stdout_console
from gtpo.evalkit.results.find import find_runs
from gtpo.evalkit.results.record import SCORINGS

if TYPE_CHECKING:
    from gtpo.evalkit.comparison.compare import Comparison

MOST_MB = 200
FORMATS = ("table", "markdown", "latex", "csv", "json")


@dataclass(frozen=True)
class CompareSettings:
    """One `gtpo compare` command."""

    runs: list[str]
    baseline: str | None = None
    group_by: str = "config"
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    details: bool = False
    k: str | None = None
    scoring: str | None = None
    format: str = "table"
    per_subject: bool = False
    allow_mismatch: bool = False
    figures: Path | None = None
    html: Path | None = None
    samples_mb: float = 1.5
    verifiers: bool = False
    margin: float | None = None
    """Of equivalence, in points."""
    plan: bool = False
    difference: float | None = None
    """What is planned for, in points."""

    def __post_init__(self) -> None:
        """Raise UserError for a value out of range, or a place that cannot be written to."""
        if self.format not in FORMATS:
            raise UserError(
                f'--format "{self.format}": one of {", ".join(FORMATS)}.{did_you_mean(self.format, FORMATS)}'
            )
        if self.scoring is not None and self.scoring not in SCORINGS:
            raise UserError(f'--scoring "{self.scoring}": strict or lenient.{did_you_mean(self.scoring, SCORINGS)}')
        if not 0 <= self.samples_mb <= MOST_MB:
            raise UserError(
                f"--samples-mb {self.samples_mb:g}: from 0 to {MOST_MB}; a browser reads a page of that size whole"
            )
        for name, value in (("--margin", self.margin), ("--difference", self.difference)):
            if value is not None and not 0 < value < 100:
                raise UserError(f"{name} {value:g}: expected points between 0 and 100, e.g. {name} 2")
        if self.difference is not None and not self.plan:
            raise UserError("--difference says what --plan plans for: gtpo compare --plan RUN... --difference 2")
        if self.plan and self.format not in ("table", "json"):
            raise UserError(f"--plan is printed as a table or as JSON, not as {self.format}")
        if self.html is not None:
            check_writable("--html", self.html, folder=False)
        if self.figures is not None:
            check_writable("--figures", self.figures, folder=True)


def parse_ks(text: str | None) -> list[int] | None:
    """`1,8,64` as numbers. Raises UserError."""
    if text is None:
        return None
    try:
        ks = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        ks = []
    if not ks or min(ks) < 1:
        raise UserError(f'--k "{text}": expected whole numbers from 1 on, e.g. --k 1,8,64')
    return ks


def parse_metrics(texts: tuple[str, ...]) -> list[tuple[str, int]] | None:
    """`pass@1,maj@64` as (metric, k), in order and each once; None where none is asked for. Raises UserError."""
    found: dict[tuple[str, int], None] = {}
    for text in (part.strip() for given in texts for part in given.split(",")):
        match = re.fullmatch(r"(pass|maj)@([1-9]\d*)", text)
        if match is None and text != "format":
            raise UserError(f'--metric "{text}": expected pass@K, maj@K or format, e.g. --metric pass@1')
        found[(f"{match[1]}@k", int(match[2])) if match else ("format", 0)] = None
    return list(found) or None


def run_compare(settings: CompareSettings) -> None:
    """Run the command. The comparison goes to stdout, everything else to stderr. Raises UserError."""
    ks, metrics = parse_ks(settings.k), parse_metrics(settings.metrics)
    runs, trains, notes = find_runs(settings.runs, allow_incomplete=settings.allow_mismatch)
    if settings.verifiers:
        from gtpo.evalkit.report.verifiers import print_differences

        print_differences(runs, settings.scoring)
        return
    # Here, not above: a mistake in the arguments is told before the statistics are loaded.
    from gtpo.evalkit.comparison.compare import compare
    from gtpo.evalkit.comparison.scores import Column
    from gtpo.evalkit.report.latex import as_latex
    from gtpo.evalkit.report.records import as_csv, as_json
    from gtpo.evalkit.report.tables import as_markdown, as_rich
    from gtpo.evalkit.report.text import visible

    details = settings.details or ks is not None
    comparison = compare(
        runs,
        trains,
        baseline=settings.baseline,
        group_by=settings.group_by,
        labels=settings.labels,
        metrics=None if metrics is None else [Column(*metric) for metric in metrics],
        ks=ks,
        scoring=settings.scoring,
        details=details or settings.html is not None or settings.figures is not None,
        per_subject=settings.per_subject,
        allow_mismatch=settings.allow_mismatch,
        margin=None if settings.margin is None else settings.margin / 100,
        notes=notes,
    )
    if settings.plan:
        return _print_plan(comparison, settings)
    if settings.format == "table":
        console = stdout_console(pipe=160)
        console.print(as_rich(comparison, console.width, details=details))
    else:
        formats = {"markdown": as_markdown, "latex": as_latex, "csv": as_csv, "json": as_json}
        sys.stdout.write(formats[settings.format](comparison, details=details))
    sys.stdout.flush()
    if settings.format == "csv":  # a file of numbers has no place for them
        for note in comparison.all_notes:
            print(f"note: {visible(note)}", file=sys.stderr)
    failed: UserError | None = None
    if settings.figures is not None:
        try:
            require("--figures", "matplotlib", extra="report")
            from gtpo.evalkit.report.figures import write_figures

            written = write_figures(comparison, settings.figures)
            print(f"figures: {len(written)} files in {settings.figures}", file=sys.stderr)
        except UserError as error:  # the page is written nevertheless
            failed = error
        except ImportError as error:
            failed = UserError(f"--figures: matplotlib cannot be imported ({error}); pip install 'gtpo[report]'")
    if settings.html is not None:
        from gtpo.evalkit.report.page import write_page

        size = write_page(comparison, settings.html, samples_bytes=int(settings.samples_mb * 1e6))
        print(f"page: {settings.html} ({size / 1e6:.1f} MB), open it in any browser", file=sys.stderr)
    if failed is not None:
        raise failed


def _print_plan(comparison: Comparison, settings: CompareSettings) -> None:
    from gtpo.evalkit.comparison.plan import TARGET
    from gtpo.evalkit.report.records import plan_as_json
    from gtpo.evalkit.report.tables import plan_as_rich

    target = TARGET if settings.difference is None else settings.difference / 100
    if settings.format == "json":
        sys.stdout.write(plan_as_json(comparison, target))
        return
    console = stdout_console(pipe=160)
    console.print(plan_as_rich(comparison, target, console.width))
