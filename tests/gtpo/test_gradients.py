"""The gradient of an optimizer step does not depend on how its completions are split over batches and processes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import python
from step_gradients import GROUP, PROMPTS, dropping_half, group, reward, step_gradients
from test_trainer import needs_trl_kernel

from gtpo.objective import PRESETS, reference_loss

HERE = Path(__file__).resolve().parent
KEPT = ("gtpo-no-filter:4:1", "gtpo-eq7:4:1", "entropy-band:2:2", "ntf:4:1")
"""Two processes where the gate leaves nothing out, or half; the entropy term in both modes, and none; a band that the
round's entropy decides; tokens that are chosen within a row."""


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert any(gradient.abs().max() > 0 for gradient in expected.values())
    for name, gradient in expected.items():
        tolerance = 1e-5 * float(gradient.abs().max())
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=tolerance, msg=lambda t, n=name: f"{n}: {t}")


def rewards_of(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.tensor(reward([], [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]))


@pytest.mark.parametrize("preset", ["gtpo", "gtpo-published", "gtpo-eq7", "gtpo-negative-only"])
def test_splits_over_micro_batches(preset: str, tmp_path: Path) -> None:
    whole = step_gradients(tmp_path / "whole.pt", preset, 8, 1)
    for batch, accumulation in ((1, 8), (4, 2)):
        assert_same(step_gradients(tmp_path / "split.pt", preset, batch, accumulation), whole)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_step_is_that_of_the_reference_loss(preset: str, tmp_path: Path) -> None:
    """The trainer's gradient is that of the specification on the model's own logits."""
    found = step_gradients(tmp_path / "whole.pt", preset, 8, 1)
    model, logits, ids, mask = group(PROMPTS[0])
    objective = replace(PRESETS[preset], **dropping_half())
    loss = reference_loss(objective, logits, ids, mask, rewards_of(ids, mask), GROUP, initial_entropy=0.5)
    loss.loss.backward()
    if objective.filter == "always":
        assert 0 < int(loss.kept.sum()) < GROUP
    assert_same(found, {name: p.grad for name, p in model.named_parameters() if p.grad is not None})


@needs_trl_kernel
@pytest.mark.parametrize("preset", ["gtpo-eq7", "gtpo"])
def test_second_step_of_a_round_is_that_of_float64(preset: str, tmp_path: Path) -> None:
    """The policy has moved since it sampled: the ratio, its clipping, the old gate and the entropy term in float64."""
    rate = 0.02
    settings: dict[str, Any] = {"num_iterations": 2, "learning_rate": rate, "optim": "sgd"}
    found = step_gradients(
        tmp_path / "second.pt", preset, GROUP, 1, max_steps=2, lr_scheduler_type="constant", **settings
    )
    objective = replace(PRESETS[preset], **dropping_half())
    model, logits, ids, mask = group(PROMPTS[0], torch.float64)
    first = reference_loss(objective, logits, ids, mask, rewards_of(ids, mask).double(), GROUP, initial_entropy=0.5)
    first.loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= rate * parameter.grad
                parameter.grad = None

    written, lengths = mask.double(), mask.double().sum(dim=1)
    old = logits.detach().log_softmax(-1)
    new = group(PROMPTS[0], torch.float64, model)[1].log_softmax(-1)
    picked = ids[..., None]
    ratio = (new.gather(-1, picked) - old.gather(-1, picked)).squeeze(-1).exp()
    entropy = (-(new.exp() * new).sum(-1) * written).sum(dim=1) / lengths
    before = (-(old.exp() * old).sum(-1) * written).sum(dim=1) / lengths
    kept = (before <= objective.entropy_threshold).double()
    assert 0 < kept.sum() < GROUP
    advantages = first.advantages
    if objective.entropy_mode == "advantage":
        advantages = advantages - objective.gamma * before
    shaped = (kept * advantages)[:, None]
    surrogate = torch.minimum(ratio * shaped, ratio.clamp(0.8, 1.2) * shaped)
    clipped = (surrogate != ratio * shaped) & mask.bool()
    assert 0 < clipped.sum() < mask.sum() / 2
    loss = -(surrogate * first.weights * written).sum(dim=1) / lengths
    if objective.entropy_mode == "loss":
        loss = loss + objective.gamma * entropy * (kept if objective.entropy_gated else 1.0)
    loss.mean().backward()
    assert_same(found, {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None})


@pytest.mark.slow
def test_two_processes(tmp_path: Path, root: Path) -> None:
    """Groups of 8 span both processes, whose batches are padded to different lengths."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        *("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        *(str(HERE / "step_gradients.py"), str(tmp_path), "2", "gtpo:4:1", "gtpo-published:2:2", *KEPT),
    ]
    done = python(*command, env=environment, timeout=240)
    for preset in ("gtpo", "gtpo-published", *(case.split(":")[0] for case in KEPT)):
        assert_same(torch.load(tmp_path / f"{preset}.pt"), step_gradients(tmp_path / "whole.pt", preset, 8, 1))
    # The same processes then shard a model by FSDP2, its head with the root or in a group of its own, trained or not.
    lines = [dict(part.split("=") for part in line.split()) for line in done.stdout.splitlines() if "tied=" in line]
    assert [line["tied"] for line in lines] == ["True", "False", "False"], done.stderr[-3000:]
    for line in lines:
        assert float(line["loss"]) < 1e-5
        assert float(line["gradient"]) < 1e-5
