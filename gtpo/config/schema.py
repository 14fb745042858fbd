"""The schema of a training config: typed, ranged, documented, and free of torch.

Unknown keys are refused, so no key is silently ignored. The string under a field is its documentation:
`gtpo train --help-config` and docs/config.md print it.

The default of a key added later must be what runs did before the key existed: a run folder of an earlier version is
read with it, and resumed only if nothing differs (`gtpo.runs.train_run`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, create_model

from gtpo.common.settings import Key, section_of
from gtpo.presets import PRESETS, Objective
from gtpo.rewards.data.problem import SYSTEM_INSTRUCTION

Method = Literal["gtpo", "grpo", "sft"]


class Setting(NamedTuple):
    """What the user wrote under a key, and where. As text, the start of an error message."""

    value: Any
    """As read; `{}` for a section, whose keys have settings of their own."""
    place: str
    """`file:line`; empty for a flag."""
    typed: str
    """The key in the file's dialect, or the flag with its dashes."""

    def __str__(self) -> str:
        return f"{self.place}: {self.typed}" if self.place else self.typed

    @property
    def is_flag(self) -> bool:
        """Return whether the key was set on the command line."""
        return self.typed.startswith("-")


class Section(BaseModel):
    """A group of keys: unknown ones are errors, and defaults are validated."""

    model_config = ConfigDict(
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
        defer_build=True,
    )


class PassedOn(Section):
    """A section that also takes the fields of a library's own configuration.

    They are checked by type and name as soon as that library has been imported (`gtpo.config.load`).
    """

    model_config = ConfigDict(extra="allow")

    @property
    def passed_on(self) -> dict[str, Any]:
        """The keys that are not this section's own, in the order in which they were set."""
        return dict(self.model_extra or {})


class EnvSection(Section):
    """Process environment, applied before torch is imported."""

    CUDA_VISIBLE_DEVICES: str | None = None
    """GPUs that this run may use, as in the environment variable. Unset: the environment decides."""


class BuiltModel(Section):
    """A small decoder built from scratch, with its own tokenizer and chat template."""

    architecture: Literal["llama", "qwen2"] = "llama"
    """Layer type: Llama, or Qwen2 (q, k and v projections with a bias)."""
    hidden_size: int = Field(128, ge=8)
    """D, the width of the residual stream."""
    intermediate_size: int = Field(512, ge=8)
    """Width of the feed-forward layers."""
    num_hidden_layers: int = Field(4, ge=1)
    """Decoder layers."""
    num_attention_heads: int = Field(4, ge=1)
    """Attention heads. Must divide `hidden_size`."""
    tie_word_embeddings: bool = True
    """Share one matrix between the input embedding and lm_head."""
    rope_theta: float = Field(10000.0, gt=1)
    """Base of the rotary position embedding. Short sequences learn faster with a small one."""
    initializer_range: float = Field(0.02, gt=0)
    """Standard deviation of the initial weights."""


class ModelSection(Section):
    """The base model and how it is loaded."""

    model_name: str | None = None
    """Hub name, local folder, or train run (its best weights). Unset only with `build`."""
    build: BuiltModel | None = None
    """Build this model from scratch instead of loading one."""
    backend: Literal["transformers", "unsloth"] = "transformers"
    """Library that loads the model. `unsloth` needs the package unsloth and a GPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the base weights. `auto`: float32 for trained weights, so that small updates are not rounded away,
    on a GPU with bfloat16 autocast. For frozen weights (LoRA) bfloat16; on a CPU if they are stored in it and the
    CPU multiplies it (AVX512_BF16, AMX), else float32."""
    max_seq_length: int = Field(2048, ge=16)
    """Maximum length of prompt and completion together, in tokens."""
    lora_rank: int = Field(0, ge=0)
    """Rank of the LoRA adapters. 0 trains all weights."""
    lora_alpha: int | None = Field(None, ge=1)
    """LoRA alpha. Unset: equal to the rank (the published setting)."""
    target_modules: list[str] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    """Linear layers that get adapters; all-linear: all but the head."""
    load_in_4bit: bool = False
    """Store the frozen base weights in 4 bits (bitsandbytes, NF4). Needs `lora_rank` > 0."""
    gpu_memory_utilization: float = Field(0.4, gt=0, le=1)
    """Share of the GPU memory for vLLM when it samples on the trainer's GPU."""
    random_seed: int = Field(3407, ge=0, le=2**32 - 1)
    """Seed of initialisation, data order and sampling."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""


class LoraSection(PassedOn):
    """Fields of peft's LoraConfig beside model.lora_rank, model.lora_alpha and model.target_modules: lora_dropout,
    use_dora, use_rslora, modules_to_save, ..."""


class DatasetSection(Section):
    """The training data."""

    name: str = "arithmetic"
    """gsm8k, math (also hendrycks_math, EleutherAI/hendrycks_math), arithmetic, or a .jsonl or .parquet file."""
    subsets: list[str] = []
    """MATH subjects. Empty: all seven."""
    split: str = "train"
    """Split of the source."""
    system_instruction: str = SYSTEM_INSTRUCTION
    """System prompt of every conversation. Empty: no system message."""
    data_dir: Path | None = None
    """Folder with the files of docs/evaluate.md. The environment variable GTPO_DATA_DIR does the same."""
    fields: str = ""
    """Names of fields in files, ours=theirs: problem=question,answer=reward_model.ground_truth."""
    limit: int | None = Field(None, ge=1)
    """Maximum number of problems, taken in shuffled order."""
    validation_problems: int = Field(64, ge=1)
    """Problems held out of training for validation (training.eval_steps), the last in shuffled order."""
    validation_file: Path | None = None
    """Your own validation problems, a .jsonl or .parquet file. Those among the training problems are not trained on."""
    sft_target: str = "tags"
    """Form of the SFT target: tags (the published layout), think (the solution in `<think>`, the answer in a box), or a
    text of yours with {reasoning} and {answer}."""
    malformed_targets: float = Field(0.0, ge=0, lt=1)
    """Share of SFT targets with an error in a tag or in the answer, so that a warm-started model has something to
    learn."""


class TrlDefaults(PassedOn):
    """TRL's own settings that have another default here, or of which steps are counted before TRL is imported.

    They act with every method, and TRL documents them. The names are the published ones. Bounds are those that TRL
    finds only when the weights are loaded, or never.
    """

    learning_rate: float = Field(1e-6, gt=0)
    lr_scheduler_type: str = "cosine"
    warmup_ratio: float = Field(0.005, ge=0, lt=1)
    """Share of all steps used for the warm-up; `training.warmup_steps` takes their number."""
    optimizer: str = "adamw_torch"
    """TRL's optim. With an Adam beta above 0.9999, 8-bit states become 32-bit states, with a warning."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    max_grad_norm: float = Field(0.1, ge=0)
    num_train_epochs: float = Field(1, gt=0)
    max_steps: int = Field(-1, ge=-1)
    gradient_accumulation_steps: int = Field(1, ge=1)
    gradient_checkpointing: bool = False
    logging_steps: int = Field(1, ge=1)
    save_steps: int = Field(500, ge=1)
    save_total_limit: int | None = Field(2, ge=1)

    @property
    def passed_on(self) -> dict[str, Any]:
        """The keys that are TRL's, by the names that they have here."""
        return {name: getattr(self, name) for name in TrlDefaults.model_fields} | super().passed_on


class TrainingSection(TrlDefaults):
    """Optimization and sampling, with the names of transformers and TRL.

    Any other field of TRL's GRPOConfig (SFTConfig with method sft) may stand here too: top_p, chat_template_kwargs,
    epsilon, and with method grpo loss_type, whose default is grpo.
    """

    num_generations: int = Field(8, ge=1)
    """Completions per prompt (G). A group of one has no advantage to learn from."""
    per_device_train_batch_size: int = Field(8, ge=1)
    """Completions (sft: examples) per device and micro-batch. If devices x this x accumulation is no multiple of G, it
    becomes the nearest multiple of G (at least G, as in the published runs), with a warning."""
    share_prefixes: bool = False
    """Compute the tokens that rows of a micro-batch share once (a group's prompt), and no padding. Same loss, other
    rounding. For models of full attention; a larger micro-batch shares more."""
    steps_per_generation: int | None = Field(None, ge=1)
    """Micro-batches per rollout. Unset: equal to the accumulation (strictly on-policy)."""
    num_iterations: int = Field(1, ge=1)
    """As in TRL: optimization passes over each rollout (mu in GRPO)."""
    resample_equal_groups: int = Field(0, ge=0)
    """How many times groups whose rewards are all equal are drawn again, from the same prompts (dynamic sampling). They
    have no advantage to learn from; each draw costs its sampling and scoring."""
    initial_entropy: float | None = Field(None, ge=0)
    """H_ini in nats, if you know it. Unset: gtpo measures it before the first step if objective.filter is auto."""
    max_prompt_length: int = Field(512, ge=1)
    """Maximum prompt length in tokens, chat template included. Longer prompts are left out and counted."""
    max_completion_length: int | None = Field(None, ge=1)
    """Maximum completion length in tokens. Unset: model.max_seq_length - max_prompt_length (the published recipe)."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of the rollouts (the published runs: 0.9)."""
    beta: float = Field(0.0, ge=0)
    """KL weight. Only for method grpo (GTPO has no reference model)."""
    eval_steps: int | None = Field(None, ge=1)
    """Optimizer steps between validations: held-out problems, sampled as in training and scored by the same verifier.
    `best/` then follows held-out pass@1. Unset: no validation."""
    eval_samples: int = Field(4, ge=1)
    """Samples per validation problem: pass@1 and maj@k for this k."""
    log_kl_steps: int | None = Field(None, ge=0)
    """Optimizer steps between measurements of the KL divergence from the untrained policy (`kl/untrained`), for any
    method. 0: never. Unset: every 10 if a policy that samples has adapters, since the collapse watch follows it; else
    never, for without adapters a second copy of the weights is held for it."""
    log_completions_steps: int = Field(10, ge=0)
    """Optimizer steps between files of the completions log (always one for the first step). 0: no log."""
    report_to: list[Literal["wandb", "tensorboard", "trackio"]] = []
    """Experiment trackers, in addition to metrics.jsonl."""

    @property
    def micro_batches_per_rollout(self) -> int:
        """The micro-batches that share one rollout."""
        return self.steps_per_generation or self.gradient_accumulation_steps

    @property
    def one_step_per_rollout(self) -> bool:
        """Whether each rollout feeds one optimizer step, so that the policy trained is the one that sampled."""
        return self.gradient_accumulation_steps % (self.micro_batches_per_rollout * self.num_iterations) == 0

    def prompts_per_rollout(self, world_size: int) -> int:
        """Return the prompts that one rollout takes over all processes; a resolved config has complete groups."""
        completions = self.per_device_train_batch_size * self.micro_batches_per_rollout * world_size
        return completions // self.num_generations


class RewardCall(Section):
    """A reward function, or what makes one, with arguments of its own."""

    path: str
    args: dict[str, Any] = {}


class TrainerSection(Section):
    """Trainer class and rewards by dotted path."""

    class_path: str | None = None
    """`package.module.Class` of your own trainer, a subclass of gtpo.GTPOTrainer (method gtpo), trl.GRPOTrainer (grpo)
    or trl.SFTTrainer (sft). Unset: the method's trainer."""
    reward_funcs: list[str | RewardCall] = ["gtpo.rewards.final_reward"]
    """Reward functions by dotted path (`package.module.name` or `package.module:name`), or {path: ..., args: {...}}: a
    function of completions is called with these arguments too, any other is called once and returns the reward."""
    reward_weights: list[float] | None = None
    """One weight per reward function. Unset: 1 each."""

    def reward_calls(self) -> list[tuple[str, dict[str, Any] | None]]:
        """Return the path and the arguments of each reward function."""
        return [(call, None) if isinstance(call, str) else (call.path, call.args) for call in self.reward_funcs]


class RolloutSection(PassedOn):
    """How completions are sampled during training.

    Any other key is a field of vllm.SamplingParams, or of transformers' GenerationConfig. TRL's settings of the sampler
    stand under `training`: top_p, top_k, min_p, repetition_penalty, vllm_*.
    """

    engine: Literal["auto", "transformers", "vllm", "vllm_server"] = "auto"
    """Sampling engine. `auto`: vLLM on the trainer's GPU if vLLM is installed and there is a GPU, else transformers."""
    server_host: str = "127.0.0.1"
    """Host of the vLLM server (engine vllm_server)."""
    server_port: int = Field(8000, ge=1, le=65535)
    """Port of the vLLM server (engine vllm_server)."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs over which vLLM splits the model."""
    importance_sampling_correction: bool | None = None
    """TRL's correction of the mismatch between vLLM's log-probabilities and the trainer's, for gtpo and grpo alike.
    Completions whose ratio is above 3 are left out, the others are weighted by it. Costs a forward more a round. Unset:
    true, unless the objective takes another temperature than the sampling's (gtpo-published). false: the paper's exact
    loss."""
    logp_difference_alarm: float | None = Field(None, gt=0)
    """Mean difference in nats per token between the sampler's log-probabilities and the loss's above which the run
    stops: measured before the first round, and with vLLM at each step (`sampling/logp_difference`). null: that of the
    coarser data type of the two, 0.001 for float32, 0.02 for float16, 0.1 for bfloat16."""


class HealthSection(Section):
    """Collapse detection, best weights, early stopping."""

    on_collapse: Literal["warn", "stop", "rollback"] = "warn"
    """Action when the run collapses: its accuracy reward or KL divergence has left the run's own past beyond chance, a
    metric is not finite, or the held-out accuracy fell (docs/watch.md). A run that it stops ends with exit code
    4."""
    false_alarms: float = Field(0.01, gt=0, lt=1)
    """Share of the runs of a policy that does not change in which a collapse is reported."""
    early_stop_patience: int | None = Field(None, ge=1)
    """Stop after this many steps without better smoothed accuracy: held-out if training.eval_steps is set, else the
    accuracy reward. Unset: never."""
    smoothing_steps: int = Field(20, ge=1)
    """Window in steps of the running mean that selects `best/` without validation: the weights of its last step."""
    smoothing_evaluations: int = Field(3, ge=1)
    """Window in validations of the running mean that selects `best/` if training.eval_steps is set."""


class ObjectiveBase(Section):
    """A preset of docs/method.md, and any field of `gtpo.presets.Objective` to change. Unset: the preset's value."""

    preset: str | None = None
    """Unset: the method's own preset (sft has none)."""

    def changes(self) -> dict[str, Any]:
        """Return the fields that were set, without the preset."""
        return {name: value for name, value in self.model_dump(exclude_none=True).items() if name != "preset"}


if TYPE_CHECKING:
    ObjectiveSection = ObjectiveBase
else:
    # One definition: the section's fields are the dataclass's own, each optional, with its documentation.
    ObjectiveSection = create_model(
        "ObjectiveSection",
        __base__=ObjectiveBase,
        __doc__=ObjectiveBase.__doc__,
        preset=(
            Literal[tuple(PRESETS)] | None,
            Field(None, description=ObjectiveBase.model_fields["preset"].description),
        ),
        **{
            name: (Annotated[field.annotation | None, Field(description=field.description), *field.metadata], None)
            for name, field in Objective.__pydantic_fields__.items()
        },
    )


class TrainConfig(Section):
    """One training run. `load_config` returns it resolved, with every derived value filled in."""

    run_name: str = Field(pattern=r"^\w[^/\\\x00-\x1f]{0,199}$")
    """Name of the run's folder in results/train/. Unset: the config file's name."""
    method: Method = "gtpo"
    """gtpo, or a baseline on TRL's own trainer: grpo, sft."""
    env: EnvSection = EnvSection()
    model: ModelSection = ModelSection()
    lora: LoraSection = LoraSection()
    dataset: DatasetSection = DatasetSection()
    training: TrainingSection = TrainingSection()
    trainer: TrainerSection = TrainerSection()
    objective: ObjectiveSection = ObjectiveSection()
    rollout: RolloutSection = RolloutSection()
    health: HealthSection = HealthSection()
    _setting: Callable[[str], Setting] = PrivateAttr(default_factory=lambda: functools.partial(Setting, None, ""))

    def setting(self, key: str) -> Setting:
        """Return a dotted key as the user set it. As text an error names it: with file and line, or as a flag."""
        return self._setting(key)

    def preset_name(self) -> str:
        """Return the preset in force; method sft has none (ValueError)."""
        if self.method == "sft":
            raise ValueError("method sft has no objective of this kind")
        return self.objective.preset or self.method

    def resolved_objective(self) -> Objective:
        """Return the objective: the preset with this config's changes. ValueError for method sft."""
        return replace(PRESETS[self.preset_name()], **self.objective.changes())

    def as_dict(self) -> dict[str, Any]:
        """Return the config as plain values, with every field of the objective. Runs are compared by it."""
        values = self.model_dump(mode="json")
        if self.method != "sft":
            values["objective"] = {"preset": self.preset_name(), **asdict(self.resolved_objective())}
        return values

    def to_yaml(self) -> str:
        """Return `as_dict` as YAML. `load_config` reads the same values."""
        import yaml

        return yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True, width=100)


# -- every key by its name: what flags, errors and the reference print -------------------------------------------------

# The short flags of the published README, and those that `gtpo eval` has too -> the key they set.
SHORTCUTS: dict[str, str] = {
    "model": "model.model_name",
    "data": "dataset.name",
    "model-name": "model.model_name",
    "dataset-name": "dataset.name",
    "dataset-subset": "dataset.subsets",
    "dataset-split": "dataset.split",
    "data-dir": "dataset.data_dir",
    "cuda": "env.CUDA_VISIBLE_DEVICES",
    "run-name": "run_name",
    "max-tokens": "training.max_completion_length",
    "fields": "dataset.fields",
}


@functools.cache
def sections() -> dict[str, type[BaseModel]]:
    """Return every section class by its dotted name, in the schema's order; the root is the empty name."""

    def walk(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
        for name, info in section.model_fields.items():
            if inner := section_of(info.annotation):
                yield prefix + name, inner
                yield from walk(inner, f"{prefix}{name}.")

    return {"": TrainConfig, **dict(walk(TrainConfig, ""))}


@functools.cache
def keys() -> dict[str, Key]:
    """Return every key by its dotted name, section by section in the schema's order."""
    named = [
        Key(f"{section}.{name}".lstrip("."), info)
        for section, model in sections().items()
        for name, info in model.model_fields.items()
        if not section_of(info.annotation)
    ]
    return {key.name: key for key in named}


def full_name(flag: str) -> str:
    """Return the dotted key that a flag (without its dashes) sets; an unknown flag is returned as it is."""
    name = SHORTCUTS.get(flag, flag)
    return name if name in keys() or name.replace("-", "_") not in keys() else name.replace("-", "_")


def is_passed_on(name: str) -> bool:
    """Return whether a dotted key is a library's own: in a section that takes them, and not one of ours."""
    section, _, inside = name.partition(".")
    own = f"{section}.{inside.partition('.')[0]}" in keys()
    return bool(inside) and issubclass(sections().get(section, BaseModel), PassedOn) and not own


def default_in_words(key: Key) -> str:
    """Return the default as the reference prints it."""
    if key.name == "dataset.system_instruction":
        return "the published prompt"
    section, _, field = key.name.rpartition(".")
    of_preset = section == "objective" and field != "preset"
    value = getattr(PRESETS["gtpo"], field) if of_preset else key.default
    if isinstance(value, list):
        words = "[" + ", ".join(map(str, value)) + "]"
    elif isinstance(value, bool | float):
        words = str(value).lower() if isinstance(value, bool) else f"{value:g}"
    else:
        words = "unset" if value is None else str(value) or '""'
    return f"the preset's; gtpo: {words}" if of_preset else words


def by_section() -> Iterator[tuple[str, str, list[Key]]]:
    """Yield (section, its documentation, its own keys), for the reference."""
    for name, section in sections().items():
        own = [key for key in keys().values() if key.name.rpartition(".")[0] == name]
        if own or issubclass(section, PassedOn):
            yield name, " ".join((section.__doc__ or "").split()), own


def print_reference() -> None:
    """Print every key as plain text, unwrapped: one block per key."""
    for name, doc, own in by_section():
        print(f"\n{name or 'top level'}: {doc}")
        for key in own:
            print(f"  --{key.name}\n      {key.expects}; default {default_in_words(key)}\n      {key.doc}")
    print("\nshort flags")
    for flag, name in SHORTCUTS.items():
        print(f"  --{flag:20} --{name}")
