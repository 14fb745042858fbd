"""A base that stays as it is while its adapter is synchronised with vLLM, which needs a process of its own.

    python tests/gtpo/adapter_sync_run.py 4bit|float32|bfloat16 STEPS [--merge]

A model built here is trained with LoRA at learning rate 1e-2, on a random reward, sampled by vLLM in this process.
Expected: both copies of the base bit for bit as at the start, and at each step a difference within the tolerance.
--merge: the null, with TRL's own synchronisation, which merges: the base must move.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from typing import Any

from gtpo.common.vllm_environment import quiet_vllm

quiet_vllm(on_cpu=True)

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig  # noqa: E402

from gtpo import GTPOConfig, GTPOTrainer  # noqa: E402
from gtpo.config import BuiltModel  # noqa: E402
from gtpo.inputs.model import widen_adapters  # noqa: E402
from gtpo.inputs.tiny import build_tiny_model  # noqa: E402
from gtpo.trainer import adapter_sync  # noqa: E402


def digest(tensors: dict[str, Any]) -> str:
    """Return a checksum of tensors by name."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(name.encode() + value.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def bases(trainer: Any) -> dict[str, str]:
    """Return a checksum of the trainer's base and, where vLLM holds it apart from the adapter, of vLLM's."""
    held = {"trainer": digest({n: p for n, p in trainer.model.named_parameters() if "lora_" not in n})}
    if trainer.vllm_generation.adapter is not None:
        model = trainer.vllm_generation.llm.llm_engine.model_executor.driver_worker.model_runner.model
        held["vllm"] = digest({n: p for n, p in model.state_dict().items() if isinstance(p, torch.Tensor)})
    return held


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Return something that varies within a group."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def measure(base: str, steps: int) -> dict[str, Any]:
    """Train and return checksums of the base and the differences in nats per token."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if base == "bfloat16" else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        spec = BuiltModel(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                          initializer_range=0.2)  # fmt: skip
        built, tokenizer = build_tiny_model(spec, max_seq_length=96, seed=0)
        built.to(dtype).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        options: dict[str, Any] = {"dtype": dtype}
        if base == "4bit":
            options["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.float32,
            )  # fmt: skip
        problems = ["1 + 1 =", "2 + 3 =", "7 - 4 =", "3 * 3 ="] * 50
        trainer = GTPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, **options),
            reward_funcs=[reward],
            args=GTPOConfig(
                output_dir=f"{folder}/out", per_device_train_batch_size=8, num_generations=8, max_steps=steps,
                max_completion_length=16, learning_rate=1e-2, lr_scheduler_type="constant", optim="adamw_torch",
                use_vllm=True, vllm_mode="colocate", vllm_max_model_length=96, initial_entropy=1.0, report_to="none",
                use_cpu=True, bf16=False, logging_steps=1, save_strategy="no", disable_tqdm=True,
                vllm_importance_sampling_correction=False, gradient_checkpointing=False,
            ),
            train_dataset=Dataset.from_dict({"prompt": problems}),
            processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
            peft_config=LoraConfig(r=8, lora_alpha=24, use_rslora=True, lora_dropout=0.0, task_type="CAUSAL_LM",
                target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
        )  # fmt: skip
        widen_adapters(trainer.model)
        before = bases(trainer)
        trainer.train()
        after = bases(trainer)
        key = "sampling/logp_difference"
        gaps = [row[key] for row in trainer.state.log_history if key in row]
        moved = max(p.abs().max().item() for n, p in trainer.model.named_parameters() if "lora_B" in n)
        return {
            "base": base, "steps": len(gaps), "tolerance": trainer.sampler.allowed(), "largest_b": moved,
            "base_unchanged": {name: before[name] == after[name] for name in before}, "difference_first": gaps[0],
            "difference_last": gaps[-1], "difference_largest": max(gaps),
        }  # fmt: skip


if __name__ == "__main__":
    base, steps, *merge = sys.argv[1:]
    if merge:
        adapter_sync.adapter_obstacle = lambda model: "--merge"
    print(json.dumps(measure(base, int(steps))))
