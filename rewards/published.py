"""The reward that the authors' code computed, kept so that its curves can be reproduced. Not for new runs.

Where it differs from the paper: a format level of 1.5, no check of the tags' order or number, correctness only
with perfect format, and an answer also counts when the gold is a *substring* of it ("120" for gold "12").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gtpo.rewards.completions import Completion, completion_text
from gtpo.rewards.text import AnswerText, as_text

_ANSWER_SPAN = re.compile(r"<answer>(.*)</answer>", re.DOTALL)


def published_format_score(text: str) -> float:
    """Return 10, 1.5, 1 or 0: both blocks; one block and a stray tag of the other; one block; none."""
    opened = text.find("<reasoning>")
    reasoning = opened >= 0 and text.find("</reasoning>", opened) >= 0
    end = text.removesuffix("\n")
    answer = end.endswith("</answer>") and "<answer>" in end.removesuffix("</answer>")
    if reasoning and answer:
        return 10.0
    if reasoning:
        return 1.5 if "<answer>" in text or "</answer>" in text else 1.0
    if answer:
        return 1.5 if "<reasoning>" in text or "</reasoning>" in text else 1.0
    return 0.0


def _published_answer(text: str) -> str:
    """From the first opening to the last closing answer tag, so that several answers merge; else the text."""
    match = _ANSWER_SPAN.search(text)
    return (match.group(1) if match else text).strip()


def published_correctness_score(text: str, gold: str) -> float:
    """Return 10 or 0: within 1e-2 + 1e-5 |gold| as floats, or the gold a substring; 0 without full format."""
    if published_format_score(text) != 10.0:
        return 0.0
    answer, reference = _published_answer(text), _published_answer(gold)
    try:
        value, target = float(answer), float(reference)
        if abs(value - target) <= 1e-2 + 1e-5 * abs(target):
            return 10.0
    except ValueError:
        pass  # not both numbers: what is left is the substring rule, which numbers that differ fall to as well
    return 10.0 if reference in answer else 0.0


def published_format_reward(completions: Sequence[Completion], **kwargs: Any) -> list[float]:
    """Score the format as the authors' code did: 10, 1.5, 1 or 0 per completion (TRL's reward signature)."""
    return [published_format_score(completion_text(completion)) for completion in completions]


def published_correctness_reward(
    completions: Sequence[Completion], answer: Sequence[AnswerText], **kwargs: Any
) -> list[float | None]:
    """Score correctness as the authors' code did: 10 or 0; None where there is no gold."""
    return [
        None if gold is None else published_correctness_score(completion_text(completion), as_text(gold))
        for completion, gold in zip(completions, answer, strict=True)
    ]


def published_final_reward(
    completions: Sequence[Completion], answer: Sequence[AnswerText], **kwargs: Any
) -> list[float | None]:
    """Return published format + correctness: one of 0, 1, 1.5, 10, 20; None where there is no gold."""
    scores = published_correctness_reward(completions, answer)
    return [
        None if score is None else score + form
        for score, form in zip(scores, published_format_reward(completions), strict=True)
    ]
