"""What a reward function may return, and a call that asks before anything expensive starts."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

_PROBES = 2
_NOT_REPEATED = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not hand to a reward function under their own name."""


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call gives a coroutine: an async function, or an object with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def score_fault(name: str, scores: Any, count: int) -> str | None:
    """Return what is wrong with the scores that reward `name` returned for `count` completions, or None."""
    expects = "a reward returns one finite number per completion, or None where it cannot tell"
    if inspect.iscoroutine(scores):
        scores.close()  # Python warns of one that is dropped
        return f"reward {name} returned a coroutine for {count} completions; await it (asyncio.run), {expects}"
    if not isinstance(scores, Iterable) or isinstance(scores, str | Mapping):
        return f"reward {name} returned {type(scores).__name__} for {count} completions; {expects}"
    listed = list(scores)
    if len(listed) != count:
        return f"reward {name} returned {len(listed)} scores for {count} completions; {expects}"
    for index, score in enumerate(listed):
        if score is None:
            continue
        try:
            if isinstance(score, str | bytes):
                raise TypeError  # TRL makes a tensor of the scores, which takes no text
            value = float(score)
        except OverflowError:
            return f"reward {name} returned a number beyond float64 for completion {index}; {expects}"
        except (TypeError, ValueError):
            return f"reward {name} returned {score!r} for completion {index}; {expects}"
        if math.isinf(value):
            return f"reward {name} returned {value} for completion {index}; {expects}"
    return None


class Probe(NamedTuple):
    """What `probe_reward` found."""

    fault: str | None = None
    """Why nothing can be trained with this function."""
    raised: str | None = None
    """The exception that it raised. Perhaps no wonder: no model wrote these completions."""


def probe_reward(name: str, function: Callable[..., Any], row: Mapping[str, Any]) -> Probe:
    """Call a reward function with two empty completions of a dataset row, and return what that shows.

    The call is TRL's: prompts, completions, completion_ids, the columns of the row, trainer_state, log_extra,
    log_metric. A coroutine function is not called; only its signature is checked.
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
    try:
        with contextlib.suppress(ValueError):  # a builtin without a signature: the call below shows
            inspect.signature(function).bind(**arguments)
    except TypeError as error:
        return Probe(f"reward {name}: {error}; rewards are called with the keywords {', '.join(arguments)}")
    if is_async(function):
        return Probe()
    try:
        scores = function(**arguments)
    except Exception as error:
        return Probe(raised=f"reward {name} raised {type(error).__name__}: {error} for an empty completion")
    return Probe(score_fault(name, scores, _PROBES))
