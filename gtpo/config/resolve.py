"""What follows from other keys: contradictions are refused, derived values filled in.

All work on values; where a key was set is looked up for messages only. `resolve` is idempotent, so a run folder's
config.yaml loads to itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from gtpo.common.errors import UserError
from gtpo.common.packages import installed
from gtpo.config.document import Document
from gtpo.config.published import Findings
from gtpo.config.schema import TrainConfig
from gtpo.presets import PRESETS
from gtpo.rewards.data.problems import MATH_SUBJECTS, has_subjects, training_source

# Above it an Adam moment moves by less than the resolution of block-wise 8-bit states, and updates are lost.
LARGEST_8BIT_BETA = 0.9999

_32_BIT = {
    "adamw_torch_4bit": "adamw_torch",
    "adamw_torch_8bit": "adamw_torch",
    "adamw_8bit": "adamw_torch",
    "adamw_bnb_8bit": "adamw_torch",
    "paged_adamw_8bit": "paged_adamw_32bit",
    "lion_8bit": "lion_32bit",
    "paged_lion_8bit": "paged_lion_32bit",
    "ademamix_8bit": "ademamix",
    "paged_ademamix_8bit": "paged_ademamix_32bit",
}

# Fields of Objective that TRL's own GRPO can vary.
_GRPO_FIELDS = {"scale_rewards", "mask_truncated"}


def launched_processes() -> int:
    """Return the training processes that torchrun or accelerate started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


# -- contradictions: a sentence for each, which begins with the key ----------------------------------------------------


def _of_the_model(config: TrainConfig) -> Iterator[str]:
    model, lora, training = config.model, config.lora.passed_on, config.training
    if model.model_name and model.build:
        yield "model.model_name and model.build exclude each other: load a model or build one"
    if not model.model_name and not model.build:
        yield "model needs model_name (a Hub name, a local folder or a train run) or build"
    if (build := model.build) and build.hidden_size % build.num_attention_heads:
        heads, width = build.num_attention_heads, build.hidden_size
        yield f"model.build.num_attention_heads {heads} does not divide hidden_size {width}"
    if model.load_in_4bit and not model.lora_rank:
        yield "model.load_in_4bit needs lora_rank > 0: 4-bit weights are frozen, only adapters are trained"
    if model.load_in_4bit and model.build:
        yield "model.load_in_4bit contradicts model.build: weights are packed as they are loaded, and these are built"
    if model.backend == "unsloth" and model.build:
        yield "model.backend unsloth contradicts model.build: unsloth loads models, and this one is built"
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


def _of_training(config: TrainConfig) -> Iterator[str]:
    training, sft = config.training, config.method == "sft"
    if training.max_steps == 0:
        yield "training.max_steps 0 trains nothing; set it to 1 or more, or to -1 for training.num_train_epochs"
    if training.beta > 0 and config.method != "grpo":
        why = "SFT has no KL term" if sft else "GTPO has no reference model and no KL term"
        yield f"training.beta {training.beta} contradicts method {config.method}: {why}; set it to 0"
    if training.initial_entropy is not None and config.method != "gtpo":
        yield f"training.initial_entropy {training.initial_entropy}: method {config.method} has no entropy gate"
    if training.eval_steps is not None and sft:
        instead = "which samples nothing; gtpo eval measures its weights"
        yield f"training.eval_steps {training.eval_steps} contradicts method sft, {instead}"
    for name in ("eval_steps", "log_kl_steps"):
        every, steps = getattr(training, name), training.logging_steps
        if every is not None and every % steps:
            why = "and its result is a part of that step's line"
            yield f"training.{name} {every} is no multiple of training.logging_steps {steps}, {why}"
    if training.resample_equal_groups and sft:
        yield f"training.resample_equal_groups {training.resample_equal_groups}: method sft samples no groups"
    for name in config.objective.model_dump(exclude_none=True) if sft else ():
        yield f"objective.{name} contradicts method sft: supervised fine-tuning has no RL objective"


def _of_sampling(config: TrainConfig) -> Iterator[str]:
    training, names, weights = config.training, config.trainer.reward_funcs, config.trainer.reward_weights
    if (group := training.num_generations) < 2:
        yield f"training.num_generations {group}: a group of one has no advantage to learn from; at least 2"
    if not names:
        yield "trainer.reward_funcs is empty; at least one reward function is needed"
    elif weights is not None and len(weights) != len(names):
        yield f"trainer.reward_weights has {len(weights)} values for {len(names)} reward functions"
    elif weights is not None and not any(weights):
        yield f"trainer.reward_weights {weights}: nothing is rewarded; at least one must not be 0"
    prompt, longest, whole = training.max_prompt_length, training.max_completion_length, config.model.max_seq_length
    if longest is not None and longest > whole - prompt:
        room = f"max_prompt_length {prompt} exceeds model.max_seq_length {whole}"
        yield f"training.max_completion_length {longest} + {room}"
    elif prompt >= whole:
        yield f"training.max_prompt_length {prompt} leaves no room for a completion in model.max_seq_length {whole}"
    # Two temperatures are two distributions: their ratio is no mismatch of the sampler.
    corrected = config.rollout.importance_sampling_correction and config.rollout.engine != "transformers"
    objective, temperature = config.objective, training.temperature
    if config.method == "gtpo" and corrected and config.resolved_objective().temperature(temperature) != temperature:
        yield (
            "rollout.importance_sampling_correction true compares vLLM's log-probabilities, at training.temperature "
            f"{temperature}, with the objective's, at 1 (objective.entropy_temperature one); set "
            "training.temperature to 1.0, objective.entropy_temperature to sampling, or the correction to false"
        )
    if config.method == "grpo" and config.preset_name() != "grpo":
        yield (
            f'objective.preset "{objective.preset}" contradicts method grpo, which is TRL\'s own GRPO; '
            "set method: gtpo to train with this preset"
        )
    for name, value in objective.changes().items() if config.method == "grpo" else ():
        if value != getattr(PRESETS["grpo"], name) and name not in _GRPO_FIELDS:
            yield (
                f"objective.{name} {value} contradicts method grpo, which is TRL's own GRPO and has no such switch; "
                "method: gtpo with objective.preset grpo or grpo-filtered has it"
            )


# -- derived values ----------------------------------------------------------------------------------------------------


def _devices(config: TrainConfig, document: Document) -> Iterator[str]:
    """Take the shell's choice of devices over the file's; a flag wins over both."""
    # What started this process, such as a scheduler, knows which GPUs are free.
    file, shell = config.env.CUDA_VISIBLE_DEVICES, os.environ.get("CUDA_VISIBLE_DEVICES")
    origin = document.at("env.CUDA_VISIBLE_DEVICES")
    if file is not None and shell is not None and file != shell and not origin.is_flag:
        won = f"CUDA_VISIBLE_DEVICES={shell} of the environment wins over the file's {file} (--cuda wins)"
        yield f"{origin.place}: {won}"
        config.env.CUDA_VISIBLE_DEVICES = None


def _subsets(config: TrainConfig, document: Document) -> Iterator[str]:
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


def _precision(config: TrainConfig, document: Document) -> Iterator[str]:
    """Widen optimizer states and weights in which an extreme Adam beta's updates would be rounded away."""
    model, training = config.model, config.training
    beta = max(training.adam_beta1, training.adam_beta2)
    if beta <= LARGEST_8BIT_BETA:
        return
    if wide := _32_BIT.get(training.optimizer):
        yield (
            f"{document.at('training.optimizer')} {training.optimizer} -> {wide}: with an Adam beta of {beta} "
            f"(> {LARGEST_8BIT_BETA}) 8-bit states would round the updates away"
        )
        training.optimizer = wide
    if not model.lora_rank and model.dtype in ("bfloat16", "float16"):
        yield (
            f"{document.at('model.dtype')} {model.dtype} -> float32: optimizer states have the dtype of the "
            f"trained weights, and with an Adam beta of {beta} 16-bit states would round the updates away"
        )
        model.dtype = "float32"


def _batch(config: TrainConfig, document: Document, world_size: int) -> Iterator[str]:
    """Make every rollout hold complete groups: by the published rule, raise a smaller batch to G; else round it."""
    training = config.training
    group, rounds, batch = (
        training.num_generations, training.micro_batches_per_rollout, training.per_device_train_batch_size,
    )  # fmt: skip
    if (batch * rounds * world_size) % group == 0:
        return
    taken = group * max(1, math.ceil(batch / group - 0.5))  # of two that are as near, the smaller
    training.per_device_train_batch_size, how = taken, ""
    if taken == group:
        size = max(size for size in range(1, min(batch, group) + 1) if group % size == 0)
        how = f"; the same gradient in less memory: batch {size}, gradient_accumulation_steps {group // size * rounds}"
    yield (
        f"{document.at('training.per_device_train_batch_size')} is taken as {taken}, not {batch}: {batch} x "
        f"{rounds} micro-batches x {world_size} processes cannot be divided into groups of {group} completions. A "
        f"rollout now has {training.prompts_per_rollout(world_size)} prompts{how}"
    )


def _trackers(config: TrainConfig, document: Document) -> Iterator[str]:
    origin = document.at("training.report_to")
    # A tracker is no part of the method: without it the run is the same.
    for name in [name for name in config.training.report_to if not installed(name)]:
        without = f"so this run is not reported to it (pip install {name}); metrics.jsonl has everything"
        yield f"{origin} {name}: not installed, {without}"
        config.training.report_to.remove(name)


def resolve(config: TrainConfig, document: Document, world_size: int | None = None) -> tuple[TrainConfig, list[str]]:
    """Return the resolved copy of a valid config, and a notice for each change of what the user had set.

    document: says where a key was set. Raises UserError with a line per contradiction.
    """
    found = Findings()
    sampled = config.method != "sft"
    for check in (_of_the_model, _of_the_data, _of_training, *([_of_sampling] if sampled else [])):
        for key, _, message in (fault.partition(" ") for fault in check(config)):
            found.errors.append(f"{document.at(key)} {message}")
    found.raise_errors()
    config = config.model_copy(deep=True)
    model, training = config.model, config.training
    # The published setting; peft has alpha 8 for every rank.
    if model.lora_rank:
        model.lora_alpha = model.lora_alpha or model.lora_rank
    for change in (_devices, _subsets, _precision, _trackers):
        found.notices += change(config, document)
    if sampled:
        if training.max_completion_length is None:
            training.max_completion_length = model.max_seq_length - training.max_prompt_length
        config.objective.preset = config.preset_name()
        found.notices += _batch(config, document, world_size or launched_processes())
    return config, found.notices
