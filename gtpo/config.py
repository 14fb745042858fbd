"""The schema of a training config: typed, ranged, documented, and free of torch.

Unknown keys are refused, so that no key does nothing in silence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rewards.data.prompt import SYSTEM_INSTRUCTION


class Section(BaseModel):
    """A config section: unknown keys are errors and defaults are validated."""

    model_config = ConfigDict(
        extra="forbid", validate_default=True, use_attribute_docstrings=True, protected_namespaces=()
    )


class EnvSection(Section):
    """Process environment, applied before torch is imported."""

    CUDA_VISIBLE_DEVICES: str | None = None
    """Devices this run may see, as in the environment variable; unset leaves the environment alone."""


class BuiltModel(Section):
    """A small decoder built from scratch, with its own tokenizer and chat template."""

    architecture: Literal["llama", "qwen2"] = "llama"
    hidden_size: int = Field(128, ge=8)
    intermediate_size: int = Field(512, ge=8)
    num_hidden_layers: int = Field(4, ge=1)
    num_attention_heads: int = Field(4, ge=1)
    tie_word_embeddings: bool = True


class ModelSection(Section):
    """The base model and how it is loaded."""

    model_name: str | None = None
    """Hub name, local folder, or a train run (its best weights). Empty only together with `build`."""
    build: BuiltModel | None = None
    """Build this model from scratch instead of loading one."""
    backend: Literal["transformers", "unsloth"] = "transformers"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: bfloat16 where the device has it, float32 on a CPU."""
    max_seq_length: int = Field(2048, ge=16)
    """Prompt and completion together, in tokens."""
    lora_rank: int = Field(0, ge=0)
    """Rank of the LoRA adapters; 0 trains all weights."""
    lora_alpha: int | None = Field(None, ge=1)
    """LoRA alpha; unset equals the rank (the published setting)."""
    target_modules: list[str] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    load_in_4bit: bool = False
    gpu_memory_utilization: float = Field(0.4, gt=0, le=1)
    """Share of the GPU that vLLM may take when it samples beside the trainer."""
    random_seed: int = 3407
    trust_remote_code: bool = False


class DatasetSection(Section):
    """What is trained on."""

    name: str = "arithmetic"
    """gsm8k, math (also: hendrycks_math, EleutherAI/hendrycks_math), arithmetic, or a .jsonl/.parquet file."""
    subsets: list[str] = []
    """MATH subjects; empty takes all seven."""
    subset: str | None = None
    split: str = "train"
    system_instruction: str = SYSTEM_INSTRUCTION
    data_dir: Path | None = None
    """Folder with the files of docs/evaluation.md; the environment variable GTPO_DATA_DIR does the same."""
    limit: int | None = Field(None, ge=1)
    """Use only the first this many problems after the shuffle."""


class TrainingSection(Section):
    """Optimisation and sampling; the names are transformers' and TRL's."""

    learning_rate: float = Field(1e-6, gt=0)
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "cosine"
    warmup_ratio: float = Field(0.005, ge=0, lt=1)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    optimizer: str = "adamw_torch"
    max_grad_norm: float = Field(0.1, gt=0)
    num_generations: int = Field(8, ge=2)
    """G, the completions sampled per prompt."""
    per_device_train_batch_size: int = Field(8, ge=1)
    """Completions (sft: examples) per device and micro-batch."""
    gradient_accumulation_steps: int = Field(1, ge=1)
    steps_per_generation: int | None = Field(None, ge=1)
    num_iterations: int = Field(1, ge=1)
    num_train_epochs: float = Field(1, gt=0)
    max_steps: int = Field(-1, ge=-1)
    """Optimiser steps; -1 takes `num_train_epochs`."""
    max_prompt_length: int = Field(512, ge=1)
    """Prompts longer than this many tokens (chat template applied) are left out and counted."""
    max_completion_length: int | None = Field(None, ge=1)
    """Unset: max_seq_length - max_prompt_length, as in the published recipe."""
    temperature: float = Field(1.0, gt=0)
    beta: float = Field(0.0, ge=0)
    """KL weight, method grpo only (GTPO has no reference model)."""
    gradient_checkpointing: bool = False
    logging_steps: int = Field(1, ge=1)
    save_steps: int = Field(500, ge=1)
    save_total_limit: int | None = Field(2, ge=1)
    report_to: list[Literal["wandb", "tensorboard", "trackio"]] = []


class TrainerSection(Section):
    """Trainer class and rewards by dotted path."""

    class_path: str | None = None
    reward_funcs: list[str] = ["rewards.final_reward"]
    reward_weights: list[float] | None = None


class RolloutSection(Section):
    """How completions are sampled during training."""

    engine: Literal["auto", "transformers", "vllm", "vllm_server"] = "auto"
    """`auto`: vLLM beside the trainer where it is installed and there is a GPU, transformers otherwise."""
    server_host: str = "127.0.0.1"
    server_port: int = Field(8000, ge=1, le=65535)
    tensor_parallel_size: int = Field(1, ge=1)


class HealthSection(Section):
    """Collapse watch, best checkpoint, early stop."""

    on_collapse: Literal["warn", "stop", "rollback"] = "warn"
    early_stop_patience: int | None = Field(None, ge=1)
    """Stop after this many steps without a better smoothed accuracy reward; unset never stops."""
    smoothing_steps: int = Field(20, ge=1)
    """Window of the running mean by which `best/` is chosen."""


class TrainConfig(Section):
    """One training run, resolved."""

    run_name: str
    method: Literal["gtpo", "grpo", "sft"] = "gtpo"
    env: EnvSection = EnvSection()
    model: ModelSection
    dataset: DatasetSection = DatasetSection()
    training: TrainingSection = TrainingSection()
    trainer: TrainerSection = TrainerSection()
    objective: dict[str, Any] = {"preset": "gtpo"}
    """`preset` (a name of docs/method.md) and any field of `gtpo.presets.Objective` to vary."""
    gtpo_runtime: dict[str, Any] = {}
    """The published config's section of that name; its keys map to `objective`."""
    rollout: RolloutSection = RolloutSection()
    health: HealthSection = HealthSection()
