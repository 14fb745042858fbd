"""Progress of a run on stderr: one live line on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from accelerate import PartialState

from gtpo.common.log import LOG, stderr_console
from gtpo.train.run_log import metrics_row
from gtpo.trainer import RunPart

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


def summary(row: Mapping[str, Any]) -> str:
    """Return the headline metrics of a step in one line."""
    known = (shown for shown in SHOWN if isinstance(row.get(shown[0]), int | float))
    return "  ".join(f"{label} {pattern.format(row[name])}" for name, label, pattern in known)


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


class Progress(RunPart):
    """Shows steps as they come, at log level INFO: `trainer.add_callback(Progress("my run"))`.

    While a step takes long it says what the step is at: sampling, scoring, or which micro-batch is trained on.

    shown: whether this process shows them; unset: the main one does.
    """

    def __init__(self, title: str, *, shown: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.title, self._clock = title, clock
        main = PartialState().is_main_process if shown is None else shown
        self.shown = main and LOG.isEnabledFor(logging.INFO)
        self._bar: Any = None
        self._task: Any = None
        self._last = 0.0
        # When what is going on began, and what it is.
        self._now: tuple[float, str] | None = None
        self._micro_batch = self._of = 0

    # -- steps -----------------------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin at the step that the run begins at."""
        self._first_step, self._begin = state.global_step, time.monotonic()
        if self.shown and sys.stderr.isatty():
            self._bar = _live_line(self.title)
            self._task = self._bar.add_task(self.title, total=state.max_steps, completed=state.global_step, status="")
            self._bar.start()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the micro-batches of the step."""
        self._micro_batch, self._of = 0, args.gradient_accumulation_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show a line of metrics."""
        if not logs or "loss" not in logs:
            return
        step, total, row = state.global_step, state.max_steps, metrics_row(state.global_step, logs, args)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, status=summary(row))
            return
        now = time.monotonic()
        due = now - self._last >= PLAIN_SECONDS or step >= total or step - 1 == self._first_step
        if self.shown and due:
            self._last = now
            remaining = (now - self._begin) / max(step - self._first_step, 1) * (total - step)
            LOG.info(f"{self.title} {step}/{total}  {summary(row)}  ({remaining:.0f} s left)")

    def on_train_end(self, *of_the_event: Any, **kwargs: Any) -> None:
        """Take the live line down; also if the training did not come to its end."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    # -- within a step ---------------------------------------------------------------------------------------------

    @contextmanager
    def activity(self, name: str, count: int) -> Iterator[None]:
        """Show inside now and then how long the trainer has been at it; inside another activity, in its place."""
        what = f"{name} {count} completions"
        if name == "training":
            self._micro_batch += 1
            what = f"training on micro-batch {self._micro_batch} of {self._of}"
        outer, ended = self._now, threading.Event()
        self._now = (self._clock(), what)
        thread = threading.Thread(target=self._report, args=(ended,), daemon=True)
        reports = outer is None and self.shown
        if reports:
            thread.start()
        try:
            yield
        finally:
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
            if seconds >= (before + TELL_SECONDS if self._bar is not None else max(TELL_SECONDS, 1.5 * before)):
                text = f"{activity[1]} for {seconds:.0f} s"
                if self._bar is not None:
                    self._bar.update(self._task, status=text)
                else:
                    LOG.info(f"{self.title}  {text}")
                shown, at = activity, seconds
