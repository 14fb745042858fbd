"""What the program says on stderr: one logger, `gtpo`, with levels in place of flags.

DEBUG    what helps to find a fault (`--verbose`)
INFO     where a run stands and what to do next
WARNING  what the user should know even with `--quiet`: a key without effect, a collapse, a sample that failed

Under torchrun or accelerate only rank 0 speaks. As a library (no `start_logging`), the logger is Python's usual one:
the application's handlers decide.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

LOG = logging.getLogger("gtpo")

Verbosity = Literal["quiet", "normal", "verbose"]
_LEVELS = {"quiet": logging.WARNING, "normal": logging.INFO, "verbose": logging.DEBUG}


@functools.cache
def stderr_console() -> Console:
    """Return the one console on stderr: a live progress bar and log lines must share it."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


class _StderrHandler(logging.Handler):
    """Prints a record as plain text: above a live progress bar on a terminal, as a line elsewhere."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; warnings carry the program's name, as errors do."""
        message = record.getMessage()
        if record.levelno >= logging.WARNING:
            message = f"gtpo: {message}"
        if sys.stderr.isatty():
            stderr_console().print(message, markup=False, highlight=False, soft_wrap=True)
        else:
            print(message, file=sys.stderr, flush=True)


def start_logging(verbosity: Verbosity = "normal") -> None:
    """Send the program's log to stderr at this level; later calls change the level only."""
    if not any(isinstance(handler, _StderrHandler) for handler in LOG.handlers):
        handler = _StderrHandler()
        handler.addFilter(lambda record: os.environ.get("RANK", "0") == "0")
        LOG.addHandler(handler)
        LOG.propagate = False
    LOG.setLevel(_LEVELS[verbosity])
