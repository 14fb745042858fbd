"""Is this answer equal to the gold answer? The one definition, for training rewards and for evaluation.

docs/verification.md states the policy. Plain numbers and equal strings are settled here, in the caller, exactly;
everything else goes to worker processes under a time and a memory limit.
"""

from __future__ import annotations

import enum
import os
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import Literal, NamedTuple

from rewards.verification.exact import plain_number, settle
from rewards.verification.limits import reject_reason
from rewards.verification.pool import WorkerPool

Percent = Literal["value", "ignore"]
Pair = tuple[str | None, str]
"""(prediction, gold)"""


class Verdict(enum.StrEnum):
    """What came of comparing a prediction with a gold answer."""

    CORRECT = "CORRECT"
    INCORRECT = "INCORRECT"
    NO_ANSWER = "NO_ANSWER"
    """The prediction is empty."""
    TIMEOUT = "TIMEOUT"
    """Undecided within the time limit: unscored, not wrong."""
    REJECTED = "REJECTED"
    """Beyond the static limits, or beyond the memory limit of a worker."""


class AnswerClasses(NamedTuple):
    """Answers grouped by equality, for the majority vote."""

    labels: list[int | None]
    """Per answer: the number of its class, counted from 0 in order of first appearance; None abstains."""
    correct: int | None
    """The class that equals the gold, or None if no answer does."""
    verdicts: list[Verdict]
    """Per answer: its verdict against the gold."""


def usable_cpus() -> int:
    """Return the CPUs this process may use, at most 16: a verifier's workers unless it is told otherwise."""
    return min(16, len(os.sched_getaffinity(0)))


def _group(
    answers: Sequence[str | None], verdicts: list[Verdict], values: Mapping[str, Fraction]
) -> Generator[list[Pair], list[Verdict] | None, AnswerClasses]:
    """Group a question's answers: yield pairs whose verdicts it needs, be sent them, return the classes.

    Answers in `values` are equal or not by their value, without a verdict: most are such, and a question of 64
    samples would otherwise compare each new number with all others.
    """
    labels: list[int | None] = []
    by_text: dict[str, int] = {}
    by_value: dict[Fraction, int] = {}
    representatives: list[tuple[int, str]] = []
    correct: int | None = None
    classes = 0
    for answer, verdict in zip(answers, verdicts, strict=True):
        if answer is None or verdict is Verdict.NO_ANSWER:
            labels.append(None)
            continue
        label = by_text.get(answer)
        if label is None and verdict is Verdict.CORRECT:
            label = correct
        elif label is None and verdict is Verdict.INCORRECT:
            value = values.get(answer)
            label = None if value is None else by_value.get(value)
            candidates = [(at, other) for at, other in representatives if value is None or other not in values]
            if label is None and candidates:
                pairs: list[Pair] = [(answer, other) for _, other in candidates]
                results = yield pairs + [(other, answer) for _, other in candidates]
                assert results is not None
                equal = (Verdict.CORRECT in both for both in zip(results, results[len(pairs) :], strict=False))
                label = next((at for (at, _), same in zip(candidates, equal, strict=True) if same), None)
            if label is None:
                representatives.append((classes, answer))
            if value is not None:
                by_value[value] = classes if label is None else label
        if label is None:
            label, classes = classes, classes + 1
            if verdict is Verdict.CORRECT:
                correct = label
        by_text[answer] = label
        labels.append(label)
    return AnswerClasses(labels, correct, verdicts)


class Verifier:
    """Verifies answers; safe to share between threads.

    Args:
        workers: processes at most; unset takes the CPUs this process may use, at most 16. None starts before
            there is an answer that needs one.
        timeout_s: seconds of wall clock for one verification, after which its worker is killed.
        percent: `value`: 50% is 0.5, and 50 only where the gold has a percent sign; `ignore`: the sign is a
            unit like any other, 50% is 50.
        memory_mb: address space of one worker, in MiB.
        cache_size: verdicts kept, by (prediction, gold); the oldest go first.
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout_s: float = 5.0,
        *,
        percent: Percent = "value",
        memory_mb: int = 1024,
        cache_size: int = 200_000,
    ) -> None:
        if percent not in ("value", "ignore"):
            raise ValueError(f'percent must be "value" or "ignore", not {percent!r}')
        self.workers = workers if workers is not None else usable_cpus()
        self.timeout_s, self.percent, self.memory_mb, self.cache_size = timeout_s, percent, memory_mb, cache_size
        self._cache: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = WorkerPool(self.workers, timeout_s, memory_mb)
        self._owner = os.getpid()

    def verify(self, prediction: str | None, gold: str) -> Verdict:
        """Return the verdict on one extracted answer. Raises ValueError if the gold is empty."""
        return self.verify_many([(prediction, gold)])[0]

    def verify_many(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdicts on (prediction, gold) pairs, in order; equal pairs are verified once.

        Raises ValueError if a gold is empty: such a row cannot be scored (`rewards.golds` lists them).
        """
        keys = [(prediction or "", gold) for prediction, gold in pairs]
        for index, (_, gold) in enumerate(keys):
            if not isinstance(gold, str) or not gold.strip():
                raise ValueError(f"pair {index}: the gold answer is {gold!r}; leave such rows out (rewards.golds)")
        verdicts: dict[tuple[str, str], Verdict] = {}
        unknown: list[tuple[str, str]] = []
        with self._lock:
            for key in dict.fromkeys(keys):
                known = self._cache.get(key)
                if known is None:
                    unknown.append(key)
                else:
                    self._cache.move_to_end(key)
                    verdicts[key] = known
        found: dict[tuple[str, str], Verdict] = {}
        for key in unknown:
            settled = self._settle(*key)
            if settled is not None:
                found[key] = settled
        open_keys = [key for key in unknown if key not in found]
        if open_keys:
            tasks = [{"prediction": p, "gold": g, "percent": self.percent, "by_text": True} for p, g in open_keys]
            found |= {k: Verdict(o) for k, o in zip(open_keys, self._workers().run(tasks), strict=True)}
        with self._lock:
            self._cache.update(found)
            while len(self._cache) > self.cache_size:
                self._cache.popitem(last=False)
        verdicts |= found
        return [verdicts[key] for key in keys]

    def verify_golds(self, golds: Sequence[str]) -> list[Verdict]:
        """Return the verdict on each gold answer against itself, where equal text alone does not decide."""
        verdicts = [Verdict.CORRECT if plain_number(gold) is not None else None for gold in golds]
        tasks = [
            {"prediction": gold, "gold": gold, "percent": self.percent, "by_text": False}
            for gold, verdict in zip(golds, verdicts, strict=True)
            if verdict is None
        ]
        outcomes = iter(self._workers().run(tasks))
        return [verdict or Verdict(next(outcomes)) for verdict in verdicts]

    def _exact_values(self, answers: Iterable[str]) -> dict[str, Fraction]:
        """Return the values of those answers that are a value and nothing else (`equality.decide.exact_value`)."""
        values = {answer: None if "." in answer else plain_number(answer) for answer in answers}
        others = [answer for answer, value in values.items() if value is None and plain_number(answer) is None]
        undecided = {"", *Verdict}
        for answer, outcome in zip(others, self._workers().run([{"text": answer} for answer in others]), strict=True):
            values[answer] = None if outcome in undecided else Fraction(outcome)
        return {answer: value for answer, value in values.items() if value is not None}

    def _settle(self, prediction: str, gold: str) -> Verdict | None:
        """Decide without a worker, where that is exact: empty, beyond the limits, plain numbers, equal texts."""
        if not prediction.strip():
            return Verdict.NO_ANSWER
        if reject_reason(prediction) is not None:
            return Verdict.REJECTED
        equal = settle(prediction, gold, self.percent)
        if equal is not None:
            return Verdict.CORRECT if equal else Verdict.INCORRECT
        return Verdict.REJECTED if reject_reason(gold) is not None else None

    def _workers(self) -> WorkerPool:
        with self._lock:
            if self._owner != os.getpid():  # a forked child starts its own
                self._pool, self._owner = WorkerPool(self.workers, self.timeout_s, self.memory_mb), os.getpid()
            return self._pool

    def answer_classes(self, answers: Sequence[str | None], gold: str) -> AnswerClasses:
        """Group answers to one question by the same equality that scores them.

        All answers equal to the gold form one class. Every other answer joins the first class whose
        representative (its first member) equals it in either direction, or opens a new one. An empty or missing
        answer abstains. An answer that could not be decided (TIMEOUT, REJECTED) votes for itself alone and for
        identical texts.
        """
        return self.answer_classes_many([(answers, gold)])[0]

    def answer_classes_many(self, questions: Sequence[tuple[Sequence[str | None], str]]) -> list[AnswerClasses]:
        """Return `answer_classes` of many questions, each (answers, gold); they share their trips to the workers."""
        pairs = [(answer, gold) for answers, gold in questions for answer in answers]
        verdicts = self.verify_many(pairs)
        wrong = {answer for (answer, _), v in zip(pairs, verdicts, strict=True) if answer and v is Verdict.INCORRECT}
        values = self._exact_values(wrong)
        of_question = iter(verdicts)
        searches = [_group(answers, list(islice(of_question, len(answers))), values) for answers, _ in questions]
        found: dict[int, AnswerClasses] = {}
        replies: dict[int, list[Verdict] | None] = dict.fromkeys(range(len(searches)))
        while replies:
            asked: dict[int, list[Pair]] = {}
            for index, reply in replies.items():
                try:
                    asked[index] = searches[index].send(reply)
                except StopIteration as end:
                    found[index] = end.value
            results = iter(self.verify_many([pair for pairs in asked.values() for pair in pairs]))
            replies = {index: list(islice(results, len(pairs))) for index, pairs in asked.items()}
        return [found[index] for index in range(len(searches))]

    def close(self) -> None:
        """Stop the workers now; they also stop when the program ends."""
        self._pool.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_default: Verifier | None = None
_default_lock = threading.Lock()


def default_verifier() -> Verifier:
    """Return the process's shared verifier (built on first use, default policy): one pool, one cache."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Verifier()
        return _default
