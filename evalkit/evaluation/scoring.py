"""From completions to rows of SAMPLE_SCHEMA: both scorings, format, verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evalkit.engines.base import Generation
from rewards.extract import extract_both
from rewards.format import format_ok
from rewards.verify import Verdict, Verifier

SCORINGS = ("strict", "lenient")

RULES_VERSION = 1
"""Version of extraction and verification as eval.json records it; raised with a change that moves verdicts."""


def score(
    generations: Sequence[Generation], golds: Mapping[tuple[str, str], str], verifier: Verifier
) -> list[dict[str, Any]]:
    """Return one row a generation. golds: (benchmark, question id) -> gold answer."""
    answers = [extract_both(g.text) for g in generations]
    gold = [golds[g.benchmark, g.question_id] for g in generations]
    pairs = [(answer, right) for both, right in zip(answers, gold, strict=True) for answer in both]
    verdicts = verifier.verify_many(pairs)
    return [
        {
            "benchmark": g.benchmark,
            "question_id": g.question_id,
            "sample_index": g.sample_index,
            "completion": _storable(g.text),
            "answer_strict": _storable(answers[i][0]),
            "verdict_strict": str(verdicts[2 * i]),
            "answer_lenient": _storable(answers[i][1]),
            "verdict_lenient": str(verdicts[2 * i + 1]),
            "format_ok": format_ok(g.text),
            "tokens": g.tokens,
            "finish_reason": g.finish_reason,
            "seed": g.seed,
        }
        for i, g in enumerate(generations)
    ]


def _storable(text: str | None) -> str | None:
    """Replace lone surrogates, which fit no Parquet file."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class Votes(NamedTuple):
    """How the samples of one question vote."""

    correct: int
    abstentions: int
    wrong: list[int]
    """Sizes of the wrong answer classes, the largest first."""

    @property
    def total(self) -> int:
        """How many samples were counted."""
        return self.correct + self.abstentions + sum(self.wrong)


def count_votes(
    questions: Sequence[tuple[Sequence[str | None], Sequence[str], str]], verifier: Verifier
) -> list[Votes]:
    """Count the votes of questions, each (answers, verdicts, gold).

    The stored verdicts say what is right; wrong answers are grouped by the same equality, each undecided one
    (TIMEOUT, REJECTED) with identical texts only.
    """
    wrong = [
        [a for a, v in zip(answers, verdicts, strict=True) if v not in (Verdict.CORRECT, Verdict.NO_ANSWER)]
        for answers, verdicts, _ in questions
    ]
    divided = [i for i, answers in enumerate(wrong) if len(set(answers)) > 1]
    classes = verifier.answer_classes_many([(wrong[i], questions[i][2]) for i in divided])
    sizes = {i: Counter(found.labels) for i, found in zip(divided, classes, strict=True)}
    return [
        Votes(
            sum(verdict == Verdict.CORRECT for verdict in verdicts),
            sum(verdict == Verdict.NO_ANSWER for verdict in verdicts),
            sorted(sizes[i].values(), reverse=True) if i in sizes else [len(wrong[i])] * bool(wrong[i]),
        )
        for i, (_, verdicts, _) in enumerate(questions)
    ]
