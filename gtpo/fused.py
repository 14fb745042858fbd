"""The loss of whole groups from hidden states, without ever holding their logits: head and objective in one call."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gtpo.completions import group_advantages, prepare_completions
from gtpo.head import check_finite, compute_dtype, token_statistics
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
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    truncated: Tensor | None = None,
) -> Loss:
    """Return what `gtpo.objective.reference_loss` returns for the logits hidden @ lm_head^T.

    hidden [N, L, D]: last hidden states, at the positions that predict completion_ids [N, L]; lm_head [V, D], bias
    [V]. Differentiable in hidden, lm_head and bias, each only if it requires a gradient. Logits are
    softcap * tanh(logit_scale * raw / softcap) / temperature, in float32 (float64 if lm_head is).

    Raises ValueError naming the argument and its shape: shapes that do not fit, a group size that does not divide
    the rows, ids outside the vocabulary, a row with no tokens, infinite rewards, hidden states that are not finite.
    """
    scored, dtype = group_advantages(objective, rewards, num_generations), compute_dtype(lm_head)
    given = prepare_completions(
        objective, scored, completion_ids, completion_mask, num_generations, truncated=truncated, dtype=dtype
    )
    gate_active = filter_is_active(objective, initial_entropy)
    logps, entropies = token_statistics(
        hidden,
        lm_head,
        completion_ids,
        completion_mask,
        bias=bias,
        temperature=objective.temperature(temperature),
        logit_scale=logit_scale,
        softcap=softcap,
        log_clamp=objective.log_clamp,
        entropy_gradient=objective.entropy_gradient,
    )
    found = policy_loss(
        objective, given, logps, entropies, completion_mask.bool(), num_generations, gate_active=gate_active
    )
    check_finite(hidden, lm_head, bias, logps, entropies)
    return Loss(found.loss, given.advantages, found.shaped_advantages, found.entropy, found.kept, given.weights)
