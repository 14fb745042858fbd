"""A live table on a terminal, log lines elsewhere, nothing with --quiet. Always on stderr."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gtpo.common.log import LOG, duration, stderr_console
from gtpo.evalkit.engines.base import Engine
from gtpo.rewards.extract import Scoring
from gtpo.rewards.verify import Verdict
from gtpo.runs.eval_folder import Sample
from gtpo.runs.eval_record import SCORINGS

LINE_EVERY_S = 10.0


class EvalProgress:
    """Progress of an eval run, shown while it is used as a context manager. One thread counts; another may look.

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
        self._wanted, self._before = wanted, done or {}
        # Benchmark -> samples of this session: scored, failed, tagged (with an answer in tags), right by scoring.
        self._counts = {name: Counter[str]() for name in wanted}
        self._tokens = 0
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

    def count(self, samples: Iterable[Sample]) -> None:
        """Count samples once they are scored, or have failed."""
        for sample in samples:
            counts = self._counts[sample.benchmark]
            self._tokens += sample.tokens or 0
            counts["scored" if sample.error is None else "failed"] += 1
            counts["tagged"] += sample.answer_strict is not None
            counts.update(s for s in SCORINGS if sample.verdict(s) == Verdict.CORRECT)
        if self._live is None and time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            lines = [f"{name}: {self._line(name)}" for name, counts in self._counts.items() if counts["scored"]]
            LOG.info("%s", ", ".join([*lines, *self._speed()]))

    def _speed(self) -> list[str]:
        """Describe what is in flight, how fast it goes, and how long it will take."""
        running, written = self._engine.running() if self._engine is not None else (0, 0)
        elapsed = max(time.monotonic() - self._started, 1e-3)
        scored, failed = (sum(counts[what] for counts in self._counts.values()) for what in ("scored", "failed"))
        waiting = sum(self._wanted.values()) - sum(self._before.values()) - scored - failed
        parts = [f"{running} in flight with {written:,} tokens"] if running else []
        if self._engine is not None and self._engine.retried:
            parts.append(f"{self._engine.retried} requests sent again")
        if sampled := self._tokens + written:
            parts.append(f"{sampled / elapsed:.0f} tokens/s")
        if waiting and scored:
            # The first to end are short: by their length it takes this long at least, and by the limit at most.
            mean = self._tokens / scored
            ends = [mean, self._most] if sampled and self._most else [mean]
            times = [max(0.0, length * waiting - written) / sampled * elapsed for length in ends if length]
            low, high = (times or [waiting / scored * elapsed])[0], (times or [0.0])[-1]
            if high > 1.5 * low:
                parts.append(f"{duration(low)} to {duration(high)} left")
            elif low:
                parts.append(f"about {duration(low)} left")
        return parts

    def _done(self, name: str) -> int:
        return self._before.get(name, 0) + self._counts[name]["scored"]

    def _line(self, name: str) -> str:
        """Describe a benchmark."""
        counts = self._counts[name]
        scored, failed = counts["scored"], counts["failed"]
        scoring = self._scoring or ("strict" if 2 * counts["tagged"] >= scored else "lenient")
        right = f", pass@1 ({scoring}) {100 * counts[scoring] / scored:.1f} %" if scored else ""
        return f"{self._done(name)}/{self._wanted[name]} samples{right}{f', {failed} failed' if failed else ''}"

    def _table(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, total in self._wanted.items():
            table.add_row(name, ProgressBar(max(total, 1), self._done(name), width=24), self._line(name))
        return Group(table, f"  {', '.join(self._speed())}")
