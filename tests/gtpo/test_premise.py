"""What docs/method.md says of a token that a whole group begins with: GRPO's pushes on it cancel, GTPO's do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gtpo.objective import PRESETS, reference_loss

G, WIDTH, VOCABULARY = 4, 5, 7
REWARDS = torch.tensor([20.0, 10.0, 10.0, 0.0], dtype=torch.float64)


def push_on_first_token(name: str, lengths: list[int]) -> tuple[float, torch.Tensor]:
    """Return the gradient ascent on the logit of the first token that all share, and the advantages."""
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(1, VOCABULARY, (G, WIDTH), generator=draw)
    ids[:, 0] = 0
    ids[:, 1] = torch.arange(1, G + 1)  # they part at the second token
    mask = torch.arange(WIDTH) < torch.tensor(lengths)[:, None]
    first = torch.randn(VOCABULARY, generator=draw, dtype=torch.float64, requires_grad=True)  # one prompt, one policy
    rest = torch.randn(G, WIDTH - 1, VOCABULARY, generator=draw, dtype=torch.float64)
    logits = torch.cat([first.expand(G, 1, VOCABULARY), rest], dim=1)
    objective = replace(PRESETS[name], filter="never", entropy_mode="none")
    found = reference_loss(objective, logits, ids, mask, REWARDS, G)
    (gradient,) = torch.autograd.grad(-found.loss, first)
    return float(gradient[0] / (1 - first.detach().softmax(0)[0])), found.advantages


def test_opposing_pushes_on_a_shared_token_cancel_in_grpo_at_equal_lengths() -> None:
    assert push_on_first_token("grpo", [5, 5, 5, 5])[0] == pytest.approx(0, abs=1e-15)
    assert abs(push_on_first_token("grpo", [5, 3, 4, 2])[0]) > 1e-2


@pytest.mark.parametrize("lengths", [[5, 5, 5, 5], [5, 3, 4, 2]])
def test_gtpo_pushes_it_up_by_twice_the_positive_part(lengths: list[int]) -> None:
    push, advantages = push_on_first_token("gtpo-conflict-only", lengths)
    positive = sum(float(a) / n for a, n in zip(advantages, lengths, strict=True) if a > 0)
    neutral = sum(float(a) / n for a, n in zip(advantages, lengths, strict=True) if a == 0)
    assert neutral == 0
    assert push == pytest.approx(2 / G * positive)
    assert push > 0
