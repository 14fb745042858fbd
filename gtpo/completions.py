"""What is known of completions before the model runs: advantages, conflict weights, exclusions (Eq. 1, 5).

    A_i = (R_i - mean R) / (std R + 1e-4), or without the division                         (1)

`prepare_completions` is the one way from the ids and rewards of whole groups to the `Completions` that
`gtpo.objective`, `gtpo.fused` and the trainer take. Symbols: B prompts, G completions each, N = B G rows with a
prompt's completions side by side, L tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gtpo.conflict import conflict_weights
from gtpo.presets import Objective

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped

# Added to the group's standard deviation, as in TRL.
STD_EPSILON = 1e-4


class Advantages(NamedTuple):
    """What `group_advantages` returns, one value a completion [N]."""

    advantages: Float[Tensor, "N"]
    """A_i; exactly 0 for unscored completions and for rewards that equal their group's mean up to rounding."""
    scored: Bool[Tensor, "N"]
    """bool: the reward could be computed."""
    zero_variance: Bool[Tensor, "N"]
    """bool: all scored rewards of the completion's group are equal."""


class Completions(NamedTuple):
    """Completions whose groups were compared; a micro-batch or a rank may hold any rows of them."""

    advantages: Float[Tensor, "N"]
    """A_i [N]."""
    weights: Float[Tensor, "N L"]
    """lambda [N, L]; 1 everywhere if the objective has no conflict weights."""
    forward: Int[Tensor, "N"]
    """Forward span length [N] long."""
    backward: Int[Tensor, "N"]
    """Backward span length [N] long."""
    union: Int[Tensor, "N"]
    """Tokens in either span [N] long."""
    excluded: Bool[Tensor, "N"] | None = None
    """bool [N]: outside the loss whatever the gate says."""
    old_entropy: Float[Tensor, "N"] | None = None
    """<H>_i [N] of the policy that sampled, which decides gate and A'; by default this pass's own."""
    old_logps: Float[Tensor, "N L"] | None = None
    """log pi_old [N, L]: rho = pi / pi_old, clipped. Without it rho is 1 and its gradient that of log pi."""
    importance_weights: Float[Tensor, "N ..."] | None = None
    """Factor on each token's policy term: [N, L], [N, 1] or [N]."""


# A logit whose power is 0, and whose square and product with 0 are numbers.
LOWEST = -1e9


class Kept(NamedTuple):
    """The ids that truncated sampling could draw, as pairs (row, id) [K]; a pair of row -1 belongs to none."""

    rows: Int[Tensor, "K"]
    ids: Int[Tensor, "K"]

    @classmethod
    def of_tokens(cls, counts: Tensor, ids: Tensor) -> Kept:
        """Return the sets of tokens [N, L], numbered as rows 0..N L - 1.

        counts [N, L]: the size of each token's set; ids [N, W]: those of a completion one after the other, then filler.
        """
        rows = torch.arange(counts.numel(), device=counts.device).repeat_interleave(counts.flatten())
        return cls(rows, ids[torch.arange(ids.size(1), device=ids.device) < counts.sum(dim=1)[:, None]])

    def among(self, chosen: Tensor, rows: int) -> Kept:
        """Return the sets of chosen rows [m], of so many, numbered as they are chosen."""
        places = self.rows.new_full((rows + 1,), -1)
        places[chosen] = torch.arange(len(chosen), device=chosen.device)
        return Kept(places[self.rows], self.ids)

    def lower_others(self, z: Tensor, columns: slice) -> Tensor:
        """Lower the logits [m, w] of a tile of the vocabulary outside the sets, in place."""
        inside = (self.rows >= 0) & (self.ids >= columns.start) & (self.ids < columns.stop)
        places = torch.where(inside, self.rows * z.shape[1] + self.ids - columns.start, z.numel())
        others = torch.ones(z.numel() + 1, dtype=torch.bool, device=z.device).index_fill_(0, places, False)
        return z.masked_fill_(others[:-1].view_as(z), LOWEST)


def group_advantages(
    objective: Objective, rewards: Shaped[Tensor, "N"] | Sequence[float | None], num_generations: int
) -> Advantages:
    """Return the advantages within each group (Eq. 1).

    rewards [N]: NaN (or None in a list) marks a reward that could not be computed; it is left out of its group's
    mean and deviation, and its completion gets A = 0 and takes no part in conflicts. Infinite rewards and rows that
    are no whole groups raise ValueError.
    """
    if not isinstance(rewards, Tensor):
        # None is how a reward says 'I cannot tell'; NaN carries it through tensor code.
        listed = [float("nan") if reward is None else float(reward) for reward in rewards]
        rewards = torch.tensor(listed, dtype=torch.float64)
    if rewards.dim() != 1:
        raise ValueError(f"rewards must have shape [N]; found {list(rewards.shape)}")
    if num_generations < 1 or rewards.shape[0] % num_generations:
        raise ValueError(f"num_generations {num_generations} does not divide the {rewards.shape[0]} rewards")
    # One infinite reward would make the mean, and with it every advantage of the group, NaN or infinite.
    if bool(rewards.isinf().any()):
        raise ValueError(f"rewards: row {int(rewards.isinf().nonzero()[0])} is infinite")
    if rewards.dtype != torch.float64:
        # bfloat16 rewards of 19 and 20 share too few digits for a mean; float64 stays, for exact tests.
        rewards = rewards.float()
    grouped = rewards.view(-1, num_generations)
    scored = ~grouped.isnan()
    count = scored.sum(dim=1, keepdim=True)
    values = torch.where(scored, grouped, 0.0)
    centred = torch.where(scored, values - values.sum(dim=1, keepdim=True) / count.clamp(min=1), 0.0)
    # Compared by their extremes: a deviation of rounded values may be 1e-8 for equal rewards.
    infinity = torch.full_like(grouped, float("inf"))
    highest = torch.where(scored, grouped, -infinity).amax(dim=1, keepdim=True)
    lowest = torch.where(scored, grouped, infinity).amin(dim=1, keepdim=True)
    zero_variance = (highest <= lowest) | (count == 0)
    # The mean may miss a reward that equals it by what summing rounds off; that must not make signs, and so
    # conflicts, out of nothing.
    rounding = count * torch.finfo(values.dtype).eps * values.abs().amax(dim=1, keepdim=True)
    advantages = torch.where(zero_variance | (centred.abs() <= rounding), 0.0, centred)
    if objective.scale_rewards == "group":
        # The sample deviation, with n - 1, as TRL and the paper's baselines have it; the published code does not
        # divide.
        deviation = (centred.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        advantages = advantages / (deviation + STD_EPSILON)
    # One deviation for the whole rollout: groups of nearly equal rewards are not blown up.
    elif objective.scale_rewards == "batch" and int(scored.sum()) > 1:
        advantages = advantages / (grouped[scored].std() + STD_EPSILON)
    return Advantages(advantages.view(-1), scored.view(-1), zero_variance.expand_as(grouped).reshape(-1))


def check_ids(completion_ids: Tensor, mask: Tensor, vocabulary: int) -> None:
    """Raise ValueError for the first completion token outside the vocabulary; padding may hold anything."""
    outside = mask & ((completion_ids < 0) | (completion_ids >= vocabulary))
    if bool(outside.any()):
        row, column = outside.nonzero()[0].tolist()
        raise ValueError(
            f"completion_ids[{row}, {column}] = {int(completion_ids[row, column])} lies outside the vocabulary "
            f"of {vocabulary}"
        )


def check_tokens(
    hidden: Tensor, lm_head: Tensor, bias: Tensor | None, completion_ids: Tensor, completion_mask: Tensor
) -> None:
    """Raise ValueError for shapes that do not fit and for an id outside the vocabulary."""
    if hidden.dim() != 3:
        raise ValueError(f"hidden must have shape [N, L, D]; found {list(hidden.shape)}")
    if lm_head.dim() != 2 or lm_head.shape[1] != hidden.shape[2]:
        raise ValueError(f"lm_head must have shape [V, {hidden.shape[2]}] to fit hidden; found {list(lm_head.shape)}")
    if bias is not None and bias.shape != lm_head.shape[:1]:
        raise ValueError(f"bias must have shape [{len(lm_head)}], as lm_head has; found {list(bias.shape)}")
    shape = list(hidden.shape[:2])
    if list(completion_ids.shape) != shape or completion_ids.is_floating_point():
        raise ValueError(f"completion_ids must be integers {shape}, as hidden has; found {list(completion_ids.shape)}")
    if completion_mask.shape != completion_ids.shape:
        raise ValueError(f"completion_mask {list(completion_mask.shape)} must have the shape of completion_ids {shape}")
    mask = completion_mask.bool()
    check_ids(completion_ids, mask, len(lm_head))


def check_finite(hidden: Tensor, lm_head: Tensor, bias: Tensor | None, logps: Tensor, entropies: Tensor) -> None:
    """Raise ValueError naming the first token whose statistics [N, L] are not finite, and why; waits for the device."""
    for row, token in (~(logps + entropies).isfinite()).nonzero()[:1].tolist():
        causes = {f"hidden[{row}, {token}]": hidden[row, token], "lm_head": lm_head, "bias": bias}
        infinite = [name for name, values in causes.items() if values is not None and not bool(values.isfinite().all())]
        cause = f"{infinite[0]} is not finite" if infinite else f"its logits overflow {logps.dtype}"
        raise ValueError(f"the statistics of completion {row}, token {token} are not finite: {cause}")


def prepare_completions(
    objective: Objective,
    scored: Advantages,
    completion_ids: Int[Tensor, "N L"],
    completion_mask: Shaped[Tensor, "N L"],
    num_generations: int,
    *,
    truncated: Bool[Tensor, "N"] | None = None,
    dtype: torch.dtype | None = None,
) -> Completions:
    """Return what the loss is told of whole groups: advantages, lambda, span lengths, exclusions.

    scored: from `group_advantages`; its `advantages` may be replaced by others. completion_ids [N, L];
    completion_mask [N, L], right-padded. truncated [N] bool: which completions ended without EOS. dtype: of the
    advantages and lambda returned, by default as they come.

    Raises ValueError for shapes that do not fit, and if `mask_truncated` is set without `truncated`.
    """
    rows = scored.advantages.shape[0]
    # Checked before anything else: a mismatch here means that a rank gathered fewer rows than another.
    if completion_ids.shape[:1] != (rows,):
        raise ValueError(f"rewards [{rows}] must have one value per row of completion_ids {list(completion_ids.shape)}")
    device = completion_ids.device
    advantages = scored.advantages.to(device, dtype)
    groups = (completion_ids, completion_mask, advantages, num_generations)
    spans = conflict_weights(*groups, **objective.span_options)
    # A completion that could not be scored teaches nothing, but it still counts in its group's size.
    excluded = ~scored.scored
    if objective.skip_zero_variance_groups:
        excluded = excluded | scored.zero_variance
    excluded = excluded.to(device)
    if objective.mask_truncated:
        # Without it, nothing would be masked and nobody would notice.
        if truncated is None:
            raise ValueError("mask_truncated needs truncated [N] bool: which completions ended without EOS")
        excluded = excluded | truncated.to(device)
    # The spans are computed in any case: GRPO runs log how many tokens would be in conflict.
    weights = (spans.weights if objective.conflict else torch.ones_like(spans.weights)).to(dtype or torch.float32)
    return Completions(advantages, weights, spans.forward, spans.backward, spans.union, excluded)


def keep_in_band(
    objective: Objective, completions: Completions, entropy: Tensor, num_generations: int, *, progress: float = 0.0
) -> Completions:
    """Return whole groups without what the entropy band leaves out (arXiv 2604.26326, Algorithm 1 and Eq. 5).

    entropy: the round's mean `<H>_i` in nats, a scalar. progress: steps taken, as a share of the run's. Advantages are
    scaled by G over the number that is left of the group, so that the group's mean is taken over these.
    """

    def bound(start: float, end: float | None) -> float:
        return start if end is None else start + (end - start) * progress

    low = bound(objective.band_low, objective.band_low_end)
    high = bound(math.inf if objective.band_high is None else objective.band_high, objective.band_high_end)
    # Pushing a completion down raises entropy, and pushing it up lowers it.
    direction = (entropy > high).to(completions.advantages.dtype) - (entropy < low).to(completions.advantages.dtype)
    inside = direction * completions.advantages >= 0
    left = inside.view(-1, num_generations).sum(dim=1).clamp(min=1).repeat_interleave(num_generations)
    excluded = ~inside if completions.excluded is None else completions.excluded | ~inside
    return completions._replace(advantages=completions.advantages * num_generations / left, excluded=excluded)
