"""The rewards of `rewards` as a verl reward function.

    reward.custom_reward_function.path: pkg://gtpo.integrations.verl.reward
    reward.custom_reward_function.name: final_score

"Correct" is decided by the same function as in `gtpo train` and `gtpo eval`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gtpo.rewards import accuracy_reward, format_reward


def final_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None, **kwargs: Any
) -> dict[str, float]:
    """Return the format and the accuracy reward of one completion (`gtpo.rewards.final_reward`).

    `score` is what verl trains on, `acc` (0 or 1) what its validation reports. A completion that could not be scored
    has `unscored` 1: gtpo's trainer leaves it out of the loss; a trainer that does not know the field sees score 0.
    extra_info["problem"], if the data has it, lets the verifier see the problem.
    """
    problem = (extra_info or {}).get("problem")
    (form,) = format_reward([solution_str])
    (accuracy,) = accuracy_reward([solution_str], [ground_truth], prompts=None if problem is None else [problem])
    if form is None or accuracy is None:
        return {"score": 0.0, "acc": 0.0, "accuracy": 0.0, "format": form or 0.0, "unscored": 1.0}
    return {"score": form + accuracy, "acc": float(accuracy > 0), "accuracy": accuracy, "format": form, "unscored": 0.0}
