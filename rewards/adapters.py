r"""The verifier in other people's tools, a few lines each; none of them is imported before it is asked for.

TRL takes `gtpo.rewards.accuracy_reward` as it is. Each of these returns 1 for CORRECT and 0 for anything else; what is
unscored counts as 0 too, for none of the tools has a word for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from gtpo.common.errors import UserError
from gtpo.rewards.completions import completion_text, problem_text
from gtpo.rewards.extract import Scoring, choose_scoring, extract_answer, of_gold
from gtpo.rewards.verify import Verdict, default_verifier


def correct(
    completion: Any, gold: Any, problem: str | None = None, scoring: Literal["auto", "strict", "lenient"] = "auto"
) -> float:
    """Return 1.0 if a completion's answer is the gold's, else 0.0: the shape that most tools ask for.

    scoring: auto is what the completion wants (`choose_scoring`), as of a whole file in `gtpo eval`.
    Raises UserError for a gold that can score nothing: a list, None, an empty text.
    """
    text = completion_text(completion)
    chosen = choose_scoring([extract_answer(text)]) if scoring == "auto" else scoring
    verdict = default_verifier().verify(extract_answer(text, chosen), gold, problem=problem, scoring=chosen)
    if verdict is Verdict.UNUSABLE_GOLD:
        raise UserError(f"the gold {gold!r} can score no answer: give its text or number, or leave the problem out")
    return float(verdict is Verdict.CORRECT)


def verl_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **kwargs: Any) -> float:
    """Score a completion for verl: `reward.custom_reward_function.path=…/adapters.py` and its `name=verl_score`.

    The problem is `extra_info["question"]` or `extra_info["problem"]`, if the dataset has one.
    """
    known = extra_info if isinstance(extra_info, Mapping) else {}
    return correct(solution_str, ground_truth, known.get("question") or known.get("problem"))


def correct_answer(prompt: Any, completion: Any, answer: Any, **kwargs: Any) -> float:
    """Score a rollout for `verifiers`, which prime-rl trains with: `vf.Rubric(funcs=[correct_answer])` before 0.4."""
    return correct(completion, answer, problem_text(prompt))


def inspect_scorer() -> Any:
    """Return a scorer for inspect_ai: `Task(dataset=…, solver=…, scorer=inspect_scorer())`."""
    from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, scorer, stderr

    def gtpo_verifier() -> Any:
        async def score(state: Any, target: Any) -> Any:
            text = state.output.completion
            # A verification may take seconds, and inspect_ai runs all its samples on one event loop.
            judged = [await asyncio.to_thread(correct, text, gold, state.input_text) for gold in target]
            answer = extract_answer(text, "lenient")
            return Score(value=CORRECT if any(judged) else INCORRECT, answer=answer, explanation=text)

        return score

    return scorer(metrics=[accuracy(), stderr()])(gtpo_verifier)()


def lm_eval_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return lm-eval's `exact_match` of a document: `process_results: !function task.lm_eval_results` in its YAML."""
    gold = next(doc[name] for name in ("answer", "target", "solution", "gold") if name in doc)
    problem = next((doc[name] for name in ("problem", "question") if name in doc), None)
    return {"exact_match": correct(results[0], of_gold(gold) if isinstance(gold, str) else gold, problem)}


# -- a reward function of anybody's beside this judge ------------------------------------------------------------------
class Flip(NamedTuple):
    """An answer on which the two differ."""

    direction: str  # `paid`: by the function alone; `refused`: by the function alone
    verdict: Verdict
    text: str
    gold: str
    second: str  # What Math-Verify says


def audit(
    function: Callable[..., Sequence[Any]],
    completions: Sequence[str],
    golds: Sequence[Any],
    problems: Sequence[str | None],
    texts: Sequence[str | None],
    scoring: Scoring = "strict",
) -> tuple[list[Flip], int]:
    """Return the flips on completions, of which `texts` are the answers, and how many of them both could score.

    `function` has TRL's signature; what it pays above 0 it takes for correct, None for not scored.
    """
    columns = dict.fromkeys(("answer", "gold", "ground_truth", "solution"), golds)
    paid = function(prompts=[problem or "" for problem in problems], completions=completions, **columns)
    judge = default_verifier()
    verdicts = judge.verify_many(list(zip(texts, golds, strict=True)), problems, scoring=scoring)
    scored = [at for at, (p, v) in enumerate(zip(paid, verdicts, strict=True)) if p is not None and v != "TIMEOUT"]
    moved = [at for at in scored if (paid[at] > 0) != (verdicts[at] is Verdict.CORRECT)]
    second = judge.math_verify_many([(completions[at], golds[at]) for at in moved])
    flips = [
        Flip("paid" if paid[at] > 0 else "refused", verdicts[at], completions[at], str(golds[at]), str(other))
        for at, other in zip(moved, second, strict=True)
    ]
    return flips, len(scored)
