"""Progress of a run on stderr: one live line on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping
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
SAMPLING_SECONDS = 10.0
"""While completions are sampled, a line this often."""
PLAIN_SECONDS = 5.0
"""A log line at most this often."""


def summary(row: Mapping[str, Any], width: int | None = None) -> str:
    """Return the headline metrics of a step in one line, the first ones where not all fit into `width` columns."""
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


class SamplingProgress:
    """Shows the completions that are done and the tokens in flight while a trainer samples for long.

    vLLM in this process knows both; of the trainer's own model the forwards are counted, one a token; a server tells
    nothing, so that only the time is shown.
    """

    def __init__(self, trainer: Any, progress: Progress) -> None:
        from gtpo.trainer.trl_seam import seam_of  # here, for it imports TRL

        self.trainer, self.progress, self.seam = trainer, progress, seam_of(trainer)
        self._forwards = 0
        self._tokens: dict[str, int] = {}
        """Tokens of each completion that vLLM has been asked for, as last seen."""
        self.seam.around("generate", self._generate)

    def _generate(self, plain: Any, prompts: list[Any]) -> Any:
        if not self.progress.shown:
            return plain(prompts)
        done = threading.Event()
        self._forwards, self._tokens = 0, {}
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        hooked = model.get_base_model() if hasattr(model, "get_base_model") else model
        hook = hooked.register_forward_pre_hook(self._count)
        thread = threading.Thread(target=self._report, args=(len(prompts), done), daemon=True)
        thread.start()
        try:
            return plain(prompts)
        finally:
            done.set()
            hook.remove()
            thread.join()

    def _count(self, *args: Any) -> None:
        self._forwards += 1

    def _report(self, count: int, done: threading.Event) -> None:
        begin = time.monotonic()
        while not done.wait(SAMPLING_SECONDS):
            seconds = time.monotonic() - begin
            self.progress.note(f"sampling {count} completions for {seconds:.0f} s{self._state(seconds)}")

    def _state(self, seconds: float) -> str:
        """Return how far the sampling is, empty where it is unknown."""
        if not self.trainer.use_vllm:
            longest = self.trainer.max_completion_length
            return f": token {self._forwards} of at most {longest}" if self._forwards else ""
        engine = getattr(self.trainer.vllm_generation, "llm", None)
        if engine is None:
            return ""
        running = engine.llm_engine.output_processor.request_states.copy()
        written = {name: state.detokenizer.num_output_tokens() for name, state in running.items() if state.detokenizer}
        self._tokens |= dict.fromkeys(running, 0) | written
        total, flying = sum(self._tokens.values()), sum(written.values())
        done = len(self._tokens) - len(running)
        if not total:
            return f": reading {len(running)} prompts" if running else ""
        return f": {done} done, {flying} tokens in flight ({total / seconds:.0f} tokens/s)"
