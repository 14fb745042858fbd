"""The GTPO objective: the specification that every fast path is tested against.

    A_i  = (R_i - mean R) / (std R + 1e-4), or without the division: `gtpo.completions`    (1)
    <H>_i = mean over the tokens of o_i of H_t, the entropy of the next-token distribution (4)
    delta_i = 0 iff the filter is active and <H>_i > threshold                             (5, Eq. 6)
    A'_i = delta_i (w_i A_i - gamma <H>_i)  mode `advantage`, no gradient through H        (6)
         = delta_i w_i A_i                  modes `loss` (with a separate -gamma <H>_i, Eq. 7) and `none`
    J    = 1/G sum_i A'_i / (|o_i| n_i) sum_t rho_it lambda_it                             (7, Eq. 7)

rho = pi / stopgrad(pi) = 1 for one iteration; n_i is the optional conflict norm (1 in the paper); lambda comes from
`gtpo.conflict`; w_i, by the sign of A_i, is 1 in the paper. The loss is -J, averaged over the groups of the batch.
The numbers are the sections of docs/method.md. Symbols: B prompts, G completions each, N = B G rows with a prompt's
completions side by side, L tokens, V vocabulary.

Everything here is pure: tensors in, named tuples out, in the precision of the inputs (float64 stays float64).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gtpo.completions import Completions, check_ids, group_advantages, prepare_completions
from gtpo.conflict import completion_lengths, span_weights
from gtpo.presets import LN2, PRESETS, Objective

__all__ = [
    "LN2",
    "PRESETS",
    "Coefficients",
    "Loss",
    "Objective",
    "StatisticsLoss",
    "completion_coefficients",
    "entropy_gate",
    "filter_is_active",
    "loss_from_statistics",
    "reference_loss",
    "token_entropy",
    "weighted_advantages",
]


class Coefficients(NamedTuple):
    """The scalars that multiply token sums: loss = - sum_i c_i sum_t rho lambda + sum_i e_i sum_t H."""

    policy_scale: Tensor
    """c_i [N] = A'_i / (|o_i| n_i), times 1/G (or 1) and 1/B."""
    entropy_scale: Tensor
    """e_i [N] = gamma / |o_i| in mode `loss` (0 where it does not act), times 1/G (or 1) and 1/B."""
    shaped_advantages: Tensor
    """A'_i [N]."""


class Loss(NamedTuple):
    """A loss and what it was made of."""

    loss: Tensor
    """Scalar, to be minimised."""
    advantages: Tensor
    """A_i [N]."""
    shaped_advantages: Tensor
    """A'_i [N]."""
    entropy: Tensor
    """`<H>_i` [N] in nats, detached."""
    kept: Tensor
    """delta_i [N] bool."""
    weights: Tensor
    """lambda [N, L]."""


class StatisticsLoss(NamedTuple):
    """What `loss_from_statistics` returns."""

    losses: Tensor
    """-A'_i sum_t lambda_it / (|o_i| n_i) (+ `gamma <H>_i` in mode `loss`) [N]: before any reduction."""
    loss: Tensor
    """Their reduction: mean or sum over each group, mean over groups."""


def token_entropy(log_probabilities: Tensor, log_clamp: float = 0.0) -> Tensor:
    """Return -sum_v p log p in nats over the last dimension; p is clamped at `log_clamp` inside the logarithm."""
    probabilities = log_probabilities.exp()
    if log_clamp > 0:
        return -(probabilities * probabilities.clamp(min=log_clamp).log()).sum(dim=-1)
    # 0 log 0 = 0: a logit of -inf has no probability, adds nothing, and must not put a NaN into the gradient.
    return -(probabilities * torch.where(probabilities > 0, log_probabilities, 0.0)).sum(dim=-1)


def filter_is_active(objective: Objective, initial_entropy: float | None) -> bool:
    """Return whether the gate may drop anything (Eq. 6); `auto` needs H_ini and raises ValueError without it."""
    if objective.filter != "auto":
        return objective.filter == "always"
    if initial_entropy is None:
        raise ValueError(
            'filter "auto" needs initial_entropy (H_ini, from gtpo.entropy.calibrate_initial_entropy); '
            'or set filter to "always" or "never"'
        )
    if not 0 <= initial_entropy < float("inf"):
        raise ValueError(f"initial_entropy must be a finite number of nats, at least 0; found {initial_entropy}")
    return initial_entropy < LN2


def entropy_gate(objective: Objective, entropy: Tensor, advantages: Tensor, *, gate_active: bool) -> Tensor:
    """Return delta [N] bool from <H> [N] and A [N]: False where the completion is dropped; equality keeps (Eq. 6).

    gate_active: whether anything may be dropped (`filter_is_active`).
    """
    if not gate_active:
        return torch.ones_like(entropy, dtype=torch.bool)
    dropped = entropy > objective.entropy_threshold
    if objective.filter_scope == "negative":
        dropped &= advantages < 0
    return ~dropped


def weighted_advantages(objective: Objective, advantages: Tensor) -> Tensor:
    """Return w_i A_i [N]: advantages A [N] times the factor of their sign (arXiv 2506.01347; 1 and 1 by default)."""
    factors = (objective.positive_advantage_weight, objective.negative_advantage_weight)
    return torch.where(advantages > 0, factors[0] * advantages, factors[1] * advantages)


def completion_coefficients(
    objective: Objective,
    completions: Completions,
    *,
    lengths: Tensor,
    entropy: Tensor,
    keep_mask: Tensor,
    num_generations: int,
    groups: float | None = None,
) -> Coefficients:
    """Return what multiplies each completion's token sums (sections 5 to 7 of docs/method.md).

    lengths |o_i|, entropy <H>_i and keep_mask delta_i are [N]. groups: B, the number of groups the mean runs over; by
    default those present. A micro-batch or a rank passes the whole batch's count, so that its losses add up to the
    batch's.
    """
    entropy, advantages = entropy.detach(), completions.advantages
    included = torch.ones_like(keep_mask) if completions.excluded is None else ~completions.excluded
    shaped = weighted_advantages(objective, advantages)
    if objective.entropy_mode == "advantage":
        shaped = shaped - objective.gamma * entropy
    shaped = torch.where(keep_mask & included, shaped, 0.0)
    divisor = lengths.to(shaped.dtype)
    if objective.conflict and objective.conflict_norm == "union":
        norm = completions.union.clamp(min=1)
    elif objective.conflict and objective.conflict_norm == "max":
        norm = torch.maximum(completions.forward, completions.backward).clamp(min=1)
    else:
        norm = torch.ones_like(lengths)
    averaged = 1 if objective.group_reduction == "sum" else num_generations
    scale = 1.0 / (averaged * (groups if groups is not None else lengths.shape[0] / num_generations))
    acts = torch.zeros_like(included)
    if objective.entropy_mode == "loss":
        acts = included & keep_mask if objective.entropy_gated else included
    return Coefficients(
        policy_scale=shaped / (divisor * norm) * scale,
        entropy_scale=torch.where(acts, objective.gamma / divisor, 0.0) * scale,
        shaped_advantages=shaped,
    )


def reference_loss(
    objective: Objective,
    logits: Tensor,
    completion_ids: Tensor,
    completion_mask: Tensor,
    rewards: Tensor | Sequence[float | None],
    num_generations: int,
    *,
    initial_entropy: float | None = None,
    temperature: float = 1.0,
    truncated: Tensor | None = None,
) -> Loss:
    """Return the loss by plain autograd: slow, readable, differentiable in `logits`, float64 where they are.

    logits [N, L, V] before any temperature; completion_ids [N, L]; completion_mask [N, L], right-padded; rewards [N].
    Raises ValueError naming the argument: shapes that do not fit, a group size that does not divide the rows, ids
    outside the vocabulary, a row with no tokens, infinite rewards.
    """
    lengths = completion_lengths(completion_ids, completion_mask, num_generations)
    rows, width = completion_ids.shape
    if logits.dim() != 3 or logits.shape[:2] != (rows, width):
        raise ValueError(f"logits {list(logits.shape)} must have shape [{rows}, {width}, V], as completion_ids has")
    mask = completion_mask.bool()
    check_ids(completion_ids, mask, logits.shape[-1])
    if temperature <= 0:
        raise ValueError(f"temperature must be positive; found {temperature}")
    precision = logits.dtype if logits.dtype in (torch.float32, torch.float64) else torch.float32
    given = prepare_completions(
        objective,
        group_advantages(objective, rewards, num_generations),
        completion_ids,
        mask,
        num_generations,
        truncated=truncated,
        dtype=precision,
    )

    scale = objective.temperature(temperature)
    # Padding is blanked first, so that nothing there can reach the loss or its gradient.
    visible = torch.where(mask[..., None], logits.to(precision), 0.0)
    log_probabilities = (visible / scale).log_softmax(dim=-1)
    ids = torch.where(mask, completion_ids, 0).long()
    log_probability = log_probabilities.gather(-1, ids[..., None]).squeeze(-1)
    token_entropies = torch.where(mask, token_entropy(log_probabilities, objective.log_clamp), 0.0)
    entropy = token_entropies.sum(dim=1).detach() / lengths

    keep_mask = entropy_gate(
        objective, entropy, given.advantages, gate_active=filter_is_active(objective, initial_entropy)
    )
    coefficients = completion_coefficients(
        objective, given, lengths=lengths, entropy=entropy, keep_mask=keep_mask, num_generations=num_generations
    )
    ratio = torch.exp(log_probability - log_probability.detach())
    policy = torch.where(mask, ratio * given.weights, 0.0).sum(dim=1)
    loss = (coefficients.entropy_scale * token_entropies.sum(dim=1) - coefficients.policy_scale * policy).sum()
    return Loss(loss, given.advantages, coefficients.shaped_advantages, entropy, keep_mask, given.weights)


def loss_from_statistics(
    objective: Objective,
    advantages: Tensor,
    entropy: Tensor,
    lengths: Tensor,
    forward: Tensor,
    backward: Tensor,
    num_generations: int,
    *,
    initial_entropy: float | None = None,
) -> StatisticsLoss:
    """Return the loss from per-completion statistics [N]: what logged steps are checked with.

    advantages A, entropy `<H>`, lengths |o|, forward and backward span lengths; rho = 1. Raises ValueError on shapes
    that differ, rows that are no whole groups, and spans longer than their completion.
    """
    rows = advantages.shape[0]
    for name, value in (("entropy", entropy), ("lengths", lengths), ("forward", forward), ("backward", backward)):
        if value.shape != (rows,):
            raise ValueError(f"{name} {list(value.shape)} must have the shape of advantages [{rows}]")
    if num_generations < 1 or rows % num_generations:
        raise ValueError(f"num_generations {num_generations} does not divide the {rows} completions")
    if bool(((forward > lengths) | (backward > lengths)).any()) or bool((lengths < 1).any()):
        raise ValueError("lengths: each must be at least 1 and no shorter than its forward and backward span")
    width = int(lengths.max())
    spans = span_weights(
        advantages,
        lengths,
        forward,
        backward,
        width=width,
        positive_weight=objective.positive_weight,
        combine=objective.combine,
    )
    weights = spans.weights if objective.conflict else torch.ones_like(spans.weights)
    mask = torch.arange(width, device=lengths.device) < lengths[:, None]
    given = Completions(advantages, weights.to(advantages.dtype), forward, backward, spans.union)
    gate_active = filter_is_active(objective, initial_entropy)
    # Unreduced: one completion a group, one group.
    coefficients = completion_coefficients(
        objective,
        given,
        lengths=lengths,
        entropy=entropy,
        keep_mask=entropy_gate(objective, entropy, advantages, gate_active=gate_active),
        num_generations=1,
        groups=1,
    )
    policy = torch.where(mask, given.weights, 0.0).sum(dim=1)
    losses = coefficients.entropy_scale * entropy * lengths - coefficients.policy_scale * policy
    per_group = losses.view(-1, num_generations)
    reduced = per_group.sum(dim=1) if objective.group_reduction == "sum" else per_group.mean(dim=1)
    return StatisticsLoss(losses, reduced.mean())
