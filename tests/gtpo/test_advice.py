"""Warnings about settings that learn nothing, from made-up metrics and from a real run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gtpo.presets import PRESETS
from gtpo.train.run_log import EQUAL_STEPS, STEPS, Advice


@pytest.fixture
def advice() -> Advice:
    args = SimpleNamespace(max_completion_length=1536)
    return Advice(SimpleNamespace(args=args, objective=PRESETS["gtpo"], reward_func_names=["mine"]))


GOOD = {"gate/kept": 0.9, "entropy/mean": 0.5, "completions/truncated": 0.1, "groups/zero_variance": 0.3}


# Steps 7 to 16 of GRPO on a pretrained model that settled for half of the format: two groups a step.
SHARES = [1.0, 0.5, 1.0, 0.5, 1.0, 1.0, 0.5, 1.0, 0.5, 1.0]
EARNED = {"reward/format": 1.0, "reward/accuracy": 0.25, "rewards/mine/mean": 1.25}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"gate/kept": 0.0, "entropy/mean": 2.0}] * STEPS, ("2.00 nats, the threshold 0.69", "s entropy_threshold")),
        ([{"completions/truncated": 0.6}] * STEPS, ("60%", "max_completion_length 1536", "mask_truncated")),
        (
            [EARNED | {"groups/zero_variance": share} for share in SHARES],
            ("in 80% of the groups", "mean: format 1.00, accuracy 0.25, mine 1.25"),
        ),
    ],
)
def test_said_once_with_what_to_change(advice: Advice, rows: list[dict[str, Any]], words: tuple[str, ...]) -> None:
    *before, text = [advice.observe({**GOOD, **row}) for row in rows]
    assert not any(before)
    assert all(word in text[0] for word in words), text
    # Nor if it comes back.
    assert not any(advice.observe(row) for row in [GOOD] * EQUAL_STEPS + [{**GOOD, **row} for row in rows])


def test_one_good_step_or_a_method_without_these_metrics_is_enough(advice: Advice) -> None:
    rows = [{**GOOD, "gate/kept": 0.0}] * (STEPS - 1) + [GOOD]
    assert not any(advice.observe(row) for row in rows * 4)
    assert not any(advice.observe({"step": step, "loss": 1.0}) for step in range(2 * STEPS))
