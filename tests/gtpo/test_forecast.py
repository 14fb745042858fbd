"""Dimensions, parameters and the memory forecast."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gtpo.common.errors import UserError
from gtpo.config import load_config
from gtpo.inputs.model_shape import KNOWN_MODELS, ModelShape, find_shape, find_weights, shape_of_config
from gtpo.plan.memory import GIB, SAVED, Forecast, Part, activation_bytes, forecast, memory_advice

LLAMA = KNOWN_MODELS["meta-llama/llama-3.1-8b-instruct"]
QWEN = KNOWN_MODELS["qwen/qwen2.5-3b-instruct"]
RECIPE = Path(__file__).resolve().parents[2] / "configs" / "paper" / "llama-gsm8k-gtpo-g8.yaml"


def recipe(**overrides: Any) -> Any:
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config(RECIPE, dotted, world_size=1)


def parts(config: Any, shape: ModelShape = LLAMA) -> dict[str, float]:
    return {part.name: part.gib for part in forecast(config, shape).parts}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("meta-llama/llama-3.1-8b-instruct", 8_030_261_248),
        ("meta-llama/llama-3.2-1b-instruct", 1_235_814_400),
        ("meta-llama/llama-3.2-3b-instruct", 3_212_749_824),
        ("qwen/qwen2.5-0.5b-instruct", 494_032_768),
        ("qwen/qwen2.5-1.5b-instruct", 1_543_714_304),
        ("qwen/qwen2.5-3b-instruct", 3_085_938_688),
        ("qwen/qwen2.5-7b-instruct", 7_615_616_512),
    ],
)
def test_parameters_are_those_on_the_model_cards(name: str, parameters: int) -> None:
    assert KNOWN_MODELS[name].parameters == parameters


@pytest.mark.parametrize(("rank", "millions"), [(16, 29.9), (32, 59.9), (64, 119.7)])
def test_adapters_match_the_published_logs(rank: int, millions: float) -> None:
    assert round(QWEN.adapter_parameters(rank, list(QWEN.linear_layers)) / 1e6, 1) == millions


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_match_a_real_model(architecture: str, tied: bool) -> None:
    from gtpo.config import BuiltModel
    from gtpo.inputs.tiny import build_tiny_model

    spec = BuiltModel(
        architecture=architecture,  # type: ignore[arg-type]
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=tied,
    )
    model, _ = build_tiny_model(spec, max_seq_length=32, seed=0)
    shape = shape_of_config(model.config.to_dict())
    assert shape is not None
    assert shape.parameters == sum(p.numel() for p in model.parameters())


def test_adapters_match_peft() -> None:
    from peft import LoraConfig, get_peft_model

    from gtpo.config import BuiltModel
    from gtpo.inputs.tiny import build_tiny_model

    model, _ = build_tiny_model(BuiltModel(hidden_size=32, intermediate_size=48), max_seq_length=32, seed=0)
    shape = shape_of_config(model.config.to_dict())
    assert shape is not None
    targets = ["q_proj", "v_proj", "down_proj"]
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=targets))
    assert shape.adapter_parameters(4, targets) == sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def saved_bytes(shape: ModelShape, kind: str, tokens: int) -> int:
    """Run a real Llama forward and add up the storages that autograd keeps, parameters aside."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    fields = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
              "num_key_value_heads", "head_dim")  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**{name: getattr(shape, name) for name in fields}, tie_word_embeddings=True))
    body: Any = model
    if kind == "half":
        adapted: Any = get_peft_model(
            model.to(torch.bfloat16), LoraConfig(r=2, target_modules=list(shape.linear_layers))
        )
        body = adapted.base_model.model
    body.train()
    own = {parameter.untyped_storage().data_ptr() for parameter in body.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=kind != "float32"),
    ):
        hidden = body.model(input_ids=torch.zeros(4, tokens // 4, dtype=torch.long)).last_hidden_state
    assert hidden.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("kind", sorted(SAVED))
def test_activations_are_what_a_real_model_keeps(kind: str) -> None:
    shape = ModelShape(64, 192, 640, 5, 6, 2, 32, tied=True)
    assert activation_bytes(shape, 512, kind, checkpointed=False) == pytest.approx(
        saved_bytes(shape, kind, 512), rel=0.05
    )


def test_logits_bound_is_that_of_the_fused_loss() -> None:
    from gtpo.kernels.chunks import CHUNK_BYTES, TRAINABLE_ROWS
    from gtpo.plan.memory import KEPT_ROWS, LOGITS_BYTES

    assert LOGITS_BYTES == CHUNK_BYTES
    assert {device: most for device, (_, most) in TRAINABLE_ROWS.items()} == KEPT_ROWS
    assert parts(recipe())["loss"] == pytest.approx((2 * CHUNK_BYTES["cuda"] + 8 * 5500 * 4096 * 2) / GIB)


def test_parts_follow_the_config() -> None:
    base = parts(recipe())
    assert base["optimizer states"] == pytest.approx(2 * base["gradients"])  # 8 bytes against float32
    eight_bit = parts(recipe(training__adam_beta1=0.9, training__adam_beta2=0.95))
    assert eight_bit["optimizer states"] == pytest.approx(base["optimizer states"] / 4)
    assert parts(recipe(model__load_in_4bit=False))["base weights"] == pytest.approx(LLAMA.parameters * 2 / GIB)
    full = parts(recipe(model__load_in_4bit=False, model__lora_rank=0))
    assert "adapters" not in full
    assert full["base weights"] == full["gradients"] == pytest.approx(LLAMA.parameters * 4 / GIB)
    half = parts(recipe(training__per_device_train_batch_size=4, training__gradient_accumulation_steps=2))
    assert half["activations"] == pytest.approx(base["activations"] / 2)
    assert parts(recipe(training__gradient_checkpointing=False))["activations"] > 5 * base["activations"]
    assert "reference model" in parts(
        recipe(method="grpo", objective=None, training__beta=0.1, model__lora_rank=0, model__load_in_4bit=False)
    )
    assert "KV cache" not in parts(recipe(method="sft", objective=None, rollout=None))
    assert "KV cache" in parts(recipe(rollout__engine="transformers"))
    assert "KV cache" not in base
    for packed in (True, False):  # vLLM's copy is in 16 bits either way
        assert forecast(recipe(model__load_in_4bit=packed), LLAMA).vllm_weights_gib == pytest.approx(14.96, abs=0.01)


def test_vllm_must_hold_its_own_weights() -> None:
    memory = Forecast([Part("all", 11.0, "")], vllm_share=0.4, vllm_weights_gib=15.0, engine="vllm")
    assert not memory.fits(39)  # 15.6 GiB: the weights and no cache
    assert memory.smallest_gpu() == 40  # 16.0 GiB: weights and a cache of 1.0
    assert Forecast([Part("all", 500.0, "")], 0.0, 0.0, "transformers").smallest_gpu() is None


def test_context_and_fragmentation_are_counted_and_the_engine_is_named() -> None:
    base = parts(recipe(rollout__engine="transformers"))
    assert base["CUDA context"] == pytest.approx(0.75)
    assert base["fragmentation"] == pytest.approx(0.1 * (base["activations"] + base["loss"] + base["KV cache"]))
    for engine, counted in (("auto", "transformers"), ("vllm", "vllm"), ("vllm_server", "vllm_server")):
        assert forecast(recipe(rollout__engine=engine), LLAMA).engine == counted
    assert forecast(recipe(method="sft", objective=None, rollout=None), LLAMA).engine == "none"
    on_a_cpu = parts(recipe(model__dtype="float32", model__load_in_4bit=False))
    assert not {"CUDA context", "fragmentation"} & set(on_a_cpu)


def test_shape_from_a_folder_a_train_run_and_an_adapter(tmp_path: Path) -> None:
    values = {
        "model_type": "qwen2",
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "tie_word_embeddings": True,
    }
    (tmp_path / "run" / "best").mkdir(parents=True)
    for name in ("run.json", "config.yaml"):
        (tmp_path / "run" / name).write_text("{}")
    (tmp_path / "run" / "best" / "config.json").write_text(json.dumps(values))
    config = recipe(model__model_name=str(tmp_path / "run"))
    shape, origin = find_shape(config.model, find_weights(config.model).source)
    assert shape == ModelShape(100, 32, 64, 2, 4, 4, 8, tied=True, attention_bias=True)
    assert origin.endswith("best/config.json")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-3B-Instruct"})
    )
    assert find_shape(config.model, str(tmp_path / "adapter")) == (QWEN, "embedded table")
    with pytest.raises(UserError, match="no such folder"):
        find_weights(recipe(model__model_name="./nowhere").model)


@pytest.mark.parametrize("values", [{}, {"hidden_size": 4}, {"text_config": {"hidden_size": "x"}}])
def test_foreign_config_has_no_shape(values: dict[str, Any]) -> None:
    assert shape_of_config(values) is None


OUT = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"per_device_train_batch_size": 8}, "batch_size 8 -> 4 with training.gradient_accumulation_steps 1 -> 2 (the"),
        ({"per_device_train_batch_size": 9, "num_generations": 3}, "batch_size 9 -> 3 with training.gradient_acc"),
        (
            {"steps_per_generation": 2, "per_device_train_batch_size": 8},
            "and training.steps_per_generation 2 -> 4 (the",
        ),
    ],
)
def test_advice_of_a_smaller_batch_resolves_to_the_same_step(changes: dict[str, Any], words: str) -> None:
    def completions(config: Any) -> tuple[int, int]:
        training = config.training
        rounds = training.steps_per_generation or training.gradient_accumulation_steps
        batch = training.per_device_train_batch_size
        return batch * training.gradient_accumulation_steps, batch * rounds

    config = recipe(**{f"training__{name}": value for name, value in changes.items()})
    advice = memory_advice(config, OUT)
    assert words in advice
    line = advice.partition("in this order: ")[2].split(" (the same gradient)")[0]
    advised = dict(re.findall(r"training\.(\w+) \d+ -> (\d+)", line))
    followed = recipe(**{f"training__{name}": value for name, value in {**changes, **advised}.items()})
    assert completions(followed) == completions(config)
    assert followed.training.per_device_train_batch_size == int(advised["per_device_train_batch_size"])


def test_advice_names_only_what_acts() -> None:
    sft = memory_advice(recipe(method="sft", objective=None, rollout=None), OUT)
    assert "max_completion_length" not in sft
    assert "gpu_memory_utilization" not in sft
    assert "model.max_seq_length" in sft
    assert "-> 0.3 (vLLM's share)" in memory_advice(recipe(rollout__engine="vllm"), OUT)
    for changes in (
        {"rollout__engine": "transformers"},
        {"rollout__engine": "vllm", "model__gpu_memory_utilization": 0.2},
    ):
        assert "gpu_memory_utilization" not in memory_advice(recipe(**changes), OUT)
