"""Adapters reach vLLM by themselves: what it can take, that nothing is merged, and when a run stops."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import process, python
from peft import LoraConfig, get_peft_model
from test_sampler_check import under_vllm

from gtpo.common.errors import UserError
from gtpo.config import BuiltModel, load_config
from gtpo.inputs.tiny import build_tiny_model
from gtpo.trainer.adapter_sync import adapter_obstacle, adapter_tensors

SPEC = BuiltModel(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)


def adapted(**settings: Any) -> Any:
    model, _ = build_tiny_model(SPEC, max_seq_length=96, seed=0)
    plain: dict[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]}
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **{**plain, **settings}))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        ({"use_rslora": True}, None),
        ({"alpha_pattern": {"q_proj": 1}}, None),
        ({"use_dora": True}, "lora_magnitude_vector.default.weight is trained"),
        ({"modules_to_save": ["lm_head"]}, "lm_head.modules_to_save.default.weight is trained"),
        ({"bias": "lora_only"}, None),  # these layers have none
        ({"init_lora_weights": "pissa"}, "has changed the base"),
        ({"rank_pattern": {"q_proj": 2}}, "its ranks are 2, 4"),
        ({"r": 600}, "its ranks are 600"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "embed_tokens.lora_embedding_A.default is trained"),
    ],
)  # fmt: skip
def test_what_vllm_has_no_lora_for(settings: dict[str, Any], reason: str | None) -> None:
    model = adapted(**settings)
    found = adapter_obstacle(model)
    assert found is None if reason is None else reason in str(found)
    model.get_base_model().model.norm.weight.requires_grad_(True)
    assert reason or "norm.weight is trained, and is no A or B of a LoRA layer" in str(adapter_obstacle(model))


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 1}}])
def test_tensors_are_the_update_of_each_layer(settings: dict[str, Any]) -> None:
    """B A as it travels is what PEFT would add to the weight, whatever its scaling."""
    model = adapted(**settings)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    tensors = adapter_tensors(model)
    assert len(tensors) == 4
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    path = "base_model.model.model.layers.0.self_attn.q_proj"
    found = tensors[f"{path}.lora_B.weight"] @ tensors[f"{path}.lora_A.weight"]
    torch.testing.assert_close(found, layer.get_delta_weight("default"))


def test_check_sums_over_a_step_and_stops_beyond_the_tolerance(tmp_path: Path) -> None:
    trainer = under_vllm(tmp_path, 0.05)

    def observe(step: int, difference: float, tokens: int, *, last: bool, **more: Any) -> None:
        trainer.state.global_step = step - 1
        trainer.accelerator.gradient_state._set_sync_gradients(last)
        ids = torch.zeros(1, tokens, dtype=torch.long)
        batch = {"completion_ids": ids, "completion_mask": torch.ones_like(ids), "prompt_ids": ids[:, :1] + 5}
        batch |= {"prompt_mask": torch.ones(1, 1), "sampling_per_token_logps": torch.zeros(1, tokens), **more}
        trainer.sampler.observe(torch.full((1, tokens), difference / tokens), batch)

    observe(1, 0.4, 10, last=True, tool_mask=torch.arange(10)[None] < 4)  # a tool wrote the others
    observe(1, 0.4, 10, last=True, sampling_per_token_logps=torch.tensor([[0.04, torch.nan] * 5]))  # vLLM gave half
    observe(2, 0.6, 4, last=False)  # 0.15 of few tokens; 0.04 over the step
    observe(2, 0.2, 16, last=True)
    assert trainer._metrics["train"]["sampling/logp_difference"] == pytest.approx([0.04, 0.0, 0.15, 0.0125])
    with pytest.raises(UserError, match=r"step 3: .* by 0.06 nats per token over 10 tokens, the tolerance is 0.05"):
        observe(3, 0.6, 10, last=True)
    with pytest.raises(UserError, match="by nan"):
        observe(4, math.nan, 10, last=True)


def test_config_is_refused_before_the_start(root: Path) -> None:
    paper = root / "configs/paper/llama-gsm8k-gtpo-g8.yaml"
    with pytest.raises(UserError, match=r"model.lora_rank 1024: vLLM takes adapters up to rank 512"):
        load_config(paper, {"model.lora_rank": 1024})
    with pytest.raises(UserError, match="a vLLM server reads no 4-bit weights"):
        load_config(paper, {"rollout.engine": "vllm_server"})
    load_config(paper, {"rollout.engine": "vllm_server", "model.load_in_4bit": False})


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def synchronised(root: Path, *words: str) -> dict[str, Any]:
    script = Path(__file__).with_name("adapter_sync_run.py")
    done = python(script, *words, cwd=root, env=environment(root), timeout=500)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("base", ["4bit", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_fifty_synchronisations_leave_the_base_and_the_difference(root: Path, base: str) -> None:
    found = synchronised(root, base, "50")
    assert found["steps"] == 50
    assert found["largest_b"] > 0.1, "the adapter moved"
    assert found["base_unchanged"] == {"trainer": True, "vllm": True}
    assert 0 < found["difference_largest"] < found["tolerance"]
    assert found["difference_last"] < 3 * found["difference_first"]


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_null_merging_moves_a_bfloat16_base(root: Path) -> None:
    """TRL's own synchronisation fails the test above: what it measures can be seen."""
    found = synchronised(root, "bfloat16", "5", "--merge")
    assert found["base_unchanged"] == {"trainer": False}


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("packed", [pytest.param(True, marks=pytest.mark.slow), False])
def test_paper_recipe_starts(root: Path, tmp_path: Path, packed: bool) -> None:
    """The paper's recipe on a small model: `--dry-run` and a step, in 4 bits and in bfloat16."""
    for part in build_tiny_model(SPEC, max_seq_length=128, seed=0):
        part.save_pretrained(tmp_path / "model")
    flags = {
        "model.model_name": str(tmp_path / "model"),
        "model.max_seq_length": 128,
        "model.load_in_4bit": packed,
        "model.dtype": "auto" if packed else "bfloat16",
        "training.max_completion_length": 16,
        "training.max_prompt_length": 100,
        "training.max_steps": 1,
        "training.optimizer": "adamw_torch",
        "objective.filter": "never",
        "dataset.name": "arithmetic",
        "dataset.system_instruction": "",
        "dataset.limit": 16,
    }
    command = [sys.executable, str(root / "cli.py"), "train", str(root / "configs/paper/llama-gsm8k-gtpo-g8.yaml")]
    for name, value in flags.items():
        command += [f"--{name}", str(value).lower() if isinstance(value, bool) else str(value)]
    for last in (["--dry-run"], []):
        process(*command, *last, cwd=tmp_path, env=environment(root), timeout=500)
    (lines,) = tmp_path.glob("results/train/*/metrics.jsonl")
    assert 0 < json.loads(lines.read_text())["sampling/logp_difference"] < (1e-3 if packed else 5e-2)
