"""What the program says on stderr: one logger, `gtpo`, with levels in place of flags.

DEBUG    what helps to find a fault (`--verbose`)
INFO     where a run stands and what to do next
WARNING  what the user should know even with `--quiet`: a key without effect, a collapse, a sample that failed

Under torchrun or accelerate only rank 0 speaks. As a library (no `start_logging`), the logger is Python's usual one:
the application's handlers decide.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

LOG = logging.getLogger("gtpo")


def duration(seconds: float) -> str:
    """Return 1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@functools.cache
def stderr_console() -> Console:
    """Return the one console on stderr: a live progress bar and log lines must share it."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


class _StderrHandler(logging.Handler):
    """Prints a record as plain text: above a live progress bar on a terminal, as a line elsewhere."""

    stream: TextIO | None = None
    """The real stderr, while `libraries_aside` keeps what else is written there."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; warnings carry the program's name, as errors do."""
        message = record.getMessage()
        if record.levelno >= logging.WARNING:
            message = f"gtpo: {message}"
        if self.stream is None and sys.stderr.isatty():
            stderr_console().print(message, markup=False, highlight=False, soft_wrap=False)  # by word
        else:
            print(message, file=self.stream or sys.stderr, flush=True)


def start_logging(*, quiet: bool = False, verbose: bool = False) -> None:
    """Send the program's log to stderr; later calls change its level only."""
    if not any(isinstance(handler, _StderrHandler) for handler in LOG.handlers):
        handler = _StderrHandler()
        handler.addFilter(lambda record: os.environ.get("RANK", "0") == "0")
        LOG.addHandler(handler)
        LOG.propagate = False
    LOG.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)


@contextlib.contextmanager
def libraries_aside() -> Iterator[None]:
    """Hide what libraries write to stderr, except with --verbose; show it if an error follows."""
    if LOG.isEnabledFor(logging.DEBUG) or not LOG.handlers:
        yield
        return
    sys.stderr.flush()
    real, show = os.dup(2), False
    with tempfile.TemporaryFile() as aside, open(real, "w", encoding="utf-8") as stream:
        os.dup2(aside.fileno(), 2)
        _StderrHandler.stream = stream
        try:
            yield
        except Exception as error:
            show = type(error).__name__ != "UserError"
            raise
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
            _StderrHandler.stream = None
            if show:
                aside.seek(0)
                sys.stderr.write(aside.read().decode("utf-8", "replace"))
