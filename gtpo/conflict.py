"""Conflict tokens: spans and weights (GTPO paper section 4; Eq. 5).

A group is G completions o_1..o_G of one prompt. G+ = {A > 0}, G- = {A < 0}; A = 0 takes no part. Token v at
position p of o_i is a *forward conflict* if some completion of the other sign also has v at p; a *backward conflict*
likewise with positions counted from the last token (EOS included). The forward span of o_i is the run of forward
conflicts that starts at its first token, the backward span the run that ends at its last; M is their union.

    lambda_it = 1 outside M, positive_weight inside M if A_i > 0, 0 inside M if A_i < 0            (Eq. 5)

Symbols: B prompts, G completions each, N = B G rows with the completions of a prompt side by side, L tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped

# Positions looked at from each end before looking further, which only a span that reaches beyond them needs.
FIRST_LOOK = 64


class ConflictWeights(NamedTuple):
    """What `conflict_weights` returns."""

    weights: Float[Tensor, "N L"]
    """lambda [N, L] float32; 1 on padding."""
    forward: Int[Tensor, "N"]
    """Length of the forward span [N] long."""
    backward: Int[Tensor, "N"]
    """Length of the backward span [N] long."""
    union: Int[Tensor, "N"]
    """Tokens in either span [N] long."""


def completion_lengths(
    completion_ids: Int[Tensor, "N L"], completion_mask: Shaped[Tensor, "N L"], num_generations: int
) -> Int[Tensor, "N"]:
    """Return |o_i| [N] long after checking that the arguments describe groups of right-padded completions.

    Raises ValueError, naming the argument and its shape: not two-dimensional, no rows, shapes that differ, rows that
    are no whole groups, a row with no tokens, a mask that is not ones followed by zeros.
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
    if rows == 0:
        raise ValueError(f"completion_ids {list(completion_ids.shape)} has no rows")
    if num_generations < 1 or rows % num_generations:
        raise ValueError(f"num_generations {num_generations} does not divide the {rows} rows of completion_ids")
    mask = completion_mask.bool()
    lengths = mask.sum(dim=1)
    if not bool((lengths > 0).all()):
        raise ValueError(f"completion_mask: row {int((lengths == 0).nonzero()[0])} has no tokens")
    # Left padding would shift positions against each other, and conflicts would be found between unrelated tokens.
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        row = int((mask[:, 1:] & ~mask[:, :-1]).any(dim=1).nonzero()[0])
        raise ValueError(f"completion_mask: row {row} is not ones followed by zeros; completions are right-padded")
    return lengths


def conflict_weights(
    completion_ids: Int[Tensor, "N L"],
    completion_mask: Shaped[Tensor, "N L"],
    advantages: Float[Tensor, "N"],
    num_generations: int,
    *,
    positive_weight: float = 2.0,
    combine: Literal["or", "product"] = "or",
) -> ConflictWeights:
    """Return lambda and the span lengths for all groups at once.

    completion_ids [N, L] integers, right-padded; the value of padding never matters (it may be a real token).
    completion_mask [N, L] bool or 0/1; advantages [N], of which only the signs matter (NaN counts as 0).
    combine: weight if both spans cover a token: `or` gives positive_weight (paper), `product` its square
    (published code).

    Costs O(N G S) comparisons, S the longest span rounded up, and O(N L) bytes. Raises ValueError on shapes that do
    not fit.
    """
    lengths = completion_lengths(completion_ids, completion_mask, num_generations)
    rows, width = completion_ids.shape
    if advantages.shape != (rows,):
        raise ValueError(f"advantages {list(advantages.shape)} must have shape [{rows}], one per row of completion_ids")

    position = torch.arange(width, device=completion_ids.device)
    # From the lengths, never from a pad id: the pad token may be a real token of a completion.
    valid = position < lengths[:, None]
    grouped = (rows // num_generations, num_generations, -1)
    # A = 0 is in neither, so a completion that says nothing about better or worse makes no conflicts.
    positive, negative = (advantages > 0)[:, None], (advantages < 0)[:, None]
    taking_part = positive | negative
    # Two different keys for 'nobody' below, so that two absent tokens never match each other.
    nobody = torch.iinfo(torch.long).min

    def span_lengths(backward: bool) -> Int[Tensor, "N"]:
        found = torch.zeros_like(lengths)
        # A row whose span has ended stays ended: a later match is not part of the first contiguous span.
        running = taking_part.squeeze(1)
        start, size = 0, FIRST_LOOK
        # A handful of looks at most: each is four times the last.
        while start < width:
            window = position[start : start + size]
            # The mirror t <-> |o|-1-t puts the last token first, so that one routine serves both directions.
            columns = (lengths[:, None] - 1 - window).clamp(min=0) if backward else window.expand(rows, -1)
            # A token's key says its sign, its counterpart the other sign: equal keys, equal tokens of unlike signs.
            doubled = 2 * completion_ids.gather(1, columns).long()
            present = valid[:, start : start + size] & taking_part
            keys = torch.where(present, doubled + positive, nobody).view(grouped)
            counterparts = torch.where(present, doubled + negative, nobody + 1).view(grouped)
            conflict = torch.zeros_like(keys, dtype=torch.bool)
            # G slots of all groups at once: N L bytes instead of N G L.
            for other in range(num_generations):
                conflict |= keys == counterparts[:, other, None]
            # cummin turns 'conflict here' into 'conflict here and at every position before'.
            run = conflict.view(rows, -1).cummin(dim=1).values & running[:, None]
            found += run.sum(dim=1)
            # Only rows that are in conflict up to the end of this window can go on in the next.
            running = run[:, -1]
            # If every span has ended, nothing further can belong to one.
            if not bool(running.any()):
                break
            start, size = start + size, 4 * size
        return found

    spans = span_lengths(backward=False), span_lengths(backward=True)
    return span_weights(advantages, lengths, *spans, width=width, positive_weight=positive_weight, combine=combine)


def span_weights(
    advantages: Float[Tensor, "N"],
    lengths: Shaped[Tensor, "N"],
    forward: Shaped[Tensor, "N"],
    backward: Shaped[Tensor, "N"],
    *,
    width: int,
    positive_weight: float = 2.0,
    combine: Literal["or", "product"] = "or",
) -> ConflictWeights:
    """Return lambda [N, width] and the union's length from the lengths of both spans; all other arguments are [N].

    The options are those of `conflict_weights`. Raises ValueError for another `combine`.
    """
    position = torch.arange(width, device=lengths.device)
    in_forward = position < forward[:, None]
    # The first condition keeps padding out: with a span of 0 the second alone would be true behind the end.
    in_backward = (position < lengths[:, None]) & (position >= (lengths - backward)[:, None])
    in_either = in_forward | in_backward

    # A completion of A = 0 has no span; 1 is what its tokens weigh in any case.
    inside_weight = torch.where(advantages > 0, positive_weight, torch.where(advantages < 0, 0.0, 1.0))
    inside_weight = inside_weight.to(torch.float32)[:, None]
    weights = torch.where(in_either, inside_weight, 1.0)
    if combine == "product":
        # What the authors' code computes: it multiplies both masks, so 4 for a short right completion and still 0 for
        # a wrong one.
        weights = torch.where(in_forward & in_backward, inside_weight.square(), weights)
    elif combine != "or":
        raise ValueError(f'combine must be "or" or "product"; found {combine!r}')
    return ConflictWeights(weights, forward, backward, in_either.sum(dim=1))
