"""Progress of a run on stderr: one live line on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gtpo.common.log import LOG, stderr_console

SHOWN = (
    ("loss", "loss", "{:.4f}"),
    ("reward/accuracy", "acc", "{:.2f} of 10"),
    ("reward/format", "fmt", "{:.2f} of 10"),
    ("entropy/mean", "H", "{:.3f}"),
    ("gate/kept", "kept", "{:.2f}"),
    ("conflict/fraction", "conflict", "{:.2f}"),
    ("completions/length", "len", "{:.0f}"),
    ("kl", "kl", "{:.4f}"),
    ("kl/untrained", "kl", "{:.4f}"),
    ("validation/pass@1", "held-out", "{:.3f}"),
    ("tokens/accuracy", "tokens right", "{:.3f}"),
)
# Seconds after which a part of a step is shown; on a terminal again after as many.
TELL_SECONDS = 10.0
# Least seconds between two log lines.
PLAIN_SECONDS = 5.0


def summary(row: Mapping[str, Any], width: int | None = None) -> str:
    """Return the headline metrics of a step in one line, the first ones if not all fit into `width` columns."""
    line = ""
    for name, label, pattern in SHOWN:
        if isinstance(row.get(name), int | float):
            longer = f"{line}  {label} {pattern.format(row[name])}".strip()
            if width is not None and len(longer) > width:
                break
            line = longer
    return line


def _live_line(title: str) -> Any:
    """Return rich's progress: the bar, and under it the metrics, each in one line of the terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    class TwoLines(Bar):
        def get_renderables(self) -> Any:
            yield from super().get_renderables()
            for task in self.tasks:
                yield Text(task.fields["status"], no_wrap=True, overflow="ellipsis")

    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return TwoLines(*columns, console=stderr_console(), expand=len(title) > 30)


class Progress:
    """Shows steps as they come, at log level INFO. shown: whether this process shows them."""

    def __init__(self, title: str, *, shown: bool) -> None:
        self.title = title
        self.shown = shown and LOG.isEnabledFor(logging.INFO)
        self._bar: Any = None
        self._task: Any = None
        self._last = 0.0

    def start(self, step: int, total: int) -> None:
        """Begin at `step` of `total`."""
        self.total, self._first_step, self._begin = total, step, time.monotonic()
        if self.shown and sys.stderr.isatty():
            self._bar = _live_line(self.title)
            self._task = self._bar.add_task(self.title, total=total, completed=step, status="")
            self._bar.start()

    def step(self, step: int, row: Mapping[str, Any]) -> None:
        """Show the metrics of a step."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, status=summary(row, self._bar.console.width))
            return
        now = time.monotonic()
        due = now - self._last >= PLAIN_SECONDS or step >= self.total or step - 1 == self._first_step
        if self.shown and due:
            self._last = now
            left = (now - self._begin) / max(step - self._first_step, 1) * (self.total - step)
            LOG.info(f"{self.title} {step}/{self.total}  {summary(row)}  ({left:.0f} s left)")

    @property
    def live(self) -> bool:
        """Whether the progress is a line of a terminal that changes."""
        return self._bar is not None

    def note(self, text: str) -> None:
        """Show what is going on within a step."""
        if self._bar is not None:
            self._bar.update(self._task, status=text)
        elif self.shown:
            LOG.info(f"{self.title}  {text}")

    def stop(self) -> None:
        """Take the live line down."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class StepProgress:
    """Says what a step is at while it takes long: sampling, scoring, or which micro-batch is trained on.

    Counts the seconds of the first two, shown or not.
    """

    def __init__(self, trainer: Any, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self.trainer, self.progress, self._clock = trainer, progress, clock
        # When what is going on began, and what is shown of it after so many seconds.
        self._now: tuple[float, Callable[[float], str]] | None = None
        self._step, self._micro_batch = -1, 0
        # Metric -> seconds since the last line of metrics, which takes them out.
        self.seconds: dict[str, float] = defaultdict(float)
        trainer.step_progress = self

    @contextmanager
    def _during(self, tell: Callable[[float], str], metric: str | None = None) -> Iterator[None]:
        """Show `tell(seconds since its begin)` now and then; inside another one, in its place."""
        outer, begin, ended = self._now, self._clock(), threading.Event()
        self._now = (begin, tell)
        thread = threading.Thread(target=self._report, args=(ended,), daemon=True)
        reports = outer is None and self.progress.shown
        if reports:
            thread.start()
        try:
            yield
        finally:
            # What is sampled to be measured (H_ini, validation) has a time of its own.
            if metric and not self.trainer.only_samples:
                self.seconds[metric] += self._clock() - begin
            self._now = None if outer is None else (self._clock(), outer[1])
            if reports:
                ended.set()
                thread.join()

    def _report(self, ended: threading.Event) -> None:
        shown, at = None, 0.0
        while not ended.wait(TELL_SECONDS / 10):
            # The clock first: what begins meanwhile has taken no time.
            now, activity = self._clock(), self._now
            if activity is None:
                continue
            seconds, before = now - activity[0], at if activity is shown else 0.0
            # A log gets fewer lines the longer it takes: what is on a terminal is replaced.
            if seconds >= (before + TELL_SECONDS if self.progress.live else max(TELL_SECONDS, 1.5 * before)):
                self.progress.note(activity[1](seconds))
                shown, at = activity, seconds

    def training(self) -> AbstractContextManager[None]:
        """Show inside which micro-batch is trained on."""
        at, count = self.trainer.state.global_step, self.trainer.args.gradient_accumulation_steps
        self._micro_batch = self._micro_batch + 1 if at == self._step else 1
        self._step = at
        which = f"micro-batch {self._micro_batch} of {count}"
        return self._during(lambda seconds: f"training on {which} for {seconds:.0f} s")

    def scoring(self, inputs: Sequence[Any]) -> AbstractContextManager[None]:
        """Show inside how long completions are scored."""
        return self._during(lambda seconds: f"scoring {len(inputs)} completions for {seconds:.0f} s", "time/reward")

    def sampling(self, prompts: Sequence[Any]) -> AbstractContextManager[None]:
        """Show inside how long completions are sampled."""
        return self._during(
            lambda seconds: f"sampling {len(prompts)} completions for {seconds:.0f} s", "time/generation"
        )
