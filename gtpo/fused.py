"""The loss of whole groups from hidden states, without ever holding their logits: head and objective in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gtpo.completions import group_advantages, prepare_completions
from gtpo.head import check_finite, token_statistics
from gtpo.objective import Loss, Objective, filter_is_active, policy_loss


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
    scored, mask = group_advantages(objective, rewards, num_generations), completion_mask
    wide = torch.promote_types(lm_head.dtype, torch.float32)
    given = prepare_completions(
        objective, scored, completion_ids, mask, num_generations, truncated=truncated, dtype=wide
    )
    gate_active, options = filter_is_active(objective, initial_entropy), objective.head_options(temperature)
    logps, entropies = token_statistics(hidden, lm_head, completion_ids, mask, **options, **transform)
    found = policy_loss(objective, given, logps, entropies, mask.bool(), num_generations, gate_active=gate_active)
    check_finite(hidden, lm_head, transform.get("bias"), logps, entropies)
    return Loss(found.loss, given.advantages, found.shaped_advantages, found.entropy, found.kept, given.weights)
