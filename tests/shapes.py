"""Checks the shapes in the method's annotations whenever a test calls it, if jaxtyping and beartype are installed."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from gtpo.common.packages import installed

# In the order in which they import each other: what one module takes from another is checked there too.
MODULES = ("conflict", "completions", "objective", "entropy", "head")


def check_shapes() -> None:
    """Let every annotated function of the method look at what it takes and returns."""
    if not (installed("jaxtyping") and installed("beartype")):
        return
    import jaxtyping

    for name in MODULES:
        module = importlib.import_module(f"gtpo.{name}")
        for kind in ("Bool", "Float", "Int", "Shaped"):
            setattr(module, kind, getattr(jaxtyping, kind))  # only mypy imports them there
        for function in [each for each in vars(module).values() if inspect.isfunction(each)]:
            if function.__module__ == module.__name__ and "Tensor, " in str(function.__annotations__):
                setattr(module, function.__name__, _checked(function))


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    import beartype
    from jaxtyping import TypeCheckError, jaxtyped

    typed = jaxtyped(typechecker=beartype.beartype)(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return typed(*args, **kwargs)
        except TypeCheckError:
            function(*args, **kwargs)  # which has a sentence of its own for what a user may do
            raise

    return checked
