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


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"gate/kept": 0.0, "entropy/mean": 2.0}, ("2.00 nats, the threshold 0.69", "s entropy_threshold")),
        ({"completions/truncated": 0.6}, ("60%", "max_completion_length 1536", "mask_truncated")),
    ],
)
def test_said_once_with_what_to_change(advice: Advice, bad: dict[str, Any], words: tuple[str, ...]) -> None:
    said = [advice.observe({**GOOD, **bad}) for _ in range(STEPS + 3)]
    assert [len(texts) for texts in said] == [0] * (STEPS - 1) + [1] + [0] * 3
    assert all(word in said[STEPS - 1][0] for word in words), said[STEPS - 1]
    assert not any(advice.observe(GOOD) for _ in range(STEPS))
    assert sum(len(advice.observe({**GOOD, **bad})) for _ in range(STEPS)) == 0


def test_one_good_step_among_five_is_enough(advice: Advice) -> None:
    rows = [{**GOOD, "gate/kept": 0.0}] * (STEPS - 1) + [GOOD]
    assert not any(advice.observe(row) for row in rows * 4)


def test_most_groups_without_a_difference(advice: Advice) -> None:
    """Steps 7 to 16 of GRPO on a pretrained model that settled for half of the format: two groups a step."""
    shares = [1.0, 0.5, 1.0, 0.5, 1.0, 1.0, 0.5, 1.0, 0.5, 1.0]
    rewards = {"reward/format": 1.0, "reward/accuracy": 0.25, "rewards/mine/mean": 1.25}
    said = [advice.observe({**GOOD, **rewards, "groups/zero_variance": share}) for share in shares]
    assert [len(texts) for texts in said] == [0] * (EQUAL_STEPS - 1) + [1]
    assert "in 80% of the groups" in said[-1][0]
    assert "mean: format 1.00, accuracy 0.25, mine 1.25" in said[-1][0]
    assert not any(advice.observe({**GOOD, "groups/zero_variance": 1.0}) for _ in range(EQUAL_STEPS)), "said once"


def test_a_method_without_these_metrics_is_left_alone(advice: Advice) -> None:
    assert not any(advice.observe({"step": step, "loss": 1.0}) for step in range(2 * STEPS))
