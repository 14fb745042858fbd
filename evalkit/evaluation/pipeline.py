"""Scoring beside sampling: a thread verifies and stores while the engine goes on."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

from gtpo.common.log import LOG
from gtpo.evalkit.engines.base import Engine, Generation
from gtpo.evalkit.evaluation.progress import EvalProgress
from gtpo.evalkit.evaluation.scoring import Scorer
from gtpo.evalkit.evaluation.summary import Tally
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_folder import EvalFolder
from gtpo.runs.tables import QuestionKey, Sample

# A part is written when it has this many rows, this much text, or its first row is this old.
PART_ROWS, PART_CHARACTERS, PART_SECONDS = 2048, 32_000_000, 20.0

# Generations are scored in lots of what came in so long: a thread that woke with every step of an engine in the same
# process would take the interpreter from it every time.
LOT_SECONDS = 0.2

# Text that may wait for its verdicts before the engine has to.
WAITING_CHARACTERS = 32_000_000

# After Ctrl-C, requests in flight may still be answered for so long.
INTERRUPT_S = 0.3


@dataclass(eq=False)
class Incomplete(Exception):
    """The run stopped before its end; what was sampled is stored, and the same command goes on from there."""

    reason: str
    interrupted: bool = False


class ScoringPipeline(AbstractContextManager["ScoringPipeline"]):
    """Takes generations from an engine's thread; scores and stores them in its own.

    What was put together is stored together: a batch never ends up half in a part, so a resumed run repeats whole
    batches. An error in the thread comes out of the next `put` or of `close`.

    `wanted` holds how many samples a question will have: its votes are counted with the last one. That may take the
    workers a while; at the end of the run it would be time to wait.
    """

    def __init__(
        self,
        folder: EvalFolder,
        problems: Mapping[QuestionKey, Problem],
        wanted: Mapping[QuestionKey, int],
        tally: Tally,
        scorer: Scorer,
        progress: EvalProgress,
    ) -> None:
        self._folder, self._problems, self._wanted, self.tally = folder, problems, wanted, tally
        self._scorer, self._progress = scorer, progress
        self._queue: queue.SimpleQueue[list[Generation]] = queue.SimpleQueue()
        # Characters of all that was put, and of all that was taken: each counted by one thread.
        self._put = self._taken = 0
        self._closing = threading.Event()
        pool = ThreadPoolExecutor(1, "scoring")
        self._work_done = pool.submit(self._work)
        pool.shutdown(wait=False)

    def put(self, generations: list[Generation]) -> None:
        """Hand over generations; blocks while much text waits to be scored."""
        while self._put - self._taken > WAITING_CHARACTERS and not self._work_done.done():
            time.sleep(0.05)
        if self._work_done.done():
            self._work_done.result()
        self._put += _characters(generations)
        self._queue.put(generations)

    def close(self) -> None:
        """Score and store what is left, and stop the thread."""
        self._closing.set()
        # Wakes it.
        self._queue.put([])
        self._work_done.result()

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            self.close()
        except Exception as error:
            if kind is None:
                raise
            LOG.warning("while storing what was left: %s", error)

    def _work(self) -> None:
        rows: list[Sample] = []
        characters, oldest, last = 0, 0.0, False
        try:
            while not last:
                generations, last = self._take()
                scored = self._scorer(generations) if generations else []
                oldest = oldest if rows else time.monotonic()
                rows += scored
                characters += _characters(generations)
                old = time.monotonic() - oldest > PART_SECONDS
                if last or old or len(rows) >= PART_ROWS or characters >= PART_CHARACTERS:
                    self._folder.append(rows)
                    rows, characters = [], 0
                self._progress.count(scored)
                # After storing, since counting votes may take a while.
                self.tally.add(scored)
                touched, of = dict.fromkeys(sample.key[:2] for sample in scored), self.tally.questions
                whole = [key for key in touched if len(of[key].scored) == self._wanted[key]]
                self.tally.count_votes([(self._problems[key], of[key]) for key in whole])
        except BaseException as error:
            # An OSError is the disk's: another write would fail too.
            # What was scored before the error is good.
            if rows and not isinstance(error, OSError):
                self._folder.append(rows)
            raise

    def _take(self) -> tuple[list[Generation], bool]:
        """Wait for generations and for more of them; return all (none after a second), and whether they are the last.

        What was put together is taken together.
        """
        lot: list[Generation] = []
        with suppress(queue.Empty):
            lot += self._queue.get(timeout=1.0)
            self._closing.wait(LOT_SECONDS)
            while not self._queue.empty():
                lot += self._queue.get()
        self._taken += _characters(lot)
        return lot, self._closing.is_set() and self._queue.empty()


@contextmanager
def interruptible(engine: Engine) -> Iterator[list[int]]:
    """While sampling, the first Ctrl-C or SIGTERM ends it as soon as what came is stored; the second at once.

    Yields the signals that came.
    """
    seen: list[int] = []

    def handle(number: int, frame: object) -> None:
        if seen:
            os._exit(130)
        seen.append(number)
        engine.stop(INTERRUPT_S)
        # A handler must not use buffered streams.
        os.write(2, b"\ngtpo: stopping; Ctrl-C again ends at once\n")

    # Python lets only the main thread handle signals.
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _characters(generations: list[Generation]) -> int:
    return sum(len(g.text) for g in generations)
