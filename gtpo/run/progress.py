"""Progress of a run on stderr: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

SHOWN = (
    ("loss", "loss", "{:.4f}"),
    ("reward/accuracy", "acc", "{:.2f}"),
    ("reward/format", "fmt", "{:.2f}"),
    ("entropy/mean", "H", "{:.3f}"),
    ("gate/kept", "kept", "{:.2f}"),
    ("conflict/fraction", "conflict", "{:.2f}"),
    ("completions/length", "len", "{:.0f}"),
    ("kl", "kl", "{:.4f}"),
    ("tokens/accuracy", "tokens right", "{:.3f}"),
)
PLAIN_SECONDS = 5.0
"""A plain line at most this often."""


def summary(row: Mapping[str, Any]) -> str:
    """Return the headline metrics of a step in one line."""
    parts = [
        f"{label} {pattern.format(row[name])}"
        for name, label, pattern in SHOWN
        if isinstance(row.get(name), int | float)
    ]
    return "  ".join(parts)


class Progress:
    """Shows steps as they come."""

    def __init__(self, title: str, *, quiet: bool) -> None:
        self.title, self.quiet = title, quiet
        self.live = not quiet and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._last = 0.0
        self._begin = time.monotonic()
        self._first_step: int | None = None

    def start(self, step: int, total: int) -> None:
        """Begin at `step` of `total`."""
        self.total, self._first_step = total, step
        self._begin = time.monotonic()
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[status]}"),
            )
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(self.title, total=total, completed=step, status="")
            self._bar.start()

    def step(self, step: int, row: Mapping[str, Any]) -> None:
        """Show the metrics of a step."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=step, status=summary(row))
            return
        now = time.monotonic()
        if now - self._last < PLAIN_SECONDS and step < self.total and step - 1 != self._first_step:
            return
        self._last = now
        done = step - (self._first_step or 0)
        left = (now - self._begin) / max(done, 1) * (self.total - step)
        print(f"{self.title} {step}/{self.total}  {summary(row)}  ({left:.0f} s left)", file=sys.stderr, flush=True)

    def say(self, message: str) -> None:
        """Print a line that matters, without breaking the live line."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(message, markup=False, highlight=False)
        else:
            print(message, file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        """Print a warning, even when quiet."""
        if self._bar is not None:
            self._bar.console.print(f"gtpo: {message}", markup=False, highlight=False)
        else:
            print(f"gtpo: {message}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Take the live line down."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
