"""What follows from other keys: contradictions are refused, derived values filled in.

`resolve` is idempotent, so a run folder's config.yaml loads to itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict

from gtpo.common.errors import UserError, raise_all
from gtpo.config.schema import TrainConfig
from gtpo.presets import PRESETS
from gtpo.rewards.data.problems import MATH_SUBJECTS, has_subjects, training_source
from gtpo.rewards.loading import source_hash

# Above it an Adam moment moves by less than the resolution of block-wise 8-bit states, and updates are lost.
LARGEST_8BIT_BETA = 0.9999

# The objective of TRL's own GRPO, without the fields that it can vary.
_OF_GRPO = {"preset": "grpo", **asdict(PRESETS["grpo"])}
del _OF_GRPO["scale_rewards"], _OF_GRPO["mask_truncated"]

# Key of training that acts with some methods only -> those, and why not with another.
_OF_METHODS = (
    ("beta", ("grpo",), "has no KL term; set it to 0"),
    ("initial_entropy", ("gtpo",), "has no entropy gate"),
    ("resample_equal_groups", ("gtpo", "grpo"), "samples no groups"),
    ("eval_steps", ("gtpo", "grpo"), "samples nothing; gtpo eval measures its weights"),
)


def launched_processes() -> int:
    """Return the training processes that torchrun or accelerate started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


# -- contradictions: a sentence for each, which begins with the key ----------------------------------------------------


def _of_the_model(config: TrainConfig) -> Iterator[str]:
    model, lora, training = config.model, config.lora.passed_on, config.training
    loaded = {"model_name": model.model_name, "load_in_4bit": model.load_in_4bit, "backend": model.backend == "unsloth"}
    if model.build is None and not model.model_name:
        yield "model needs model_name (a Hub name, a local folder or a train run) or build"
    for name in [name for name, value in loaded.items() if value and model.build]:
        yield f"model.{name} contradicts model.build: the model is built, and none is loaded"
    if (build := model.build) and build.hidden_size % build.num_attention_heads:
        heads, width = build.num_attention_heads, build.hidden_size
        yield f"model.build.num_attention_heads {heads} does not divide hidden_size {width}"
    if model.load_in_4bit and not model.lora_rank:
        yield "model.load_in_4bit needs lora_rank > 0: 4-bit weights are frozen, only adapters are trained"
    if lora and not model.lora_rank:
        yield f"lora.{next(iter(lora))} has no effect: model.lora_rank is 0, and there is no adapter"
    if lora.get("lora_dropout") and config.method != "sft" and training.passed_on.get("disable_dropout", True):
        yield "lora.lora_dropout has no effect: training.disable_dropout is true; the loss is of what sampled"
    if model.lora_rank and "lm_head" in model.target_modules:
        yield "model.target_modules lm_head: the loss reads its weight, so an adapter on it would not be trained"


def _of_the_data(config: TrainConfig) -> Iterator[str]:
    try:
        source = training_source(config.dataset.name, config.dataset.split)
    except UserError as fault:
        yield str(fault)
        return
    # A file may have subjects of its own, which are compared when it is read.
    for subset in [] if has_subjects(source) else config.dataset.subsets:
        if subset not in ("main", *MATH_SUBJECTS, *MATH_SUBJECTS.values()):
            yield f'dataset.subsets "{subset}" is not known; {config.dataset.name} has only main'
    form = config.dataset.sft_target
    if form not in ("tags", "think") and not ("{answer}" in form and "{reasoning}" in form):
        yield f"dataset.sft_target {form!r} must be tags, think, or a text with {{reasoning}} and {{answer}}"
    if form != "tags" and config.dataset.malformed_targets:
        yield "dataset.malformed_targets needs dataset.sft_target tags: its errors are in the tags"


def _of_training(config: TrainConfig) -> Iterator[str]:
    training, method = config.training, config.method
    if training.max_steps == 0:
        yield "training.max_steps 0 trains nothing; set it to 1 or more, or to -1 for training.num_train_epochs"
    if training.num_generations == 1 and method != "sft":
        yield f"training.num_generations 1 contradicts method {method}, which compares completions of a prompt; take 2"
    for name, methods, why in _OF_METHODS:
        value, default = getattr(training, name), type(training).model_fields[name].default
        if value != default and method not in methods:
            yield f"training.{name} {value} contradicts method {method}, which {why}"
    for name in ("eval_steps", "log_kl_steps"):
        every, steps = getattr(training, name), training.logging_steps
        if every is not None and every % steps:
            why = "and its result is a part of that step's line"
            yield f"training.{name} {every} is no multiple of training.logging_steps {steps}, {why}"
    longest, whole = training.max_completion_length, config.model.max_seq_length
    if method != "sft" and training.max_prompt_length + (longest or 1) > whole:
        lengths = (
            f"max_completion_length {longest} + " if longest else ""
        ) + f"max_prompt_length {training.max_prompt_length}"
        yield f"training.{lengths} leaves no room in model.max_seq_length {whole}"
    for name, value in config.objective.model_dump(exclude_none=True).items():
        if method == "sft":
            yield f"objective.{name} contradicts method sft: supervised fine-tuning has no RL objective"
        elif method == "grpo" and value != _OF_GRPO.get(name, value):
            instead = "method gtpo takes it, also with objective.preset grpo or grpo-filtered"
            yield f"objective.{name} {value} contradicts method grpo, TRL's own, which has no such switch; {instead}"


# -- derived values ----------------------------------------------------------------------------------------------------


def _subsets(config: TrainConfig) -> Iterator[str]:
    """Remove subsets that the dataset does not have: the published file lists MATH's, whatever --dataset-name is."""
    dataset = config.dataset
    source, named = training_source(dataset.name, dataset.split), dataset.subsets
    if not has_subjects(source):
        if named not in ([], ["main"]):
            yield f"no effect on dataset {dataset.name} (they are MATH's subjects): dataset.subsets"
        dataset.subsets = []
    elif source.startswith("math_") and "main" in named:
        yield f"no effect on dataset {dataset.name} (main is GSM8K's): dataset.subsets"
        dataset.subsets = [name for name in named if name != "main"]


def _precision(config: TrainConfig) -> Iterator[str]:
    """Widen optimizer states and weights in which an extreme Adam beta's updates would be rounded away."""
    model, training = config.model, config.training
    beta = max(training.adam_beta1, training.adam_beta2)
    if beta <= LARGEST_8BIT_BETA:
        return
    if training.optimizer.endswith(("4bit", "8bit")):
        # Others have their 32 bits in the name: paged_adamw_32bit, lion_32bit.
        plain = {"adamw": "adamw_torch", "ademamix": "ademamix"}.get(training.optimizer.partition("_")[0])
        wide = plain or training.optimizer.replace("8bit", "32bit")
        yield (
            f"{config.setting('training.optimizer')} {training.optimizer} -> {wide}: with an Adam beta of {beta} "
            f"(> {LARGEST_8BIT_BETA}) 8-bit states would round the updates away"
        )
        training.optimizer = wide
    if not model.lora_rank and model.dtype in ("bfloat16", "float16"):
        yield (
            f"{config.setting('model.dtype')} {model.dtype} -> float32: optimizer states have the dtype of the "
            f"trained weights, and with an Adam beta of {beta} 16-bit states would round the updates away"
        )
        model.dtype = "float32"


def _batch(config: TrainConfig, world_size: int) -> Iterator[str]:
    """Make every rollout hold complete groups: by the published rule, raise a smaller batch to G; else round it."""
    training = config.training
    group, rounds, batch = (
        training.num_generations, training.micro_batches_per_rollout, training.per_device_train_batch_size,
    )  # fmt: skip
    if (batch * rounds * world_size) % group == 0:
        return
    taken = group * max(1, math.ceil(batch / group - 0.5))  # of two that are as near, the smaller
    training.per_device_train_batch_size = taken
    yield (
        f"{config.setting('training.per_device_train_batch_size')} is taken as {taken}, not {batch}: {batch} x "
        f"{rounds} micro-batches x {world_size} processes cannot be divided into groups of {group} completions. A "
        f"rollout now has {training.prompts_per_rollout(world_size)} prompts"
    )


def resolve(config: TrainConfig, world_size: int | None = None) -> tuple[TrainConfig, list[str]]:
    """Return the resolved copy of a valid config, and a notice for each change of what the user had set.

    Raises UserError with a line per contradiction.
    """
    faults = (fault.partition(" ") for check in (_of_the_model, _of_the_data, _of_training) for fault in check(config))
    raise_all(f"{config.setting(key)} {message}" for key, _, message in faults)
    config = config.model_copy(deep=True)
    model, training = config.model, config.training
    # The published setting; peft has alpha 8 for every rank.
    if model.lora_rank:
        model.lora_alpha = model.lora_alpha or model.lora_rank
    notices = [*_subsets(config), *_precision(config)]
    if config.method != "sft":
        if training.max_completion_length is None:
            training.max_completion_length = model.max_seq_length - training.max_prompt_length
        config.objective.preset = config.preset_name()
        source = source_hash(loss, "objective.loss") if (loss := config.objective.changes().get("loss")) else None
        config.objective = config.objective.model_copy(update={"loss_source": source})
        notices += _batch(config, world_size or launched_processes())
    return config, notices
