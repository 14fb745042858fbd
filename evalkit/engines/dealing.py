"""Which of several workers (servers, model copies) gets which question.

A question goes to one worker whole, so that its prompt is read once (prefix cache). What a worker still owes when it
fails is dealt again: no sample is lost, and none is asked for twice once it is there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from gtpo.evalkit.engines.base import Task

SampleKey = tuple[str, str, int]
"""(benchmark, question id, sample index)"""


class Dealt(NamedTuple):
    """Samples of one question for one worker."""

    worker: str
    task: Task


class Dealer:
    """Deals tasks to named workers, the least loaded first, and remembers who owes which sample."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._waiting = deque(task for task in tasks if task.missing)
        self._owed: defaultdict[str, dict[SampleKey, Task]] = defaultdict(dict)
        self._failed_at: defaultdict[SampleKey, list[str]] = defaultdict(list)
        self.left = sum(len(task.missing) for task in self._waiting)
        """Samples that are neither done nor failed."""

    def load(self, worker: str) -> int:
        """Return how many samples a worker owes."""
        return len(self._owed[worker])

    def has_failed(self, worker: str, key: SampleKey) -> bool:
        """Return whether a sample was moved away from a worker."""
        return worker in self._failed_at.get(key, ())

    def deal(self, limits: Mapping[str, int], busy: Collection[str] = ()) -> Dealt | None:
        """Return the next question and its worker; None where no question waits or every worker owes its limit.

        limits: worker -> samples that it may owe before it gets another question, for those that work now. busy:
        further workers, that take nothing now. A sample that was moved waits for one of them rather than go back.
        """
        for position, task in enumerate(self._waiting):
            failed_at = self._failed_at.get((task.benchmark, task.question_id, task.missing[0]), ())
            workers = [name for name in limits if name not in failed_at]
            if not workers and all(name in failed_at for name in busy):
                workers = list(limits)
            free = [name for name in workers if self.load(name) < limits[name]]
            if free:
                worker = min(free, key=self.load)
                del self._waiting[position]
                self._owed[worker] |= {(task.benchmark, task.question_id, index): task for index in task.missing}
                return Dealt(worker, task)
            if not failed_at:
                break
        return None

    def settle(self, worker: str, key: SampleKey) -> bool:
        """Return whether the worker still owed a sample, which is now done, or has failed for good."""
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
        return self._owners(key) > 1

    def owes(self, worker: str, key: SampleKey) -> bool:
        """Return whether a worker owes a sample (still)."""
        return key in self._owed[worker]

    def _owners(self, key: SampleKey) -> int:
        return sum(key in owed for owed in self._owed.values())

    def give_back(self, worker: str) -> int:
        """Deal again, before all else, what a worker owes; return the number of samples."""
        owed = self._owed.pop(worker, {})
        by_question: dict[tuple[str, str, frozenset[str]], list[int]] = {}
        for key in owed:
            if not self._owners(key):
                benchmark, question, index = key
                failed_at = frozenset(self._failed_at.get(key, ()))
                by_question.setdefault((benchmark, question, failed_at), []).append(index)
        for (benchmark, question, _), indices in reversed(by_question.items()):
            task = replace(owed[benchmark, question, indices[0]], missing=tuple(sorted(indices)))
            self._waiting.appendleft(task)
        return sum(map(len, by_question.values()))

    def move(self, worker: str, key: SampleKey, most: int) -> bool:
        """Return whether a sample is dealt again, last and to another worker: not once it was moved `most` times."""
        if len(self._failed_at[key]) == most:
            return False
        self._failed_at[key].append(worker)
        task = self._owed[worker].pop(key)
        if not self._owners(key):
            self._waiting.append(replace(task, missing=(key[2],)))
        return True
