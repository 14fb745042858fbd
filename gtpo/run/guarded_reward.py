"""Reward functions as a run uses them: found by dotted path, and unable to end the run or to silently score 0.

A function that raises is called again one completion at a time; the completions on which it raises are *unscored*:
left out of the group's mean, given no gradient, and counted. If more than half of a batch is unscored, the run stops
and shows the first traceback.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.rewards.loading import RewardFunction, load_rewards, score_fault

_NOT_COLUMNS = ("trainer_state", "log_extra", "log_metric", "environments")


class GuardedReward:
    """A reward function whose exceptions leave completions unscored. Has TRL's signature."""

    def __init__(self, function: RewardFunction, name: str | None = None) -> None:
        self.function = function
        self.__name__ = name or getattr(function, "__name__", type(function).__name__)
        self.is_accuracy, self.has_format = (getattr(function, key, False) for key in ("is_accuracy", "has_format"))
        self.first_traceback: str | None = None

    def __call__(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **columns: Any
    ) -> list[float | None]:
        """Return one score per completion, None if the function raised or returned None.

        Raises UserError if what it returned are no scores of these completions.
        """
        scores = self._scores(prompts, completions, completion_ids, columns)
        if scores is not None:
            return scores
        scores = []
        for index in range(len(completions)):
            one = slice(index, index + 1)
            row = {key: value if key in _NOT_COLUMNS else value[one] for key, value in columns.items()}
            scores += self._scores(prompts[one], completions[one], completion_ids[one], row) or [None]
        return scores

    def _scores(self, prompts: Any, completions: Any, ids: Any, columns: dict[str, Any]) -> list[float | None] | None:
        """Return the scores of some completions; None if the function raised."""
        try:
            returned = self.function(prompts=prompts, completions=completions, completion_ids=ids, **columns)
        except Exception:  # the user's code may raise anything; its traceback is shown, and no score is made up
            if self.first_traceback is None:
                self.first_traceback = traceback.format_exc()
                LOG.warning(
                    f"reward function {self.__name__} raised; these completions are unscored\n{self.first_traceback}"
                )
            return None
        scores = list(returned) if isinstance(returned, Iterable) else returned
        if fault := score_fault(str(self.__name__), scores, len(completions)):
            raise UserError(fault)
        return scores


def guarded_rewards(
    paths: Sequence[tuple[str, Mapping[str, Any] | None]], weights: Sequence[float] | None = None
) -> list[GuardedReward]:
    """Import the functions of `trainer.reward_funcs`. Raises UserError for a path or signature that does not work."""
    loaded = load_rewards(paths, weights)
    return [GuardedReward(function, name) for function, name in zip(loaded.functions, loaded.names, strict=True)]


def mark_unscored(trainer: Any, rewards: Tensor) -> Tensor:
    """Make a completion unscored if any of its rewards could not be computed. UserError at more than half."""
    unscored = rewards.isnan().any(dim=1)
    if unscored.float().mean() > 0.5:
        guarded = [f for f in trainer.reward_funcs if isinstance(f, GuardedReward)]
        trace = next((g.first_traceback for g in guarded if g.first_traceback), None)
        raise UserError(
            f"{int(unscored.sum())} of {len(unscored)} completions at step {trainer.state.global_step + 1} could not "
            f"be scored by {', '.join(str(g.__name__) for g in guarded)}; the run stops. "
            + (f"The first traceback:\n{trace}" if trace else "The functions returned None.")
        )
    return rewards.masked_fill(unscored[:, None], math.nan)
