"""The rewards of the paper, with TRL's signature: completions and the dataset's columns in, scores out.

How a verdict becomes a number, in training and in evaluation:

| verdict | reward | evaluation, strict | evaluation, lenient |
|---|---|---|---|
| CORRECT | 10 | correct | correct |
| UNSIMPLIFIED, still to be computed | 0: or copying would be the best policy | wrong | correct |
| UNSIMPLIFIED, copied from the problem | 0 | wrong | wrong |
| INCORRECT, NO_ANSWER | 0 | wrong | wrong |
| REJECTED, too costly | 0: the model's own doing, so that it cannot pay | wrong | wrong |
| TIMEOUT | None: unscored, counted | wrong, counted | wrong, counted |
| UNUSABLE_GOLD | None: unscored, counted | left out | left out |

`None` marks a completion that could not be scored: TRL leaves it out of the sum, and it is never taken for a 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args

from gtpo.common.errors import did_you_mean
from gtpo.rewards.completions import (
    AnswerText,
    Completion,
    as_text,
    completion_text,
    format_score,
    problem_text,
    without_spaces,
)
from gtpo.rewards.extract import extract_answer, gsm8k_gold, last_boxed
from gtpo.rewards.verify import Verdict, default_verifier

CORRECT, INCORRECT = 10.0, 0.0  # The paper's accuracy rewards
Where = Literal["strict", "lenient", "boxed"]

_UNSCORED = dict.fromkeys((Verdict.TIMEOUT, Verdict.UNUSABLE_GOLD))
_SCORES = dict.fromkeys(Verdict, INCORRECT) | {Verdict.CORRECT: CORRECT} | _UNSCORED
# Metric -> the verdict whose share among the completions it is.
_LOGGED = {
    "reward/unsimplified": Verdict.UNSIMPLIFIED,
    "reward/rejected": Verdict.REJECTED,
    "reward/timeout": Verdict.TIMEOUT,
}


def format_reward(completions: Sequence[Completion], **kwargs: Any) -> list[float]:
    """Return 10 (both tag pairs, in order, once each, answer last), 1 (a part of the tags) or 0 per completion."""
    return [format_score(completion_text(completion)) for completion in completions]


def format_reward_filled(completions: Sequence[Completion], **kwargs: Any) -> list[float]:
    """Return `format_reward`, with 10 only if both blocks hold something and nothing stands outside them.

    The paper's pays 10 of 20 for empty blocks, and for any amount of text between and before them.
    """
    return [format_score(completion_text(completion), filled=True) for completion in completions]


def accuracy_reward(
    completions: Sequence[Completion],
    answer: Sequence[AnswerText] | None = None,
    prompts: Sequence[Completion] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    *,
    scoring: Where = "strict",
    **kwargs: Any,
) -> list[float | None]:
    r"""Return 10 if a completion's answer equals the gold, else 0; None if unscored.

    The gold is the dataset's column `answer`, or else `gold`, `ground_truth` or `solution` (of a worked solution its
    last box): text or numbers, one per completion. `prompts` let the verifier see the problem (the last user turn): an
    answer that only repeats an expression of it earns nothing. The shares of the verdicts that want watching, and of
    the paid answers that say more than their gold, go to `log_metric`, which TRL provides.

    Args:
        scoring: where the answer is looked for: inside the answer tags (`strict`), in the last `\boxed` (`boxed`), or
            wherever it may stand (`lenient`, see `extract_answer`). The verdicts are the same.

    Raises ValueError if lengths differ or there is no gold, TypeError for an option that it does not have.
    """
    golds = _golds(completions, answer, kwargs)
    if scoring not in get_args(Where):
        raise ValueError(f'scoring "{scoring}": one of {", ".join(get_args(Where))}')
    if prompts is not None and len(prompts) != len(completions):
        raise ValueError(f"{len(completions)} completions but {len(prompts)} prompts")
    texts = map(completion_text, completions)
    answers = [last_boxed(text) if scoring == "boxed" else extract_answer(text, scoring) for text in texts]
    pairs = list(zip(answers, golds, strict=True))
    problems = None if prompts is None else [problem_text(prompt) for prompt in prompts]
    verdicts = default_verifier().verify_many(pairs, problems)
    if log_metric is not None and verdicts:
        for name, verdict in _LOGGED.items():
            log_metric(name, verdicts.count(verdict) / len(verdicts))
        # A policy that is paid for what its answers say beside the gold has found a hole: its answers grow longer, or
        # get symbols that the gold has not.
        paid = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict is Verdict.CORRECT]
        bare = [(without_spaces(text or ""), without_spaces(gold)) for text, gold in paid]
        longer = sum(len(text) > len(gold) or not set(text) <= set(gold) for text, gold in bare)
        log_metric("reward/paid_longer", longer / max(1, len(paid)))
    return [_SCORES[verdict] for verdict in verdicts]


def boxed_reward(
    completions: Sequence[Completion], answer: Sequence[AnswerText] | None = None, **kwargs: Any
) -> list[float | None]:
    r"""Return `accuracy_reward` of what stands in the last `\boxed{…}`."""
    return accuracy_reward(completions, answer, scoring="boxed", **kwargs)


def _golds(completions: Sequence[Completion], answer: Any, columns: Mapping[str, Any]) -> list[str]:
    """Return the gold answers from the first of the columns that may hold them; refuse options that do nothing."""
    for name, value in columns.items():
        # TRL hands its columns and its own keywords over alike: a misspelt option would be taken for a column.
        if isinstance(value, (str, int, float)):  # a column has one value a completion
            raise TypeError(f'this reward has no option "{name}" (it is {value!r}).{did_you_mean(name, ["scoring"])}')
    named = {"answer": answer} | {name: columns.get(name) for name in ("gold", "ground_truth", "solution")}
    column = next((name for name, value in named.items() if value is not None), None)
    if column is None:
        raise ValueError(f"no gold answers: the dataset needs a column {', '.join(named)}")
    texts = list(map(as_text, named[column]))
    if len(completions) != len(texts):
        raise ValueError(f"{len(completions)} completions but {len(texts)} gold answers")
    return [last_boxed(text) or gsm8k_gold(text) or text for text in texts] if column == "solution" else texts


def math_verify_reward(
    completions: Sequence[Completion], answer: Sequence[AnswerText], **kwargs: Any
) -> list[float | None]:
    """Return 10 if Math-Verify finds an answer equal to the gold `answer`, else 0; None if unscored.

    Beside `accuracy_reward`, or to compare with others' runs. It does not see the problem: what is copied from it pays.
    Raises ValueError if the lengths differ.
    """
    golds = _golds(completions, answer, {})
    texts = [completion_text(completion) for completion in completions]
    # The strict answer in dollars, as it wants LaTeX, else the completion.
    judged = [text if (tagged := extract_answer(text)) is None else f"${tagged}$" for text in texts]
    verdicts = default_verifier().math_verify_many(list(zip(judged, golds, strict=True)))
    return [_SCORES[verdict] for verdict in verdicts]


def final_reward(
    completions: Sequence[Completion], answer: Sequence[AnswerText] | None = None, **kwargs: Any
) -> list[float | None]:
    """Return `format_reward` + `accuracy_reward`; None if the accuracy could not be scored."""
    return _added(format_reward(completions), accuracy_reward(completions, answer, **kwargs))


def _added(forms: Sequence[float], scores: Sequence[float | None]) -> list[float | None]:
    return [None if score is None else form + score for form, score in zip(forms, scores, strict=True)]


for _function in (accuracy_reward, boxed_reward, math_verify_reward, final_reward):
    vars(_function)["is_accuracy"] = True  # training logs it as `reward/accuracy`, chooses best/ by it and watches it
vars(final_reward)["has_format"] = True


# -- what the authors' code computed, kept so that its curves can be reproduced; not for new runs ------------------
# If it differs from the paper: a format level of 1.5, no check of the tags' order or number, correctness only with
# perfect format, and an answer also counts when the gold is a *substring* of it ("120" for gold "12").
_ANSWER_SPAN = re.compile(r"<answer>(.*)</answer>", re.DOTALL)


def published_format_score(text: str) -> float:
    """Return 10, 1.5, 1 or 0: both blocks; one block and a stray tag of the other; one block; none."""
    opened = text.find("<reasoning>")
    reasoning = opened >= 0 and text.find("</reasoning>", opened) >= 0
    end = text.removesuffix("\n")
    answer = end.endswith("</answer>") and "<answer>" in end.removesuffix("</answer>")
    if reasoning == answer:
        return 10.0 if answer else 0.0
    other = "answer" if reasoning else "reasoning"
    return 1.5 if f"<{other}>" in text or f"</{other}>" in text else 1.0


def _published_answer(text: str) -> str:
    """From the first opening to the last closing answer tag, so that several answers merge; else the text."""
    match = _ANSWER_SPAN.search(text)
    return (match.group(1) if match else text).strip()


def published_correctness_score(text: str, gold: str) -> float:
    """Return 10 or 0: within 1e-2 + 1e-5 |gold| as floats, or the gold a substring; 0 without full format."""
    if published_format_score(text) != 10.0:
        return 0.0
    answer, reference = _published_answer(text), _published_answer(gold)
    near = False
    with suppress(ValueError):  # not both numbers
        near = abs(float(answer) - float(reference)) <= 1e-2 + 1e-5 * abs(float(reference))
    return 10.0 if near or reference in answer else 0.0


def published_format_reward(completions: Sequence[Completion], **kwargs: Any) -> list[float]:
    """Score the format as the authors' code did: 10, 1.5, 1 or 0 per completion (TRL's reward signature)."""
    return [published_format_score(completion_text(completion)) for completion in completions]


def published_correctness_reward(
    completions: Sequence[Completion], answer: Sequence[AnswerText], **kwargs: Any
) -> list[float | None]:
    """Score correctness as the authors' code did: 10 or 0; None if there is no gold."""
    return [
        None if gold is None else published_correctness_score(completion_text(completion), as_text(gold))
        for completion, gold in zip(completions, answer, strict=True)
    ]


def published_final_reward(
    completions: Sequence[Completion], answer: Sequence[AnswerText], **kwargs: Any
) -> list[float | None]:
    """Return published format + correctness: one of 0, 1, 1.5, 10, 20; None if there is no gold."""
    return _added(published_format_reward(completions), published_correctness_reward(completions, answer))
