"""The rewards of the paper, with TRL's signature: completions and the dataset's columns in, scores out.

`None` marks a completion that could not be scored (the verifier timed out, the row has no gold answer): TRL
leaves it out of the sum, and it is counted, never taken for a 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewards.completions import Completion, completion_text
from rewards.extract import extract_answer
from rewards.format import format_score
from rewards.verify import Verdict, default_verifier

CORRECT, INCORRECT = 10.0, 0.0
"""The paper's accuracy rewards."""

_SCORES = {
    Verdict.CORRECT: CORRECT,
    Verdict.INCORRECT: INCORRECT,
    Verdict.NO_ANSWER: INCORRECT,
    Verdict.REJECTED: INCORRECT,  # beyond the static limits: the model's own doing, so that it cannot pay
    Verdict.TIMEOUT: None,
}


def format_reward(completions: Sequence[Completion], **kwargs: Any) -> list[float | None]:
    """Return 10 (both tag pairs, in order, once each, answer last), 1 (a part of the tags) or 0 per completion."""
    return [format_score(completion_text(completion)) for completion in completions]


def accuracy_reward(
    completions: Sequence[Completion], answer: Sequence[str | None], **kwargs: Any
) -> list[float | None]:
    """Return 10 where the answer inside the answer tags equals the gold `answer`, else 0; None if unscored.

    `answer` is the dataset's column of bare gold answers, one per completion. Raises ValueError if the two
    differ in length.
    """
    if len(completions) != len(answer):
        raise ValueError(f"{len(completions)} completions but {len(answer)} gold answers")
    pairs = [
        (extract_answer(completion_text(completion)) or "", gold)
        for completion, gold in zip(completions, answer, strict=True)
    ]
    scored = [index for index, (_, gold) in enumerate(pairs) if gold is not None and str(gold).strip()]
    verdicts = default_verifier().verify_many([(pairs[index][0], str(pairs[index][1])) for index in scored])
    rewards: list[float | None] = [None] * len(pairs)
    for index, verdict in zip(scored, verdicts, strict=True):
        rewards[index] = _SCORES[verdict]
    return rewards


def final_reward(completions: Sequence[Completion], answer: Sequence[str | None], **kwargs: Any) -> list[float | None]:
    """Return `format_reward` + `accuracy_reward`; None where the accuracy could not be scored."""
    return [
        None if accuracy is None or form is None else form + accuracy
        for form, accuracy in zip(format_reward(completions), accuracy_reward(completions, answer), strict=True)
    ]
