"""The schema of a training config: typed, ranged, documented, and free of torch.

Unknown keys are refused, so that no key does nothing in silence. The string under a field is its documentation:
`gtpo train --help-config` and docs/config.md print it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from gtpo.presets import PRESETS, Objective
from rewards.data.prompt import SYSTEM_INSTRUCTION

Method = Literal["gtpo", "grpo", "sft"]
Optimizer = Literal[
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_torch_8bit",
    "adamw_8bit",
    "adamw_bnb_8bit",
    "paged_adamw_8bit",
    "paged_adamw_32bit",
    "adafactor",
    "lion_8bit",
    "lion_32bit",
    "paged_lion_8bit",
    "paged_lion_32bit",
    "ademamix",
    "ademamix_8bit",
    "sgd",
]
Scheduler = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"
]


class Section(BaseModel):
    """A config section: unknown keys are errors and defaults are validated."""

    model_config = ConfigDict(
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
    )


class EnvSection(Section):
    """Process environment, applied before torch is imported."""

    CUDA_VISIBLE_DEVICES: str | None = None
    """Devices this run may see, as in the environment variable; unset leaves the environment alone."""


class BuiltModel(Section):
    """A small decoder built from scratch, with its own tokenizer and chat template."""

    architecture: Literal["llama", "qwen2"] = "llama"
    """Whose layers: Llama, or Qwen2 (biased q, k, v projections)."""
    hidden_size: int = Field(128, ge=8)
    """D, the width of the residual stream."""
    intermediate_size: int = Field(512, ge=8)
    """Width of the feed-forward layers."""
    num_hidden_layers: int = Field(4, ge=1)
    """Decoder layers."""
    num_attention_heads: int = Field(4, ge=1)
    """Attention heads; must divide `hidden_size`."""
    tie_word_embeddings: bool = True
    """Whether input embedding and lm_head share one matrix."""
    rope_theta: float = Field(10000.0, gt=1)
    """Base of the rotary positions; short sequences learn faster with a small one."""
    initializer_range: float = Field(0.02, gt=0)
    """Standard deviation of the initial weights."""
    vocabulary: Literal["arithmetic", "word_problems"] = "arithmetic"
    """The embedded task whose words are single tokens; any other text is spelled out in pieces."""


class ModelSection(Section):
    """The base model and how it is loaded."""

    model_name: str | None = None
    """Hub name, local folder, or the folder of a train run (its best weights). Empty only together with `build`."""
    build: BuiltModel | None = None
    """Build this model from scratch instead of loading one."""
    backend: Literal["transformers", "unsloth"] = "transformers"
    """Who loads the model; `unsloth` needs the package unsloth and a GPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the base weights. `auto`: float32 on a CPU; on a GPU bfloat16 where they are frozen (LoRA), and float32
    computing in bfloat16 where they are trained, so that small updates are not rounded away."""
    max_seq_length: int = Field(2048, ge=16)
    """Prompt and completion together, in tokens."""
    max_prompt_length: int | None = Field(None, ge=1)
    """A key of the published file that never had an effect; `training.max_prompt_length` acts."""
    lora_rank: int = Field(0, ge=0)
    """Rank of the LoRA adapters; 0 trains all weights."""
    lora_alpha: int | None = Field(None, ge=1)
    """LoRA alpha; unset equals the rank (the published setting)."""
    target_modules: list[str] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    """Linear layers that get adapters."""
    load_in_4bit: bool = False
    """Hold the frozen base weights in 4 bits (bitsandbytes, NF4); needs `lora_rank` > 0."""
    gpu_memory_utilization: float = Field(0.4, gt=0, le=1)
    """Share of the GPU that vLLM may take when it samples beside the trainer."""
    random_seed: int = Field(3407, ge=0)
    """Seed of initialisation, data order and sampling."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless asked for."""


class DatasetSection(Section):
    """What is trained on."""

    name: str = "arithmetic"
    """gsm8k, math (also: hendrycks_math, EleutherAI/hendrycks_math), arithmetic, or a .jsonl/.parquet file."""
    subsets: list[str] = []
    """MATH subjects; empty takes all seven."""
    subset: str | None = None
    """One subset: `main` for GSM8K, a subject for MATH."""
    split: str = "train"
    """Split of the source."""
    system_instruction: str = SYSTEM_INSTRUCTION
    """System prompt of every conversation; an empty one is left out."""
    data_dir: Path | None = None
    """Folder with the files of docs/evaluation.md; the environment variable GTPO_DATA_DIR does the same."""
    limit: int | None = Field(None, ge=1)
    """Use only the first this many problems after the shuffle."""
    malformed_targets: float = Field(0.0, ge=0, lt=1)
    """Share of SFT targets with a fault in a tag or in the answer: a warm-started base then has something to learn."""


class TrainingSection(Section):
    """Optimisation and sampling; the names are transformers' and TRL's."""

    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate."""
    lr_scheduler_type: Scheduler = "cosine"
    """Course of the learning rate after the warm-up."""
    warmup_ratio: float = Field(0.005, ge=0, lt=1)
    """Share of all steps over which the learning rate rises from 0."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of Adam's first moment (the paper: 0.999999 for GTPO, 0.9 for the baselines)."""
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    """Decay of Adam's second moment (the paper: 0.999999 for GTPO, 0.95 for the baselines)."""
    weight_decay: float = Field(0.1, ge=0)
    """Decoupled weight decay."""
    optimizer: Optimizer = "adamw_torch"
    """8-bit states are replaced by 32-bit ones where a beta exceeds 0.9999, and a line says so."""
    max_grad_norm: float = Field(0.1, gt=0)
    """Gradients are clipped to this norm."""
    num_generations: int = Field(8, ge=1)
    """G, the completions sampled per prompt; at least 2."""
    per_device_train_batch_size: int = Field(8, ge=1)
    """Completions (sft: examples) per device and micro-batch. Where devices x this x accumulation does not hold
    complete groups, it is raised to G, as in the published runs, and a line says so."""
    gradient_accumulation_steps: int = Field(1, ge=1)
    """Micro-batches per optimiser step."""
    steps_per_generation: int | None = Field(None, ge=1)
    """Micro-batches that share one round of sampling; unset equals the accumulation (strictly on-policy)."""
    num_iterations: int = Field(1, ge=1)
    """Optimisation passes over each round of sampled completions (mu in GRPO)."""
    num_train_epochs: float = Field(1, gt=0)
    """Passes over the dataset."""
    max_steps: int = Field(-1, ge=-1)
    """Optimiser steps; -1 takes `num_train_epochs`."""
    max_prompt_length: int = Field(512, ge=1)
    """Prompts longer than this many tokens (chat template applied) are left out and counted."""
    max_completion_length: int | None = Field(None, ge=1)
    """Unset: model.max_seq_length - max_prompt_length, as in the published recipe."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of the rollouts (the published runs: 0.9)."""
    beta: float = Field(0.0, ge=0)
    """KL weight, method grpo only (GTPO has no reference model)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    logging_steps: int = Field(1, ge=1)
    """Optimiser steps between lines of metrics.jsonl."""
    save_steps: int = Field(500, ge=1)
    """Optimiser steps between checkpoints."""
    save_total_limit: int | None = Field(2, ge=1)
    """Checkpoints kept; unset keeps all."""
    log_completions_steps: int = Field(10, ge=0)
    """Optimiser steps between files of the completions log (the first step is always one); 0 keeps none."""
    report_to: list[Literal["wandb", "tensorboard", "trackio"]] = []
    """Trackers to report to, besides metrics.jsonl."""


class TrainerSection(Section):
    """Trainer class and rewards by dotted path."""

    class_path: str | None = None
    """`package.module.Class` of a trainer of your own, a subclass of gtpo.GTPOTrainer, trl.GRPOTrainer (method grpo) or
    trl.SFTTrainer (method sft); unset takes the method's."""
    reward_funcs: list[str] = ["rewards.final_reward"]
    """Reward functions by dotted path (`package.module.name` or `package.module:name`)."""
    reward_weights: list[float] | None = None
    """One weight per reward function; unset weighs all 1."""


class RolloutSection(Section):
    """How completions are sampled during training."""

    engine: Literal["auto", "transformers", "vllm", "vllm_server"] = "auto"
    """`auto`: vLLM beside the trainer where it is installed and there is a GPU, transformers otherwise."""
    server_host: str = "127.0.0.1"
    """Host of the vLLM server (engine vllm_server)."""
    server_port: int = Field(8000, ge=1, le=65535)
    """Port of the vLLM server (engine vllm_server)."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs over which vLLM splits the model."""


class HealthSection(Section):
    """Collapse watch, best checkpoint, early stop."""

    on_collapse: Literal["warn", "stop", "rollback"] = "warn"
    """What happens when the format reward falls from its best while entropy rises past ln 2."""
    early_stop_patience: int | None = Field(None, ge=1)
    """Stop after this many steps without a better smoothed accuracy reward; unset never stops."""
    smoothing_steps: int = Field(20, ge=1)
    """Window of the running mean by which `best/` is chosen."""


class GtpoRuntimeSection(Section):
    """The published config's section of that name; its keys become fields of `objective`."""

    ent_threshold: float | None = Field(None, gt=0)
    """-> objective.entropy_threshold"""
    ent_scale: float | None = Field(None, ge=0)
    """-> objective.gamma"""
    w_raw: float | None = Field(None, ge=0)
    """-> objective.positive_weight (it amplified conflict tokens; it never weighed a raw reward)"""
    eps: float | None = Field(None, ge=0, lt=1)
    """-> objective.log_clamp (the clamp inside the entropy's logarithm)"""
    pad_id: int | None = None
    """No effect: spans are found by lengths, never by a pad id."""
    torch_compile_options: dict[str, Any] = {}
    """No effect, and had none in the published code."""


class ObjectiveBase(Section):
    """A preset of docs/method.md and any field of `gtpo.presets.Objective` to vary; unset fields are the preset's."""

    preset: str | None = None
    """Unset: the method's own (`gtpo`, `grpo`; sft has none)."""

    def changes(self) -> dict[str, Any]:
        """Return the fields that were set, without the preset."""
        return {name: value for name, value in self.model_dump(exclude_none=True).items() if name != "preset"}


def _field_docstrings(cls: type) -> dict[str, str]:
    """Return the string under each field of a class, as pydantic does for its own models."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    documented = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            documented[field.target.id] = inspect.cleandoc(ast.literal_eval(text.value))
    return documented


_OBJECTIVE_RANGES: dict[str, dict[str, float]] = {
    "positive_weight": {"ge": 0},
    "entropy_threshold": {"gt": 0},
    "gamma": {"ge": 0},
    "log_clamp": {"ge": 0, "lt": 1},
}

if TYPE_CHECKING:
    ObjectiveSection = ObjectiveBase
else:
    # One definition: the section's fields are the dataclass's own, each optional, with its documentation.
    _HINTS, _DOCS = get_type_hints(Objective), _field_docstrings(Objective)
    ObjectiveSection = create_model(
        "ObjectiveSection",
        __base__=ObjectiveBase,
        __doc__=ObjectiveBase.__doc__,
        preset=(
            Literal[tuple(PRESETS)] | None,
            Field(None, description=ObjectiveBase.model_fields["preset"].description),
        ),
        **{
            field.name: (
                _HINTS[field.name] | None,
                Field(None, description=_DOCS.get(field.name), **_OBJECTIVE_RANGES.get(field.name, {})),
            )
            for field in fields(Objective)
        },
    )


class TrainConfig(Section):
    """One training run. `load_config` returns it resolved: every value that follows from others filled in."""

    run_name: str = Field(pattern=r"^\w[^/\\\x00-\x1f]{0,199}$")
    """Names the run's folder in results/train/; unset takes the config file's name."""
    method: Method = "gtpo"
    """gtpo, or one of the baselines on TRL's own trainers: grpo, sft."""
    env: EnvSection = EnvSection()
    model: ModelSection
    dataset: DatasetSection = DatasetSection()
    training: TrainingSection = TrainingSection()
    trainer: TrainerSection = TrainerSection()
    objective: ObjectiveSection = ObjectiveSection()
    gtpo_runtime: GtpoRuntimeSection = GtpoRuntimeSection()
    rollout: RolloutSection = RolloutSection()
    health: HealthSection = HealthSection()

    def preset_name(self) -> str:
        """Return the preset in force; method sft has none (ValueError)."""
        if self.method == "sft":
            raise ValueError("method sft has no objective of this kind")
        return self.objective.preset or self.method

    def resolved_objective(self) -> Objective:
        """Return the objective: the preset with this config's changes. ValueError for method sft."""
        return replace(PRESETS[self.preset_name()], **self.objective.changes())

    def with_objective(self, objective: Objective) -> TrainConfig:
        """Return a copy whose `objective` spells out every field."""
        section = ObjectiveSection(**{"preset": self.preset_name(), **asdict(objective)})
        return self.model_copy(update={"objective": section})

    def to_yaml(self) -> str:
        """Return the config as YAML that `load_config` reads back to an equal config."""
        import yaml

        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)
