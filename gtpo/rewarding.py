"""Reward functions as a run uses them: found by dotted path, and unable to end the run or to score 0 in silence.

A function that raises is called again one completion at a time; the completions on which it raises are *unscored*:
left out of the group's mean, given no gradient, and counted. If more than half of a batch is unscored, the run stops
and shows the first traceback.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rewards.support.errors import UserError, did_you_mean

RewardFunction = Callable[..., Sequence[float | None]]

_NOT_COLUMNS = ("trainer_state", "log_extra", "log_metric", "environments")


def load_dotted(path: str, key: str) -> Any:
    """Import `package.module.name` or `package.module:name`. Raises UserError naming the config key."""
    module_name, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not name:
        raise UserError(f"{key}: {path!r} is no dotted path (package.module.name)")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's own module beside the config, as with `python -m`
    try:
        module = importlib.import_module(module_name)
    except ImportError as fault:
        raise UserError(f"{key}: cannot import {module_name} for {path!r}: {fault}") from None
    try:
        return getattr(module, name)
    except AttributeError:
        public = [entry for entry in vars(module) if not entry.startswith("_")]
        raise UserError(f"{key}: {module_name} has no {name}.{did_you_mean(name, public)}") from None


class GuardedReward:
    """A reward function whose exceptions leave completions unscored. Has TRL's signature."""

    def __init__(self, function: RewardFunction, name: str | None = None) -> None:
        self.function = function
        self.__name__ = name or getattr(function, "__name__", type(function).__name__)
        self.failed: list[int] = []
        """Indices of the last batch on which the function raised."""
        self.first_traceback: str | None = None

    def __call__(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **columns: Any
    ) -> list[float | None]:
        """Return one score per completion, None where the function raised or returned None."""
        self.failed = []
        count = len(completions)
        try:
            return list(
                self.function(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
            )
        except Exception:
            self._note(traceback.format_exc())
        scores: list[float | None] = []
        for index in range(count):
            row = {key: value if key in _NOT_COLUMNS else value[index : index + 1] for key, value in columns.items()}
            try:
                (score,) = self.function(
                    prompts=prompts[index : index + 1],
                    completions=completions[index : index + 1],
                    completion_ids=completion_ids[index : index + 1],
                    **row,
                )
            except Exception:
                self._note(traceback.format_exc())
                self.failed.append(index)
                score = None
            scores.append(score)
        return scores

    def _note(self, trace: str) -> None:
        if self.first_traceback is None:
            self.first_traceback = trace
            print(
                f"gtpo: reward function {self.__name__} raised; the completions on which it does are unscored\n{trace}",
                file=sys.stderr,
            )


def load_rewards(paths: Sequence[str]) -> list[GuardedReward]:
    """Import the reward functions of `trainer.reward_funcs`. Raises UserError for a path that does not import."""
    loaded = []
    for path in paths:
        function = load_dotted(path, "trainer.reward_funcs")
        if not callable(function):
            raise UserError(f"trainer.reward_funcs: {path!r} is no function")
        loaded.append(GuardedReward(function))
    return loaded
