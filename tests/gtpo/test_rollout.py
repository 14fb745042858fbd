"""`Rollout`: what a checkpoint keeps of a round of sampling, and its rows in TRL's batch dict."""

from __future__ import annotations

import io
from typing import Any

import torch

from gtpo.completions import Completions
from gtpo.trainer.group_statistics import Rollout, from_batch, to_batch

SAVED: dict[str, Any] = {
    "step": 3,
    "rewards": torch.tensor([[1.0], [0.0]]),
    "format": torch.tensor([1.0, 0.0]),
    "accuracy": None,
    "prompts": [[{"role": "user", "content": "1 + 1?"}], "2 + 2?"],
    "ids": torch.tensor([[4, 5], [4, 6]]),
    "mask": torch.tensor([[True, True], [True, False]]),
    "advantages": torch.tensor([0.7, -0.7]),
    "weights": torch.tensor([[2.0, 1.0], [0.0, 1.0]]),
    "truncated": torch.tensor([False, True]),
    "entropy": torch.tensor([0.2, torch.nan]),
    "keep_mask": torch.tensor([True, False]),
}


def test_round_comes_back_from_a_checkpoint_as_it_was() -> None:
    buffer = io.BytesIO()
    torch.save(vars(Rollout(**SAVED)), buffer)
    buffer.seek(0)
    again = vars(Rollout(**torch.load(buffer, weights_only=True)))
    assert again.keys() == {*SAVED, "logged"}
    assert again["logged"] is False
    for name, value in SAVED.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(again[name].nan_to_num(-1), value.nan_to_num(-1)), name
        else:
            assert again[name] == value


def test_rows_of_a_rank_come_back_as_its_completions() -> None:
    draw = torch.Generator().manual_seed(0)
    given = Completions(
        advantages=torch.randn(4, generator=draw),
        weights=torch.randn(4, 5, generator=draw),
        forward=torch.tensor([0, 1, 2, 3]),
        backward=torch.tensor([4, 3, 2, 1]),
        union=torch.tensor([4, 4, 3, 4]),
        excluded=torch.tensor([False, True, False, True]),
    )
    rows = slice(2, 4)
    batch = {**to_batch(given, rows, 3), "advantages": given.advantages[rows], "behaviour_entropy": torch.ones(2)}
    found = from_batch(batch)
    for name in ("advantages", "forward", "backward", "union", "excluded"):
        assert torch.equal(getattr(found, name), getattr(given, name)[rows]), name
    assert torch.equal(found.weights, given.weights[rows, :3])
    assert found.old_entropy is batch["behaviour_entropy"]
    assert found.old_logps is None
