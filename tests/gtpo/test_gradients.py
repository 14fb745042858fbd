"""The gradient of an optimizer step does not depend on how its completions are split over batches and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from step_gradients import GROUP, PROMPTS, dropping_half, group, reward, step_gradients

from gtpo.objective import PRESETS, reference_loss
from gtpo.trainer.padding import rows_of_like_length

HERE = Path(__file__).resolve().parent


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert any(gradient.abs().max() > 0 for gradient in expected.values())
    for name, gradient in expected.items():
        tolerance = 1e-5 * float(gradient.abs().max())
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=tolerance, msg=lambda t, n=name: f"{n}: {t}")


@pytest.mark.parametrize("preset", ["gtpo", "gtpo-published", "gtpo-eq7", "gtpo-negative-only"])
def test_splits_over_micro_batches(preset: str, tmp_path: Path) -> None:
    whole = step_gradients(tmp_path / "whole.pt", preset, 8, 1)
    for batch, accumulation in ((1, 8), (4, 2)):
        assert_same(step_gradients(tmp_path / "split.pt", preset, batch, accumulation), whole)


@pytest.mark.parametrize("preset", ["gtpo", "gtpo-published", "gtpo-eq7"])
def test_parts_of_like_length(preset: str, tmp_path: Path) -> None:
    whole = step_gradients(tmp_path / "whole.pt", preset, 8, 1)
    assert_same(step_gradients(tmp_path / "parts.pt", preset, 8, 1, max_padding=0.1), whole)


def test_parts_hold_every_row_once_and_little_padding() -> None:
    draw = torch.Generator().manual_seed(20250819)
    for size in (1, 2, 7, 64):
        for most in (0.0, 0.1, 0.5):
            lengths = torch.randint(1, 400, (size,), generator=draw).tolist()
            parts = rows_of_like_length(lengths, most)
            assert sorted(row for part in parts for row in part) == list(range(size))
            for part in parts:
                assert sum(lengths[row] for row in part) >= (1 - most) * max(lengths[row] for row in part) * len(part)
    assert rows_of_like_length([5] * 9, 0.0) == [list(range(9))], "rows of one length stay together"


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_step_is_that_of_the_reference_loss(preset: str, tmp_path: Path) -> None:
    """The trainer's gradient is that of the specification on the model's own logits."""
    found = step_gradients(tmp_path / "whole.pt", preset, 8, 1)
    model, logits, ids, mask = group(PROMPTS[0])
    objective = replace(PRESETS[preset], **dropping_half())
    loss = reference_loss(
        objective,
        logits,
        ids,
        mask,
        torch.tensor(reward([], [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)])),
        GROUP,
        initial_entropy=0.5,
    )
    loss.loss.backward()
    if objective.filter == "always":
        assert 0 < int(loss.kept.sum()) < GROUP
    assert_same(found, {name: p.grad for name, p in model.named_parameters() if p.grad is not None})


@pytest.mark.slow
def test_two_processes(tmp_path: Path, root: Path) -> None:
    """Groups of 8 span both processes, whose batches are padded to different lengths."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        *(str(HERE / "step_gradients.py"), str(tmp_path), "2", "gtpo:4:1", "gtpo-published:2:2"),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    for preset in ("gtpo", "gtpo-published"):
        assert (tmp_path / f"{preset}.pt").exists(), done.stderr[-3000:]
        assert_same(torch.load(tmp_path / f"{preset}.pt"), step_gradients(tmp_path / "whole.pt", preset, 8, 1))
    # The same processes then shard a model by FSDP2, its head with the root and with a group of its own.
    lines = [dict(part.split("=") for part in line.split()) for line in done.stdout.splitlines() if "tied=" in line]
    assert [line["tied"] for line in lines] == ["True", "False"], done.stderr[-3000:]
    for line in lines:
        assert float(line["loss"]) < 1e-5
        assert float(line["gradient"]) < 1e-5
