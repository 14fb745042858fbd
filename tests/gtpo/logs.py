"""What the program logs, whether or not a command line has started its handler."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gtpo.common.log import LOG


@contextmanager
def logged(level: int = logging.WARNING) -> Iterator[list[str]]:
    """Collect the messages of a level and above."""
    messages: list[str] = []
    collect, before = logging.Handler(), LOG.level
    collect.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    LOG.addHandler(collect)
    LOG.setLevel(level)
    try:
        yield messages
    finally:
        LOG.removeHandler(collect)
        LOG.setLevel(before)
