"""Token-level advantages for verl: verl's loss formula with them is reference_loss, in value and in gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gtpo.integrations.verl.advantages import token_advantages
from gtpo.objective import PRESETS, Objective, reference_loss, token_entropy

G, L, V = 6, 17, 11
EXPRESSIBLE = [
    replace(objective, entropy_temperature="sampling", log_clamp=0.0, entropy_threshold=1.95)
    for objective in PRESETS.values()
]


def batch(seed: int, prompts: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = prompts * G
    lengths = torch.randint(3, L + 1, (rows,), generator=generator)
    return {
        "logits": torch.randn(rows, L, V, dtype=torch.float64, generator=generator) * 1.1,
        "completion_ids": torch.randint(0, 3, (rows, L), generator=generator),
        "completion_mask": torch.arange(L)[None] < lengths[:, None],
        "rewards": torch.randint(0, 3, (rows,), generator=generator).double(),
    }


def entropies(logits: Tensor) -> Tensor:
    return token_entropy(logits.log_softmax(dim=-1)).detach()


def loss_of_verl(objective: Objective, logits: Tensor, ids: Tensor, mask: Tensor, advantages: Tensor, n: int) -> Tensor:
    """-1/N sum_i 1/|o_i| sum_t rho a - c/N sum_i <H>_i, as verl's documentation of its losses has it."""
    log_probabilities = logits.log_softmax(dim=-1)
    logps = log_probabilities.gather(-1, ids[..., None]).squeeze(-1)
    ratio = torch.exp(logps - logps.detach())
    lengths = mask.sum(dim=1).clamp(min=1)
    policy = (torch.where(mask, ratio * advantages, 0.0).sum(dim=1) / lengths).sum() / n
    if objective.entropy_mode != "loss":
        return -policy
    entropy = torch.where(mask, token_entropy(log_probabilities), 0.0).sum(dim=1) / lengths
    return objective.gamma * (G if objective.group_reduction == "sum" else 1) * entropy.sum() / n - policy


@pytest.mark.parametrize("objective", EXPRESSIBLE, ids=list(PRESETS))
@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradient_are_the_reference(objective: Objective, seed: int) -> None:
    given = batch(seed)
    logits = given.pop("logits").requires_grad_()
    expected = reference_loss(objective, logits, **given, num_generations=G, initial_entropy=0.4)
    (expected_gradient,) = torch.autograd.grad(expected.loss, logits)

    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(seed))  # a group's rows lie apart
    ids, mask, rewards = (given[name][order] for name in ("completion_ids", "completion_mask", "rewards"))
    prompts = [f"prompt-{row // G}" for row in order.tolist()]
    logps = logits[order].detach().log_softmax(dim=-1).gather(-1, ids[..., None]).squeeze(-1)
    found = token_advantages(
        objective, ids, mask, rewards, entropies(logits[order]), prompts, batch_rows=len(order), token_logps=logps,
        initial_entropy=0.4,
    )  # fmt: skip
    loss = loss_of_verl(objective, logits[order], ids, mask, found.advantages.double(), len(order))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert float((loss - expected.loss).abs()) <= 1e-6 * max(1.0, float(expected.loss.abs()))
    assert float((gradient - expected_gradient).norm() / expected_gradient.norm()) <= 1e-6
    if objective.filter != "never" and objective.filter_scope == "all":
        assert 0 < found.metrics["gate/kept"] < 1
    assert found.metrics["gate/kept"] == pytest.approx(float(expected.kept.double().mean()))


def test_padding_and_groups_of_other_sizes_keep_the_mean_over_groups() -> None:
    """Two prompts of 6 and 4 samples and six rows of padding: each prompt counts as it does alone, by half."""
    given, objective = batch(3, prompts=2), PRESETS["gtpo-no-filter"]
    logits = given["logits"]
    groups = [slice(0, 6), slice(6, 10)]
    rows = [row for group in groups for row in range(group.start, group.stop)]
    expected = sum(
        reference_loss(
            objective, logits[g], given["completion_ids"][g], given["completion_mask"][g], given["rewards"][g],
            g.stop - g.start,
        ).loss
        / 2
        for g in groups
    )  # fmt: skip
    padding = 6
    ids = torch.cat([given["completion_ids"][rows], torch.zeros(padding, L, dtype=torch.long)])
    mask = torch.cat([given["completion_mask"][rows], torch.zeros(padding, L, dtype=torch.bool)])
    padded = torch.cat([logits[rows], torch.zeros(padding, L, V)])
    found = token_advantages(
        objective,
        ids,
        mask,
        torch.cat([given["rewards"][rows], torch.zeros(padding)]),
        entropies(padded),
        ["a"] * 6 + ["b"] * 4 + ["padding"] * padding,
        batch_rows=16,
    )
    assert not found.advantages[len(rows) :].any()
    loss = loss_of_verl(objective, padded, ids, mask, found.advantages.double(), 16)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    assert found.metrics["completions/length"] == pytest.approx(float(mask.sum() / len(rows)))


def test_unscored_and_truncated_completions_are_outside_the_loss() -> None:
    given, objective = batch(4, prompts=1), replace(PRESETS["gtpo-no-filter"], mask_truncated=True)
    given["rewards"][1] = torch.nan
    truncated = torch.zeros(G, dtype=torch.bool)
    truncated[2] = True
    found = token_advantages(
        objective,
        given["completion_ids"],
        given["completion_mask"],
        given["rewards"],
        entropies(given["logits"]),
        ["a"] * G,
        batch_rows=G,
        truncated=truncated,
    )
    assert not found.advantages[1:3].any()
    assert found.advantages[0].any()
    assert found.metrics["reward/unscored"] == pytest.approx(1 / G)
    assert found.metrics["completions/truncated"] == pytest.approx(1 / G)


def test_a_batch_that_is_none_is_refused() -> None:
    given = batch(5, prompts=1)
    arguments = [given["completion_ids"], given["completion_mask"], given["rewards"], entropies(given["logits"])]
    with pytest.raises(ValueError, match="more than one optimizer step"):
        token_advantages(PRESETS["grpo"], *arguments, ["a"] * G, batch_rows=4)
    arguments[1] = torch.zeros_like(arguments[1])
    with pytest.raises(ValueError, match="none of the 6 completions"):
        token_advantages(PRESETS["grpo"], *arguments, ["a"] * G, batch_rows=6)
