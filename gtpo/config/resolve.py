"""What follows from other keys: contradictions are refused, derived values filled in.

All work on values; where a key was set is looked up for messages only. `resolve` is idempotent, so a run folder's
config.yaml loads to itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.packages import installed
from gtpo.config.document import Findings, OriginOf
from gtpo.config.schedule import launched_processes, micro_batches_per_rollout
from gtpo.config.schema import PASSED_ON_DEFAULTS, DatasetSection, Optimizer, TrainConfig
from gtpo.presets import PRESETS
from gtpo.rewards.data.problems import MATH_SUBJECTS, source_names

LARGEST_8BIT_BETA = 0.9999
"""Above it an Adam moment moves by less than the resolution of block-wise 8-bit states, and updates are lost."""

_32_BIT: dict[str, Optimizer] = {
    "adamw_torch_8bit": "adamw_torch",
    "adamw_8bit": "adamw_torch",
    "adamw_bnb_8bit": "adamw_torch",
    "paged_adamw_8bit": "paged_adamw_32bit",
    "lion_8bit": "lion_32bit",
    "paged_lion_8bit": "paged_lion_32bit",
    "ademamix_8bit": "ademamix",
}

_TRL_GRPO_FIELDS = {"scale_rewards", "mask_truncated"}
"""Fields of Objective that TRL's own GRPO can vary."""

FAMILIES = {
    "gsm8k": "gsm8k",
    "openai/gsm8k": "gsm8k",
    "math": "math",
    "hendrycks_math": "math",
    "eleutherai/hendrycks_math": "math",
    "arithmetic": "arithmetic",
}
"""dataset.name in any case -> the family whose splits `gtpo.rewards.data.problems.load_source` knows."""


def is_file(name: str) -> bool:
    """Return whether a dataset.name is the path of a file."""
    return name.endswith((".jsonl", ".jsonl.gz", ".parquet"))


def _find_source(dataset: DatasetSection) -> tuple[str, str]:
    """Return the name by which `load_source` knows a dataset section, or ("", a sentence on the key at fault)."""
    name, split = dataset.name, dataset.split
    if is_file(name):
        return name, ""
    if name in source_names():
        # The name has its split already. "train" is also what is read if no split was set.
        if split == "train" or name.endswith(f"_{split}"):
            return name, ""
        return "", f'dataset.split "{split}" contradicts dataset.name {name}, which names its split itself'
    family = FAMILIES.get(name.lower())
    if family is None:
        known = "gsm8k, math (hendrycks_math), arithmetic, or a .jsonl or .parquet file"
        hint = did_you_mean(name, [*FAMILIES, *source_names()])
        return "", f'dataset.name "{name}" is not known.{hint} Known: {known}'
    if f"{family}_{split}" in source_names():
        return f"{family}_{split}", ""
    splits = [known.removeprefix(f"{family}_") for known in source_names() if known.startswith(f"{family}_")]
    return "", f'dataset.split "{split}" is not known: {name} has the splits {", ".join(splits)}'


def held_out_benchmark(dataset: DatasetSection) -> str:
    """Return the words after `gtpo eval RUN` that measure a run that was trained on a dataset.

    That is the test split of a known one, else the user's validation file, else the embedded benchmark, which is there
    without a network; never the training problems.
    """
    family = training_source(dataset).partition("_")[0]
    name = {"gsm8k": "gsm8k", "math": "math500"}.get(family)
    if dataset.validation_file or name is None:
        return f"--benchmarks {dataset.validation_file or 'arithmetic'}"
    return f"--benchmarks {name}" + (f" --data-dir {dataset.data_dir}" if dataset.data_dir else "")


def _is_undivided(source: str) -> bool:
    return source in source_names() and source.startswith(("gsm8k_", "arithmetic_"))


def training_source(dataset: DatasetSection) -> str:
    """Return the name by which `load_source` knows a dataset section: `<family>_<split>`, or a file's path.

    Raises UserError for an unknown name or split, with the nearest one.
    """
    source, fault = _find_source(dataset)
    if fault:
        raise UserError(fault)
    return source


# -- contradictions: a sentence for each, which begins with the key ----------------------------------------------------


def _contradictions(config: TrainConfig) -> Iterator[str]:
    """Yield what cannot be trained as it is set."""
    model, training = config.model, config.training
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
    without_dropout = config.method != "sft" and training.passed_on.get("disable_dropout", True)
    if config.lora.passed_on.get("lora_dropout") and without_dropout:
        yield "lora.lora_dropout has no effect: training.disable_dropout is true; the loss is of what sampled"
    source, fault = _find_source(config.dataset)
    if fault:
        yield fault
    elif _is_undivided(source):
        for subset in config.dataset.subsets:
            if subset not in ("main", *MATH_SUBJECTS, *MATH_SUBJECTS.values()):
                yield f'dataset.subsets "{subset}" is not known; {config.dataset.name} has only main'
    if training.max_steps == 0:
        yield "training.max_steps 0 trains nothing; set it to 1 or more, or to -1 for training.num_train_epochs"
    if model.lora_rank and "lm_head" in model.target_modules:
        yield "model.target_modules lm_head: the loss reads its weight, so an adapter on it would not be trained"
    if training.beta > 0 and config.method != "grpo":
        why = "GTPO has no reference model and no KL term" if config.method == "gtpo" else "SFT has no KL term"
        yield f"training.beta {training.beta} contradicts method {config.method}: {why}; set it to 0"
    if not model.lora_rank and config.lora.passed_on:
        yield f"lora.{next(iter(config.lora.passed_on))} has no effect: model.lora_rank is 0, and there is no adapter"
    if (every := training.eval_steps) is not None and config.method == "sft":
        yield (
            f"training.eval_steps {every} contradicts method sft, which samples nothing; gtpo eval measures its weights"
        )
    for name, every in (("eval_steps", training.eval_steps), ("log_kl_steps", training.log_kl_steps)):
        if every is not None and every % training.logging_steps:
            yield (
                f"training.{name} {every} is no multiple of training.logging_steps {training.logging_steps}, and its "
                "result is a part of that step's line"
            )
    if config.method == "sft":
        if training.resample_equal_groups:
            yield f"training.resample_equal_groups {training.resample_equal_groups}: method sft samples no groups"
        for name in config.objective.model_dump(exclude_none=True):
            yield f"objective.{name} contradicts method sft: supervised fine-tuning has no RL objective"
    else:
        yield from _of_sampling(config)
    if config.method == "grpo":
        yield from _not_in_trl(config)


def _of_sampling(config: TrainConfig) -> Iterator[str]:
    """Yield what contradicts a method that samples."""
    training, names, weights = config.training, config.trainer.reward_funcs, config.trainer.reward_weights
    if training.num_generations < 2:
        yield (
            f"training.num_generations {training.num_generations}: a group of one has no advantage to learn from; at "
            "least 2"
        )
    if not names:
        yield "trainer.reward_funcs is empty; at least one reward function is needed"
    elif weights is not None and len(weights) != len(names):
        yield f"trainer.reward_weights has {len(weights)} values for {len(names)} reward functions"
    elif weights is not None and not any(weights):
        yield f"trainer.reward_weights {weights}: nothing is rewarded; at least one must not be 0"
    prompt, longest, whole = training.max_prompt_length, training.max_completion_length, config.model.max_seq_length
    if longest is not None and longest > whole - prompt:
        yield (
            f"training.max_completion_length {longest} + max_prompt_length {prompt} exceeds model.max_seq_length "
            f"{whole}"
        )
    elif prompt >= whole:
        yield f"training.max_prompt_length {prompt} leaves no room for a completion in model.max_seq_length {whole}"
    if (
        config.rollout.importance_sampling_correction
        and config.rollout.engine != "transformers"
        and config.method == "gtpo"
        and config.resolved_objective().temperature(training.temperature) != training.temperature
    ):
        yield (
            "rollout.importance_sampling_correction true compares vLLM's log-probabilities, at training.temperature "
            f"{training.temperature}, with the objective's, at 1 (objective.entropy_temperature one); set "
            "training.temperature to 1.0, objective.entropy_temperature to sampling, or the correction to false"
        )


def _not_in_trl(config: TrainConfig) -> Iterator[str]:
    """Yield what an objective asks for that TRL's own GRPO cannot do."""
    if config.preset_name() != "grpo":
        yield (
            f'objective.preset "{config.objective.preset}" contradicts method grpo, which is TRL\'s own GRPO; '
            "set method: gtpo to train with this preset"
        )
    for name, value in config.objective.changes().items():
        if value != getattr(PRESETS["grpo"], name) and name not in _TRL_GRPO_FIELDS:
            yield (
                f"objective.{name} {value} contradicts method grpo, which is TRL's own GRPO and has no such switch; "
                "method: gtpo with objective.preset grpo or grpo-filtered has it"
            )


# -- derived values ----------------------------------------------------------------------------------------------------


def _devices(config: TrainConfig, origin: OriginOf, findings: Findings) -> None:
    """Take the shell's choice of devices over the file's; a flag wins over both."""
    file, shell = config.env.CUDA_VISIBLE_DEVICES, os.environ.get("CUDA_VISIBLE_DEVICES")
    where = origin("env.CUDA_VISIBLE_DEVICES")
    if file is not None and shell is not None and file != shell and not where.is_flag:
        findings.notices.append(
            f"{where.place}: CUDA_VISIBLE_DEVICES={shell} of the environment wins over the file's {file} (--cuda wins)"
        )
        config.env.CUDA_VISIBLE_DEVICES = None


def _subsets(config: TrainConfig, findings: Findings) -> None:
    """Remove subsets that the dataset does not have: the published file lists MATH's, whatever --dataset-name is."""
    dataset, source = config.dataset, training_source(config.dataset)
    if _is_undivided(source):
        if dataset.subsets not in ([], ["main"]):
            findings.notices.append(f"no effect on dataset {dataset.name} (they are MATH's subjects): dataset.subsets")
        dataset.subsets = []
    elif source.startswith("math_") and "main" in dataset.subsets:
        findings.notices.append(f"no effect on dataset {dataset.name} (main is GSM8K's): dataset.subsets")
        dataset.subsets = [name for name in dataset.subsets if name != "main"]


def _precision(config: TrainConfig, origin: OriginOf, findings: Findings) -> None:
    """Widen optimizer states and weights in which an extreme Adam beta's updates would be rounded away."""
    model, training = config.model, config.training
    beta = max(training.adam_beta1, training.adam_beta2)
    if beta <= LARGEST_8BIT_BETA:
        return
    if wide := _32_BIT.get(training.optimizer):
        findings.notices.append(
            f"{origin('training.optimizer')} {training.optimizer} -> {wide}: with an Adam beta of {beta} "
            f"(> {LARGEST_8BIT_BETA}) 8-bit states would round the updates away"
        )
        training.optimizer = wide
    if not model.lora_rank and model.dtype in ("bfloat16", "float16"):
        findings.notices.append(
            f"{origin('model.dtype')} {model.dtype} -> float32: optimizer states have the dtype of the trained "
            f"weights, and with an Adam beta of {beta} 16-bit states would round the updates away"
        )
        model.dtype = "float32"


def _batch(config: TrainConfig, world_size: int, origin: OriginOf, findings: Findings) -> None:
    """Make every rollout hold complete groups: by the published rule, raise a smaller batch to G; else round it."""
    training = config.training
    group, batch, rounds = (
        training.num_generations,
        training.per_device_train_batch_size,
        micro_batches_per_rollout(config),
    )
    if (batch * rounds * world_size) % group == 0:
        return
    taken = group * max(1, math.ceil(batch / group - 0.5))  # of two that are as near, the smaller
    training.per_device_train_batch_size = taken
    prompts = taken // group * rounds * world_size
    how = ""
    if taken == group:
        size = max(size for size in range(1, min(batch, group) + 1) if group % size == 0)
        how = f"; the same gradient in less memory: batch {size}, gradient_accumulation_steps {group // size * rounds}"
    findings.notices.append(
        f"{origin('training.per_device_train_batch_size')} is taken as {taken}, not {batch}: {batch} x {rounds} "
        f"micro-batches x {world_size} processes cannot be divided into groups of {group} completions. A rollout now "
        f"has {prompts} prompts{how}"
    )


def _trackers(config: TrainConfig, origin: OriginOf, findings: Findings) -> None:
    for name in [name for name in config.training.report_to if not installed(name)]:
        findings.notices.append(
            f"{origin('training.report_to')} {name}: not installed, so this run is not reported to it "
            f"(pip install {name}); metrics.jsonl has everything"
        )
        config.training.report_to.remove(name)


def resolve(config: TrainConfig, origin: OriginOf, findings: Findings, world_size: int | None = None) -> TrainConfig:
    """Return the resolved copy of a valid config. Raises UserError with a line per contradiction."""
    for key, _, message in (fault.partition(" ") for fault in _contradictions(config)):
        findings.errors.append(f"{origin(key)} {message}")
    findings.raise_errors()
    config = config.model_copy(deep=True)
    model, training = config.model, config.training
    _devices(config, origin, findings)
    for name, value in PASSED_ON_DEFAULTS.items():
        if name not in training.passed_on:
            setattr(training, name, value)
    if model.lora_rank:
        model.lora_alpha = model.lora_alpha or model.lora_rank
    _subsets(config, findings)
    _precision(config, origin, findings)
    if config.method != "sft":
        if training.max_completion_length is None:
            training.max_completion_length = model.max_seq_length - training.max_prompt_length
        config.objective.preset = config.preset_name()
        _batch(config, world_size or launched_processes(), origin, findings)
    _trackers(config, origin, findings)
    return config
