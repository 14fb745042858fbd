"""The loss of whole groups from hidden states, without ever holding their logits: head and objective in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gtpo.completions import check_finite
from gtpo.head import token_statistics
from gtpo.objective import Loss, Objective, loss_of_groups


def fused_linear_gtpo_loss(
    objective: Objective,
    hidden: Tensor,
    lm_head: Tensor,
    completion_ids: Tensor,
    completion_mask: Tensor,
    rewards: Tensor | Sequence[float | None],
    num_generations: int,
    *,
    initial_entropy: float | None = None,
    temperature: float = 1.0,
    truncated: Tensor | None = None,
    **transform: Any,
) -> Loss:
    """Return what `gtpo.objective.reference_loss` returns for the logits hidden @ lm_head^T.

    hidden [N, L, D]: last hidden states, at the positions that predict completion_ids [N, L]; lm_head [V, D].
    transform: bias [V], logit_scale and softcap of `gtpo.head.head_statistics`. Differentiable in hidden, lm_head and
    bias, each only if it requires a gradient. In float32, or float64 if lm_head is.

    Raises ValueError as `reference_loss` does, and for hidden states that are not finite.
    """
    options, tokens = objective.head_options(temperature) | transform, (completion_ids, completion_mask.bool())
    statistics = token_statistics(hidden, lm_head, *tokens, **options)
    loss = loss_of_groups(objective, statistics, *tokens, rewards, num_generations, initial_entropy, truncated)
    # Last: it waits for the GPU.
    check_finite(hidden, lm_head, transform.get("bias"), *statistics)
    return loss
