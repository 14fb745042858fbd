"""What `--dry-run` says of memory, against real models, and what is advised after a GPU ran out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from test_train_run import config_of as tiny_config
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MixtralConfig, Qwen2Config

from gtpo import GTPOTrainer
from gtpo.common.errors import UserError
from gtpo.config import load_config
from gtpo.dry_run import GIB, MEASURED, dry_run, find_weights, memory, model_on_meta, optimizer_steps
from gtpo.inputs.dataset import TrainingProblems
from gtpo.inputs.model import lora_config
from gtpo.inputs.tiny import build_tiny_model
from gtpo.rewards.data.problem import Problem
from gtpo.train.resume import ExactCheckpoints
from gtpo.train.session import trainer_arguments

RECIPE = Path(__file__).resolve().parents[2] / "configs" / "paper" / "llama-gsm8k-gtpo-g8.yaml"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SMALL = LlamaConfig(
    vocab_size=64, hidden_size=192, intermediate_size=640, num_hidden_layers=5, num_attention_heads=6,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
QWEN = Qwen2Config(
    vocab_size=151936, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip


def recipe(**overrides: Any) -> Any:
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config(RECIPE, dotted, world_size=1)


def on_meta(settings: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(settings)


def items(config: Any, settings: Any = SMALL) -> dict[str, float]:
    return {item.name: item.gib for item in memory(config, on_meta(settings))}


def test_parameters_and_adapters_are_counted_on_the_models_own_architecture() -> None:
    """3B as on its model card, and the adapters of the published logs: 119.7 million."""
    config = recipe(model__lora_rank=64, model__load_in_4bit=False)
    found = {item.name: item for item in memory(config, on_meta(QWEN))}
    assert found["weights"].basis.startswith("3,085,938,688 parameters")
    assert found["weights"].gib == 3_085_938_688 * 2 / GIB
    assert found["adapters"].gib == pytest.approx(119.7e6 * 4 / GIB, rel=1e-3)


def test_adapters_are_those_of_peft_and_experts_count_too() -> None:
    for targets, whole in ((["q_proj", "v_proj", "down_proj"], ["lm_head", "norm"]), ("all-linear", [])):
        lora = {"model__lora_rank": 4, "model__target_modules": targets, "lora__modules_to_save": whole}
        config, model = recipe(**lora), LlamaForCausalLM(SMALL)
        given = LoraConfig(r=4, target_modules=targets, modules_to_save=whole, task_type="CAUSAL_LM")
        ours = get_peft_model(model, lora_config(config, model))
        names = {name for name, weight in ours.named_parameters() if weight.requires_grad}
        adapted = get_peft_model(LlamaForCausalLM(SMALL), given)
        trained = {name: p.numel() for name, p in adapted.named_parameters() if p.requires_grad}
        assert names == trained.keys()
        assert items(config)["adapters"] == 4 * sum(trained.values()) / GIB
    mixture = MixtralConfig(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                            num_attention_heads=4, num_key_value_heads=2, num_local_experts=4)  # fmt: skip
    whole = recipe(model__lora_rank=0, model__load_in_4bit=False)
    real = sum(p.numel() for p in AutoModelForCausalLM.from_config(mixture).parameters())
    assert items(whole, mixture)["weights"] == 4 * real / GIB


def test_shards_divide_what_is_held_and_gather_what_is_computed_with() -> None:
    whole = recipe(
        model__lora_rank=0, model__load_in_4bit=False, training__optimizer="adamw_torch", rollout__engine="transformers"
    )
    plain = items(whole)
    for shard in ("fsdp2", "zero3"):
        found = {item.name: item.gib for item in memory(whole, on_meta(SMALL), shard, 4)}
        for name in ("weights", "gradients", "optimizer"):
            assert found[name] == plain[name] / 4
        layer = sum(p.numel() for p in LlamaForCausalLM(SMALL).model.layers[0].parameters())
        assert found["gathered"] == (2 * (2 * layer + 64 * 192) + 4 * layer) / GIB
        assert ("sampling" in found) == (shard == "zero3")
        rest = found.keys() - {"weights", "gradients", "optimizer", "gathered", "sampling"}
        assert {name: found[name] for name in rest} == {name: plain[name] for name in rest}
    with pytest.raises(UserError, match="not known how it divides 4-bit weights"):
        dry_run(recipe(model__lora_rank=4, model__load_in_4bit=True), shard="fsdp2", processes=4)


def test_more_processes_are_refused_what_they_would_be_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Four processes take eight prompts for a round of sampling."""
    given = {"training.per_device_train_batch_size": 8, "training.gradient_accumulation_steps": 1,
             "training.num_generations": 4, "dataset.name": "arithmetic", "dataset.limit": 4}  # fmt: skip
    config = load_config("laptop/first-steps", given, world_size=4)
    dry_run(config, processes=2)
    assert "(4 prompts)" in capsys.readouterr().out
    with pytest.raises(UserError, match="4 usable problems do not fill one rollout, which takes 8"):
        dry_run(config, processes=4)


def saved_bytes(frozen: bool, tokens: int) -> int:
    """Run a real Llama forward and add up the storages that autograd keeps, parameters aside."""
    model: Any = LlamaForCausalLM(SMALL)
    if frozen:
        model = get_peft_model(model.bfloat16(), LoraConfig(r=2, target_modules=TARGETS)).base_model.model
    model.train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        model.model(input_ids=torch.zeros(4, tokens // 4, dtype=torch.long))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("frozen", [True, False])
def test_activations_are_what_a_real_model_keeps(frozen: bool) -> None:
    size = {"training__max_prompt_length": 64, "training__max_completion_length": 64, "model__lora_rank": 2 * frozen}
    config = recipe(**size, training__gradient_checkpointing=False, model__load_in_4bit=False,
                    training__per_device_train_batch_size=8)  # fmt: skip
    # The copies of trained weights in 16 bits, which autocast keeps, are as large for any number of tokens.
    more, fewer = saved_bytes(frozen, 1024), saved_bytes(frozen, 512)
    assert items(config)["activations"] * GIB == pytest.approx(2 * (more - fewer), rel=0.06)


def test_items_follow_the_config() -> None:
    base = items(recipe())
    assert "optimizer" not in base, "paged"
    assert items(recipe(training__optimizer="adamw_torch"))["optimizer"] == pytest.approx(2 * base["gradients"])
    assert items(recipe(model__load_in_4bit=False))["weights"] > 3 * base["weights"]
    full = items(recipe(model__load_in_4bit=False, model__lora_rank=0))
    assert "adapters" not in full
    assert full["weights"] == full["gradients"]
    half = items(recipe(training__per_device_train_batch_size=4, training__gradient_accumulation_steps=2))
    assert half["activations"] == pytest.approx(base["activations"] / 2)
    assert items(recipe(training__gradient_checkpointing=False))["activations"] > 3 * base["activations"]
    changes = {"model__lora_rank": 0, "model__load_in_4bit": False}
    assert "untrained model" in items(recipe(method="grpo", objective=None, training__beta=0.1, **changes))
    assert "KV cache" not in items(recipe(method="sft", objective=None, rollout=None))
    assert "KV cache" in items(recipe(rollout__engine="transformers"))
    assert "KV cache" not in items(recipe(rollout__engine="vllm"))


def test_model_of_a_folder_a_train_run_and_an_adapter(tmp_path: Path) -> None:
    (tmp_path / "run" / "best").mkdir(parents=True)
    for name in ("run.json", "config.yaml"):
        (tmp_path / "run" / name).write_text("{}")
    SMALL.save_pretrained(tmp_path / "run" / "best")
    config = recipe(model__model_name=str(tmp_path / "run"))
    weights = find_weights(config.model)
    assert model_on_meta(config, weights).config.hidden_size == 192
    assert weights.endswith("best")
    (tmp_path / "adapter").mkdir()
    about = {"base_model_name_or_path": str(tmp_path / "run/best")}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(about))
    found = model_on_meta(config, str(tmp_path / "adapter"))
    assert {p.device.type for p in found.parameters()} == {"meta"}
    assert AutoConfig.from_pretrained(tmp_path / "run/best").hidden_size == found.config.hidden_size


SHAPES = {"q1": (1536, 8960, 28, 12), "q05": (896, 4864, 24, 14), "q3": (2048, 11008, 36, 16)}
"""Of Qwen2.5-1.5B, 0.5B and 3B: hidden size, width of the MLP, layers, heads."""


def test_the_error_on_a_gpu_is_what_the_dry_run_says(root: Path, tmp_path: Path) -> None:
    page, folder, shares = (root / "configs/README.md").read_text(), root / "results/published/gpu", []
    lengths = {"training.max_prompt_length": 268, "training.max_completion_length": 256}
    for run, (hidden, inner, layers, heads) in SHAPES.items():
        given, config = {"rollout.engine": "transformers"}, "desk/qwen-1.5b-gsm8k-gtpo"
        if run != "q1":
            stored = yaml.safe_load((folder / run / "config.yaml").read_text())
            del stored["training"]["max_padding"]  # a key of that time, unset
            config = str(tmp_path / "config.yaml")
            Path(config).write_text(yaml.safe_dump(stored))
        shape = Qwen2Config(
            vocab_size=151936, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=2, tie_word_embeddings=True,
        )  # fmt: skip
        needed = sum(items(load_config(config, given | lengths, world_size=1), shape).values())
        peak = json.loads((folder / run / "run.json").read_text())["peak_memory_bytes"] / 2**30
        assert f"| {needed:.2f} | {peak:.2f} |" in page, (run, needed)
        shares.append(peak / needed)
    assert f"was {min(shares):.2f} to {max(shares):.2f} of this sum" in MEASURED


# -- optimizer steps, against what TRL and transformers make of the same config ----------------------------------------


def config_of_steps(folder: Path, method: str = "gtpo", **training: Any) -> Any:
    given = {"num_generations": 8, "max_steps": -1, "max_prompt_length": 80} | training
    changes = {f"training.{name}": value for name, value in given.items()}
    return tiny_config(folder, method=method, **changes, **{"dataset.limit": None})


@pytest.mark.parametrize(
    ("batch", "accumulation", "rounds", "iterations", "rows", "epochs"),
    [(8, 1, None, 1, 20, 1), (16, 2, None, 1, 21, 1), (4, 2, None, 1, 9, 2), (8, 1, 2, 1, 9, 1), (8, 2, 1, 1, 9, 1),
     (16, 1, None, 2, 7, 1.5), (8, 3, None, 1, 10, 1), (4, 2, 4, 2, 11, 1)],
)  # fmt: skip
def test_steps_are_those_of_the_trainer(
    tmp_path: Path, batch: int, accumulation: int, rounds: int | None, iterations: int, rows: int, epochs: float
) -> None:
    config = config_of_steps(
        tmp_path,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=rounds,
        num_iterations=iterations,
        num_train_epochs=epochs,
    )
    problems = [Problem(str(n), f"{n}+1", str(n + 1)) for n in range(rows)]
    data = Dataset.from_list(TrainingProblems(config, problems).select(None)[0])
    model, tokenizer = build_tiny_model(config.model.build, max_seq_length=96, seed=0)
    arguments = trainer_arguments(config, tmp_path / "checkpoints", "float32")
    assert arguments.generation_batch_size // arguments.num_generations == config.training.prompts_per_rollout(1)
    trainer = GTPOTrainer(
        model=model,
        args=arguments,
        reward_funcs=[lambda completions, **columns: [0.0] * len(completions)],
        train_dataset=data,
        processing_class=tokenizer,
    )
    trainer.add_callback(ExactCheckpoints(trainer))
    loader = trainer.get_train_dataloader()
    _, _, _, _, _, _, steps = trainer.set_initial_training_values(arguments, loader)
    assert optimizer_steps(config, rows, 1) == steps


def test_sft_steps_and_max_steps(tmp_path: Path) -> None:
    config = config_of_steps(tmp_path, method="sft", per_device_train_batch_size=4, gradient_accumulation_steps=2)
    assert optimizer_steps(config, 33, 1) == 5  # 9 micro-batches, two a step
    assert optimizer_steps(config, 33, 2) == 3
    assert optimizer_steps(config_of_steps(tmp_path, max_steps=7), 1000, 1) == 7
