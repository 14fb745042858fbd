"""What `gtpo compare` does with its arguments: find the runs, compare, print, write."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from evalkit.results.find import find_runs
from evalkit.results.record import SCORINGS
from rewards.support.errors import UserError, did_you_mean
from rewards.support.packages import require

MOST_MB = 200
FORMATS = ("table", "markdown", "latex", "csv", "json")


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


def _check_writable(flag: str, path: Path, *, folder: bool) -> None:
    """Raise UserError where `path` cannot become the file (folder) that the flag asks for."""
    if folder and path.exists() and not path.is_dir():
        raise UserError(f"{flag} {path}: there is a file of that name; name a folder")
    if not folder and path.is_dir():
        raise UserError(f"{flag} {path}: that is a folder; name a file, e.g. {path / 'compare.html'}")
    nearest = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    place = nearest if nearest.is_dir() else nearest.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise UserError(f"{flag} {path}: {place} cannot be written to")


def run_compare(
    names: list[str],
    *,
    baseline: str | None,
    k: str | None,
    scoring: str | None,
    format: str,
    per_subject: bool,
    allow_mismatch: bool,
    figures: Path | None,
    html: Path | None,
    samples_mb: float,
) -> None:
    """Run the command. The comparison goes to stdout, everything else to stderr. Raises UserError."""
    if format not in FORMATS:
        raise UserError(f'--format "{format}": one of {", ".join(FORMATS)}.{did_you_mean(format, FORMATS)}')
    if scoring is not None and scoring not in SCORINGS:
        raise UserError(f'--scoring "{scoring}": strict or lenient.{did_you_mean(scoring, SCORINGS)}')
    if not 0 <= samples_mb <= MOST_MB:
        raise UserError(f"--samples-mb {samples_mb:g}: from 0 to {MOST_MB}; a browser reads a page of that size whole")
    if html is not None:
        _check_writable("--html", html, folder=False)
    if figures is not None:
        require("--figures", "matplotlib", extra="report")
        _check_writable("--figures", figures, folder=True)
    ks = parse_ks(k)
    runs, trains, notes = find_runs(names, allow_incomplete=allow_mismatch)
    # Here, not above: a mistake in the arguments is told before the statistics are loaded.
    from evalkit.comparison.compare import compare
    from evalkit.report.tables import TEXT_FORMATS, as_rich

    comparison = compare(
        runs,
        trains,
        baseline=baseline,
        ks=ks,
        scoring=scoring,
        per_subject=per_subject,
        allow_mismatch=allow_mismatch,
        notes=notes,
    )
    if format == "table":
        from rich.console import Console

        # A pipe has no width; 80 columns would fold the intervals.
        console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
        console.print(as_rich(comparison, console.width))
    else:
        sys.stdout.write(TEXT_FORMATS[format](comparison))
    sys.stdout.flush()
    if figures is not None:
        from evalkit.report.figures import write_figures

        written = write_figures(comparison, figures)
        print(f"figures: {len(written)} files in {figures}", file=sys.stderr)
    if html is not None:
        from evalkit.report.page import write_page

        size = write_page(comparison, html, samples_bytes=int(samples_mb * 1e6))
        print(f"page: {html} ({size / 1e6:.1f} MB), open it in any browser", file=sys.stderr)
