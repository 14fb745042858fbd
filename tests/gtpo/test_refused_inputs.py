"""Inputs that cannot be trained with, as a TRL user and as a user of the command line meet them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from logs import logged
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from test_train_run import config_of, run
from test_trainer import PROMPTS, arguments
from transformers import AutoModelForCausalLM, AutoTokenizer

from gtpo import GTPOTrainer
from gtpo.common.errors import UserError
from gtpo.dry_run import check_trl


def test_reward_that_raises_is_a_warning_before_the_model_is_loaded(folder: Path, tmp_path: Path) -> None:
    def reward(completions: list[Any], **columns: Any) -> list[float]:
        return [float(label) for label in columns["label"]]

    with logged() as told:
        GTPOTrainer(str(folder), reward, arguments(tmp_path), Dataset.from_dict({"prompt": PROMPTS}))
    assert told == [
        "reward reward raised KeyError: 'label' for an empty completion; training stops where it raises (return None "
        "to leave one unscored)"
    ]


def test_target_modules_that_the_model_lacks_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.target_modules qproj, vproj: no layer .* has down_proj, gate_proj"):
        run(tmp_path, **{"model.lora_rank": 4, "model.target_modules": ["qproj", "vproj"]})
    with pytest.raises(UserError, match=r"model\.target_modules input_layernorm: .* is a LlamaRMSNorm, which takes no"):
        run(tmp_path, **{"model.lora_rank": 4, "model.target_modules": ["q_proj", "input_layernorm"]})
    changes = {"run_name": "some", "model.target_modules": ["q_proj", "vproj"], "training.max_steps": 1}
    with logged() as told:
        run(tmp_path, **{"model.lora_rank": 4}, **changes)
    assert any("vproj: no layer of this name" in line for line in told)


def test_a_broken_base_model_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    """A config.json that is none, or an adapter's without its base: tests/golden/refused-train.txt."""
    config, file = folder / "config.json", next(folder.glob("*.safetensors"))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"intermediate_size": 64}))
    with pytest.raises(UserError, match=r"no model could be loaded from .* are its config\.json and weights whole"):
        run(tmp_path, **{"model.build": None, "model.model_name": str(folder)})
    file.write_bytes(file.read_bytes()[:2000])
    broken = {"model.build": None, "model.model_name": str(folder)}
    with pytest.raises(UserError, match=r"no model could be loaded from .*header"):
        run(tmp_path, **broken)
    # A mistake in the config is told before.
    with pytest.raises(UserError, match=r'Did you mean "--lora\.use_dora"'):
        run(tmp_path, **broken, **{"model.lora_rank": 2, "lora.use_dor": True})


@pytest.mark.parametrize(
    ("adapter", "kept", "words"),
    [
        (LoraConfig(target_modules=["q_proj"]), "lora_A", "Found missing adapter keys .*lora_B"),
        (LoraConfig(target_modules=["embed_tokens"]), "", "logits differ by up to .* from those with the adapter"),
        (PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"), "", "cannot be loaded and merged"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_not_trained_on(
    folder: Path, tmp_path: Path, adapter: Any, kept: str, words: str
) -> None:
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), adapter)
    for weight in adapted.parameters():
        weight.data += 0.1 * weight.requires_grad
    adapted.save_pretrained(tmp_path / "adapter")
    weights = load_file(tmp_path / "adapter/adapter_model.safetensors")
    save_file({key: w for key, w in weights.items() if kept in key}, tmp_path / "adapter/adapter_model.safetensors")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "adapter")
    with pytest.raises(UserError, match=words):
        run(tmp_path, **{"model.build": None, "model.model_name": str(tmp_path / "adapter")})


def test_a_model_of_frozen_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    frozen = AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)
    with pytest.raises(ValueError, match="no weight of the model is trained"):
        GTPOTrainer(
            frozen,
            lambda completions, **_: [0.0] * len(completions),
            arguments(tmp_path),
            Dataset.from_dict({"prompt": PROMPTS}),
        )


ITERATIONS = {"training.num_iterations": 2}


@pytest.mark.parametrize(
    ("version", "gpu", "changes", "words"),
    [
        ("1.15.0", False, {"method": "grpo"}, "method grpo needs a GPU with TRL 1.15"),
        ("1.15.0", False, ITERATIONS, "training.num_iterations"),
        ("1.15.0", False, {}, None),
        ("1.15.0", True, {"method": "grpo", **ITERATIONS}, None),
        ("1.16.0", False, {"method": "grpo", **ITERATIONS}, None),
    ],
)
def test_trl_115_on_a_cpu(
    version: str, gpu: bool, changes: dict[str, Any], words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, **changes)
    monkeypatch.setattr(metadata, "version", lambda name: version)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu)
    with pytest.raises(UserError, match=words) if words else nullcontext():
        check_trl(config)
