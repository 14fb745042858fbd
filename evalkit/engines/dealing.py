"""Which of several workers (servers, model copies) gets which question.

A question goes to one worker whole, so that its prompt is read once (prefix cache). What a worker still owes when it
fails is dealt again: no sample is lost, and none is asked for twice once it is there.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from gtpo.evalkit.engines.base import Task

SampleKey = tuple[str, str, int]
"""(benchmark, question id, sample index)"""


class Dealt(NamedTuple):
    """Samples of one question for one worker."""

    worker: str
    task: Task


class _Waiting(NamedTuple):
    task: Task
    avoid: str | None
    """The worker that failed at it."""


class Dealer:
    """Deals tasks to named workers, the least loaded first, and remembers who owes which sample."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._waiting = deque(_Waiting(task, None) for task in tasks if task.missing)
        self._owed: defaultdict[str, dict[SampleKey, Task]] = defaultdict(dict)
        self._moves: Counter[SampleKey] = Counter()
        self.left = sum(len(waiting.task.missing) for waiting in self._waiting)
        """Samples that are neither done nor failed."""

    def load(self, worker: str) -> int:
        """Return how many samples a worker owes."""
        return len(self._owed[worker])

    def deal(self, limits: Mapping[str, int]) -> Dealt | None:
        """Return the next question and its worker; None where no question waits or every worker owes its limit.

        limits: worker -> samples that it may owe before it gets another question, for those that work now.
        """
        if not self._waiting or not limits:
            return None
        task, avoid = self._waiting[0]
        workers = [name for name in limits if name != avoid] or list(limits)
        worker = min(workers, key=self.load)
        if self.load(worker) >= limits[worker]:
            return None
        self._waiting.popleft()
        self._owed[worker] |= {(task.benchmark, task.question_id, index): task for index in task.missing}
        return Dealt(worker, task)

    def settle(self, worker: str, key: SampleKey) -> bool:
        """Note that a sample is done, or has failed for good; False where the worker does not owe it (any more)."""
        if not self.owes(worker, key):
            return False
        for owed in self._owed.values():
            owed.pop(key, None)
        self.left -= 1
        return True

    def share(self, worker: str, other: str, key: SampleKey, *, keep: bool) -> None:
        """Have another worker owe a sample: beside the first (`keep`; who is first settles it), or in its place."""
        task = self._owed[worker][key] if keep else self._owed[worker].pop(key)
        self._owed[other][key] = task

    def is_shared(self, key: SampleKey) -> bool:
        """Return whether two workers owe a sample."""
        return sum(key in owed for owed in self._owed.values()) > 1

    def owes(self, worker: str, key: SampleKey) -> bool:
        """Return whether a worker owes a sample (still)."""
        return key in self._owed[worker]

    def _owed_by_any(self, key: SampleKey) -> bool:
        return any(key in owed for owed in self._owed.values())

    def give_back(self, worker: str) -> int:
        """Deal again, before all else, what a worker owes; return the number of samples."""
        owed = self._owed.pop(worker, {})
        by_question: dict[tuple[str, str], list[int]] = {}
        for benchmark, question, index in owed:
            if not self._owed_by_any((benchmark, question, index)):
                by_question.setdefault((benchmark, question), []).append(index)
        for (benchmark, question), indices in reversed(by_question.items()):
            task = replace(owed[benchmark, question, indices[0]], missing=tuple(sorted(indices)))
            self._waiting.appendleft(_Waiting(task, None))
        return sum(map(len, by_question.values()))

    def move(self, worker: str, key: SampleKey, most: int) -> bool:
        """Deal one sample again, after all else and to another worker; False where that was done `most` times."""
        if self._moves[key] == most:
            return False
        self._moves[key] += 1
        task = self._owed[worker].pop(key)
        if self._owed_by_any(key):
            return True
        self._waiting.append(_Waiting(replace(task, missing=(key[2],)), worker))
        return True
