"""Rewards by dotted path: ours, or any function of the user's with TRL's signature."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, update_wrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.provenance import file_hash

RewardFunction = Callable[..., list[float | None]]
# What a reward function scores; it may take either.
_SAMPLED = {"completions", "completion_ids"}
# With which TRL calls it, beside the columns of the dataset.
_KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


class LoadedRewards(NamedTuple):
    """Reward functions and the weight of each in the total."""

    functions: list[RewardFunction]
    weights: list[float]
    # One per function, unique: the function's name, with its module if two share one, with a number if that is one too.
    names: list[str]


def import_dotted(path: str, what: str) -> Any:
    """Import the attribute at `package.module.name` or `package.module:name`, from the working directory too.

    Raises UserError, with `what` the path is for, that names the part that fails: the module or the attribute.
    """
    module, attribute = _locate(path, what, importlib.import_module)
    if not hasattr(module, attribute):
        known = [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]
        raise UserError(f'{what} "{path}": {module.__name__} has no "{attribute}".{did_you_mean(attribute, known)}')
    return getattr(module, attribute)


def source_hash(path: str, what: str) -> str | None:
    """Return a hash of the file of a dotted path, which is not run; None if there is none. Raises UserError."""
    # What is not to be found has no spec; importing it says what is missing.
    spec, _ = _locate(path, what, lambda name: importlib.util.find_spec(name) or importlib.import_module(name))
    return file_hash(Path(spec.origin)) if spec.has_location else None


def _locate(path: str, what: str, find: Callable[[str], Any]) -> tuple[Any, str]:
    """Return what `find` makes of a dotted path's module, and the attribute. UserError if it raises."""
    module_name, _, attribute = path.rpartition(":") if ":" in path else path.rpartition(".")
    if not module_name or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(f'{what} "{path}": expected a dotted path such as my_module.name or my_module:name')
    # `python -m gtpo` has the working directory on its path, and the command `gtpo` has not.
    here = str(Path.cwd())
    if added := here not in sys.path:
        sys.path.insert(0, here)
    try:
        return find(module_name), attribute
    except Exception as error:
        lacking = error.name if isinstance(error, ModuleNotFoundError) else None
        # A module that the user's own file imports and lacks is that file's fault, not the path's.
        if lacking is not None and f"{module_name}.".startswith(f"{lacking}."):
            raise UserError(
                f'{what} "{path}": no module named "{lacking}" (searched the installed packages and {here})'
            ) from None
        raise UserError(f'{what} "{path}": importing {module_name} failed: {type(error).__name__}: {error}') from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def load_reward(path: str, arguments: Mapping[str, Any] | None = None) -> RewardFunction:
    """Import the reward function at a dotted path. Raises UserError on a path or a signature that does not work.

    arguments: given to each call if the function takes completions; else the function is called with them once, and
    returns the reward (as trl.rewards.get_soft_overlong_punishment does).
    """
    function: Any = import_dotted(path, "reward")
    if arguments is not None and callable(function):
        try:
            known = inspect.signature(function)
            known.bind_partial(**arguments)
            if _SAMPLED & set(known.parameters):
                function = update_wrapper(partial(function, **arguments), function)  # with the function's name
                del function.__wrapped__  # whose signature still asks for the arguments
            else:
                function = function(**arguments)
        except (TypeError, ValueError) as error:
            raise UserError(f'reward "{path}" with args {dict(arguments)}: {error}') from error
    if not callable(function) or inspect.isclass(function):
        raise UserError(f'reward "{path}": {type(function).__name__}, not a function')
    if is_async(function):
        raise UserError(
            f'reward "{path}": an async function, which is not awaited here; name an ordinary one (it may call '
            "asyncio.run)"
        )
    more = " and every column of the dataset (take **kwargs)"
    if (fault := _call_fault(f'"{path}"', function, dict.fromkeys(_KEYWORDS), more)) is not None:
        raise UserError(fault)
    checked: RewardFunction = function
    return checked


def _call_fault(name: str, function: Callable[..., Any], keywords: Mapping[str, Any], more: str = "") -> str | None:
    """Return why a function cannot be called with these keywords, and `more` if there are such, or None."""
    try:
        with contextlib.suppress(ValueError):  # a builtin without a signature: the call itself shows
            known = inspect.signature(function)
            (known.bind_partial if more else known.bind)(**keywords)
    except TypeError as error:
        return f"reward {name}: {error}; rewards are called with the keywords {', '.join(keywords)}{more}"
    return None


def load_rewards(
    paths: Sequence[str | tuple[str, Mapping[str, Any] | None]], weights: Sequence[float] | None = None
) -> LoadedRewards:
    """Load rewards, by path or (path, arguments), with their weights (1 each if unset). Raises UserError."""
    if not paths:
        raise UserError("trainer.reward_funcs is empty: name at least one reward, e.g. gtpo.rewards.final_reward")
    chosen = [1.0] * len(paths) if weights is None else list(map(float, weights))
    if len(chosen) != len(paths):
        raise UserError(f"trainer.reward_weights has {len(chosen)} values for {len(paths)} reward_funcs")
    if not all(math.isfinite(weight) for weight in chosen) or not any(chosen):
        raise UserError(f"trainer.reward_weights must be finite numbers, not all zero; found {chosen}")
    calls = [(path, None) if isinstance(path, str) else path for path in paths]
    functions = [load_reward(*call) for call in calls]
    names = [getattr(function, "__name__", path) for function, (path, _) in zip(functions, calls, strict=True)]
    unique = [name if names.count(name) == 1 else path for name, (path, _) in zip(names, calls, strict=True)]
    again = (unique[:place].count(name) for place, name in enumerate(unique))
    unique = [f"{name}-{count + 1}" if count else name for name, count in zip(unique, again, strict=True)]
    return LoadedRewards(functions, chosen, unique)


# -- what a reward may return, and a call that asks before anything expensive starts ---------------------------------
# Two and not one: a reward that returns a single number for all completions shows itself.
_PROBES = 2
# Columns that TRL does not hand to a reward function under their own name.
_NOT_REPEATED = ("prompt", "completion", "completion_ids")


def says(function: Callable[..., Any], what: str) -> bool:
    """Return what a reward function, or that of a `functools.partial`, says of itself: is_accuracy, has_format."""
    inside = isinstance(function, partial) and says(function.func, what)
    return bool(getattr(function, what, inside))


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call gives a coroutine: an async function, or an object with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def score_fault(name: str, scores: Any, count: int) -> str | None:
    """Return what is wrong with the scores that reward `name` returned for `count` completions, or None."""
    fault = _wrong(scores, count)
    expects = "a reward returns one finite number (below 3e38) per completion, or None where it cannot tell"
    return fault and f"reward {name} returned {fault}; {expects}"


def _wrong(scores: Any, count: int) -> str | None:
    if inspect.iscoroutine(scores):
        scores.close()  # Python warns of one that is dropped
        return f"a coroutine for {count} completions; await it (asyncio.run)"
    if not isinstance(scores, Iterable) or isinstance(scores, str | Mapping):
        return f"{type(scores).__name__} for {count} completions"
    listed = list(scores)
    if len(listed) != count:
        return f"{len(listed)} scores for {count} completions"
    for index, score in enumerate(listed):
        try:
            if isinstance(score, str | bytes):
                raise TypeError  # TRL makes a tensor of the scores, which takes no text
            value = 0.0 if score is None else float(score)
        except OverflowError:
            return f"a number beyond float64 for completion {index}"
        except (TypeError, ValueError):
            return f"{score!r} for completion {index}"
        # NaN passes: TRL itself makes it of None. What float32 has no number for would be infinite.
        if abs(value) > 3e38:
            return f"{value} for completion {index}"
    return None


def probe_reward(name: str, function: Callable[..., Any], row: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return why nothing can be trained with a reward function, and what it raised for two empty completions of a row.

    That may be no wonder, as no model wrote these. The call is TRL's: prompts, completions, completion_ids, the columns
    of the row, trainer_state, log_extra, log_metric. An async function runs in a loop of its own, as the caller may be
    in one (a notebook).
    """
    chat = not isinstance(row["prompt"], str)
    completion: Any = [{"role": "assistant", "content": ""}] if chat else ""
    arguments: dict[str, Any] = {
        "prompts": [row["prompt"]] * _PROBES,
        "completions": [completion] * _PROBES,
        "completion_ids": [[0]] * _PROBES,
        **{key: [value] * _PROBES for key, value in row.items() if key not in _NOT_REPEATED},
        "trainer_state": SimpleNamespace(global_step=0, max_steps=0, epoch=0.0),
        "log_extra": lambda *_: None,
        "log_metric": lambda *_: None,
    }
    fault = _call_fault(name, function, arguments)
    if fault is not None:
        return fault, None
    try:
        scores = function(**arguments)
        if is_async(function):
            with ThreadPoolExecutor(1) as pool:
                scores = pool.submit(asyncio.run, scores).result()
    except Exception as error:
        return None, f"reward {name} raised {type(error).__name__}: {error} for an empty completion"
    return score_fault(name, scores, _PROBES), None
