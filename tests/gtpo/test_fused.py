"""The loss from hidden states against its formula in float64 on all logits, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from approved import check_refusals
from torch import Tensor

import gtpo.head
from gtpo.completions import Completions, group_advantages, keep_in_band, prepare_completions
from gtpo.fused import fused_linear_gtpo_loss
from gtpo.head import token_statistics
from gtpo.objective import PRESETS, Objective, policy_loss, pushed_tokens, reference_loss, reference_statistics

G = 4
VARIANTS = {
    **PRESETS,
    "eq7-gated": replace(PRESETS["gtpo-eq7"], entropy_gated=True),
    "eq7-clamped": replace(PRESETS["gtpo-eq7"], log_clamp=0.02, filter="never"),
    "eq7-gamma-0": replace(PRESETS["gtpo-eq7"], gamma=0.0),
    "union-norm": replace(PRESETS["gtpo"], conflict_norm="union"),
    "skip-zero-variance": replace(PRESETS["gtpo"], skip_zero_variance_groups=True),
    "no-gamma": replace(PRESETS["gtpo"], gamma=0.0),
    "gtpo-negatives": replace(PRESETS["gtpo"], positive_advantage_weight=0.0, negative_advantage_weight=1.5),
}


@pytest.fixture(autouse=True, params=[2**19, 40])
def tiles(request: Any, monkeypatch: Any) -> None:
    """Vocabularies here are small: the second makes the head walk them in tiles of a few columns."""
    monkeypatch.setattr(gtpo.head, "CPU", gtpo.head.CPU._replace(columns=2, tile_logits=request.param))


def make(seed: int) -> tuple[Tensor, ...]:
    """Return 8 ragged completions over few distinct tokens (so that conflicts occur), and rewards."""
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(8, 7, 6, generator=draw, dtype=torch.float64) * 1.2
    lm_head = torch.randn(23, 6, generator=draw, dtype=torch.float64)
    ids = torch.randint(0, 3, (8, 7), generator=draw)
    mask = torch.arange(7) < torch.randint(1, 8, (8,), generator=draw)[:, None]
    ids[~mask] = -7  # the value of padding never matters
    return hidden, lm_head, ids, mask, torch.randint(0, 3, (8,), generator=draw).double()


def by_hand(
    objective: Objective, given: Completions, hidden: Tensor, lm_head: Tensor, ids: Tensor, mask: Tensor
) -> Tensor:
    """Return the loss, completion by completion, from all logits; its gradients are autograd's."""
    total = torch.zeros((), dtype=torch.float64)
    for i, keep in enumerate(mask):
        n, a = int(keep.sum()), float(given.advantages[i])
        log_p = (hidden[i, :n] @ lm_head.T).log_softmax(dim=-1)
        logp, p = log_p[range(n), ids[i, :n]], log_p.exp()
        entropies = -(p * p.clamp(min=objective.log_clamp).log()).sum(dim=-1)
        entropy = float(entropies.detach().mean() if given.old_entropy is None else given.old_entropy[i])
        spared = objective.filter == "never" or (objective.filter_scope == "negative" and a >= 0)
        kept = spared or entropy <= objective.entropy_threshold
        shaped = a * (objective.positive_advantage_weight if a > 0 else objective.negative_advantage_weight)
        shaped -= objective.gamma * entropy if objective.entropy_mode == "advantage" else 0
        ratio = (logp - (logp.detach() if given.old_logps is None else given.old_logps[i, :n])).exp()
        terms = torch.minimum(ratio * shaped, ratio.clamp(0.8, 1.28) * shaped) * given.weights[i, :n] * kept
        if given.importance_weights is not None:
            terms = terms * (
                given.importance_weights[i][:n] if given.importance_weights.dim() == 2 else given.importance_weights[i]
            )
        spans = {"none": 1, "union": int(given.union[i]), "max": int(max(given.forward[i], given.backward[i]))}
        loss = -terms.sum() / n / (max(1, spans[objective.conflict_norm]) if objective.conflict else 1)
        if objective.entropy_mode == "loss" and (kept or not objective.entropy_gated):
            loss = loss + objective.gamma * entropies.sum() / n
        if given.excluded is None or not given.excluded[i]:
            total = total + loss / (len(ids) // G) / (G if objective.group_reduction == "mean" else 1)
    return total


def assert_close(found: Tensor, wanted: Tensor, leaves: list[Tensor], exact: list[Tensor], tolerance: float) -> None:
    """Compare losses and gradients, relative to the largest value."""
    pairs = zip(torch.autograd.grad(found, leaves), torch.autograd.grad(wanted, exact), strict=True)
    for value, target in ((found.detach(), wanted.detach()), *pairs):
        assert (value - target).abs().max() <= tolerance * max(float(target.abs().max()), 1e-2)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("trainable", [False, True])
def test_every_switch_by_hand(name: str, trainable: bool) -> None:
    """In float64 and float32, with a threshold that drops some completions and keeps others."""
    for seed in range(2):
        hidden, lm_head, ids, mask, rewards = make(seed)
        entropy = reference_loss(PRESETS["grpo"], hidden @ lm_head.T, ids, mask, rewards, G).entropy
        objective = replace(VARIANTS[name], entropy_threshold=float(entropy.median()) + 1e-3)
        given = prepare_completions(objective, group_advantages(objective, rewards, G), ids, mask, G)
        if objective.has_band:
            given = keep_in_band(objective, given, entropy.mean(), G)
        tokens = reference_statistics(objective, hidden @ lm_head.T, ids, mask, 1.0)
        # test_token_credit.py has the loops over tokens.
        given = given._replace(weights=given.weights * pushed_tokens(objective, given, *tokens, mask))
        exact = [hidden.requires_grad_(), lm_head.requires_grad_()]
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-6)):
            leaves = [t.detach().to(dtype).requires_grad_(t is hidden or trainable) for t in exact]
            found = fused_linear_gtpo_loss(objective, *leaves, ids, mask, rewards, G, initial_entropy=0.1).loss
            wanted = by_hand(objective, given, *exact, ids, mask)
            assert_close(found, wanted, leaves[: 1 + trainable], exact[: 1 + trainable], tolerance)
        reference = reference_loss(objective, hidden @ lm_head.T, ids, mask, rewards, G, initial_entropy=0.1).loss
        assert_close(reference, by_hand(objective, given, *exact, ids, mask), exact, exact, 1e-11)


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("name", ["gtpo", "gtpo-eq7"])
@pytest.mark.parametrize("importance", [None, "token", "sequence"])
@pytest.mark.parametrize("reused", [False, True])
def test_several_iterations_and_importance_weights(name: str, importance: Any, reused: bool, trainable: bool) -> None:
    """The ratio and its clipping, with <H> of the first iteration or of this one."""
    hidden, lm_head, ids, mask, rewards = make(13)
    objective = replace(PRESETS[name], filter="always", entropy_threshold=2.0)
    leaves, draw = [hidden.requires_grad_(), lm_head.requires_grad_(trainable)], torch.Generator().manual_seed(1)
    logps = (hidden @ lm_head.T).log_softmax(dim=-1).gather(-1, ids.clamp(min=0)[..., None])[..., 0].detach()
    given = prepare_completions(objective, group_advantages(objective, rewards, G), ids, mask, G)._replace(
        old_logps=logps + 0.4 * torch.randn(8, 7, generator=draw, dtype=torch.float64),
        old_entropy=4 * torch.rand(8, generator=draw).double() if reused else None,
        importance_weights=torch.rand((8, 7)[: 1 + (importance == "token")], generator=draw) if importance else None,
    )
    found = token_statistics(*leaves, ids, mask, **objective.head_options(1.0))
    loss = policy_loss(objective, given, *found, mask, G, gate_active=True, epsilon_high=0.28).loss
    leaves = leaves[: 1 + trainable]
    assert_close(loss, by_hand(objective, given, hidden, lm_head, ids, mask), leaves, leaves, 1e-10)


def test_errors_name_the_argument_and_the_shapes() -> None:
    names = ("hidden", "lm_head", "completion_ids", "completion_mask", "rewards")
    inputs: dict[str, Any] = dict(zip(names, make(1), strict=True)) | {"num_generations": G, "initial_entropy": 0.1}
    hidden, lm_head, ids, mask, rewards = make(1)
    bad, poor = hidden.clone(), lm_head.clone()
    bad[5, 0, 1] = poor[7, 0] = float("nan")

    def loss(**changes: Any) -> None:
        fused_linear_gtpo_loss(PRESETS["gtpo"], **inputs | changes)

    loss()
    tensors = {"hidden": hidden, "lm_head": lm_head, "ids": ids, "mask": mask, "rewards": rewards}
    check_refusals("refused-fused.txt", {"loss": loss, "torch": torch, **tensors, "bad": bad, "poor": poor})
