r"""The verifier in other people's tools, a few lines each; none of them is imported before it is asked for.

TRL takes `gtpo.rewards.accuracy_reward` as it is. Each of these returns 1 for CORRECT and 0 for anything else; what is
unscored counts as 0 too, for none of the tools has a word for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gtpo.rewards.completions import completion_text, problem_text
from gtpo.rewards.extract import Scoring, extract_answer
from gtpo.rewards.verify import Verdict, default_verifier


def correct(completion: Any, gold: Any, problem: str | None = None, scoring: Scoring = "lenient") -> float:
    """Return 1.0 if a completion's answer is the gold's, else 0.0: the shape that most tools ask for."""
    answer = extract_answer(completion_text(completion), scoring)
    return float(default_verifier().verify(answer, gold, problem=problem) is Verdict.CORRECT)


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
    return {"exact_match": correct(results[0], extract_answer(str(gold), "lenient") or gold, problem)}
