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

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gtpo.completions import Completions, check_ids, group_advantages, keep_in_band, prepare_completions
from gtpo.conflict import completion_lengths, span_weights

# "as": a name that this module offers too.
from gtpo.presets import LN2 as LN2
from gtpo.presets import PRESETS as PRESETS
from gtpo.presets import Objective as Objective

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped

# Of the ratio's logarithm: its exponential is a number in any precision, whatever it is multiplied with.
LARGEST_LOG_RATIO = 20.0


class PolicyLoss(NamedTuple):
    """What `policy_loss` returns. Only `loss` and `losses` carry a gradient."""

    loss: Float[Tensor, ""]
    """Scalar: the losses, mean or sum over each group, mean over groups."""
    losses: Float[Tensor, "N"]
    """-A'_i / (|o_i| n_i) sum_t rho_it lambda_it (+ `gamma <H>_i` in mode `loss`) [N]: before any reduction."""
    shaped_advantages: Float[Tensor, "N"]
    """A'_i [N]."""
    entropy: Float[Tensor, "N"]
    """`<H>_i` [N] in nats."""
    kept: Bool[Tensor, "N"]
    """delta_i [N] bool."""


# `policy_loss`, or a loss of the user's in its place (`gtpo.own_loss`).
LossFunction = Callable[..., PolicyLoss]


class Loss(NamedTuple):
    """The loss of whole groups: fields of `PolicyLoss`, with A_i in `advantages` and lambda in `weights`."""

    loss: Float[Tensor, ""]
    advantages: Float[Tensor, "N"]
    shaped_advantages: Float[Tensor, "N"]
    entropy: Float[Tensor, "N"]
    kept: Bool[Tensor, "N"]
    weights: Float[Tensor, "N L"]


def token_entropy(log_probabilities: Float[Tensor, "*rows V"], log_clamp: float = 0.0) -> Float[Tensor, "*rows"]:
    """Return -sum_v p log p in nats over the last dimension; p is clamped at `log_clamp` inside the logarithm."""
    probabilities = log_probabilities.exp()
    if log_clamp > 0:
        # The published code clamps only inside the logarithm, so a token of probability 0 still adds 0.
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
    # NaN would compare as False below and turn the gate off without a word.
    if not 0 <= initial_entropy < float("inf"):
        raise ValueError(f"initial_entropy must be a finite number of nats, at least 0; found {initial_entropy}")
    return initial_entropy < LN2


def entropy_gate(
    objective: Objective, entropy: Float[Tensor, "N"], advantages: Float[Tensor, "N"], *, gate_active: bool
) -> Bool[Tensor, "N"]:
    """Return delta [N] bool from <H> [N] and A [N]: False if the completion is dropped; equality keeps (Eq. 6).

    gate_active: whether anything may be dropped (`filter_is_active`).
    """
    if not gate_active:
        return torch.ones_like(entropy, dtype=torch.bool)
    # Strictly above: the paper keeps a completion that lies exactly on the threshold.
    dropped = entropy > objective.entropy_threshold
    if objective.filter_scope == "negative":
        dropped &= advantages < 0
    return ~dropped


def weighted_advantages(objective: Objective, advantages: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """Return w_i A_i [N]: advantages A [N] times the factor of their sign (arXiv 2506.01347; 1 and 1 by default)."""
    # The signs stay those of A, so that no factor, not even 0, changes which tokens are in conflict.
    factors = (objective.positive_advantage_weight, objective.negative_advantage_weight)
    return torch.where(advantages > 0, factors[0] * advantages, factors[1] * advantages)


def pushed_tokens(
    objective: Objective, completions: Completions, logps: Tensor, entropies: Tensor, mask: Tensor
) -> Tensor:
    """Return which tokens [N, L] bool of those that the mask marks have a policy gradient at all.

    logps log pi(o_it) and entropies H_it [N, L], detached, of the policy as it is in this step.
    """
    pushed = mask
    if objective.surprisal_low > 0 or objective.surprisal_high is not None:
        # A certain token has 0 / 0: its surprisal goes to 0 faster than the entropy does.
        index = -logps / entropies.clamp(min=torch.finfo(entropies.dtype).tiny)
        pushed = pushed & (index >= objective.surprisal_low)
        pushed = pushed if objective.surprisal_high is None else pushed & (index <= objective.surprisal_high)
    if objective.negative_token_share < 1:
        sampled = logps if completions.old_logps is None else completions.old_logps
        # In float64, or 0.3 of 10 tokens would be one that nobody expects. At least one is pushed.
        count = (objective.negative_token_share * mask.sum(dim=1).double()).round().clamp(min=1)
        rank = sampled.masked_fill(~mask, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
        pushed = pushed & ((rank < count[:, None]) | (completions.advantages >= 0)[:, None])
    return pushed


def policy_loss(
    objective: Objective,
    completions: Completions,
    logps: Float[Tensor, "N L"],
    entropies: Float[Tensor, "N L"],
    mask: Shaped[Tensor, "N L"],
    num_generations: int,
    *,
    gate_active: bool,
    groups: float | None = None,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
) -> PolicyLoss:
    """Return the loss from the statistics of tokens: the objective's one definition (sections 5 to 7 of method.md).

    logps log pi(o_it) and entropies H_it [N, L]: differentiable, the entropies too in mode `loss`. mask [N, L] bool may
    have holes (what tools answered): |o_i| counts what it marks, and a row of which it marks nothing has no loss. Rows
    need not form whole groups. gate_active: whether the gate may drop anything (`filter_is_active`). groups: B, the
    number of groups that the mean runs over; by default those present. A micro-batch or a rank passes the whole batch's
    count, so that its losses add up to the batch's.
    epsilon_low, epsilon_high: PPO's clipping of rho, if `completions.old_logps` are given.
    """
    # An environment may write a whole completion; its sums are 0.
    lengths = mask.sum(dim=1).clamp(min=1)
    advantages, weights = completions.advantages.to(logps.dtype), completions.weights.to(logps.dtype)
    # Padding may hold NaN (a head that was never asked about it), and 0 * NaN would be NaN.
    entropies = torch.where(mask, entropies, 0.0)
    entropy = entropies.detach().sum(dim=1) / lengths

    # (5, 6) The gate and the shaping are those of the policy that sampled, if several steps share its completions.
    sampled = entropy if completions.old_entropy is None else completions.old_entropy.to(logps.dtype)
    kept = entropy_gate(objective, sampled, advantages, gate_active=gate_active)
    included = torch.ones_like(kept) if completions.excluded is None else ~completions.excluded
    shaped = weighted_advantages(objective, advantages)
    if objective.entropy_mode == "advantage":
        # Without a gradient through the entropy, as the authors' code has it: the term acts like a lower reward.
        shaped = shaped - objective.gamma * sampled
    shaped = torch.where(kept & included, shaped, 0.0)

    importance = completions.importance_weights
    if importance is not None:
        # TRL corrects by token or by completion; both are factors on lambda, so that the clipping below sees them.
        weights = weights * (importance[:, None] if importance.dim() == 1 else importance)
    pushes, pushed = shaped[:, None] * weights, mask
    if objective.chooses_tokens:
        pushed = pushed_tokens(objective, completions, logps.detach(), entropies.detach(), mask)
    # What counts for nothing may have any ratio, and 0 times an infinite one, or its gradient, would be NaN.
    pushed = pushed & (pushes != 0)
    # (7) rho is 1 in value, with the gradient of log pi, until an optimizer step has moved the policy.
    old_logps = completions.old_logps
    change = logps - (logps.detach() if old_logps is None else old_logps)
    ratio = torch.exp(torch.where(pushed, change.clamp(max=LARGEST_LOG_RATIO), 0.0))
    terms = pushes * ratio
    if old_logps is not None:
        # The pessimistic bound of PPO. The clipped branch has no gradient, which is what limits the step.
        terms = torch.minimum(terms, pushes * ratio.clamp(1 - epsilon_low, 1 + epsilon_high))
    # n_i is at least 1: a completion without conflict tokens keeps its plain loss.
    longer = torch.maximum(completions.forward, completions.backward)
    norms = {"none": torch.ones_like(lengths), "union": completions.union, "max": longer}
    divisor = lengths * norms[objective.conflict_norm if objective.conflict else "none"].clamp(min=1)
    policy = torch.where(pushed, terms, 0.0).sum(dim=1) / divisor
    # A tensor, not 0.0: the losses keep their shape and dtype in every mode.
    entropy_term = torch.zeros_like(policy)
    if objective.entropy_mode == "loss":
        acts = included & kept if objective.entropy_gated else included
        entropy_term = torch.where(acts, objective.gamma * entropies.sum(dim=1) / lengths, 0.0)
    losses = entropy_term - policy
    # A fraction of a group is allowed here: a micro-batch may hold half of one, and its share of the mean is half.
    averaged = 1 if objective.group_reduction == "sum" else num_generations
    loss = losses.sum() / (averaged * (len(mask) / num_generations if groups is None else groups))
    return PolicyLoss(loss, losses, shaped, entropy, kept)


def reference_loss(
    objective: Objective,
    logits: Float[Tensor, "N L V"],
    completion_ids: Int[Tensor, "N L"],
    completion_mask: Shaped[Tensor, "N L"],
    rewards: Shaped[Tensor, "N"] | Sequence[float | None],
    num_generations: int,
    *,
    initial_entropy: float | None = None,
    temperature: float = 1.0,
    truncated: Bool[Tensor, "N"] | None = None,
) -> Loss:
    """Return the loss by plain autograd: slow, readable, differentiable in `logits`, float64 if they are.

    logits [N, L, V] before any temperature; completion_ids [N, L]; completion_mask [N, L], right-padded; rewards [N].
    Raises ValueError naming the argument: shapes that do not fit, a group size that does not divide the rows, ids
    outside the vocabulary, a row with no tokens, infinite rewards.
    """
    completion_lengths(completion_ids, completion_mask, num_generations)
    rows, width = completion_ids.shape
    if logits.dim() != 3 or logits.shape[:2] != (rows, width):
        raise ValueError(f"logits {list(logits.shape)} must have shape [{rows}, {width}, V], as completion_ids has")
    mask = completion_mask.bool()
    check_ids(completion_ids, mask, logits.shape[-1])
    if temperature <= 0:
        raise ValueError(f"temperature must be positive; found {temperature}")
    statistics = reference_statistics(objective, logits, completion_ids, mask, temperature)
    return loss_of_groups(
        objective, statistics, completion_ids, mask, rewards, num_generations, initial_entropy, truncated
    )


def reference_statistics(
    objective: Objective, logits: Tensor, ids: Tensor, mask: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies [N, L] that an objective takes of tokens, from all their logits.

    logits [N, L, V] before any temperature; temperature: of the sampling. The head (`gtpo.head.token_statistics`)
    gives the same without them.
    """
    # Half precision rounds log-probabilities by a percent; the reference is there to be trusted.
    precision = logits.dtype if logits.dtype in (torch.float32, torch.float64) else torch.float32
    # Padding is blanked first, so that nothing there can reach the loss or its gradient.
    visible = torch.where(mask[..., None], logits.to(precision), 0.0)
    log_probabilities = (visible / objective.temperature(temperature)).log_softmax(dim=-1)
    # Padding ids may be -100 or beyond the vocabulary; gather would fail on them.
    chosen = torch.where(mask, ids, 0).long()[..., None]
    log_probability = log_probabilities.gather(-1, chosen).squeeze(-1)
    return log_probability, token_entropy(log_probabilities, objective.log_clamp)


def loss_of_groups(
    objective: Objective,
    statistics: tuple[Tensor, Tensor],
    completion_ids: Tensor,
    mask: Tensor,
    rewards: Tensor | Sequence[float | None],
    num_generations: int,
    initial_entropy: float | None,
    truncated: Tensor | None,
) -> Loss:
    """Return the loss of whole groups from the log-probabilities and entropies of their tokens, both [N, L].

    The other arguments, and the errors, are those of `reference_loss`.
    """
    scored, dtype = group_advantages(objective, rewards, num_generations), statistics[0].dtype
    given = prepare_completions(
        objective, scored, completion_ids, mask, num_generations, truncated=truncated, dtype=dtype
    )
    gate_active = filter_is_active(objective, initial_entropy)
    advantages = given.advantages
    if objective.has_band:
        means = torch.where(mask, statistics[1].detach(), 0.0).sum(dim=1) / mask.sum(dim=1)
        given = keep_in_band(objective, given, means.mean(), num_generations)
    found = policy_loss(objective, given, *statistics, mask, num_generations, gate_active=gate_active)
    return Loss(found.loss, advantages, found.shaped_advantages, found.entropy, found.kept, given.weights)


def loss_from_statistics(
    objective: Objective,
    advantages: Float[Tensor, "N"],
    entropy: Float[Tensor, "N"],
    lengths: Shaped[Tensor, "N"],
    forward: Shaped[Tensor, "N"],
    backward: Shaped[Tensor, "N"],
    num_generations: int,
    *,
    initial_entropy: float | None = None,
) -> PolicyLoss:
    """Return the loss from per-completion statistics [N]: what logged steps are checked with.

    advantages A, entropy `<H>`, lengths |o|, forward and backward span lengths; rho = 1. Raises ValueError on shapes
    that differ, rows that are no whole groups, spans longer than their completion, and an objective that chooses
    tokens by their probabilities.
    """
    if objective.chooses_tokens:
        raise ValueError("the objective chooses tokens by their probabilities, which are not among these statistics")
    rows = advantages.shape[0]
    for name, value in (("entropy", entropy), ("lengths", lengths), ("forward", forward), ("backward", backward)):
        if value.shape != (rows,):
            raise ValueError(f"{name} {list(value.shape)} must have the shape of advantages [{rows}]")
    if num_generations < 1 or rows % num_generations:
        raise ValueError(f"num_generations {num_generations} does not divide the {rows} completions")
    if bool(((forward > lengths) | (backward > lengths)).any()) or bool((lengths < 1).any()):
        raise ValueError("lengths: each must be at least 1 and no shorter than its forward and backward span")
    width = int(lengths.max())
    spans = span_weights(advantages, lengths, forward, backward, width=width, **objective.span_options)
    weights = spans.weights if objective.conflict else torch.ones_like(spans.weights)
    mask = torch.arange(width, device=lengths.device) < lengths[:, None]
    given = Completions(advantages, weights, forward, backward, spans.union, old_entropy=entropy)
    if objective.has_band:
        given = keep_in_band(objective, given, entropy.mean(), num_generations)
    # Any log-probability will do: rho = 1 in value, and nobody takes a gradient of logged steps.
    logps, entropies = torch.zeros_like(mask, dtype=advantages.dtype), entropy[:, None].expand(mask.shape)
    gate_active = filter_is_active(objective, initial_entropy)
    return policy_loss(objective, given, logps, entropies, mask, num_generations, gate_active=gate_active)
