"""The objective in one pass over the logits, without ever holding them (docs/one_pass.md).

    z_t = W h_t / tau,  p_t = softmax z_t,  logp_t = z_t[y_t] - lse,  H_t = -sum_v p log p
    loss = - sum_i c_i sum_t rho_it lambda_it + sum_i e_i sum_t H_it
    dloss/dz_t = c_i lambda_it rho_it (p_t - onehot_y) + e_i dH_t/dz_t,     dloss/dh_t = W^T dloss/dz_t / tau

c_i and e_i (`gtpo.objective.completion_coefficients`) are scalars per completion that may depend on its mean entropy.
p - onehot depends on neither, so with a frozen W the chunk that yields logp and H also yields the gradient, up to a
factor per row that is applied when all of a completion's rows have been seen: two matmuls of V columns, no second
visit. With a trainable W (three matmuls), or an entropy term that acts where the gate drops the policy term, the
factor is needed inside the chunk; chunks are then made of whole completions.

Symbols: N completions of L tokens, hidden width D, vocabulary V, hidden [N, L, D], W = lm_head [V, D].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gtpo.completions import Completions, check_ids, group_advantages, prepare_completions
from gtpo.kernels.matmul import choose_matmul_dtype, compute_dtype
from gtpo.kernels.one_pass import OnePass, Plan, choose_backend
from gtpo.kernels.torch_rows import Transform
from gtpo.objective import Loss, Objective, filter_is_active

__all__ = ["FusedLoss", "fused_linear_gtpo_loss", "fused_loss"]

Backend = Literal["auto", "torch", "triton"]


class FusedLoss(NamedTuple):
    """The fields of `gtpo.objective.Loss`, and what a trainer logs. Only `loss` carries a gradient."""

    loss: Tensor
    advantages: Tensor
    shaped_advantages: Tensor
    entropy: Tensor
    kept: Tensor
    weights: Tensor
    logps: Tensor
    """log pi(o_it) [N, L], 0 outside the mask."""
    token_entropies: Tensor
    """H_it [N, L] in nats, 0 outside the mask."""


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
    backend: Backend = "auto",
    chunk_rows: int | None = None,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    truncated: Tensor | None = None,
) -> Loss:
    """Return what `gtpo.objective.reference_loss` returns for the logits hidden @ lm_head^T, in one pass.

    hidden [N, L, D]: last hidden states, at the positions that predict completion_ids [N, L]; lm_head [V, D], bias
    [V]. Differentiable in hidden, lm_head and bias, each only where it requires a gradient. Logits are
    softcap * tanh(logit_scale * raw / softcap) / temperature, in float32 (float64 if lm_head is).
    chunk_rows: tokens whose logits are held at a time.

    Raises ValueError naming the argument and its shape: shapes that do not fit, a group size that does not divide
    the rows, ids outside the vocabulary, a row with no tokens, infinite rewards, hidden states that are not finite.
    """
    completions = prepare_completions(
        objective,
        group_advantages(objective, rewards, num_generations),
        completion_ids,
        completion_mask,
        num_generations,
        truncated=truncated,
        dtype=compute_dtype(lm_head),
    )
    result = fused_loss(
        objective,
        hidden,
        lm_head,
        completion_ids,
        completion_mask,
        completions,
        num_generations,
        gate_active=filter_is_active(objective, initial_entropy),
        backend=backend,
        chunk_rows=chunk_rows,
        temperature=temperature,
        bias=bias,
        logit_scale=logit_scale,
        softcap=softcap,
    )
    return Loss(*result[:6])


def fused_loss(
    objective: Objective,
    hidden: Tensor,
    lm_head: Tensor,
    completion_ids: Tensor,
    completion_mask: Tensor,
    completions: Completions,
    num_generations: int,
    *,
    gate_active: bool,
    groups: float | None = None,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    backend: Backend = "auto",
    chunk_rows: int | None = None,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
) -> FusedLoss:
    """Return the loss of completions whose groups were already compared, as one micro-batch of a trainer has them.

    Rows need not form whole groups, and the mask may have holes (tool output): |o_i| counts what it marks. groups: B,
    the number of groups that the mean runs over; by default N / num_generations. gate_active: whether the entropy
    gate may drop anything (`filter_is_active`). The other arguments are those of `fused_linear_gtpo_loss`.
    """
    mask = _check_shapes(hidden, lm_head, completion_ids, completion_mask, completions, bias)
    if not temperature > 0:
        raise ValueError(f"temperature must be positive; found {temperature}")
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1; found {chunk_rows}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be positive; found {softcap}")
    check_ids(completion_ids, mask, lm_head.shape[0])
    tau = objective.temperature(temperature)
    count, length = mask.shape
    plan = Plan(
        objective=objective,
        ids=completion_ids,
        mask=mask,
        completions=completions,
        num_generations=num_generations,
        gate_active=gate_active,
        groups=count / num_generations if groups is None else groups,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        backend=choose_backend(backend, hidden),
        chunk_rows=chunk_rows,
        transform=Transform(logit_scale, softcap, tau),
        differentiate=torch.is_grad_enabled(),
        matmul_dtype=choose_matmul_dtype(lm_head),
    )
    apply: Any = OnePass.apply
    loss, logps, entropies, shaped, entropy, keep_mask = apply(hidden.reshape(count * length, -1), lm_head, bias, plan)
    return FusedLoss(
        loss,
        completions.advantages,
        shaped,
        entropy,
        keep_mask,
        completions.weights.to(compute_dtype(lm_head)),
        logps.view(count, length),
        entropies.view(count, length),
    )


def _check_shapes(
    hidden: Tensor, lm_head: Tensor, ids: Tensor, mask: Tensor, completions: Completions, bias: Tensor | None
) -> Tensor:
    """Return the mask [N, L] bool, or raise ValueError naming the argument that does not fit."""
    if hidden.dim() != 3:
        raise ValueError(f"hidden must have shape [N, L, D]; found {list(hidden.shape)}")
    rows, width, features = hidden.shape
    if ids.shape != (rows, width) or ids.is_floating_point():
        raise ValueError(f"completion_ids must be integers [{rows}, {width}], as hidden has; found {list(ids.shape)}")
    if mask.shape != ids.shape:
        raise ValueError(f"completion_mask {list(mask.shape)} must have the shape of completion_ids {list(ids.shape)}")
    if lm_head.dim() != 2 or lm_head.shape[1] != features:
        raise ValueError(f"lm_head must have shape [V, {features}] to fit hidden; found {list(lm_head.shape)}")
    if lm_head.device != hidden.device:
        raise ValueError(f"lm_head lies on {lm_head.device}, hidden on {hidden.device}")
    if not (hidden.is_floating_point() and lm_head.is_floating_point()):
        raise ValueError(f"hidden is {hidden.dtype} and lm_head {lm_head.dtype}; both must be floating point")
    if bias is not None:
        if bias.shape != lm_head.shape[:1]:
            raise ValueError(f"bias must have shape [{lm_head.shape[0]}], as lm_head has; found {list(bias.shape)}")
        if not bool(bias.isfinite().all()):
            raise ValueError(f"bias[{int((~bias.isfinite()).nonzero()[0])}] is not finite")
    rowwise = ("advantages", "forward", "backward", "union", "excluded", "old_entropy", "old_keep_mask")
    for name, dimensions in {**dict.fromkeys(rowwise, 1), "weights": 2, "old_logps": 2}.items():
        value, expected = getattr(completions, name), list(ids.shape[:dimensions])
        if value is not None and list(value.shape) != expected:
            raise ValueError(f"completions.{name} must have shape {expected}; found {list(value.shape)}")
    importance = completions.importance_weights
    if importance is not None and importance.shape not in ((rows,), (rows, 1), (rows, width)):
        raise ValueError(
            f"completions.importance_weights must have shape [{rows}], [{rows}, 1] or [{rows}, {width}]; "
            f"found {list(importance.shape)}"
        )
    mask = mask.bool()
    empty = ~mask.any(dim=1)
    if bool(empty.any()):
        raise ValueError(f"completion_mask: row {int(empty.nonzero()[0])} has no tokens")
    return mask
