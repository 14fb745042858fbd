"""`prepare_completions`: what the objective, the fused op and the trainer are told of whole groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gtpo.completions import group_advantages, prepare_completions
from gtpo.conflict import conflict_weights
from gtpo.objective import PRESETS

IDS = torch.tensor([[7, 1, 9], [7, 2, 9], [7, 3, 9], [7, 4, 9]])
MASK = torch.ones_like(IDS, dtype=torch.bool)


def test_advantages_weights_and_spans_are_those_of_their_definitions() -> None:
    objective = replace(PRESETS["gtpo"], positive_weight=3.0, combine="product")
    scored = group_advantages(objective, [1.0, 0.0, 1.0, 0.0], 4)
    found = prepare_completions(objective, scored, IDS, MASK, 4)
    spans = conflict_weights(IDS, MASK, scored.advantages, 4, positive_weight=3.0, combine="product")
    assert torch.equal(found.advantages, scored.advantages)
    for name in spans._fields:
        assert torch.equal(getattr(found, name), getattr(spans, name)), name
    assert found.weights[0].tolist() == [3, 1, 3]
    assert not found.excluded.any()


def test_without_conflict_weights_the_spans_are_still_known() -> None:
    """GRPO logs the conflicts that GTPO would see."""
    scored = group_advantages(PRESETS["grpo"], [1.0, 0.0, 1.0, 0.0], 4)
    found = prepare_completions(PRESETS["grpo"], scored, IDS, MASK, 4, dtype=torch.float64)
    assert found.weights.eq(1).all()
    assert found.weights.dtype == found.advantages.dtype == torch.float64
    assert found.forward.tolist() == found.backward.tolist() == [1] * 4


def test_exclusions() -> None:
    rewards = [1.0, None, 0.0, 1.0]
    truncated = torch.tensor([True, False, False, False])
    plain = PRESETS["gtpo"]
    scored = group_advantages(plain, rewards, 2)

    def excluded(**changes: bool) -> list[bool]:
        objective = replace(plain, **changes)
        given = prepare_completions(objective, scored, IDS, MASK, 2, truncated=truncated)
        return given.excluded.tolist()

    assert excluded() == [False, True, False, False]
    assert excluded(mask_truncated=True) == [True, True, False, False]
    assert excluded(skip_zero_variance_groups=True) == [True, True, False, False]  # one scored reward does not vary
    with pytest.raises(ValueError, match="mask_truncated needs truncated"):
        prepare_completions(replace(plain, mask_truncated=True), scored, IDS, MASK, 2)
