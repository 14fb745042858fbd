"""The embedded default model: lossless tokenizer, one-token tags, the same weights for the same seed."""

from __future__ import annotations

import random

import pytest
import torch

from gtpo.config import BuiltModel
from gtpo.inputs.tiny import TAGS, build_tiny_model, build_tokenizer, damage_target
from gtpo.rewards import accuracy_reward, format_reward
from gtpo.rewards.data.problem import target_text

SMALL = BuiltModel(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)


def test_any_text_survives_the_tokenizer():
    tokenizer = build_tokenizer()
    for text in ("<reasoning>\n1+2=3\n</reasoning>\n<answer>3</answer>", "π ≠ 3,14…\u2028\t\x00", "  two  spaces "):
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_tags_and_digits_are_single_tokens():
    tokenizer = build_tokenizer()
    for text in (*TAGS, *"0123456789"):
        assert len(tokenizer(text).input_ids) == 1
    assert len(tokenizer("123").input_ids) == 3


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_the_seed_decides_the_weights(architecture):
    spec = SMALL.model_copy(update={"architecture": architecture})
    state = torch.random.get_rng_state()
    first, again, other = (build_tiny_model(spec, max_seq_length=64, seed=s)[0].state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state), "building must not move the global generator"
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_every_damage_costs_the_format_or_the_answer():
    target = target_text("9+8=17\n17+1=18", "18")
    rng = random.Random(0)
    damaged = sorted({damage_target(target, rng) for _ in range(200)})
    assert len(damaged) == 3 + 4
    rewards = list(zip(format_reward(damaged), accuracy_reward(damaged, answer=["18"] * len(damaged)), strict=True))
    assert rewards.count((10.0, 0.0)) == 4
    assert sum(form < 10 for form, _ in rewards) == 3
