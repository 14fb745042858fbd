"""A live table on a terminal, log lines elsewhere, nothing with --quiet. Always on stderr."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gtpo.common.log import LOG, duration, stderr_console
from gtpo.evalkit.engines.base import Engine, Generation, Running
from gtpo.rewards.extract import Scoring
from gtpo.rewards.verify import Verdict

LINE_EVERY_S = 10.0

FEW = 5
"""So few samples say nothing of the lengths beyond them."""

OWN = 50
"""Finished samples from which a benchmark's lengths are its own; before, those of all benchmarks."""


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


class Left(NamedTuple):
    """What is expected to be sampled yet."""

    tokens: float
    longest: float
    """Tokens that the longest of the running samples has before it."""
    mean: float
    """Tokens that a running sample has before it."""


def tokens_left(
    ended: Sequence[int], running: Sequence[int], waiting: int, most: int, others: Sequence[int] = ()
) -> Left:
    """Forecast what is left to sample.

    ended: lengths of finished samples. running: tokens so far of those in flight. waiting: samples that have none yet.
    others: tokens so far of samples that are in flight too, but are not forecast here.

    Lengths follow the Kaplan-Meier estimate, in which a running sample counts as one that is longer than it is now: the
    mean of the finished ones alone would be that of the short ones. Where few are as long, the tail is exponential.
    Where none has finished, all have `most` tokens.
    """
    most, censored = max([most, *ended, *running, *others]), [*(others or running)]
    deaths = np.bincount(ended, minlength=most + 1) if ended else np.zeros(most + 1)
    seen = deaths + np.bincount(censored, minlength=most + 1) if censored else deaths
    at_risk = seen[::-1].cumsum()[::-1]
    survival = np.cumprod(1 - deaths / np.maximum(at_risk, 1))  # [t]: the chance to have more than t tokens
    if ended:
        known = int(np.flatnonzero(at_risk >= (FEW if len(ended) >= 4 * FEW else 1))[-1])
        middle = float(np.median(ended))
        beyond = [max(0.0, tokens - middle) for tokens in (*ended, *censored)]
        excess = max(1.0, sum(beyond) / max(1, sum(tokens > middle for tokens in ended)))
        survival[known:] = survival[known] * np.exp(-np.arange(most + 1 - known) / excess)
    survival[most] = 0
    tail = survival[::-1].cumsum()[::-1]
    alive = np.array([t for t in running if survival[t] > 0], dtype=int)
    if not len(alive):
        return Left(waiting * float(tail[0]), 0.0, 0.0)
    residual = tail[alive] / survival[alive]
    grid = np.linspace(0, most, 200)
    later = np.minimum(alive[:, None] + grid.astype(int), most)
    all_ended = np.prod(1 - survival[later] / survival[alive][:, None], axis=0)
    longest = float(np.sum(1 - all_ended) * most / len(grid))
    return Left(waiting * float(tail[0]) + float(residual.sum()), longest, float(residual.mean()))


PRIOR = (0.5, 0.4, 0.1)
"""Shares of the time that a, b and c have where what was seen does not tell them apart."""
SERVER = (0.9, 0.05, 0.05)
"""The same of a server, which is not ours alone."""
TRUST = 0.001
"""Weight of the prior, relative to what has been seen."""


class RowPace:
    """Non-negative least squares over what is observed of an engine.

        seconds = a steps + b tokens + c samples begun

    A step gives every running sample a token. Where a step costs the same however many run (a GPU that waits for its
    memory), a is all there is; where the arithmetic bounds it (a CPU), b; c is what reading a prompt costs. So the last
    samples, which run alone, are not taken for as slow, or as fast, as the many before them.
    """

    def __init__(self, prior: tuple[float, float, float] = PRIOR) -> None:
        self._prior = np.array(prior)
        self._gram, self._right, self._sums = np.zeros((3, 3)), np.zeros(3), np.zeros(3)
        self._seconds = self._square = 0.0

    def observe(self, seconds: float, steps: float, tokens: float, begun: float) -> None:
        """Take note of what an engine did in so many seconds."""
        row = np.array([steps, tokens, begun])
        self._gram += np.outer(row, row)
        self._right += seconds * row
        self._sums += row
        self._seconds += seconds
        self._square += seconds**2

    def seconds(self, steps: float, tokens: float, begun: float) -> float:
        """Forecast how long this takes; 0 before anything was seen."""
        from scipy.optimize import nnls

        # a, b and c, if each took all the time.
        unit = np.divide(self._seconds, self._sums, out=np.zeros(3), where=self._sums > 0)
        if not unit.any():
            return 0.0
        trust = TRUST * self._square
        left = np.linalg.cholesky(unit[:, None] * self._gram * unit + trust * np.eye(3))
        shares, _ = nnls(left.T, np.linalg.solve(left, unit * self._right + trust * self._prior))
        return float(np.dot(shares * unit, [steps, tokens, begun]))


class State(NamedTuple):
    """Where a run stands: samples in flight by benchmark, tokens/s, and the time left in words."""

    running: dict[str, list[Running]]
    rates: dict[str, float]
    left: str


class EvalProgress:
    """Progress of an eval run; safe to update from any thread. Use as a context manager."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring
        self._counts: dict[str, Counts] = {}
        self._lock = threading.Lock()
        self._live: Any = None
        self._engine: Engine | None = None
        self._most = 0
        self._pace = RowPace()
        self._rows = 1
        """Of a batch."""
        self._seen = 0.0, 0, 0, 0
        """When the engine was last seen to have moved; tokens, samples begun, and samples running then."""
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
            if engine is not None and engine.name == "openai":
                self._pace = RowPace(SERVER)
            self._started = self._last_line = self._last_arrival = self._looked = time.monotonic()
            self._seen = self._started, 0, 0, 0
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
        batchwise = self._engine is not None and self._engine.name == "transformers"
        self._rows = len(running) or self._rows
        tokens, begun = sum(sampled.values()), sum(c.arrived + len(of[name]) for name, c in self._counts.items())
        since, tokens_then, begun_then, going_then = self._seen
        if tokens > tokens_then:
            # None runs between two batches.
            width = (len(going) + going_then) / 2 if going and going_then else max(len(going), going_then, 1)
            steps = (tokens - tokens_then) / width
            work = steps * self._rows if batchwise else tokens - tokens_then
            self._pace.observe(now - since, steps, work, begun - begun_then)
            self._seen = now, tokens, begun, len(going)
        ended = {name: [*c.lengths, *(r.tokens for r in of[name] if r.ended)] for name, c in self._counts.items()}
        every = [tokens for lengths in ended.values() for tokens in lengths]
        expected, waits, longest = 0.0, 0, Left(0.0, 0.0, 0.0)
        for name, c in self._counts.items():
            own = len(ended[name]) >= OWN
            mine = [r.tokens for r in of[name] if not r.ended]
            behind = max(0, c.waiting - len(of[name]))
            forecast = tokens_left(ended[name] if own else every, mine, behind, self._most, [] if own else going)
            waits += behind
            expected += forecast.tokens
            longest = max(longest, forecast, key=lambda left: left.longest)
        if batchwise:  # rows that have ended are computed with the others; the next batch waits for the longest
            fresh = tokens_left(every, [0] * self._rows, 0, self._most).longest
            steps = longest.longest + fresh * -(-waits // self._rows)
            left = self._pace.seconds(steps, longest.longest * len(running) + fresh * waits, waits)
        else:
            steps = expected / max(1, len(going)) + longest.longest - longest.mean
            left = self._pace.seconds(steps, expected, waits)
        rate = tokens / elapsed
        known = every or sum(going) > 16 * len(going)  # before, the pace is that of the prompts
        words = f"{'' if every else 'at most '}{duration(left)} left" if waiting and known else ""
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
