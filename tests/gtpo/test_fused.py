"""The loss from hidden states against float64: by hand for every switch, and over several iterations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import gtpo.head
from gtpo.completions import group_advantages, prepare_completions
from gtpo.fused import fused_linear_gtpo_loss
from gtpo.head import token_statistics
from gtpo.objective import PRESETS, Objective, moving_tokens, policy_loss, reference_loss

torch.set_num_threads(1)
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


@pytest.fixture(autouse=True, params=[(2**19, 1024), (40, 5)])
def tiles(request, monkeypatch):
    """Vocabularies here are small: the second makes the head walk them in tiles of a few columns and rows."""
    logits, rows = request.param
    monkeypatch.setattr(gtpo.head, "CPU", gtpo.head.CPU._replace(tile_logits=logits, chunk_rows=rows))


def make(seed, dtype=torch.float64, count=8, length=7, features=6, vocabulary=23):
    """Random ragged groups over few distinct tokens (so that conflicts occur), and rewards of which some are equal."""
    draw = torch.Generator().manual_seed(seed)
    hidden = (torch.randn(count, length, features, generator=draw, dtype=torch.float64) * 1.2).to(dtype)
    lm_head = torch.randn(vocabulary, features, generator=draw, dtype=torch.float64).to(dtype)
    ids = torch.randint(0, 3, (count, length), generator=draw)
    lengths = torch.randint(1, length + 1, (count,), generator=draw)
    mask = torch.arange(length) < lengths[:, None]
    ids[~mask] = -7  # the value of padding never matters
    rewards = torch.randint(0, 3, (count,), generator=draw).double()
    return hidden, lm_head, ids, mask, rewards


def by_hand(objective: Objective, hidden: Any, lm_head: Any, ids: Any, mask: Any, rewards: Any) -> tuple[Any, ...]:
    """Loss, dloss/dhidden, dloss/dlm_head in numpy, token by token, the filter on; nothing of the package in it."""
    lengths, groups, clamp = mask.sum(axis=1), len(ids) // G, objective.log_clamp
    loss, by_hidden, by_head = 0.0, np.zeros_like(hidden), np.zeros_like(lm_head)
    for first in range(0, len(ids), G):
        group = rewards[first : first + G]
        deviation = group.std(ddof=1) + 1e-4 if objective.scale_rewards == "group" else 1.0
        advantages = np.where(np.isclose(group, group.mean()), 0, group - group.mean()) / deviation
        texts = [list(ids[first + i, : lengths[first + i]]) for i in range(G)]
        for i, text in enumerate(texts):

            def span(
                reading: Any, i: int = i, text: Any = text, advantages: Any = advantages, texts: Any = texts
            ) -> int:
                others = [reading(texts[j]) for j in range(G) if advantages[i] * advantages[j] < 0]
                return next(
                    (t for t, v in enumerate(reading(text)) if not any(o[t : t + 1] == [v] for o in others)), len(text)
                )

            forward, backward = span(lambda text: text), span(lambda text: text[::-1])
            n, row, sign = len(text), first + i, 2.0 if advantages[i] > 0 else 0.0
            spans = np.array([[t < forward, t >= n - backward] for t in range(n)])
            weights = np.where(spans, sign, 1.0).prod(axis=1)
            if objective.combine == "or":
                weights = np.where(spans.any(axis=1), sign, 1.0)
            if not objective.conflict:
                weights = np.ones(n)
            z = hidden[row, :n] @ lm_head.T
            p = np.exp(z - z.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            entropies = -(p * np.log(np.maximum(p, clamp))).sum(axis=1)
            entropy = entropies.mean()
            kept = entropy <= objective.entropy_threshold or (
                objective.filter_scope == "negative" and advantages[i] >= 0
            )
            kept = kept or objective.filter == "never"
            factor = objective.positive_advantage_weight if advantages[i] > 0 else objective.negative_advantage_weight
            shaped = factor * advantages[i] - (
                objective.gamma * entropy if objective.entropy_mode == "advantage" else 0
            )
            included = not (objective.skip_zero_variance_groups and (group == group[0]).all())
            norms = {"none": 1, "union": spans.any(axis=1).sum(), "max": max(forward, backward)}
            norm = max(1, norms[objective.conflict_norm]) if objective.conflict else 1
            share = 1 / groups / (G if objective.group_reduction == "mean" else 1)
            c = share * kept * included * shaped / n / norm
            e = share * included * objective.gamma / n if objective.entropy_mode == "loss" else 0.0
            e *= kept if objective.entropy_gated else 1.0
            loss += e * entropies.sum() - c * weights.sum()
            onehot = np.eye(len(lm_head))[text]
            slope = np.log(np.maximum(p, clamp)) + (p >= clamp)  # of p max(log p, log c), by p
            by_z = c * weights[:, None] * (p - onehot) - e * p * (slope - (p * slope).sum(axis=1, keepdims=True))
            by_hidden[row, :n] = by_z @ lm_head
            by_head += by_z.T @ hidden[row, :n]
    return loss, by_hidden, by_head


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("trainable", [False, True])
def test_every_switch_by_hand(name, trainable):
    """In float64 and float32, frozen and trainable, with a threshold that drops some completions and keeps others."""
    for seed in range(4):
        hidden, lm_head, ids, mask, rewards = make(seed)
        entropy = reference_loss(PRESETS["grpo"], hidden @ lm_head.T, ids, mask, rewards, G).entropy
        objective = replace(VARIANTS[name], entropy_threshold=float(entropy.median()) + 1e-3)
        wanted = by_hand(objective, *(t.numpy() for t in (hidden, lm_head, ids, mask, rewards)))
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-6)):
            leaves = [hidden.to(dtype).requires_grad_(), lm_head.to(dtype).requires_grad_(trainable)]
            found = fused_linear_gtpo_loss(objective, *leaves, ids, mask, rewards, G, initial_entropy=0.1)
            got = found.loss, *torch.autograd.grad(found.loss, leaves[: 1 + trainable])
            for value, target in zip(got, wanted, strict=False):
                scale = np.abs(target).max()
                assert np.abs(value.detach().numpy() - target).max() <= tolerance * max(scale, 1e-2), (seed, dtype)
        logits = (hidden @ lm_head.T).requires_grad_()
        reference = reference_loss(objective, logits, ids, mask, rewards, G, initial_entropy=0.1)
        assert float(reference.loss.detach()) == pytest.approx(float(wanted[0]), rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("name", ["gtpo", "gtpo-eq7"])
@pytest.mark.parametrize("importance", [None, "token", "sequence"])
@pytest.mark.parametrize("reused", [False, True])
def test_several_iterations_and_importance_weights(name, importance, reused, trainable):
    """PPO's ratio and clipping against plain autograd, with <H> of the first iteration or of this one."""
    hidden, lm_head, ids, mask, rewards = make(13)
    objective = replace(PRESETS[name], filter="always", entropy_threshold=2.0)
    draw = torch.Generator().manual_seed(1)
    hidden.requires_grad_()
    lm_head.requires_grad_(trainable)
    logps = (hidden @ lm_head.T).log_softmax(-1)
    chosen = logps.gather(-1, ids.clamp(min=0)[..., None]).squeeze(-1)
    entropies = -(logps.exp() * logps).sum(-1)
    lengths = mask.sum(1)
    old = chosen.detach() + 0.4 * torch.randn(chosen.shape, generator=draw, dtype=torch.float64)
    factor = torch.rand((8, 7) if importance == "token" else (8,), generator=draw).double() if importance else None
    given = prepare_completions(objective, group_advantages(objective, rewards, G), ids, mask, G, dtype=torch.float64)
    given = given._replace(old_logps=old, importance_weights=factor)
    entropy = ((entropies * mask).sum(1) / lengths).detach()
    if reused:
        entropy = 4 * torch.rand(8, generator=draw).double()
        given = given._replace(old_entropy=entropy)
    options = {"log_clamp": objective.log_clamp, "entropy_gradient": objective.entropy_gradient}
    moving = moving_tokens(objective, given, gate_active=True)
    found = token_statistics(hidden, lm_head, ids, mask, moving=moving, **options)
    got = policy_loss(objective, given, *found, mask, G, gate_active=True, epsilon_high=0.28)

    shaped = given.advantages - 0.1 * entropy if name == "gtpo" else given.advantages
    shaped = (shaped * (entropy <= 2.0))[:, None]
    ratio = (chosen - old).exp()
    term = torch.minimum(shaped * ratio, shaped * ratio.clamp(0.8, 1.28)) * given.weights * mask
    if factor is not None:
        term = term * (factor if importance == "token" else factor[:, None])
    losses = -term.sum(1) / lengths
    if name == "gtpo-eq7":
        losses = losses + 0.1 * (entropies * mask).sum(1) / lengths
    leaves = [hidden, lm_head] if trainable else [hidden]
    torch.testing.assert_close(got.loss, losses.mean())
    wanted = torch.autograd.grad(losses.mean(), leaves)
    for value, target in zip(torch.autograd.grad(got.loss, leaves), wanted, strict=True):
        torch.testing.assert_close(value, target, rtol=1e-10, atol=1e-13)


def test_errors_name_the_argument_and_the_shapes():
    hidden, lm_head, ids, mask, rewards = make(1)

    def call(hidden=hidden, lm_head=lm_head, ids=ids, mask=mask, rewards=rewards, group=G, **options):
        options = {"initial_entropy": 0.1, **options}
        return fused_linear_gtpo_loss(PRESETS["gtpo"], hidden, lm_head, ids, mask, rewards, group, **options)

    call()
    bad, poor = hidden.clone(), lm_head.clone()
    bad[5, 0, 1] = poor[7, 0] = float("nan")
    for options, words in [
        ({"hidden": hidden[:, :5]}, r"completion_ids must be integers \[8, 5\].*\[8, 7\]"),
        ({"hidden": hidden[0]}, r"hidden must have shape \[N, L, D\].*\[7, 6\]"),
        ({"lm_head": lm_head[:, :4]}, r"lm_head must have shape \[V, 6\].*\[23, 4\]"),
        ({"mask": mask[:, :5]}, r"completion_mask \[8, 5\].*\[8, 7\]"),
        ({"group": 3}, "num_generations 3 does not divide the 8"),
        ({"rewards": rewards[:4]}, r"rewards \[4\].*8"),
        ({"rewards": torch.full((8,), torch.inf)}, "rewards: row 0 is infinite"),
        ({"ids": ids.masked_fill(mask, 23)}, r"completion_ids\[0, 0\] = 23 lies outside the vocabulary of 23"),
        ({"mask": torch.zeros_like(mask)}, "completion_mask: row 0 has no tokens"),
        ({"bias": torch.zeros(3)}, r"bias must have shape \[23\].*\[3\]"),
        ({"bias": torch.full((23,), -torch.inf)}, r"bias\[0\] is not finite"),
        ({"temperature": 0.0}, "temperature"),
        ({"softcap": -1.0}, "softcap"),
        ({"initial_entropy": None}, "initial_entropy"),
        ({"hidden": bad}, r"hidden\[5, 0\] is not finite"),
        ({"lm_head": poor}, r"lm_head\[7\] is not finite"),
    ]:
        with pytest.raises(ValueError, match=words):
            call(**options)
