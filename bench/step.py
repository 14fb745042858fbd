"""One training step of GTPO against TRL's GRPO, without and with its KL term, on the same rollouts: time and memory.

Both are the trainers as a user runs them, but for sampling, which is replaced by fixed completions (--sample: each
samples its own by transformers, a whole short run). They take turns in random order, each in a process of its own;
memory is the peak over a step beyond what the process held before it. The gate keeps every completion. With its KL term
(beta 0.04) GRPO runs a second forward on the untrained policy: the model without its adapter (LoRA), or a second copy
of the weights, counted apart (`reference_bytes`). Expected before the first runs: time and memory at most 1.0 of
GRPO's, with LoRA and with all weights; of --model Qwen2.5-0.5B in bfloat16 with LoRA 0.85 of its processor time.

    python -m bench.step [--rounds N] [--tokens L] [--hidden D] [--vocabulary V] [--layers N] [--sample]
        [--model NAME] [--dtype TYPE] [--cases lora all] [--ragged] [--prompt L] [--share-prefixes] [--out FILE]

--steps: of a turn; the first one is not counted. --model: a real architecture with random weights and a tied head.
--dtype: of the frozen weights. --ragged: completions of an eighth of --tokens up to all. --turn, --lora: one turn.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import psutil
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, LlamaConfig, PrinterCallback, Qwen2Config, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.common import in_turns, parser, save, table
from gtpo import GTPOConfig, GTPOTrainer
from gtpo.common.provenance import peak_memory
from gtpo.inputs.tiny import build_tokenizer
from gtpo.train.environment import quiet_libraries
from gtpo.trainer.shared_prefixes import share_prefixes
from gtpo.trainer.trl_seam import score_only_labels

GROUP = 8
KINDS = ("gtpo", "grpo", "grpo-kl")
MEASURES = ("seconds", "cpu_seconds", "peak_bytes")
ARCHITECTURES = {
    "Qwen2.5-0.5B": functools.partial(
        Qwen2Config, vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, rope_theta=1e6, tie_word_embeddings=True,
    ),
}  # fmt: skip
"""Of real models, as their config.json has them."""
BETA = 0.04  # KL weight of `grpo-kl`, the paper's (figure 1)


def reward(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """Return rewards that differ within a group."""
    return [float(ids[3] % 7) if len(ids) > 3 else 0.0 for ids in completion_ids]


class _Meter(TrainerCallback):
    """Seconds and peak bytes of each step."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {name: [] for name in MEASURES}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.held = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the high-water mark of resident memory
            self.held = psutil.Process().memory_info().rss
        self.begin = time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.found["seconds"].append(time.perf_counter() - self.begin[0])
        self.found["cpu_seconds"].append(time.process_time() - self.begin[1])
        self.found["peak_bytes"].append((peak_memory() or 0) - self.held)


def turn(kind: str, lora: bool, shape: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Train a fresh model for a few steps and return seconds, cpu_seconds and peak_bytes of each but the first.

    reference_bytes: what the reference model holds all the time. folder: for what is written.
    """
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    architecture = ARCHITECTURES[shape.model] if shape.model else functools.partial(
        LlamaConfig, vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=8, tie_word_embeddings=False,
    )  # fmt: skip
    config = architecture(max_position_embeddings=shape.prompt + shape.tokens, pad_token_id=tokenizer.pad_token_id,
                          eos_token_id=tokenizer.eos_token_id)  # fmt: skip
    dtype = torch.bfloat16 if lora and shape.dtype == "bfloat16" else torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if shape.share_prefixes:
        share_prefixes(model)
    generator = torch.Generator().manual_seed(1)
    completions = torch.randint(10, config.vocab_size, (GROUP, shape.tokens), generator=generator)
    completions[:, :3] = torch.tensor([11, 12, 13])  # a shared start, as formatted answers have
    lengths = [shape.tokens * (row + 1) // GROUP if shape.ragged else shape.tokens for row in range(GROUP)]
    texts = [
        [*row[: size - 1], tokenizer.eos_token_id] for row, size in zip(completions.tolist(), lengths, strict=True)
    ]

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [list(range(20, 20 + shape.prompt))] * len(prompts),
            "completion_ids": [texts[place % GROUP] for place in range(len(prompts))],
            "logprobs": None,
        }

    on_gpu = torch.cuda.is_available()
    shared: dict[str, Any] = {
        "output_dir": folder, "num_generations": GROUP, "per_device_train_batch_size": GROUP, "max_steps": shape.steps,
        "max_completion_length": shape.tokens, "learning_rate": 1e-6, "use_cpu": not on_gpu,
        "bf16": on_gpu or dtype == torch.bfloat16,  # as `gtpo train` has it (compute_precision)
        "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
        "logging_steps": 1, "dataloader_pin_memory": False,
    }  # fmt: skip
    meter, reference = _Meter(), 0
    adapters = LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    common: dict[str, Any] = {
        "model": model, "reward_funcs": reward, "processing_class": tokenizer,
        "train_dataset": Dataset.from_dict({"prompt": [str(number) for number in range(shape.steps)]}),
        "rollout_func": None if shape.sample else rollouts, "callbacks": [meter],
        "peft_config": adapters if lora else None,
    }  # fmt: skip
    if kind == "gtpo":
        gate = {"entropy_threshold": 1e3}
        arguments = GTPOConfig(**shared, initial_entropy=0.5, objective=gate)
        trainer: GRPOTrainer = GTPOTrainer(args=arguments, **common)
    else:
        beta = BETA if kind == "grpo-kl" else 0.0
        if beta and not lora:  # TRL reads the reference from where the model came
            model.config._name_or_path = model.name_or_path = f"{folder}/model"
            model.save_pretrained(model.name_or_path)
        trainer = GRPOTrainer(args=GRPOConfig(**shared, loss_type="grpo", beta=beta), **common)
        if trainer.ref_model is not None:
            reference = sum(p.numel() * p.element_size() for p in trainer.ref_model.parameters())
    trainer.remove_callback(PrinterCallback)
    head = score_only_labels() if shape.share_prefixes else contextlib.nullcontext()
    with head, Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        trainer.train()
    found = {name: values[1:] for name, values in meter.found.items()}
    return {**found, "reference_bytes": [float(reference)]}


def turns(contenders: dict[str, list[str]], rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the counted steps of each contender, and their medians. contenders: name -> flags of its turns.

    A turn is a process whose freed buffers go back to the system.
    """
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}
    for _, name in in_turns(contenders, rounds or 1):  # older commands have --rounds 0
        command = [sys.executable, "-m", "bench.step", *contenders[name]]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for key, values in json.loads(done.stdout.splitlines()[-1]).items():
            found[name].setdefault(key, []).extend(values)
    return found, {name: {key: statistics.median(values) for key, values in its.items()} for name, its in found.items()}


def ratio(median: dict[str, Any], one: str, other: str) -> dict[str, float]:
    """Return the measures of one contender as shares of another's."""
    return {name: median[one][name] / median[other][name] for name in MEASURES}


def measure(shape: argparse.Namespace) -> dict[str, Any]:
    """Return the medians and ratios of every case."""
    cases: dict[str, Any] = {}
    for choice in shape.cases:
        flags = [*sys.argv[1:], *["--lora"] * (choice == "lora"), "--turn"]
        found, median = turns({kind: [*flags, kind] for kind in KINDS}, shape.rounds)
        ratios = {"ratio": ratio(median, "gtpo", "grpo"), "ratio_with_kl": ratio(median, "gtpo", "grpo-kl")}
        cases["lora, frozen head" if choice == "lora" else "all weights"] = {"median": median, **ratios, "all": found}
    return cases


def page(document: dict[str, Any]) -> str:
    """Return the table of results/published/bench/steps.md. On a CPU the time to judge by is that of the processor."""
    clock = "cpu_seconds" if document["device"] == "cpu" else "seconds"
    rows = []
    for name, case in document["cases"].items():
        each = [case["median"][kind] for kind in KINDS]
        ours, theirs, with_kl = (f"{its[clock]:.2f}" for its in each)
        ratios = [f"{case[which][clock]:.2f}" for which in ("ratio", "ratio_with_kl")]
        rows.append((f"{name}: time, s", ours, theirs, ratios[0], with_kl, ratios[1]))
        mine, other, most = (its["peak_bytes"] / 2**20 for its in each)
        reference = each[-1]["reference_bytes"] / 2**20
        kept = f" and {reference:.0f} for the reference model" if reference else ""
        rows.append((f"{name}: peak memory of a step, MiB", f"{mine:.0f}", f"{other:.0f}", f"{mine / other:.2f}",
                     f"{most:.0f}{kept}", f"{mine / (most + reference):.2f}"))  # fmt: skip
    columns = ("", "GTPO", "GRPO (beta 0)", "ratio", "GRPO with KL (beta 0.04)", "ratio")
    return table(columns, rows)


def main() -> None:
    """Measure, write the JSON, print its table."""
    types = ("float32", "bfloat16")[:: -1 if torch.cuda.is_available() else 1]
    made = parser(__doc__, rounds=3, steps=4, tokens=128, hidden=512, vocabulary=32000, cases=["lora", "all"], layers=2,
                  dtype=types, ragged=False, out=Path("results/bench/step.json"), threads=1, lora=False, sample=False,
                  prompt=16, share_prefixes=False)  # fmt: skip
    made.add_argument("--model", choices=ARCHITECTURES, help="a real model's architecture instead of these sizes")
    made.add_argument("--turn", choices=KINDS)
    shape = made.parse_args()
    torch.set_num_threads(shape.threads)
    quiet_libraries()
    if shape.turn:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(turn(shape.turn, shape.lora, shape, folder)))
        return
    names = ("tokens", "hidden", "vocabulary", "layers", "model", "dtype", "ragged", "prompt", "share_prefixes")
    sizes = {"completions": GROUP, **{name: getattr(shape, name) for name in names}}
    document = {
        "schema_version": 1,
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "shape": sizes | {"sampled": shape.sample, "rounds": shape.rounds, "counted_steps": shape.steps - 1},
        "cases": measure(shape),
    }
    print(page(document))
    save(shape.out, document)


if __name__ == "__main__":
    main()
