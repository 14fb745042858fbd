"""Rewards by dotted path: ours, or any function of the user's with TRL's signature."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gtpo.common.errors import UserError, did_you_mean
from gtpo.rewards.checks import is_async

RewardFunction = Callable[..., list[float | None]]


class LoadedRewards(NamedTuple):
    """Reward functions and the weight of each in the total."""

    functions: list[RewardFunction]
    weights: list[float]
    names: list[str]
    """One per function, unique: the function's name, with its module where two share one."""


def import_dotted(path: str, what: str) -> Any:
    """Import the attribute at `package.module.name` or `package.module:name`; `what` names the kind in errors.

    The working directory is searched too, so a file beside the config works. Raises UserError that names the part
    of the path that fails: the module or the attribute.
    """
    module_name, _, attribute = path.rpartition(":") if ":" in path else path.rpartition(".")
    if not module_name or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(f'{what} "{path}": expected a dotted path such as my_module.name or my_module:name')
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UserError(
                f'{what} "{path}": no module named "{error.name}" (searched the installed packages and {here})'
            ) from None
        raise UserError(f'{what} "{path}": importing {module_name} failed: {error}') from error
    except Exception as error:
        raise UserError(f'{what} "{path}": importing {module_name} failed: {type(error).__name__}: {error}') from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
    if not hasattr(module, attribute):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise UserError(f'{what} "{path}": {module_name} has no "{attribute}".{did_you_mean(attribute, known)}')
    return getattr(module, attribute)


def load_reward(path: str) -> RewardFunction:
    """Import the reward function at a dotted path. Raises UserError on a path or a signature that does not work."""
    function = import_dotted(path, "reward")
    if not callable(function) or inspect.isclass(function):
        raise UserError(f'reward "{path}": {type(function).__name__}, not a function')
    if is_async(function):
        raise UserError(
            f'reward "{path}": an async function, which is not awaited here; name an ordinary one (it may call '
            "asyncio.run)"
        )
    _check_signature(path, function)
    checked: RewardFunction = function
    return checked


def _check_signature(path: str, function: Callable[..., Any]) -> None:
    """TRL calls `reward(prompts=…, completions=…, <dataset columns>=…)`: refuse what that call would break on."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature: left to the call itself
        return
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise UserError(
            f'reward "{path}": its signature {inspect.signature(function)} lacks **kwargs; rewards are called with '
            "prompts, completions, completion_ids and every column of the dataset as keywords"
        )
    if "completions" not in names:
        raise UserError(f'reward "{path}": its signature {inspect.signature(function)} lacks "completions"')


def load_rewards(paths: Sequence[str], weights: Sequence[float] | None = None) -> LoadedRewards:
    """Load several rewards with their weights (1 each if unset). Raises UserError on a mismatch."""
    if not paths:
        raise UserError("trainer.reward_funcs is empty: name at least one reward, e.g. gtpo.rewards.final_reward")
    if weights is not None and len(weights) != len(paths):
        raise UserError(f"trainer.reward_weights has {len(weights)} values for {len(paths)} reward_funcs")
    chosen = [1.0] * len(paths) if weights is None else [float(weight) for weight in weights]
    if not all(math.isfinite(weight) for weight in chosen) or not any(chosen):
        raise UserError(f"trainer.reward_weights {chosen}: finite numbers, not all zero")
    functions = [load_reward(path) for path in paths]
    names = [getattr(function, "__name__", path) for function, path in zip(functions, paths, strict=True)]
    unique = [name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)]
    return LoadedRewards(functions, chosen, unique)
