"""A live table on a terminal, log lines elsewhere, nothing with --quiet. Always on stderr."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gtpo.common.log import LOG, duration, stderr_console
from gtpo.evalkit.engines.base import Engine, Generation, Running
from gtpo.rewards.extract import Scoring
from gtpo.rewards.verify import Verdict

LINE_EVERY_S = 10.0


@dataclass(slots=True)
class Counts:
    """What is known of one benchmark so far."""

    total: int
    done: int
    """Samples scored, those of earlier sessions included."""
    waiting: int
    """Samples that have not arrived."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of those that arrived now."""
    arrived: int = 0
    scored: int = 0
    correct: int = 0
    failed: int = 0


class State(NamedTuple):
    """Where a run stands: samples in flight by benchmark, tokens/s, and the time left in words."""

    running: dict[str, list[Running]]
    rates: dict[str, float]
    left: str


class EvalProgress:
    """EvalProgress of an eval run; safe to update from any thread. Use as a context manager."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring
        self._counts: dict[str, Counts] = {}
        self._lock = threading.Lock()
        self._live: Any = None
        self._engine: Engine | None = None
        self._most = 0
        self._started = self._last_line = self._last_arrival = self._looked = time.monotonic()

    def __enter__(self) -> EvalProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def add(self, benchmark: str, total: int, done: int) -> None:
        """Add a benchmark: samples wanted, samples that are already stored."""
        with self._lock:
            self._counts[benchmark] = Counts(total, done, total - done)

    def start(self, engine: Engine | None = None, max_tokens: int | None = None) -> None:
        """Start the clock and the display: the first request goes out now."""
        with self._lock:
            self._engine, self._most = engine, max_tokens or 0
            self._started = self._last_line = self._last_arrival = self._looked = time.monotonic()
        if LOG.isEnabledFor(logging.INFO) and sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(
                console=stderr_console(), get_renderable=self._table, refresh_per_second=4, transient=True
            )
            self._live.start()

    def seconds(self) -> dict[str, float]:
        """Return benchmark -> its share of the time from the first request to the last arrival, by tokens sampled."""
        with self._lock:
            whole = self._last_arrival - self._started
            weights = {name: sum(c.lengths) for name, c in self._counts.items() if c.arrived}
            if not all(weights.values()):  # what came does not say how long it is
                weights = {name: self._counts[name].arrived for name in weights}
            return {name: round(whole * weight / sum(weights.values()), 2) for name, weight in weights.items()}

    def arrive(self, generations: Iterable[Generation]) -> None:
        """Count what comes from the engine, at once: scoring takes its own time."""
        with self._lock:
            for g in generations:
                counts = self._counts[g.benchmark]
                counts.waiting -= 1
                counts.arrived += g.error is None
                counts.failed += g.error is not None
                if g.tokens is not None:
                    counts.lengths.append(g.tokens)
            self._last_arrival = time.monotonic()

    def count(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count rows of SAMPLE_SCHEMA as they are scored."""
        with self._lock:
            for row in rows:
                if row["error"] is None:
                    counts = self._counts[row["benchmark"]]
                    counts.done += 1
                    counts.scored += 1
                    counts.correct += row[f"verdict_{self.scoring}"] == Verdict.CORRECT
        if self._live is None and LOG.isEnabledFor(logging.INFO) and time.monotonic() - self._looked >= 1:
            with self._lock:
                state = self._state()
            if time.monotonic() - self._last_line < LINE_EVERY_S:
                return
            self._last_line = time.monotonic()
            lines = [line for name, c in self._counts.items() if (line := self._line(name, c, state))]
            if lines:
                LOG.info("%s%s", ", ".join(lines), f", {state.left}" if state.left else "")
            self.tell_throughput()

    def tell_throughput(self) -> None:
        """Say what each copy or server has done, where there are several."""
        if copies := self._engine.throughput() if self._engine is not None else ():
            LOG.info("  %s", "; ".join(map(str, copies)))

    def _state(self) -> State:
        """Return what is in flight, how fast it goes, and how long it will take."""
        running = list(self._engine.running()) if self._engine is not None else []
        of = {name: [r for r in running if r.benchmark == name] for name in self._counts}
        self._looked = now = time.monotonic()
        going = [r.tokens for r in running if not r.ended]
        elapsed = max(now - self._started, 1e-3)
        waiting = sum(c.waiting for c in self._counts.values())
        sampled = {name: sum(c.lengths) + sum(r.tokens for r in of[name]) for name, c in self._counts.items()}
        if not any(sampled.values()):  # tokens are not known: by samples
            arrived = sum(c.arrived for c in self._counts.values())
            return State(of, {}, f"{duration(elapsed / arrived * waiting)} left" if arrived and waiting else "")
        tokens, lengths = sum(sampled.values()), [tokens for c in self._counts.values() for tokens in c.lengths]
        lengths += [r.tokens for r in running if r.ended]
        # The first to end are short: what runs longer than their mean counts as long as it is.
        usual = sum(lengths) / len(lengths) if lengths else float(self._most)
        still = sum(max(0.0, usual - done) for done in going) + usual * max(0, waiting - len(running))
        words = f"{'about' if lengths else 'at most'} {duration(still * elapsed / tokens)} left" if waiting else ""
        rate = tokens / elapsed
        return State(of, {name: rate for name, tokens in sampled.items() if tokens}, words)

    def _line(self, name: str, c: Counts, state: State) -> str:
        """Describe a benchmark; empty where nothing has been done for it yet."""
        running = state.running[name]
        if not (c.scored or running):
            return ""
        parts = [f"{name}: {c.done}/{c.total} samples"]
        if c.scored:
            parts.append(f"pass@1 ({self.scoring}) {100 * c.correct / c.scored:.1f} %")
        if running:
            parts.append(f"{len(running)} running with {sum(r.tokens for r in running):,} tokens")
        if name in state.rates:
            parts.append(f"{state.rates[name]:.0f} tokens/s")
        if c.failed:
            parts.append(f"{c.failed} failed")
        return ", ".join(parts)

    def _table(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        with self._lock:
            state = self._state()
            table = Table(box=None, pad_edge=False)
            for title in ("benchmark", "", "samples", "running", f"pass@1 ({self.scoring})"):
                table.add_column(title, justify="left" if title in ("benchmark", "") else "right")
            for name, c in self._counts.items():
                running = state.running[name]
                table.add_row(
                    name,
                    ProgressBar(total=max(c.total, 1), completed=c.done, width=24),
                    f"{c.done}/{c.total}" + (f", {c.failed} failed" if c.failed else ""),
                    f"{len(running)} with {sum(r.tokens for r in running):,} tokens" if running else "",
                    f"{100 * c.correct / c.scored:.1f} %" if c.scored else "",
                )
            rate = next(iter(state.rates.values()), None)
            speed = [f"{rate:.0f} tokens/s"] if rate is not None else []
            whole = ", ".join([*speed, *([state.left] if state.left else [])])
            copies = self._engine.throughput() if self._engine is not None else ()
            return Group(table, *([f"  {whole}"] if whole else []), *(f"  {copy}" for copy in copies))
