"""4-bit weights and 8-bit optimizers, for real: bitsandbytes computes on a CPU too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import python
from safetensors.torch import load_file
from test_train_run import PLAIN as SHORT
from test_train_run import STEPS, crash, flat, metrics

from gtpo.config import BuiltModel, TrainConfig, load_config
from gtpo.dry_run import find_weights
from gtpo.inputs.model import load_model
from gtpo.inputs.tiny import build_tiny_model
from gtpo.train.command import train

pytest.importorskip("bitsandbytes")

PLAIN: dict[str, Any] = {
    **SHORT,
    # Adapters of 32 x 128 = 4096 numbers: bitsandbytes keeps the states of smaller tensors in float32.
    "model": {"load_in_4bit": True, "lora_rank": 32, "max_seq_length": 96},
    "training": {**SHORT["training"], "optimizer": "paged_adamw_8bit", "log_completions_steps": 0},
}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    spec = BuiltModel(hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2)
    for part in build_tiny_model(spec, max_seq_length=96, seed=0):
        part.save_pretrained(folder)
    return folder


def config_of(folder: Path, base: Path, **changes: Any) -> TrainConfig:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**PLAIN, "model": {**PLAIN["model"], "model_name": str(base)}}))
    return load_config(path, changes)


def run(folder: Path, base: Path, **changes: Any) -> Path:
    return train(config_of(folder, base, **changes), results_dir=folder / "results")


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested dict."""
    if isinstance(value, dict):
        return [tensor for inner in value.values() for tensor in tensors(inner)]
    return [value] if isinstance(value, torch.Tensor) else []


def test_base_is_packed_and_the_adapter_is_not(tmp_path: Path, base: Path) -> None:
    config = config_of(tmp_path, base)
    model = load_model(config, find_weights(config.model)).model
    layer = model.model.layers[0].self_attn.q_proj
    assert type(layer).__name__ == "Linear4bit"
    assert (layer.weight.dtype, layer.weight.numel()) == (torch.uint8, 128 * 128 // 2)
    assert layer.weight.quant_state.quant_type == "nf4"
    # On a CPU it computes in float32; float16 would be emulated there, and bfloat16 keep three digits.
    assert layer.compute_dtype == (torch.float32 if not torch.cuda.is_available() else layer.compute_dtype)


def test_run_resume_and_evaluation(tmp_path: Path, base: Path, root: Path) -> None:
    """LoRA on NF4 weights with a paged 8-bit Adam: resumed, it is the uninterrupted run; the adapter is evaluated."""
    whole = run(tmp_path / "whole", base)
    crash(3, lambda: run(tmp_path / "cut", base))
    cut = run(tmp_path / "cut", base)
    assert metrics(cut) == metrics(whole)
    about = json.loads((whole / "run.json").read_text())["parameters"]
    weights = load_file(base / "model.safetensors")
    assert about["all"] == about["trained"] + sum(weight.numel() for weight in weights.values()), "none is packed"
    found, expected = (load_file(folder / "final/adapter_model.safetensors") for folder in (cut, whole))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    # bfloat16 would round updates of 1e-6 away.
    assert {tensor.dtype for tensor in expected.values()} == {torch.float32}
    assert any(tensor.abs().max() > 1e-3 for name, tensor in expected.items() if "lora_B" in name)
    checkpoint = f"checkpoints/checkpoint-{STEPS}/optimizer.pt"
    states = [torch.load(folder / checkpoint, weights_only=False) for folder in (cut, whole)]
    assert flat(states[0]) == flat(states[1])
    dtypes = {value.dtype for value in tensors(states[1]["state"])}
    assert torch.uint8 in dtypes, "bitsandbytes kept no state in 8 bits"

    command = [root / "cli.py", "eval", whole, "--benchmarks", "arithmetic", "--limit", "4"]
    command += ["--k", "2", "--max-tokens", "6", "--engine", "transformers", "--out", tmp_path / "eval", "--quiet"]
    python(*command)
    assert json.loads((tmp_path / "eval/eval.json").read_text())["status"] == "complete"


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_baselines_run_on_the_same_weights(method: str, tmp_path: Path, base: Path) -> None:
    folder = train(config_of(tmp_path, base, method=method, **{"training.max_steps": 2}), results_dir=tmp_path)
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert all(row["grad_norm"] > 0 for row in metrics(folder))


def test_experts_that_stay_unquantised_are_named(tmp_path: Path) -> None:
    from test_mixture_of_experts import save_model

    folder = run(tmp_path / "run", save_model(tmp_path / "experts", "Qwen3Moe"), **{"training.max_steps": 1})
    (note,) = (note for note in json.loads((folder / "run.json").read_text())["notes"] if "4bit" in note)
    assert note.startswith("model.load_in_4bit: the experts stay unquantised")
