"""Scoring beside sampling: a thread verifies and stores while the engine goes on."""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from evalkit.engines.base import Generation
from evalkit.progress import Progress
from evalkit.scoring import score
from evalkit.store import RunFolder
from rewards.verify import Verdict, Verifier

PART_ROWS = 2048
PART_SECONDS = 20.0
PART_CHARACTERS = 32_000_000
"""A part is written when it has this many rows, this much text, or its first row is this old."""

LOT_SECONDS = 0.2
"""Generations gather for so long before they are scored: a thread that woke with every step of an engine in the same
process would take the interpreter from it every time."""

WAITING_CHARACTERS = 32_000_000
"""Text that may wait for its verdicts before the engine has to."""


class Incomplete(Exception):
    """The run stopped before its end; what was sampled is stored, and the same command goes on from there."""

    def __init__(self, reason: str, *, interrupted: bool = False) -> None:
        super().__init__(reason)
        self.interrupted = interrupted


class ScoringPipeline:
    """Takes generations from an engine's thread; scores and stores them in its own.

    What was put together is stored together: a batch never ends up half in a part, so a resumed run repeats whole
    batches. A fault in the thread comes out of the next `put` or of `close`.
    """

    def __init__(
        self, folder: RunFolder, golds: Mapping[tuple[str, str], str], verifier: Verifier, progress: Progress
    ) -> None:
        self._folder, self._golds, self._verifier, self._progress = folder, golds, verifier, progress
        self._queue: queue.Queue[list[Generation] | None] = queue.Queue()
        self._fault: BaseException | None = None
        self._rows: list[dict[str, Any]] = []
        self._oldest = 0.0
        self._characters = 0
        self._waiting = 0
        self._taken = threading.Condition()
        self._closing = threading.Event()
        self.stored = 0
        self._thread = threading.Thread(target=self._work, name="scoring", daemon=True)
        self._thread.start()

    def put(self, generations: list[Generation]) -> None:
        """Hand over generations; blocks while much text waits to be scored."""
        self._raise_fault()
        with self._taken:
            while self._waiting > WAITING_CHARACTERS and self._fault is None:
                self._taken.wait(timeout=1.0)
            self._waiting += _characters(generations)
        self._queue.put(generations)

    def close(self) -> None:
        """Score and store what is left, and stop the thread."""
        self._queue.put(None)
        self._closing.set()
        self._thread.join()
        self._raise_fault()

    def abandon(self) -> None:
        """Stop after a fault elsewhere: store what came in, raise nothing."""
        try:
            self.close()
        except Exception as fault:
            self._progress.note(f"while storing what was left: {fault}")

    def _raise_fault(self) -> None:
        if isinstance(self._fault, OSError) and self._fault.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Incomplete(f"the disk under {self._folder.path} is full: free some space") from self._fault
        if self._fault is not None:
            raise self._fault

    def _work(self) -> None:
        try:
            while True:
                try:
                    first = self._queue.get(timeout=1.0)
                    self._closing.wait(LOT_SECONDS)
                    generations, last = self._with_waiting(first)
                except queue.Empty:
                    generations, last = [], False
                with self._taken:
                    self._waiting -= _characters(generations)
                    self._taken.notify_all()
                if generations:
                    if not self._rows:
                        self._oldest = time.monotonic()
                    rows = score(generations, self._golds, self._verifier)
                    self._rows += rows
                    self._characters += _characters(generations)
                    self._report(rows)
                old = bool(self._rows) and time.monotonic() - self._oldest > PART_SECONDS
                if last or old or len(self._rows) >= PART_ROWS or self._characters >= PART_CHARACTERS:
                    self._folder.append(self._rows)
                    self.stored += len(self._rows)
                    self._rows, self._characters = [], 0
                if last:
                    return
        except BaseException as fault:  # handed to the main thread, which stops the engine and reports it
            self._fault = fault
            if self._rows and not isinstance(fault, OSError):  # what was scored before the fault is good
                self._folder.append(self._rows)

    def _with_waiting(self, first: list[Generation] | None) -> tuple[list[Generation], bool]:
        """Return the first of what waits and the rest, up to a part, and whether that was the last."""
        lot: list[Generation] = []
        characters = 0
        following = first
        while following is not None:
            lot += following
            characters += _characters(following)
            if len(lot) >= PART_ROWS or characters >= PART_CHARACTERS // 8:
                return lot, False
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                return lot, False
        return lot, True

    def _report(self, rows: list[dict[str, Any]]) -> None:
        column = f"verdict_{self._progress.scoring}"
        for benchmark in {row["benchmark"] for row in rows}:
            of_benchmark = [row for row in rows if row["benchmark"] == benchmark]
            self._progress.update(
                benchmark,
                len(of_benchmark),
                sum(row[column] == Verdict.CORRECT for row in of_benchmark),
                sum(row["tokens"] or 0 for row in of_benchmark),
            )


def _characters(generations: list[Generation]) -> int:
    return sum(len(g.text) for g in generations)
