"""Memory of a training step, forecast by part from the model's dimensions: arithmetic, no torch, no model.

    weights      P parameters at the base's bytes each; 4-bit linear layers at 0.516 (NF4, double quantised)
    adapters     sum over target layers of r (d_in + d_out), held in float32 so that small updates are not rounded away
    gradients    one value per trainable parameter, in its dtype
    optimizer    bytes per trainable parameter, by optimizer
    activations  of one micro-batch at full length; with checkpointing each layer's input and one layer in full
    loss         one chunk of logits with its gradient, and the gradient of the hidden states
    rollout      vLLM: its share of the GPU, which must hold its own copy of the weights; transformers: the KV cache
    context      CUDA itself, its libraries and their workspaces
    fragments    what the allocator holds and cannot use, a share of what is taken and given back each step

An upper estimate: every sequence at its greatest length. Parameters and activations are checked against real models,
three runs on a GPU too (docs/recipes.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gtpo.common.packages import installed
from gtpo.config.schedule import micro_batches_per_rollout
from gtpo.config.schema import TrainConfig
from gtpo.inputs.model_shape import ModelShape

GIB = 1024**3
GPUS = (16, 24, 40, 48, 80, 141, 180)
"""Sizes in GiB of the GPUs that people have; the forecast names the smallest that fits."""

LOGITS_BYTES = {"cpu": 2**26, "cuda": 2**29}
"""By device, the logits that a loss holds at a time (`gtpo.kernels.chunks.CHUNK_BYTES`; TRL's losses hold less)."""
KEPT_ROWS = {"cpu": 512, "cuda": 4096}
"""By device, the most rows whose powers are kept for a trained lm_head (`gtpo.kernels.chunks.TRAINABLE_ROWS`)."""

_OPTIMIZER_BYTES = {
    "adamw_torch_8bit": 2.0,
    "adamw_8bit": 2.0,
    "adamw_bnb_8bit": 2.0,
    "paged_adamw_8bit": 2.0,
    "lion_8bit": 1.0,
    "paged_lion_8bit": 1.0,
    "lion_32bit": 4.0,
    "paged_lion_32bit": 4.0,
    "ademamix": 12.0,
    "ademamix_8bit": 3.0,
    "adafactor": 0.1,
    "sgd": 0.0,
}
"""Bytes of state per trainable parameter; AdamW in 32 bits has 8. (Block scales of 8-bit states: +2 %, ignored.)"""


CONTEXT_GIB = 0.75
"""Of CUDA's context, its loaded kernels and the workspaces of cuBLAS and NCCL: what other projects report; ours has not
been measured."""

FRAGMENTED = 0.1
"""Of activations, loss and KV cache, which the allocator hands out in blocks of many sizes. An assumption."""

_STEADY = ("base weights", "adapters", "gradients", "optimizer states", "reference model", "untrained model")


class Part(NamedTuple):
    """One row of the forecast."""

    name: str
    gib: float
    basis: str


@dataclass(frozen=True)
class Forecast:
    """Memory per GPU, by part."""

    parts: list[Part]
    vllm_share: float
    """Share of the GPU that vLLM takes on top of the parts; 0 where it does not run there."""
    vllm_weights_gib: float
    """What vLLM's own copy of the weights takes of that share."""
    engine: str
    """What samples: transformers, vllm, vllm_server, or none (sft)."""

    @property
    def training_gib(self) -> float:
        """Sum of the parts: everything but vLLM's share."""
        return sum(part.gib for part in self.parts)

    def fits(self, gpu_gib: float) -> bool:
        """Return whether a GPU of this size holds it, with 1 GiB of vLLM's KV cache."""
        share = self.vllm_share * gpu_gib
        if self.vllm_share and share < self.vllm_weights_gib + 1:
            return False
        return self.training_gib + share <= gpu_gib

    def smallest_gpu(self) -> int | None:
        """Return the smallest common GPU (GiB) that fits, None if none does."""
        return next((size for size in GPUS if self.fits(size)), None)


NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes per 4-bit weight: a nibble, an 8-bit scale per 64, a float32 scale per 256 of those."""


def _weight_bytes(config: TrainConfig) -> int:
    """Base weights on a GPU: with `auto`, bfloat16 where they are frozen and float32 where they are trained."""
    if config.model.dtype == "auto":
        return 2 if config.model.lora_rank else 4
    return 4 if config.model.dtype == "float32" else 2


class SavedBytes(NamedTuple):
    """Bytes that the backward pass keeps per token and layer: for each of D, query width, key width and I."""

    hidden: int
    queries: int
    keys: int
    intermediate: int
    layer_input: int
    """Of which the layer's input, per D: all that is kept of a checkpointed layer."""
    weight_copies: int
    """Per weight of a linear layer: the half-precision copies that autocast keeps of float32 weights."""


SAVED = {
    "float32": SavedBytes(24, 8, 8, 16, 4, 0),
    "half": SavedBytes(17, 6, 4, 8, 2, 0),
    "autocast": SavedBytes(26, 4, 4, 8, 4, 2),
}
"""Measured on transformers' Llama with hooks on the saved tensors (tests/gtpo/test_forecast.py holds them current):
float32 throughout; half-precision frozen weights with adapters; float32 weights computing in half precision."""

VLLM_SHARE = 0.3
"""model.gpu_memory_utilization that is advised where memory ran out."""
_OUTSIDE = 8
"""Bytes per token and D outside the layers: the last norm."""


def arithmetic(config: TrainConfig) -> str:
    """Return which row of SAVED a run has: on a GPU it computes in half precision, the built model in float32."""
    if config.model.dtype == "float32" or (config.model.build and config.model.dtype == "auto"):
        return "float32"
    return "autocast" if _weight_bytes(config) == 4 else "half"


def activation_bytes(shape: ModelShape, tokens: int, kind: str, checkpointed: bool) -> float:
    """Return what the layers keep for the backward pass of `tokens` tokens; kind is a key of SAVED."""
    saved = SAVED[kind]
    layer = tokens * (
        saved.hidden * shape.hidden_size
        + saved.queries * shape.num_attention_heads * shape.head_dim
        + saved.keys * shape.num_key_value_heads * shape.head_dim
        + saved.intermediate * shape.intermediate_size
    )
    copies = saved.weight_copies * shape.linear_parameters
    outside = tokens * _OUTSIDE * shape.hidden_size
    if checkpointed:
        inputs = tokens * saved.layer_input * shape.hidden_size * shape.num_hidden_layers
        return inputs + layer + outside + copies / shape.num_hidden_layers
    return shape.num_hidden_layers * layer + outside + copies


def forecast(config: TrainConfig, shape: ModelShape) -> Forecast:
    """Forecast the memory of one training process on a GPU from a resolved config and the model's dimensions."""
    model, training = config.model, config.training
    size, kind = _weight_bytes(config), arithmetic(config)
    parts: list[Part] = []

    def part(name: str, count: float, basis: str) -> None:
        parts.append(Part(name, count / GIB, basis))

    billions = f"{shape.parameters / 1e9:.2f} B" if shape.parameters > 1e8 else f"{shape.parameters / 1e6:.2f} M"
    if model.load_in_4bit:
        count = shape.linear_parameters * NF4_BYTES + (shape.parameters - shape.linear_parameters) * size
        part("base weights", count, f"{billions} parameters, linear layers in 4 bits, the rest in {8 * size} bits")
    else:
        part("base weights", shape.parameters * size, f"{billions} parameters, {8 * size} bits")
    if model.lora_rank:
        trainable, trainable_size = shape.adapter_parameters(model.lora_rank, model.target_modules), 4
        part("adapters", trainable * 4, f"{trainable / 1e6:.1f} M parameters, rank {model.lora_rank}, float32")
    else:
        trainable, trainable_size = shape.parameters, size
    part("gradients", trainable * trainable_size, f"{8 * trainable_size} bits per trainable parameter")
    state = _OPTIMIZER_BYTES.get(training.optimizer, 8.0)
    part("optimizer states", trainable * state, f"{training.optimizer}, {state:g} bytes per trainable parameter")

    micro = training.per_device_train_batch_size
    length = model.max_seq_length
    if config.method != "sft":
        length = training.max_prompt_length + (training.max_completion_length or 0)
    tokens = micro * length
    how = "checkpointed" if training.gradient_checkpointing or model.backend == "unsloth" else "all layers kept"
    part(
        "activations",
        activation_bytes(shape, tokens, kind, how == "checkpointed"),
        f"{micro} x {length:,} tokens at most, {how}",
    )
    device = "cpu" if kind == "float32" else "cuda"
    logits = 2 * min(tokens * shape.vocab_size * 4, LOGITS_BYTES[device])
    if config.method == "gtpo" and not model.lora_rank:
        # A trained lm_head needs whole completions at once: their logits and gradients, or their powers and two tiles.
        longest = training.max_completion_length or 0
        powers = max(min(tokens, KEPT_ROWS[device]), longest) * shape.vocab_size * (4 if device == "cpu" else 2)
        logits = max(logits, longest * shape.vocab_size * 8, powers + LOGITS_BYTES[device])
    part(
        "loss",
        logits + tokens * shape.hidden_size * size,
        f"{logits / 2**20:,.0f} MiB of logits with their gradients, and that of the hidden states",
    )
    if config.method == "grpo" and training.beta > 0 and not model.lora_rank:
        part("reference model", shape.parameters * size, f"beta {training.beta:g} with all weights trained")
    elif training.log_kl_steps is not None and not model.lora_rank:
        part("untrained model", shape.parameters * size, "training.log_kl_steps with all weights trained")

    share = weights = 0.0
    engine = "none" if config.method == "sft" else config.rollout.engine.replace("auto", "transformers")
    if engine == "vllm":
        share = model.gpu_memory_utilization
        # vLLM reads no bitsandbytes weights: its copy is in 16 bits also where the trained model is in 4.
        weights = shape.parameters * 2 / config.rollout.tensor_parallel_size / GIB
    elif engine == "transformers":
        cached = (
            2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * (4 if kind == "float32" else 2)
        )
        sampled = micro * micro_batches_per_rollout(config)
        part("KV cache", cached * sampled * length, f"transformers samples {sampled} x {length:,} tokens at a time")
    if kind != "float32":  # on a GPU
        moving = sum(entry.gib for entry in parts if entry.name not in _STEADY)
        part("fragmentation", FRAGMENTED * moving * GIB, f"{FRAGMENTED:.0%} of what is taken and given back each step")
        part("CUDA context", CONTEXT_GIB * GIB, "CUDA, its kernels, workspaces of cuBLAS and NCCL")
    return Forecast(parts, share, weights, engine)


def memory_advice(config: TrainConfig, error: BaseException) -> str:
    """Return what to lower, and in which order, after the GPU ran out of memory."""
    first = ". ".join(str(error).split(". ", maxsplit=2)[:2])
    return f"out of GPU memory ({first}). {what_to_lower(config)}"


def what_to_lower(config: TrainConfig) -> str:
    """Return what to lower where memory does not suffice, and in which order."""
    training, model, engine = config.training, config.model, config.rollout.engine
    advice = []
    if training.per_device_train_batch_size > 1:
        advice.append(_smaller_batch(config))
    if not training.gradient_checkpointing:
        advice.append("training.gradient_checkpointing: true")
    longest = training.max_completion_length or 0
    if config.method == "sft":
        advice.append(f"model.max_seq_length {model.max_seq_length} -> {model.max_seq_length // 2}")
    elif longest > 1:
        advice.append(f"training.max_completion_length {longest} -> {longest // 2}")
    # `auto` is vLLM where it is installed and there is a GPU, and a GPU is what ran out.
    samples = config.method != "sft" and (engine == "vllm" or (engine == "auto" and installed("vllm")))
    if samples and model.gpu_memory_utilization > VLLM_SHARE:
        advice.append(f"model.gpu_memory_utilization {model.gpu_memory_utilization} -> {VLLM_SHARE} (vLLM's share)")
    if model.lora_rank == 0:
        advice.append("model.lora_rank: 64 (train adapters only)")
    elif not model.load_in_4bit and not model.build:
        advice.append("model.load_in_4bit: true")
    return "Lower, in this order: " + "; ".join(advice or ["the size of the model"])


def _smaller_batch(config: TrainConfig) -> str:
    """Say how the completions of an optimizer step and of a rollout are split into more micro-batches."""
    training = config.training
    batch = training.per_device_train_batch_size
    parts = next(factor for factor in range(2, batch + 1) if batch % factor == 0)
    line = (
        f"training.per_device_train_batch_size {batch} -> {batch // parts} with training.gradient_accumulation_steps "
        f"{training.gradient_accumulation_steps} -> {training.gradient_accumulation_steps * parts}"
    )
    if (rounds := training.steps_per_generation) and config.method != "sft":
        line += f" and training.steps_per_generation {rounds} -> {rounds * parts}"
    if config.method == "grpo" and training.loss_type == "bnpo":
        return line  # bnpo divides by the tokens of the micro-batch
    return f"{line} (the same gradient)"
