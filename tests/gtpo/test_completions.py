"""`prepare_completions`: what the objective, the fused op and the trainer are told of whole groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gtpo.completions import group_advantages, prepare_completions
from gtpo.objective import PRESETS

IDS = torch.tensor([[7, 1, 9], [7, 2, 9], [7, 3, 9], [7, 4, 9]])
MASK = torch.ones_like(IDS, dtype=torch.bool)


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
