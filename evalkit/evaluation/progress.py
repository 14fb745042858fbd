"""A live table on a terminal, log lines elsewhere, nothing with --quiet. Always on stderr."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gtpo.common.log import LOG, duration, stderr_console
from gtpo.evalkit.engines.base import Engine
from gtpo.rewards.extract import Scoring
from gtpo.rewards.verify import Verdict
from gtpo.runs.eval_folder import Sample
from gtpo.runs.eval_record import SCORINGS

LINE_EVERY_S = 10.0


@dataclass(slots=True)
class Counts:
    """What is known of one benchmark so far."""

    total: int
    done: int  # Samples scored, those of earlier sessions included
    scored: int = 0
    tagged: int = 0  # Those with an answer in answer tags
    correct: Counter[str] = field(default_factory=Counter)  # By scoring
    failed: int = 0


class EvalProgress:
    """Progress of an eval run, shown while it is used as a context manager; safe to update from any thread.

    scoring: the headline; None if the completions choose it. wanted, done: benchmark -> samples that it will have, and
    those that are stored already. max_tokens: the most of a sample, if it is known.
    """

    def __init__(
        self,
        scoring: Scoring | None,
        wanted: Mapping[str, int],
        done: Mapping[str, int] | None = None,
        engine: Engine | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self._scoring, self._engine, self._most = scoring, engine, max_tokens
        before = done or {}
        self._counts = {name: Counts(n, before.get(name, 0)) for name, n in wanted.items()}
        # Samples that have not arrived; completions of this session that have, and their tokens.
        self._waiting, self._arrived, self._tokens = sum(c.total - c.done for c in self._counts.values()), 0, 0
        self._lock = threading.Lock()
        self._live: Any = None
        self._started = self._last_line = time.monotonic()

    def __enter__(self) -> EvalProgress:
        if LOG.isEnabledFor(logging.INFO) and sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(console=stderr_console(), get_renderable=self._table, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def arrive(self, samples: Iterable[Sample]) -> None:
        """Count what comes from the engine, at once: scoring takes its own time."""
        with self._lock:
            for sample in samples:
                self._waiting -= 1
                self._arrived += sample.error is None
                self._counts[sample.benchmark].failed += sample.error is not None
                self._tokens += sample.tokens or 0

    def count(self, samples: Iterable[Sample]) -> None:
        """Count samples as they are scored."""
        with self._lock:
            for sample in samples:
                if sample.error is None:
                    counts = self._counts[sample.benchmark]
                    counts.done += 1
                    counts.scored += 1
                    counts.tagged += sample.answer_strict is not None
                    counts.correct.update(s for s in SCORINGS if sample.verdict(s) == Verdict.CORRECT)
            if self._live is None and time.monotonic() - self._last_line >= LINE_EVERY_S:
                self._last_line = time.monotonic()
                LOG.info("%s", ", ".join(self._lines()))

    def _lines(self) -> list[str]:
        return [*(f"{name}: {self._line(c)}" for name, c in self._counts.items() if c.scored), *self._speed()]

    def _speed(self) -> list[str]:
        """Describe what is in flight, how fast it goes, and how long it will take."""
        running, written = self._engine.running() if self._engine is not None else (0, 0)
        elapsed = max(time.monotonic() - self._started, 1e-3)
        waiting, arrived, tokens = self._waiting, self._arrived, self._tokens
        parts = [f"{running} in flight with {written:,} tokens"] if running else []
        if self._engine is not None and self._engine.retried:
            parts.append(f"{self._engine.retried} requests sent again")
        if sampled := tokens + written:
            parts.append(f"{sampled / elapsed:.0f} tokens/s")
        if waiting and arrived:
            # The first to end are short: by their length it takes this long at least, and by the limit at most.
            ends = [tokens / arrived, self._most] if sampled and self._most else [tokens / arrived]
            times = [max(0.0, length * waiting - written) / sampled * elapsed for length in ends if length]
            low, high = (times or [waiting / arrived * elapsed])[0], (times or [0.0])[-1]
            if high > 1.5 * low:
                parts.append(f"{duration(low)} to {duration(high)} left")
            elif low:
                parts.append(f"about {duration(low)} left")
        return parts

    def _line(self, c: Counts) -> str:
        """Describe a benchmark."""
        scoring = self._scoring or ("strict" if 2 * c.tagged >= c.scored else "lenient")
        right = f", pass@1 ({scoring}) {100 * c.correct[scoring] / c.scored:.1f} %" if c.scored else ""
        return f"{c.done}/{c.total} samples{right}{f', {c.failed} failed' if c.failed else ''}"

    def _table(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        with self._lock:
            table = Table.grid(padding=(0, 2))
            for name, c in self._counts.items():
                table.add_row(name, ProgressBar(total=max(c.total, 1), completed=c.done, width=24), self._line(c))
            return Group(table, f"  {', '.join(self._speed())}")
