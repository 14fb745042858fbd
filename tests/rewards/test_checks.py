"""What is asked of a reward function before a model is loaded."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import torch

from gtpo.rewards.functions import accuracy_reward, final_reward, format_reward
from gtpo.rewards.loading import Probe, probe_reward, score_fault

ROW = {"id": "1", "prompt": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}


@pytest.mark.parametrize(
    "scores", [[1, 0.5], [True, None], torch.tensor([1.0, 2.0]), (float("nan"), 0), (0 for _ in "ab")]
)
def test_one_number_or_none_per_completion_is_a_score(scores: Any) -> None:
    assert score_fault("mine", scores, 2) is None


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([1.0], "returned 1 scores for 2 completions"),
        ([1.0] * 3, "returned 3 scores for 2 completions"),
        (1.0, "returned float for 2 completions"),
        ({"a": 1.0, "b": 2.0}, "returned dict for 2 completions"),
        ("12", "returned str for 2 completions"),
        ([0.0, "1"], "returned '1' for completion 1"),  # TRL makes a tensor of the scores
        ([0.0, "yes"], "returned 'yes' for completion 1"),
        ([10**400, 0.0], "returned a number beyond float64 for completion 0"),
        ([0.0, math.inf], "returned inf for completion 1"),
        ([-math.inf, 0.0], "returned -inf for completion 0"),
    ],
)
def test_what_is_no_score_is_named(scores: Any, words: str) -> None:
    fault = score_fault("mine", scores, 2)
    assert fault is not None
    assert fault.startswith(f"reward mine {words}")


@pytest.mark.filterwarnings("error")
def test_a_coroutine_is_no_score_and_is_closed() -> None:
    fault = score_fault("mine", asyncio.sleep(0), 2)
    assert fault is not None
    assert fault.startswith("reward mine returned a coroutine for 2 completions; await it")


@pytest.mark.parametrize("reward", [final_reward, accuracy_reward, format_reward])
@pytest.mark.parametrize("prompt", [ROW["prompt"], "1 + 1?"])
def test_our_own_rewards_pass(reward: Any, prompt: Any) -> None:
    assert probe_reward("ours", reward, {**ROW, "prompt": prompt}) == Probe()


def test_arguments_that_do_not_fit_are_named_before_the_first_completion() -> None:
    def needs_gold(completions: list[Any], gold: list[str], **columns: Any) -> list[float]:
        raise AssertionError("not called")

    fault = probe_reward("needs_gold", needs_gold, ROW).fault
    assert fault is not None
    assert "missing a required argument: 'gold'" in fault
    assert "answer" in fault, "what it is called with is listed"


def test_an_exception_on_a_made_up_completion_is_no_fault_and_a_coroutine_is_awaited() -> None:
    def parses(completions: list[Any], **columns: Any) -> list[float]:
        return [float(columns["label"]) for completion in completions]

    async def judge(completions: list[Any], **columns: Any) -> None:
        await asyncio.sleep(0)

    assert probe_reward("parses", parses, ROW) == Probe(
        raised="reward parses raised KeyError: 'label' for an empty completion"
    )
    assert "reward judge returned NoneType for 2 completions" in str(probe_reward("judge", judge, ROW).fault)
