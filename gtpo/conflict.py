"""Conflict tokens: spans and weights (GTPO paper section 4; Eq. 5).

A group is G completions o_1..o_G of one prompt. G+ = {A > 0}, G- = {A < 0}; A = 0 takes no part. Token v at
position p of o_i is a *forward conflict* if some completion of the other sign also has v at p; a *backward conflict*
likewise with positions counted from the last token (EOS included). The forward span of o_i is the run of forward
conflicts that starts at its first token, the backward span the run that ends at its last; M is their union.

    lambda_it = 1 outside M, positive_weight inside M where A_i > 0, 0 inside M where A_i < 0            (Eq. 5)

Symbols: B prompts, G completions each, N = B G rows with the completions of a prompt side by side, L tokens.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor


class ConflictWeights(NamedTuple):
    """What `conflict_weights` returns."""

    weights: Tensor
    """lambda [N, L] float32; 1 on padding."""
    forward: Tensor
    """Length of the forward span [N] long."""
    backward: Tensor
    """Length of the backward span [N] long."""
    union: Tensor
    """Tokens in either span [N] long."""


def completion_lengths(completion_ids: Tensor, completion_mask: Tensor, num_generations: int) -> Tensor:
    """Return |o_i| [N] long after checking that the arguments describe groups of right-padded completions.

    Raises ValueError, naming the argument and its shape: not two-dimensional, shapes that differ, rows that are no
    whole groups, a row with no tokens, a mask that is not ones followed by zeros.
    """
    if completion_ids.dim() != 2 or completion_ids.is_floating_point():
        raise ValueError(
            f"completion_ids must be integers [N, L]; found {completion_ids.dtype} {list(completion_ids.shape)}"
        )
    if completion_mask.shape != completion_ids.shape:
        raise ValueError(
            f"completion_mask {list(completion_mask.shape)} must have the shape of completion_ids "
            f"{list(completion_ids.shape)}"
        )
    rows = completion_ids.shape[0]
    if num_generations < 1 or rows % num_generations:
        raise ValueError(f"num_generations {num_generations} does not divide the {rows} rows of completion_ids")
    mask = completion_mask.bool()
    lengths = mask.sum(dim=1)
    if not bool((lengths > 0).all()):
        raise ValueError(f"completion_mask: row {int((lengths == 0).nonzero()[0])} has no tokens")
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        row = int((mask[:, 1:] & ~mask[:, :-1]).any(dim=1).nonzero()[0])
        raise ValueError(f"completion_mask: row {row} is not ones followed by zeros; completions are right-padded")
    return lengths


def conflict_weights(
    completion_ids: Tensor,
    completion_mask: Tensor,
    advantages: Tensor,
    num_generations: int,
    *,
    positive_weight: float = 2.0,
    combine: Literal["or", "product"] = "or",
) -> ConflictWeights:
    """Return lambda and the span lengths for all groups at once.

    completion_ids [N, L] integers, right-padded; the value of padding never matters (it may be a real token).
    completion_mask [N, L] bool or 0/1; advantages [N], of which only the signs matter (NaN counts as 0).
    combine: weight where both spans cover a token: `or` gives positive_weight (paper), `product` its square
    (published code).

    Costs O(N G L) comparisons and O(N L) bytes. Raises ValueError on shapes that do not fit.
    """
    lengths = completion_lengths(completion_ids, completion_mask, num_generations)
    rows, width = completion_ids.shape
    if advantages.shape != (rows,):
        raise ValueError(f"advantages {list(advantages.shape)} must have shape [{rows}], one per row of completion_ids")

    position = torch.arange(width, device=completion_ids.device)
    valid = position < lengths[:, None]
    # The mirror t <-> |o|-1-t puts the last token first, so that one routine serves both directions.
    mirror = (lengths[:, None] - 1 - position).clamp(min=0)
    grouped = (rows // num_generations, num_generations, width)
    positive, negative = (advantages > 0)[:, None], (advantages < 0)[:, None]
    taking_part = valid & (positive | negative)
    # A token's key says its sign, and its counterpart the other sign: equal keys are equal tokens of unlike signs.
    nobody = torch.iinfo(torch.long).min

    def span_lengths(tokens: Tensor) -> Tensor:
        doubled = 2 * tokens.long()
        keys = torch.where(taking_part, doubled + positive, nobody).view(grouped)
        counterparts = torch.where(taking_part, doubled + negative, nobody + 1).view(grouped)
        conflict = torch.zeros(grouped, dtype=torch.bool, device=tokens.device)
        for other in range(num_generations):  # G slots of all groups at once: N L bytes instead of N G L
            conflict |= keys == counterparts[:, other, None]
        return conflict.view(rows, width).cummin(dim=1).values.sum(dim=1)

    forward = span_lengths(completion_ids)
    backward = span_lengths(completion_ids.gather(1, mirror))
    in_forward = position < forward[:, None]
    in_backward = valid & (position >= (lengths - backward)[:, None])
    in_either = in_forward | in_backward

    inside_weight = torch.where(advantages > 0, positive_weight, 0.0).to(torch.float32)[:, None]
    weights = torch.where(in_either, inside_weight, 1.0)
    if combine == "product":
        weights = torch.where(in_forward & in_backward, inside_weight.square(), weights)
    elif combine != "or":
        raise ValueError(f'combine must be "or" or "product"; found {combine!r}')
    return ConflictWeights(weights, forward, backward, in_either.sum(dim=1))
