"""A loss of the user's own in the place of `gtpo.objective.policy_loss`, tried before anything expensive starts.

It is called exactly as `policy_loss` is and returns a `PolicyLoss`. It may call `policy_loss` itself:

    def mine(objective, completions, logps, entropies, mask, num_generations, **options):
        certain = logps.detach() > -0.01
        completions = completions._replace(weights=completions.weights * ~certain)
        return policy_loss(objective, completions, logps, entropies, mask, num_generations, **options)

One that differentiates the entropies says so, since it costs a second visit of the head: `needs_entropy_gradient =
True`, an attribute of the function.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gtpo.common.errors import UserError
from gtpo.common.provenance import file_hash
from gtpo.completions import Completions, group_advantages, prepare_completions
from gtpo.objective import LossFunction, Objective, PolicyLoss
from gtpo.rewards.loading import import_dotted

DECLARED = "needs_entropy_gradient"
# Of the batch that a loss is tried on: a group of four, of which the second is cut short and has a tool's answer.
GROUP, WIDTH = 4, 6


def with_loss(objective: Objective, function: LossFunction) -> Objective:
    """Return the objective with a function's name and the hash of the file that it was written in, if there is one."""
    written: Any = inspect.unwrap(getattr(function, "func", function))  # that of a partial
    written = written if hasattr(written, "__qualname__") else type(written)
    try:
        source = file_hash(Path(str(inspect.getsourcefile(written))))
    except (TypeError, OSError):
        source = None  # typed at a prompt
    return replace(objective, loss=f"{written.__module__}:{written.__qualname__}", loss_source=source)


def needs_entropy_gradient(objective: Objective, function: LossFunction) -> bool:
    """Return whether the entropies are differentiated: by the objective's own term, or as the function declares."""
    return bool(objective.head_options(1.0)["entropy_gradient"] or getattr(function, DECLARED, False))


def user_loss(objective: Objective, function: LossFunction | None = None) -> LossFunction:
    """Return the user's loss: the function, or else the one that the objective names.

    Raises UserError in one sentence if it cannot be imported or called so, or returns something else.
    """
    name = f'objective.loss "{objective.loss}"' if function is None else "loss"
    function = import_dotted(str(objective.loss), "objective.loss") if function is None else function
    draw = torch.Generator().manual_seed(0)
    known, entropies_of_all, old = -torch.rand(3, GROUP, WIDTH, generator=draw) - 0.1
    ids = torch.randint(0, 3, (GROUP, WIDTH), generator=draw)
    mask = torch.arange(WIDTH) < torch.tensor([[WIDTH], [4], [5], [2]])
    scored = group_advantages(objective, torch.tensor([1.0, 0.0, 2.0, 0.0]), GROUP)
    whole = prepare_completions(objective, scored, ids, mask, GROUP, truncated=torch.zeros(GROUP, dtype=torch.bool))
    mask[1, 1] = False
    moved = whole._replace(old_logps=old, old_entropy=-entropies_of_all.mean(dim=1))
    half = Completions._make(None if column is None else column[: GROUP // 2] for column in moved)
    # A whole group whose policy is the one that sampled, and half of it after that policy has moved.
    for completions, rows in ((whole, GROUP), (half, GROUP // 2)):
        logps, entropies = known[:rows].clone().requires_grad_(), (-entropies_of_all[:rows]).requires_grad_()
        how: Any = {"gate_active": rows < GROUP, "groups": rows / GROUP, "epsilon_low": 0.2, "epsilon_high": 0.2}
        try:
            output: Any = function(objective, completions, logps, entropies, mask[:rows], GROUP, **how)
        except Exception as error:
            raise UserError(
                f"{name} raised {type(error).__name__}: {error}; it is called as policy_loss is, (objective, "
                "completions, logps, entropies, mask, num_generations, *, gate_active, groups, epsilon_low, "
                "epsilon_high)"
            ) from error
        if not isinstance(output, PolicyLoss):
            raise UserError(f"{name} returned {type(output).__name__}; return a gtpo.objective.PolicyLoss")
        for field, value in output._asdict().items():
            wanted = [] if field == "loss" else [rows]
            found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            if found != wanted:
                raise UserError(f"{name}: {field} of its PolicyLoss must be a tensor {wanted}; found {found}")
        if not bool(output.loss.isfinite()):
            raise UserError(f"{name} is {float(output.loss.detach())} on a batch whose statistics are finite")
        # One that is 0 may be right: this batch may hold no token that the loss looks for.
        if not output.loss.requires_grad:
            raise UserError(f"{name} has no gradient: it depends neither on the log-probabilities nor on the entropies")
        slopes = torch.autograd.grad(output.loss, (logps, entropies), allow_unused=True)
        if not all(slope is None or bool(slope.isfinite().all()) for slope in slopes):
            raise UserError(f"{name}: its gradient is not finite")
        if slopes[1] is not None and bool(slopes[1].any()) and not needs_entropy_gradient(objective, function):
            raise UserError(f"{name} differentiates the entropies: say so with {DECLARED} = True, or detach them")
    return function
