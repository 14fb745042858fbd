"""Conflict tokens: spans and weights (temporary plain form; replaced by the objective's own module)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch


class ConflictWeights(NamedTuple):
    """weights [N, L]; span lengths [N]."""

    weights: torch.Tensor
    forward: torch.Tensor
    backward: torch.Tensor
    union: torch.Tensor


def conflict_weights(
    completion_ids: torch.Tensor,
    completion_mask: torch.Tensor,
    advantages: torch.Tensor,
    num_generations: int,
    *,
    positive_weight: float = 2.0,
    combine: Literal["or", "product"] = "or",
) -> ConflictWeights:
    """Return lambda and the span lengths of every completion."""
    count, length = completion_ids.shape
    groups = count // num_generations
    ids = completion_ids.view(groups, num_generations, length)
    mask = completion_mask.view(groups, num_generations, length).bool()
    sign = advantages.view(groups, num_generations).sign()
    lengths = mask.sum(dim=2)
    opposite = (sign[:, :, None] * sign[:, None, :]) < 0
    position = torch.arange(length, device=ids.device)

    def spans(tokens: torch.Tensor) -> torch.Tensor:
        valid = position < lengths[..., None]
        same = (tokens[:, :, None] == tokens[:, None]) & valid[:, :, None] & valid[:, None]
        conflict = (same & opposite[..., None]).any(dim=2)
        return conflict.long().cumprod(dim=2).sum(dim=2)

    forward = spans(ids)
    mirror = (lengths[..., None] - 1 - position).clamp(min=0)
    backward = spans(ids.gather(2, mirror))
    inside_forward = position < forward[..., None]
    inside_backward = (position >= (lengths - backward)[..., None]) & (position < lengths[..., None])
    weight = torch.where(sign > 0, positive_weight, 0.0)[..., None]
    one = torch.ones_like(inside_forward, dtype=torch.float32)
    first, second = torch.where(inside_forward, weight, one), torch.where(inside_backward, weight, one)
    union = inside_forward | inside_backward
    weights = first * second if combine == "product" else torch.where(union, weight, one)
    flat = (count,)
    return ConflictWeights(
        weights.reshape(count, length), forward.reshape(flat), backward.reshape(flat), union.sum(dim=2).reshape(flat)
    )
