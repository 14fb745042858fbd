"""What the program logs, whether or not a command line has started its handler."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gtpo.common.log import LOG


class _Collect(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


@contextmanager
def logged(level: int = logging.WARNING) -> Iterator[list[str]]:
    """Collect the messages of a level and above."""
    collect, before = _Collect(), LOG.level
    LOG.addHandler(collect)
    LOG.setLevel(level)
    try:
        yield collect.messages
    finally:
        LOG.removeHandler(collect)
        LOG.setLevel(before)
