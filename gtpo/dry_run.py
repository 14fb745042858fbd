"""What is checked before GPU time is spent (`preflight`), and what `gtpo train --dry-run` shows: the run, its memory.

An absent model, a reward that does not import or unusable data is refused before torch is imported. No weights are
loaded.

Memory by item, of one training process, every sequence at its greatest length. Parameters are counted on the model's
own architecture, made on torch's meta device. D: hidden size; Q, K: widths of queries and keys; I: of the MLP.

    weights      bytes of their type; linear layers in 4 bits at 0.516 (NF4, double quantised)
    adapters     r (d_in + d_out) of each target layer and a copy of modules_to_save, in float32; gradients as large
    optimizer    8 bytes per trained parameter, 2 with 8-bit states; paged states lie outside of what is summed
    activations  a layer keeps 17 D + 6 Q + 4 K + 8 I bytes per token in 16 bits, and 9 D more if its weights are
                 trained in float32; with checkpointing each layer keeps its input, and one layer all
    loss         a tile of logits, dlogp/dh and the gradient of the hidden states; for a trained head its weights in 16
                 bits, one more gradient, and what is kept for it
    KV cache     of the completions that transformers samples at once; vLLM takes its share of the GPU instead

FSDP2 and ZeRO-3 divide weights, gradients and optimizer by the processes. Gathered are then two layers, the embedding
and the head, in their computing type, and the gradient of a layer; all weights while ZeRO-3's policy samples.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from gtpo.common.errors import UserError
from gtpo.common.files import read_json
from gtpo.common.hub import adapter_base, cache_if_unreachable
from gtpo.common.log import LOG
from gtpo.common.packages import install_command, installed, require
from gtpo.common.terminal import stdout_console
from gtpo.config.load import launched_processes
from gtpo.config.schema import ModelSection, TrainConfig
from gtpo.inputs.dataset import TrainingProblems, check_ids, to_row
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.loading import load_rewards, probe_reward
from gtpo.runs.train_run import RESULTS, find_train_run

GIB = 1 << 30
NF4_BYTES = 0.516
# The runs are in configs/README.md; a test compares the numbers.
MEASURED = "torch's peak of three runs on an H200 was 0.76 to 1.10 of this sum; CUDA itself takes up to 1 GiB more"
# Optimizers of the package bitsandbytes.
BITSANDBYTES = re.compile(r"adamw_8bit|.*(bnb|paged|lion|ademamix)")


class RunInputs(NamedTuple):
    """What a run starts from, found once per start."""

    weights: str
    """From `find_weights`."""
    problems: TrainingProblems


def find_weights(section: ModelSection, results: Path = RESULTS) -> str:
    """Return the Hub name or folder of the weights of `model.model_name`; empty for a model that is built.

    A train run means its best weights, else its final ones.

    Raises UserError for a train run without weights, a local path that does not exist, and a broken config.json.
    """
    name = section.model_name
    if name is None:
        return ""
    run = find_train_run(name, results)
    path = Path(name) if run is None else run.weights()
    adapter, config = path / "adapter_config.json", path / "config.json"
    if path.is_file():
        raise UserError(f"model.model_name {name!r} is a file; a model is a name of the Hub, a folder or a train run")
    if adapter.is_file():
        adapter_base(adapter)
    if config.is_file():
        read_json(config)
    elif path.is_dir() and not adapter.is_file():
        raise UserError(f"model.model_name {name!r}: the folder has neither config.json nor adapter_config.json")
    elif not path.is_dir() and (name.startswith((".", "/", "~", "results/")) or name.count("/") > 1):
        raise UserError(f"model.model_name {name!r}: no such folder; a train run must be trained first")
    return name if run is None else str(path)


def check_inputs(config: TrainConfig) -> TrainingProblems:
    """Import the rewards and read the data that is local. Raises UserError for what cannot be trained with."""
    problems, calls = TrainingProblems(config), config.trainer.reward_calls()
    try:
        functions = [] if config.method == "sft" else load_rewards(calls, config.trainer.reward_weights).functions
    except UserError as error:
        key, _, fault = str(error).partition(" ")
        # The fault of a function begins with its path.
        if not key.startswith("trainer."):
            key, fault = "trainer.reward_funcs", str(error)
        raise UserError(f"{config.setting(key)} {fault}") from error
    # The real first row, if it can be had: a reward may read any of its columns.
    example = Problem(id="1", problem="1 + 1", answer="2")
    row = problems.select(None)[0][0] if problems.is_local else to_row(example, config)
    for (path, _), function in zip(calls, functions, strict=False):
        why, raised = probe_reward(path, function, row)
        if why:
            raise UserError(f"{config.setting('trainer.reward_funcs')}: {why}")
        # It may dislike only an empty completion.
        if raised:
            LOG.warning(f"{raised}; completions on which it raises are unscored")
    return problems


def check_trl(config: TrainConfig) -> None:
    """Refuse on a CPU what TRL 1.15 computes with a kernel for GPUs. Raises UserError."""
    several = config.method == "gtpo" and not config.training.one_step_per_rollout
    # By its version only: importing TRL takes seconds.
    if not (metadata.version("trl").startswith("1.15.") and (several or config.method == "grpo")):
        return
    import torch

    if not torch.accelerator.is_available():
        what = "several optimizer steps per rollout (training.num_iterations, training.steps_per_generation)"
        raise UserError(
            f"{what if several else 'method grpo'} needs a GPU with TRL 1.15, which computes log-probabilities with a "
            "kernel for GPUs; TRL 1.16 has no such limit: pip install 'trl>=1.16,<1.17'"
        )


def needed_packages(config: TrainConfig) -> Iterator[tuple[str, str, str]]:
    """Yield (what needs it, package, extra) for the optional packages without which the run would fail."""
    model, optimizer = config.model, config.training.optimizer
    if model.load_in_4bit:
        yield "model.load_in_4bit", "bitsandbytes", "bitsandbytes"
    if optimizer in ("adamw_torch_4bit", "adamw_torch_8bit"):
        yield f"training.optimizer {optimizer}", "torchao", "torchao"
    elif BITSANDBYTES.match(optimizer):
        yield f"training.optimizer {optimizer}", "bitsandbytes", "bitsandbytes"
    if model.backend == "unsloth":
        yield "model.backend unsloth", "unsloth", "unsloth"
    if config.method != "sft" and config.rollout.engine in ("vllm", "vllm_server"):
        yield f"rollout.engine {config.rollout.engine}", "vllm", "vllm"


def preflight(config: TrainConfig, results: Path = RESULTS) -> RunInputs:
    """Refuse what would fail later. Raises UserError; reads local files only, and no weights."""
    for purpose, package, extra in needed_packages(config):
        require(purpose, package, extra=extra)
    for name in config.training.report_to:
        if not installed(name):
            without = f"so this run is not reported to it (pip install {name}); metrics.jsonl has everything"
            LOG.warning(f"{config.setting('training.report_to')} {name}: not installed, {without}")
    check_trl(config)
    return RunInputs(find_weights(config.model, results), check_inputs(config))


# -- what a run holds in memory ----------------------------------------------------------------------------------------


class Item(NamedTuple):
    """One row of the forecast."""

    name: str
    gib: float
    basis: str


def model_on_meta(config: TrainConfig, source: str) -> Any:
    """Return the model that a run trains, without memory for its weights. Raises OSError or ValueError if unknown.

    source: from `find_weights`.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    section = config.model
    with torch.device("meta"):
        if section.build is not None:
            from gtpo.inputs.tiny import build_tiny_model

            return build_tiny_model(section.build, max_seq_length=section.max_seq_length, seed=0)[0]
        adapter = Path(source) / "adapter_config.json"
        base = adapter_base(adapter) if adapter.is_file() else source
        settings = AutoConfig.from_pretrained(base, trust_remote_code=section.trust_remote_code)
        return AutoModelForCausalLM.from_config(settings, trust_remote_code=section.trust_remote_code)


def memory(config: TrainConfig, model: Any, shard: str | None = None, processes: int = 1) -> list[Item]:
    """Return what one training process holds on a GPU, by item.

    model: from `model_on_meta`. shard: fsdp2 or zero3, which divide over the processes.
    """
    from torch.nn import ModuleList

    from gtpo.head import GPU
    from gtpo.inputs.model import ALL_LINEAR

    section, training, text = config.model, config.training, model.config.get_text_config()
    frozen, items = section.lora_rank > 0, list[Item]()
    size = 2 if frozen and section.dtype != "float32" else 4
    # parameters() names a tied matrix once, as it lies in memory.
    parameters = sum(weight.numel() for weight in model.parameters())
    head = model.get_output_embeddings()
    linear = {
        name: layer for name, layer in model.named_modules() if hasattr(layer, "in_features") and layer is not head
    }

    parts = processes if shard else 1

    def item(name: str, count: float, basis: str, parts: int = 1) -> None:
        items.append(Item(name, count / parts / GIB, f"{basis}, divided by {parts}" if parts > 1 else basis))

    packed = sum(layer.weight.numel() for layer in linear.values()) if section.load_in_4bit else 0
    kind = f"linear layers in 4 bits, the rest in {8 * size} bits" if packed else f"{8 * size} bits"
    item("weights", packed * NF4_BYTES + (parameters - packed) * size, f"{parameters:,} parameters, {kind}", parts)
    trained = parameters
    if frozen:
        ends = tuple("" if target == ALL_LINEAR else f".{target}" for target in section.target_modules)
        adapted = [layer for name, layer in linear.items() if f".{name}".endswith(ends)]
        whole = tuple(config.lora.passed_on.get("modules_to_save") or ())
        copied = {p: p.numel() for n, layer in model.named_modules() if n.endswith(whole) for p in layer.parameters()}
        trained = section.lora_rank * sum(layer.in_features + layer.out_features for layer in adapted)
        trained += sum(copied.values())
        item("adapters", 4 * trained, f"{trained:,} parameters, rank {section.lora_rank}, float32", parts)
    item("gradients", 4 * trained, "float32", parts)
    name = training.optimizer
    state = 0 if name in ("sgd", "adafactor") else 2 if "8bit" in name else 8
    # Paged states may lie in the memory of the host.
    if not name.startswith("paged"):
        item("optimizer", state * trained, f"{name}, {state} bytes per trained parameter", parts)
    sampled_here = config.method != "sft" and config.rollout.engine in ("auto", "transformers")
    if parts > 1:
        blocks = [sum(p.numel() for p in each.parameters()) for each in model.modules() if isinstance(each, ModuleList)]
        layer = max(blocks, default=parameters) // text.num_hidden_layers
        ends = sum(p.numel() for p in {id(e.weight): e.weight for e in (head, model.get_input_embeddings())}.values())
        item("gathered", 2 * (2 * layer + ends) + (0 if frozen else 4 * layer), "two layers, embedding, head")
        if shard == "zero3" and sampled_here:
            item("sampling", 2 * parameters, "ds3_gather_for_generation gathers all weights in 16 bits")

    length = section.max_seq_length
    if config.method != "sft":
        length = training.max_prompt_length + (training.max_completion_length or 0)
    tokens, width, layers = training.per_device_train_batch_size * length, text.hidden_size, text.num_hidden_layers
    head_dim = getattr(text, "head_dim", None) or width // text.num_attention_heads
    keys = (getattr(text, "num_key_value_heads", None) or text.num_attention_heads) * head_dim
    inner = (getattr(text, "intermediate_size", None) or 4 * width) * (getattr(text, "num_experts_per_tok", None) or 1)
    layer = tokens * (17 * width + 6 * text.num_attention_heads * head_dim + 4 * keys + 8 * inner)
    layer += 0 if frozen else tokens * 9 * width
    checkpointed = training.gradient_checkpointing or section.backend == "unsloth"
    inputs = tokens * layers * size * width
    item("activations", inputs + layer if checkpointed else layers * layer,
         f"{tokens:,} tokens, {'checkpointed' if checkpointed else 'every layer kept'}")  # fmt: skip
    tile = min(tokens * text.vocab_size, max(GPU.tile_logits, tokens * GPU.columns))
    loss = (4 + size) * tile + 2 * tokens * width * size
    loss += 0 if frozen else 6 * head.weight.numel() + min(2 * size * tokens * text.vocab_size // 5, GPU.kept_bytes)
    item("loss", loss, "a tile of logits, gradients of the hidden states and of a trained head, powers kept for it")
    if not frozen and ((config.method == "grpo" and training.beta > 0) or training.log_kl_steps):
        item("untrained model", parameters * size, "beta or log_kl_steps, with all weights trained")
    if sampled_here:
        sampled = training.per_device_train_batch_size * training.micro_batches_per_rollout
        item("KV cache", 4 * keys * layers * sampled * length, f"transformers samples {sampled} x {length:,} tokens")
    return items


def optimizer_steps(config: TrainConfig, rows: int, world_size: int) -> int:
    """Return the optimizer steps that a run over `rows` usable rows takes."""
    training = config.training
    if training.max_steps > 0:
        return training.max_steps
    if config.method == "sft":
        micro = math.ceil(rows / (training.per_device_train_batch_size * world_size))
    else:  # an incomplete last rollout is left out
        rollouts = rows // training.prompts_per_rollout(world_size)
        micro = rollouts * training.micro_batches_per_rollout * training.num_iterations
    return math.ceil(training.num_train_epochs * math.ceil(micro / training.gradient_accumulation_steps))


def dry_run(
    config: TrainConfig,
    flags: Mapping[str, Any] | None = None,
    *,
    json_output: bool = False,
    verbose: bool = False,
    processes: int | None = None,
    shard: str | None = None,
) -> None:
    """Print the resolved run on stdout, as text or as one JSON object. Raises UserError on what would refuse it.

    flags: those typed, which the text repeats. verbose: the text has every key and every item of memory. processes:
    of the run, by default those that a launcher started. shard: as in `memory`.
    """
    from transformers.utils import logging

    from gtpo.inputs.model import load_tokenizer, lora_settings

    logging.set_verbosity_error()
    processes = processes or launched_processes()
    if shard and config.model.load_in_4bit:
        raise UserError(f"--shard {shard}: it is not known how it divides 4-bit weights; leave it out")
    if config.model.lora_rank:
        lora_settings(config)
    problems, name, runs = check_inputs(config), config.model.model_name, RESULTS / "train"
    tokenizer, items, rows = None, list[Item](), 0
    with nullcontext() if name is None or Path(name).exists() else cache_if_unreachable():
        try:
            weights = find_weights(config.model)
            try:
                tokenizer, why = load_tokenizer(config.model, weights)[0], ""
            except UserError as error:
                why = str(error)
            try:
                meta = model_on_meta(config, weights)
                items, unknown = memory(config, meta, shard, processes), ""
                rows = meta.get_input_embeddings().num_embeddings
            except (OSError, ValueError, AttributeError) as error:
                unknown = f"not known: {str(error).splitlines()[0]}"
        except UserError as error:
            # A train run's weights may be made before this one starts.
            if name is None or not (runs in Path(name).parents or (runs / name).is_dir()):
                raise
            why = unknown = str(error)
    report, note = None, "" if tokenizer else f"prompt lengths not checked: {why}"
    try:
        problems.load()
    except UserError as error:
        if problems.is_local:
            raise
        note = f"{problems.source}: not counted; {error}"
    else:
        report = problems.select(tokenizer, processes)[1]
        if tokenizer and rows:
            check_ids(report, tokenizer, rows)
    # The greatest: every sequence at its limit.
    total = sum(item.gib for item in items)
    missing = [
        f"{package} ({purpose}): {install_command(extra)}"
        for purpose, package, extra in needed_packages(config)
        if not installed(package)
    ]
    training = config.training
    examples = training.per_device_train_batch_size * training.gradient_accumulation_steps * processes
    steps: dict[str, Any] = {"processes": processes, "examples_per_step": examples}
    if config.method != "sft":
        steps["prompts_per_step"] = examples / training.num_generations
        steps["completion_tokens_per_step_at_most"] = examples * (training.max_completion_length or 0)
    if report or training.max_steps > 0:
        steps["steps"] = optimizer_steps(config, report.kept if report else 0, processes)
    if json_output:
        held = {"items": [item._asdict() for item in items], "gib": total, "note": unknown or MEASURED}
        about = {"config": config.as_dict(), "dataset": asdict(report) if report else None, "dataset_note": note}
        print(json.dumps(about | {"steps": steps, "memory": held, "missing_here": missing}, indent=2))
        return
    unit, scale = ("GiB", 1) if total >= 1 else ("MiB", 1024)
    if verbose:
        _tell(config.to_yaml())
        for row in items:
            _tell(f"{row.name:16} {scale * row.gib:8.2f} {unit}  {row.basis}")
        if config.method != "sft" and config.rollout.engine == "vllm":
            share = f"vLLM takes {config.model.gpu_memory_utilization:.0%} of the GPU besides"
            _tell(f"{share}, and must hold in it its own 16-bit copy of the weights and a cache")
        _tell(f"{MEASURED}\n" * bool(items))
    divided = f", {shard} over {processes}" if shard else ""
    forecast = f"{scale * total:.1f} {unit} a process on a GPU{divided} (forecast)"
    data = "; ".join(line.strip() for line in report.lines()) if report else note
    found = {"data": data, "memory": forecast if items else unknown, "note": note if report else ""}
    _print_short(config, flags or {}, steps, found | {"missing": "; ".join(missing)})


def _tell(text: str) -> None:
    """Print a text, folded by word on a terminal."""
    stdout_console(pipe=120).print(text)


def _print_short(
    config: TrainConfig, flags: Mapping[str, Any], steps: Mapping[str, Any], found: Mapping[str, str]
) -> None:
    """Print what a run is in about twelve lines: what was set, what was resolved, and what was found of it."""
    training, model = config.training, config.model
    preset = f", preset {config.objective.preset}" if config.method == "gtpo" else ""
    weights = f"LoRA of rank {model.lora_rank}" if model.lora_rank else "all weights"
    lines = {
        "run": f"results/train/{config.run_name}   method {config.method}{preset}, seed {model.random_seed}",
        "set": " ".join(f"--{flag} {value}" for flag, value in flags.items() if flag != "run_name")
        or "nothing beside the file",
        "model": f"{model.model_name or 'built here'}, {weights}{', 4 bits' if model.load_in_4bit else ''}",
        "data": found["data"],
        "steps": f"{steps.get('steps', 'not known')} of {steps['examples_per_step']} completions"
        + (f" ({steps['prompts_per_step']:g} prompts)" if "prompts_per_step" in steps else "")
        + (f", at most {steps[most]:,} tokens" if (most := "completion_tokens_per_step_at_most") in steps else "")
        + (f", by {steps['processes']} processes" if steps["processes"] > 1 else ""),
        "optimizer": f"{training.optimizer}, learning rate {training.learning_rate:g} ({training.lr_scheduler_type}), "
        f"betas {training.adam_beta1:g} {training.adam_beta2:g}, gradient norm at most {training.max_grad_norm:g}",
    }
    if config.method != "sft":
        lines["sampling"] = (
            f"engine {config.rollout.engine}, at most {training.max_completion_length} tokens, "
            f"temperature {training.temperature:g}, {training.num_generations} a prompt"
        )
        lines["rewards"] = ", ".join(path for path, _ in config.trainer.reward_calls()) + " (each was called once)"
    if config.method == "gtpo":
        objective = config.resolved_objective()
        lines["objective"] = (
            f"gamma {objective.gamma:g}, filter {objective.filter} at {objective.entropy_threshold:.4g} nats"
        )
    for name, line in (lines | {name: line for name, line in found.items() if line}).items():
        _tell(f"{name:10} {line}")
    _tell("Dry run: nothing was trained or written. --verbose shows every key, and memory by item.")
