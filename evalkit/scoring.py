"""From completions to rows of SAMPLE_SCHEMA: both scorings, format, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evalkit.engines.base import Generation
from rewards.extract import extract_answer
from rewards.format import format_ok
from rewards.verify import Verdict, Verifier

SCORINGS = ("strict", "lenient")

RULES_VERSION = 1
"""Version of extraction and verification as eval.json records it; raised with a change that moves verdicts."""


def score(
    generations: Sequence[Generation], golds: Mapping[tuple[str, str], str], verifier: Verifier
) -> list[dict[str, Any]]:
    """Return one row a generation. golds: (benchmark, question id) -> gold answer."""
    strict = [extract_answer(g.text, "strict") for g in generations]
    lenient = [extract_answer(g.text, "lenient") for g in generations]
    gold = [golds[g.benchmark, g.question_id] for g in generations]
    verdicts = verifier.verify_many([*zip(strict, gold, strict=True), *zip(lenient, gold, strict=True)])
    return [
        {
            "benchmark": g.benchmark,
            "question_id": g.question_id,
            "sample_index": g.sample_index,
            "completion": g.text.encode("utf-8", "replace").decode("utf-8"),  # a lone surrogate fits no Parquet file
            "answer_strict": _storable(strict[i]),
            "verdict_strict": str(verdicts[i]),
            "answer_lenient": _storable(lenient[i]),
            "verdict_lenient": str(verdicts[len(generations) + i]),
            "format_ok": format_ok(g.text),
            "tokens": g.tokens,
            "finish_reason": g.finish_reason,
            "seed": g.seed,
        }
        for i, g in enumerate(generations)
    ]


def _storable(answer: str | None) -> str | None:
    return None if answer is None else answer.encode("utf-8", "replace").decode("utf-8")


def count_votes(
    answers: Sequence[str | None], verdicts: Sequence[str], gold: str, verifier: Verifier
) -> tuple[int, int, list[int]]:
    """Return (correct, abstentions, sizes of the wrong answer classes) of a question's samples.

    The stored verdicts say what is right; wrong answers are grouped by the same equality, each undecided one
    (TIMEOUT, REJECTED) with identical texts only.
    """
    correct = sum(verdict == Verdict.CORRECT for verdict in verdicts)
    abstentions = sum(verdict == Verdict.NO_ANSWER for verdict in verdicts)
    wrong = [a for a, v in zip(answers, verdicts, strict=True) if v not in (Verdict.CORRECT, Verdict.NO_ANSWER)]
    sizes: dict[int | None, int] = {}
    if wrong:
        if len(set(wrong)) == 1:
            return correct, abstentions, [len(wrong)]
        for label in verifier.answer_classes(wrong, gold).labels:
            sizes[label] = sizes.get(label, 0) + 1
    return correct, abstentions, sorted(sizes.values(), reverse=True)
