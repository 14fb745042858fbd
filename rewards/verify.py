"""Is this answer equal to the gold answer? The one definition, for training rewards and for evaluation.

docs/verification.md states the policy. Plain numbers and equal texts are decided here, in the caller, exactly;
everything else goes to worker processes with bounds on work, memory and time.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, count, islice
from typing import Literal, NamedTuple, overload

from gtpo.common.errors import UserError
from gtpo.rewards.completions import AnswerText, as_text, is_no_gold, without_spaces
from gtpo.rewards.extract import Scoring
from gtpo.rewards.limits import MATH_VERIFY_REACH, MAX_CHARACTERS, MAX_DIGITS, MAX_NESTING, MAX_TOKENS
from gtpo.rewards.verification.pool import WorkerPool

# -- what is decided before any parser sees a text: static limits, plain numbers and equal texts, exactly -------------
_REFUSED = {
    # A mark that turns the direction of writing lets a log show another answer than the one that was judged.
    re.compile(
        r"[\x00-\x08\x0b\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
    ): "control or bidirectional characters",
    re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}"): f"more than {MAX_DIGITS} digits in a run",
    # `9^9999999` is short to write and fills the memory: such exponents are refused by their text.
    re.compile(r"(?:\^|(?<=[\w)}\]])\*\*)\s*\{?\s*[-+]?\d{7,}|\d[eE][-+]?\d{5,}"): "an exponent of a million or more",
}
_BRACKET = re.compile(r"[()\[\]{}]")
_TOKEN = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]+|[0-9.]+|[^\s]")
_NUMBER = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)?(?:\.\d+)?")
_SIZE = re.compile(r"\\(?:left|right)(?![a-zA-Z])")


def reject_reason(text: str) -> str | None:
    """Return why a text is beyond the limits, or None. Linear in the text's length."""
    if len(text) > MAX_CHARACTERS:
        return f"{len(text)} characters, more than {MAX_CHARACTERS}"
    for pattern, why in _REFUSED.items():
        if pattern.search(text):
            return why
    steps = (1 if bracket in "([{" else -1 for bracket in _BRACKET.findall(text))
    deepest = max(accumulate(steps, lambda depth, step: max(0, depth + step), initial=0))
    if deepest > MAX_NESTING:
        return f"brackets nested {deepest} deep, more than {MAX_NESTING}"
    tokens = len(_TOKEN.findall(text))
    return f"{tokens} tokens, more than {MAX_TOKENS}" if tokens > MAX_TOKENS else None


def plain_number(text: str) -> Fraction | None:
    """Return the value of an integer or decimal, with or without thousands commas; None for anything else."""
    bare = text.strip()
    # isdigit() holds for `²` and for Arabic digits too, hence isascii().
    if not (bare.isascii() and bare.isdigit()):  # most answers are, and need no more
        bare = bare.replace("\u2212", "-")
        if not bare.isascii() or not any(c.isdigit() for c in bare) or _NUMBER.fullmatch(bare) is None:
            return None
        bare = bare.replace(",", "")
    return Fraction(bare) if "." in bare else Fraction(int(bare))


# -- verdicts ---------------------------------------------------------------------------------------------------------
# (prediction, gold)
Pair = tuple[AnswerText, AnswerText]
# What golds are: `text` is compared as text, without case and outer space.
Answers = Literal["mathematics", "text"]
# (prediction, gold, problem, answers); `math-verify`: a text that Math-Verify judges.
_Key = tuple[str, str, str | None, Literal["mathematics", "text", "math-verify"]]


class Verdict(enum.StrEnum):
    """What came of comparing a prediction with a gold answer."""

    CORRECT = "CORRECT"
    INCORRECT = "INCORRECT"
    UNSIMPLIFIED = "UNSIMPLIFIED"
    """Equal in value, but still to be computed, or copied from the problem: not correct."""
    NO_ANSWER = "NO_ANSWER"
    """The prediction is empty."""
    TIMEOUT = "TIMEOUT"
    """The machine did not get round to it: unscored, not wrong. An answer that is itself too costly is REJECTED."""
    REJECTED = "REJECTED"
    """The answer is beyond the static limits, or its evaluation beyond the bounds on work or memory."""
    UNUSABLE_GOLD = "UNUSABLE_GOLD"
    """The gold is empty or beyond the limits: unscored, not wrong."""


# Equal in value.
_EQUAL = frozenset((Verdict.CORRECT, Verdict.UNSIMPLIFIED))
# A copy is wrong in lenient scoring too: it says nothing of what the model can compute.
_STRICT = {**{str(v): v for v in Verdict}, "COPIED": Verdict.UNSIMPLIFIED, "UNEVALUATED": Verdict.UNSIMPLIFIED}
# What a worker's finding is worth under each scoring: it finds more than the verdicts.
_VERDICTS = {"strict": _STRICT, "lenient": _STRICT | {"UNEVALUATED": Verdict.CORRECT}}


class Explained(NamedTuple):
    """A verdict, and how both answers were read and which rule decided."""

    verdict: Verdict
    why: str


def usable_cpus() -> int:
    """Return the CPUs this process may use, at most 16: a verifier's workers unless it is told otherwise."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return min(16, len(affinity(0)) if affinity else os.cpu_count() or 1)


@lru_cache(maxsize=4096)
def _is_usable(gold: str) -> bool:
    """Return whether a gold can be compared with; cached, as each sample of a question brings it again."""
    return bool(gold.strip()) and reject_reason(gold) is None


def _decide_here(prediction: str, gold: str, problem: str | None, answers: str) -> str | None:
    """Decide without a worker, if that is exact: unusable golds, empty and hostile answers, numbers, texts."""
    if not _is_usable(gold) or (answers != "text" and is_no_gold(gold)):
        return Verdict.UNUSABLE_GOLD
    if not prediction.strip():
        return Verdict.NO_ANSWER
    if answers == "math-verify":
        return None
    if reject_reason(prediction) is not None:
        return Verdict.REJECTED
    if answers == "text":
        return Verdict.CORRECT if prediction.strip().casefold() == gold.strip().casefold() else Verdict.INCORRECT
    a, b = plain_number(prediction), plain_number(gold)
    if a is not None and b is not None:
        # Decimals that differ in a late digit may still agree under the policy on rounding: not decided here.
        near = ("." in prediction or "." in gold) and 0 < abs(a - b) < abs(b) / 100
        return None if near else Verdict.CORRECT if a == b else Verdict.INCORRECT
    same = without_spaces(_SIZE.sub(" ", prediction)) == without_spaces(_SIZE.sub(" ", gold))
    return Verdict.CORRECT if same else None


def _of_each(answers: Answers | Sequence[Answers], count: int) -> Sequence[Answers]:
    return [answers] * count if answers == "text" or answers == "mathematics" else answers


class Verifier:
    """Verifies answers; safe to share between threads, and by forked children.

    Args:
        workers: processes at most; unset takes the CPUs this process may use, at most 16. None starts before
            there is an answer that needs one.
        timeout_s: seconds for one verification, after which its worker is killed. A guard: verdicts depend on
            bounds on work, which an answer reaches long before.
        memory_mb: address space of one worker, in MiB.
        cache_size: findings kept, by prediction, gold and problem; the oldest go first.
    """

    def __init__(
        self, workers: int | None = None, timeout_s: float = 5.0, *, memory_mb: int = 1024, cache_size: int = 200_000
    ) -> None:
        self.workers = workers if workers is not None else usable_cpus()
        self.timeout_s, self.memory_mb, self.cache_size = timeout_s, memory_mb, cache_size
        self._cache: dict[_Key, str] = {}
        self._pool = WorkerPool(self.workers, self.timeout_s, self.memory_mb)

    @overload
    def verify(
        self, prediction: AnswerText, gold: AnswerText, *, problem: str | None = None, scoring: Scoring = "strict",
        answers: Answers = "mathematics", explain: Literal[False] = False,
    ) -> Verdict: ...  # fmt: skip
    @overload
    def verify(
        self, prediction: AnswerText, gold: AnswerText, *, problem: str | None = None, scoring: Scoring = "strict",
        answers: Answers = "mathematics", explain: Literal[True],
    ) -> Explained: ...  # fmt: skip
    def verify(
        self, prediction: AnswerText, gold: AnswerText, *, problem: str | None = None, scoring: Scoring = "strict",
        answers: Answers = "mathematics", explain: bool = False,
    ) -> Verdict | Explained:  # fmt: skip
        """Return the verdict on one extracted answer; see `verify_many`. With `explain` its reason too, in a line."""
        verdict = self.verify_many([(prediction, gold)], [problem], scoring=scoring, answers=answers)[0]
        if not explain:
            return verdict
        texts = {"prediction": as_text(prediction), "gold": as_text(gold)}
        if not all(each.strip() and reject_reason(each) is None for each in texts.values()) or answers == "text":
            return Explained(verdict, "an empty text, one beyond the limits, or compared as text")
        _, _, why = self._pool.run([{**texts, "problem": problem, "by": "explain"}])[0].partition("\t")
        return Explained(verdict, why or "beyond the limits on work or time")

    def verify_many(
        self,
        pairs: Sequence[Pair],
        problems: Sequence[str | None] | None = None,
        *,
        scoring: Scoring = "strict",
        answers: Answers | Sequence[Answers] = "mathematics",
    ) -> list[Verdict]:
        """Return the verdicts on (prediction, gold) pairs, in order; equal pairs are verified once.

        Args:
            pairs: extracted answers with their golds. A gold that cannot be used is UNUSABLE_GOLD for its pair alone.
            problems: the text of each pair's problem: what an answer may not merely repeat, whether a percentage is
                asked for, which nouns count as units, and what the options of a choice are.
            scoring: `strict` (training too) counts an expression that is still to be computed as UNSIMPLIFIED,
                `lenient` as CORRECT unless it is copied from the problem.
            answers: of all pairs, or of each: `text` compares golds as text, without case and outer space.

        Raises ValueError if `problems` and `pairs` differ in length.
        """
        if problems is not None and len(problems) != len(pairs):
            raise ValueError(f"{len(pairs)} pairs but {len(problems)} problems")
        each = zip(pairs, problems or [None] * len(pairs), _of_each(answers, len(pairs)), strict=True)
        keys: list[_Key] = [
            (as_text(prediction), as_text(gold), problem or None, kind) for (prediction, gold), problem, kind in each
        ]
        return [_VERDICTS[scoring][finding] for finding in self._find(keys)]

    def math_verify_many(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return Math-Verify's verdicts on (text, gold) pairs, in order: its own extraction and comparison.

        A text is a completion, of which it is given the last `MATH_VERIFY_REACH` characters, or an answer in dollars.
        It runs in the same workers, under their bounds. NO_ANSWER: it finds none. UNUSABLE_GOLD: it cannot read it.
        """
        keys: list[_Key] = [
            (as_text(text)[-MATH_VERIFY_REACH:], as_text(gold), None, "math-verify") for text, gold in pairs
        ]
        return [Verdict(finding) for finding in self._find(keys)]

    def _find(self, keys: Sequence[_Key]) -> list[str]:
        """Return what each key comes to: from the cache, by exact arithmetic, or from the workers."""
        # The pool's lock is renewed in a forked child; a second one for the cache could stay held there for ever.
        with self._pool.lock:
            known = {key: self._cache.get(key) for key in keys}
        found = {key: _decide_here(*key) for key, finding in known.items() if finding is None}
        open_keys = [key for key, finding in found.items() if finding is None]
        tasks = [dict(zip(("prediction", "gold", "problem", "by"), key, strict=True)) for key in open_keys]
        found |= zip(open_keys, self._pool.run(tasks), strict=True)
        with self._pool.lock:
            # A timeout tells how busy the machine was: the same pair may be decided the next time.
            self._cache.update((key, str(finding)) for key, finding in found.items() if finding != "TIMEOUT")
            for key in [*islice(self._cache, max(0, len(self._cache) - self.cache_size))]:
                del self._cache[key]
        return [str(known[key] or found[key]) for key in keys]

    def extract_by_rules(self, rules: Sequence[tuple[str, str]]) -> list[str | None]:
        """Return the answers by (regular expression, completion), in the workers. UserError for one without an end."""
        found = self._pool.run([{"by": "rule", "rule": rule, "text": text} for rule, text in rules])
        for (rule, text), outcome in zip(rules, found, strict=True):
            if not outcome.startswith("="):
                raise UserError(
                    f"extract: the regular expression {rule} comes to no end within {self.timeout_s:g} s in the "
                    f"completion that ends with {text[-40:]!r}: write it without a repeat inside a repeat"
                )
        return [outcome[1:] or None for outcome in found]

    def verify_golds(self, golds: Sequence[str]) -> list[Verdict]:
        """Return the verdict on each gold against itself, by value."""
        # Numbers equal themselves: most golds need no worker.
        others = [gold for gold in golds if plain_number(gold) is None]
        outcomes = self._pool.run([{"prediction": gold, "gold": gold, "by_text": False} for gold in others])
        found = dict(zip(others, outcomes, strict=True))
        return [Verdict(found.get(gold, Verdict.CORRECT)) for gold in golds]

    def answer_classes_many(
        self,
        questions: Sequence[tuple[Sequence[str | None], str]],
        problems: Sequence[str | None] | None = None,
        *,
        answers: Answers | Sequence[Answers] = "mathematics",
    ) -> list[list[int | None]]:
        """Group the answers to each question, (answers, gold), by the same equality that scores them (`strict`).

        Return for each answer the number of its class, from 0 in order of first appearance; None if it abstains.
        All answers equal to the gold form one class, those that are UNSIMPLIFIED another. Every other answer joins
        the first class whose representative (its first member) equals it in either direction, or opens a new one. An
        empty or missing answer abstains. An answer that could not be decided (TIMEOUT, REJECTED) votes for itself
        alone and for identical texts.
        """
        size = len(questions)
        each = zip(questions, problems or [None] * size, _of_each(answers, size), strict=True)
        with ThreadPoolExecutor(self.workers) as threads:  # a question waits for its own trips to the workers only
            return list(threads.map(lambda question: self._group(*question), each))

    def _group(
        self, question: tuple[Sequence[str | None], str], problem: str | None, answers: Answers
    ) -> list[int | None]:
        """Group one question's answers: integers by their value, other answers by verdicts on pairs of them."""
        given, gold = question
        verdicts = self.verify_many([(each, gold) for each in given], [problem] * len(given), answers=answers)
        labels: list[int | None] = []
        # Class of a wrong integer, by its value, of any other wrong text, and of what equals the gold, by its verdict.
        known: dict[str | Fraction | tuple[Verdict], int] = {}
        firsts: list[tuple[int, str, bool]] = []  # a class of wrong answers, its first one, whether that is an integer
        numbers = count()
        for answer, verdict in zip(given, verdicts, strict=True):
            if answer is None or verdict is Verdict.NO_ANSWER:
                labels.append(None)
                continue
            wrong = verdict is Verdict.INCORRECT
            whole = plain_number(answer) if wrong and answers != "text" and "." not in answer else None
            key = (verdict,) if verdict in _EQUAL else answer if whole is None else whole
            if key not in known:
                # Integers that differ need no verifier, and most wrong answers are integers.
                others = [
                    (at, other) for at, other, is_whole in firsts if wrong and not (is_whole and whole is not None)
                ]
                pairs = [(answer, other) for _, other in others] + [(other, answer) for _, other in others]
                same = [v in _EQUAL for v in self.verify_many(pairs, [problem] * len(pairs), answers=answers)]
                both = zip(others, same, same[len(others) :], strict=False)
                label = next((at for (at, _), ahead, back in both if ahead or back), None)
                known[key] = next(numbers) if label is None else label
                if wrong and label is None:
                    firsts.append((known[key], answer, whole is not None))
            labels.append(known[key])
        return labels

    def close(self) -> None:
        """Stop the workers now; they also stop when the program ends."""
        self._pool.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# Made on import and not on first use, so that no lock guards it, which a fork could leave held in the child. Until an
# answer needs a worker it is a few empty objects.
_DEFAULT = Verifier()


def default_verifier() -> Verifier:
    """Return the process's shared verifier (default policy): one pool, one cache."""
    return _DEFAULT
