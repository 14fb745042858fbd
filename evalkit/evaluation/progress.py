"""A live table on a terminal, log lines elsewhere, nothing with --quiet. Always on stderr."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gtpo.evalkit.engines.base import Throughput
from gtpo.rewards.extract import Scoring
from gtpo.rewards.verify import Verdict

from gtpo.common.log import LOG, stderr_console

LINE_EVERY_S = 10.0


@dataclass(slots=True)
class Counts:
    """What is known of one benchmark so far."""

    total: int
    done: int
    """Samples scored, those of earlier sessions included."""
    scored_now: int = 0
    correct_now: int = 0
    tokens_now: int = 0
    failed_now: int = 0
    started: float = 0.0
    """When the samples before the first of this benchmark had arrived: since then the engine worked on it."""
    ended: float = 0.0
    """When its last sample had arrived."""

    @property
    def seconds(self) -> float:
        """Time in which its samples arrived."""
        return max(self.ended - self.started, 1e-9)


def duration(seconds: float) -> str:
    """Return 1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """Progress of an eval run; safe to update from any thread. Use as a context manager."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring
        self._counts: dict[str, Counts] = {}
        self._lock = threading.Lock()
        self._live: Any = None
        self._last_line = time.monotonic()
        self._started = self._latest = time.monotonic()
        self._throughput: Callable[[], Sequence[Throughput]] = tuple

    def __enter__(self) -> Progress:
        if LOG.isEnabledFor(logging.INFO) and sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(
                console=stderr_console(), get_renderable=self._table, refresh_per_second=4, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def add(self, benchmark: str, total: int, done: int) -> None:
        """Add a benchmark: samples wanted, samples that are already stored."""
        with self._lock:
            self._counts[benchmark] = Counts(total, done)

    def start(self) -> None:
        """Start the clock: the engine is ready."""
        with self._lock:
            self._started = self._latest = self._last_line = time.monotonic()

    def watch(self, throughput: Callable[[], Sequence[Throughput]]) -> None:
        """Show also what each of an engine's copies or servers does."""
        self._throughput = throughput

    def seconds(self) -> dict[str, float]:
        """Return benchmark -> time in which its samples arrived, of those that had any."""
        with self._lock:
            return {name: round(c.seconds, 2) for name, c in self._counts.items() if c.started}

    def count(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count rows of SAMPLE_SCHEMA as they are scored."""
        with self._lock:
            now = time.monotonic()
            for row in rows:
                counts = self._counts[row["benchmark"]]
                if counts.started == 0.0:
                    counts.started = self._latest
                counts.ended = now
                if row["error"] is not None:
                    counts.failed_now += 1
                    continue
                counts.done += 1
                counts.scored_now += 1
                counts.correct_now += row[f"verdict_{self.scoring}"] == Verdict.CORRECT
                counts.tokens_now += row["tokens"] or 0
            self._latest = now
        if self._live is None and time.monotonic() - self._last_line > LINE_EVERY_S:
            self._last_line = time.monotonic()
            if lines := [self._line(name, c) for name, c in self._counts.items() if c.scored_now]:
                LOG.info(", ".join(lines))
            self.tell_throughput()

    def tell_throughput(self) -> None:
        """Say what each copy or server has done, where there are several."""
        if copies := self._throughput():
            LOG.info("  %s", "; ".join(map(str, copies)))

    def _remaining(self) -> float | None:
        """Seconds left for all benchmarks together, by the rate so far."""
        now = sum(c.scored_now for c in self._counts.values())
        left = sum(c.total - c.done for c in self._counts.values())
        return (time.monotonic() - self._started) / now * left if now else None

    def _line(self, name: str, counts: Counts) -> str:
        remaining = self._remaining() if counts.done < counts.total else None
        left = f", {duration(remaining)} left" if remaining is not None else ""
        left += f", {counts.failed_now} failed" if counts.failed_now else ""
        rate = counts.tokens_now / counts.seconds
        return (
            f"{name}: {counts.done}/{counts.total} samples, pass@1 ({self.scoring}) "
            f"{100 * counts.correct_now / counts.scored_now:.1f} %, {rate:.0f} tokens/s{left}"
        )

    def _table(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        with self._lock:
            table = Table(box=None, pad_edge=False)
            for title in ("benchmark", "", "samples", f"pass@1 ({self.scoring})", "tokens/s", "left"):
                table.add_column(title, justify="left" if title in ("benchmark", "") else "right")
            remaining = self._remaining()
            for name, c in self._counts.items():
                table.add_row(
                    name,
                    ProgressBar(total=max(c.total, 1), completed=c.done, width=24),
                    f"{c.done}/{c.total}" + (f", {c.failed_now} failed" if c.failed_now else ""),
                    f"{100 * c.correct_now / c.scored_now:.1f} %" if c.scored_now else "",
                    f"{c.tokens_now / c.seconds:.0f}" if c.scored_now else "",
                    duration(remaining) if remaining is not None and c.done < c.total else "",
                )
            return Group(table, *(f"  {copy}" for copy in self._throughput()))
