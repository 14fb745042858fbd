"""Token-level advantages that make verl's policy loss GTPO's, for a whole batch of sampling.

    a_it = N / (G_g B n_i) A'_i lambda_it

verl's loss is -1/N sum_i 1/|o_i| sum_t rho_it a_it over the N rows of a batch, padding included; a_it turns that into
-1/B sum over groups g of 1/G_g sum_i A'_i / (|o_i| n_i) sum_t rho_it lambda_it (docs/method.md, section 7), whatever
the sizes of the groups and however many rows are padding. With full groups, no padding and n_i = 1: a_it = A'_i
lambda_it. Symbols: N rows, L tokens, B prompts, G_g completions of prompt g.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gtpo.completions import group_advantages, keep_in_band, prepare_completions
from gtpo.objective import LossFunction, filter_is_active, policy_loss
from gtpo.presets import LN2, Objective


class TokenAdvantages(NamedTuple):
    """What `token_advantages` returns."""

    advantages: Tensor
    """a_it [N, L] float32; 0 outside the completions."""
    metrics: dict[str, float]
    """Of the batch, under the names of metrics.jsonl."""


def mean_entropy(token_entropy: Tensor, completion_mask: Tensor) -> Tensor:
    """Return <H>_i [N] in nats, float64, of H_t [N, L] over the tokens that completion_mask [N, L] marks."""
    return torch.where(completion_mask, token_entropy.double(), 0.0).sum(dim=1) / completion_mask.sum(dim=1)


def _rows_by_group_size(prompts: Sequence[str], lengths: Tensor) -> dict[int, list[int]]:
    """Return group size -> rows, a group's rows side by side. Rows without tokens are verl's padding."""
    groups: dict[str, list[int]] = defaultdict(list)
    for row, (prompt, length) in enumerate(zip(prompts, lengths.tolist(), strict=True)):
        if length:
            groups[prompt].append(row)
    by_size: dict[int, list[int]] = defaultdict(list)
    for rows in groups.values():
        by_size[len(rows)] += rows
    return by_size


def token_advantages(
    objective: Objective,
    completion_ids: Tensor,
    completion_mask: Tensor,
    rewards: Tensor,
    token_entropy: Tensor,
    prompts: Sequence[str],
    *,
    batch_rows: int,
    token_logps: Tensor | None = None,
    initial_entropy: float | None = None,
    truncated: Tensor | None = None,
    progress: float = 0.0,
    loss_function: LossFunction = policy_loss,
) -> TokenAdvantages:
    """Return the advantages for verl's `vanilla` loss with `seq-mean-token-mean`, and the batch's metrics.

    completion_ids, completion_mask, token_entropy (nats) and token_logps are [N, L], right-padded, of the policy that
    sampled; without log-probabilities they count as 0. rewards [N], NaN if a completion could not be scored. prompts
    [N]: which prompt a row answers; a prompt's rows may lie apart and their number may differ from prompt to prompt.
    Rows with an empty mask are padding. batch_rows: what verl's loss divides by, at least N. truncated [N] bool:
    completions that ended without EOS. progress: the share of the run's steps that is over.

    Raises ValueError for a batch without a completion, for a mask that is not right-padded, and if filter `auto`
    has no initial_entropy.
    """
    mask = completion_mask.bool()
    lengths = mask.sum(dim=1)
    by_size = _rows_by_group_size(prompts, lengths)
    if not by_size:
        raise ValueError(f"none of the {len(mask)} completions of the batch has a token")
    if len(mask) > batch_rows:
        raise ValueError(f"{len(mask)} completions in a batch of {batch_rows}: more than one optimizer step's")
    groups = sum(len(rows) // size for size, rows in by_size.items())
    gate_active = filter_is_active(objective, initial_entropy)
    round_entropy = mean_entropy(token_entropy, mask)[lengths > 0].mean()
    advantages = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    columns: dict[str, list[Tensor]] = defaultdict(list)
    for size, listed in by_size.items():
        rows = torch.tensor(listed, device=mask.device)
        ended_early = None if truncated is None else truncated[rows]
        scored = group_advantages(objective, rewards[rows].float(), size)
        given = prepare_completions(objective, scored, completion_ids[rows], mask[rows], size, truncated=ended_early)
        if objective.has_band:
            given = keep_in_band(objective, given, round_entropy, size, progress=progress)
        # verl's loss has a_it rho_it / (N |o_i|) with a minus: its gradient is then that of the objective.
        known = torch.zeros(mask[rows].shape, device=mask.device) if token_logps is None else token_logps[rows]
        logps = known.detach().float().requires_grad_()
        with torch.enable_grad():
            tokens = (logps, token_entropy[rows].float(), mask[rows])
            found = loss_function(objective, given, *tokens, size, gate_active=gate_active, groups=float(groups))
        (slope,) = torch.autograd.grad(found.loss, logps)
        advantages[rows] = (slope * (-batch_rows * lengths[rows, None])).float()
        for name, column in {
            "entropy/mean": found.entropy,
            "entropy/above_ln2": found.entropy > LN2,
            "gate/kept": found.kept,
            "conflict/forward": given.forward,
            "conflict/backward": given.backward,
            "conflict/union": given.union,
            "groups/zero_variance": scored.zero_variance,
            "reward/unscored": ~scored.scored,
            "completions/length": lengths[rows],
            **({} if ended_early is None else {"completions/truncated": ended_early}),
        }.items():
            columns[name].append(column.double())
    means = {name: float(torch.cat(parts).mean()) for name, parts in columns.items()}
    means["conflict/fraction"] = means.pop("conflict/union") / means["completions/length"]
    return TokenAdvantages(advantages, means)
