"""What follows from other keys: contradictions are refused, keys without effect are named, derived values filled in.

All work on values; where a key was set is looked up for messages only. `resolve` is idempotent, so a run folder's
config.yaml loads to itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.packages import installed
from gtpo.config import baselines
from gtpo.config.effects import is_file, without_effect
from gtpo.config.messages import Findings, OriginOf
from gtpo.config.schedule import launched_processes, micro_batches_per_rollout
from gtpo.config.schema import DatasetSection, Optimizer, TrainConfig
from gtpo.presets import PRESETS
from gtpo.rewards.data.problems import MATH_SUBJECTS, source_names

LARGEST_8BIT_BETA = 0.9999
"""Above it an Adam moment moves by less than the resolution of block-wise 8-bit states, and updates are lost."""

POLYNOMIAL_END = 1e-7
"""Learning rate at which the polynomial schedule of transformers ends; it must begin above it."""

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
    "word_problems": "word_problems",
}
"""dataset.name in any case -> the family whose splits `gtpo.rewards.data.problems.load_source` knows."""


def _find_source(dataset: DatasetSection) -> tuple[str, str, str]:
    """Return (source, "", ""), or ("", the key that is wrong, what is wrong with it)."""
    name = dataset.name
    if is_file(name):
        return name, "", ""
    if name in source_names():
        # The name has its split already. "train" is also what is read where no split was set.
        if dataset.split != "train" and not name.endswith(f"_{dataset.split}"):
            return (
                "",
                "dataset.split",
                f'"{dataset.split}" contradicts dataset.name {name}, which names its split itself',
            )
        return name, "", ""
    family = FAMILIES.get(name.lower())
    if family is None:
        known = "gsm8k, math (hendrycks_math), arithmetic, word_problems, or a .jsonl or .parquet file"
        hint = did_you_mean(name, [*FAMILIES, *source_names()])
        return "", "dataset.name", f'"{name}" is not known.{hint} Known: {known}'
    source = f"{family}_{dataset.split}"
    if source not in source_names():
        splits = [known.removeprefix(f"{family}_") for known in source_names() if known.startswith(f"{family}_")]
        return "", "dataset.split", f'"{dataset.split}" is not known: {name} has the splits {", ".join(splits)}'
    return source, "", ""


def _is_undivided(source: str) -> bool:
    return source in source_names() and source.startswith(("gsm8k_", "arithmetic_", "word_problems_"))


def training_source(dataset: DatasetSection) -> str:
    """Return the name by which `load_source` knows a dataset section: `<family>_<split>`, or a file's path.

    Raises UserError for an unknown name or split, with the nearest one.
    """
    source, key, message = _find_source(dataset)
    if not source:
        raise UserError(f"{key} {message}")
    return source


def _contradictions(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong) for all that cannot be trained as it is set."""
    model, training, trainer = config.model, config.training, config.trainer
    if model.model_name and model.build:
        yield "model.model_name", "and model.build exclude each other: load a model or build one"
    if not model.model_name and not model.build:
        yield "model", "needs model_name (a Hub name, a local folder or a train run) or build"
    if model.build and model.build.hidden_size % model.build.num_attention_heads:
        heads, width = model.build.num_attention_heads, model.build.hidden_size
        yield "model.build.num_attention_heads", f"{heads} does not divide hidden_size {width}"
    if model.load_in_4bit and not model.lora_rank:
        yield "model.load_in_4bit", "needs lora_rank > 0: 4-bit weights are frozen, only adapters are trained"
    if model.load_in_4bit and model.build:
        yield (
            "model.load_in_4bit",
            "contradicts model.build: weights are packed as they are loaded, and these are built",
        )
    if model.backend == "unsloth" and model.build:
        yield "model.backend", "unsloth contradicts model.build: unsloth loads models, and this one is built"
    source, key, message = _find_source(config.dataset)
    if not source:
        yield key, message
    elif _is_undivided(source):
        for subset in config.dataset.subsets:
            if subset not in ("main", *MATH_SUBJECTS, *MATH_SUBJECTS.values()):
                yield "dataset.subsets", f'"{subset}" is not known; {config.dataset.name} has only main'
    if training.max_steps == 0:
        yield "training.max_steps", "0 trains nothing; set it to 1 or more, or to -1 for training.num_train_epochs"
    if training.lr_scheduler_type == "polynomial" and training.learning_rate <= POLYNOMIAL_END:
        yield (
            "training.learning_rate",
            f"{training.learning_rate} with lr_scheduler_type polynomial, which falls to {POLYNOMIAL_END}: set it "
            "above that, or choose another schedule (linear, cosine)",
        )
    if model.lora_rank and "lm_head" in model.target_modules:
        yield "model.target_modules", "lm_head: the loss reads its weight, so an adapter on it would not be trained"
    if training.beta > 0 and config.method != "grpo":
        why = "GTPO has no reference model and no KL term" if config.method == "gtpo" else "SFT has no KL term"
        yield "training.beta", f"{training.beta} contradicts method {config.method}: {why}; set it to 0"
    yield from baselines.contradictions(config)
    if training.eval_steps is not None and config.method == "sft":
        yield (
            "training.eval_steps",
            f"{training.eval_steps} contradicts method sft, which samples nothing; gtpo eval measures its weights",
        )
    for name, every in (("eval_steps", training.eval_steps), ("log_kl_steps", training.log_kl_steps)):
        if every is not None and every % training.logging_steps:
            yield (
                f"training.{name}",
                f"{every} is no multiple of training.logging_steps {training.logging_steps}, and its result is a part "
                "of that step's line",
            )
    if config.method == "sft":
        for name in config.objective.model_dump(exclude_none=True):
            yield f"objective.{name}", "contradicts method sft: supervised fine-tuning has no RL objective"
        return
    if training.num_generations < 2:
        yield (
            "training.num_generations",
            f"{training.num_generations}: a group of one has no advantage to learn from; at least 2",
        )
    if not trainer.reward_funcs:
        yield "trainer.reward_funcs", "is empty; at least one reward function is needed"
    elif trainer.reward_weights is not None and len(trainer.reward_weights) != len(trainer.reward_funcs):
        yield (
            "trainer.reward_weights",
            f"has {len(trainer.reward_weights)} values for {len(trainer.reward_funcs)} reward functions",
        )
    elif trainer.reward_weights is not None and not any(trainer.reward_weights):
        yield "trainer.reward_weights", f"{trainer.reward_weights}: nothing is rewarded; at least one must not be 0"
    room, longest = model.max_seq_length - training.max_prompt_length, training.max_completion_length
    if longest is not None and longest > room:
        yield (
            "training.max_completion_length",
            f"{longest} + max_prompt_length {training.max_prompt_length} exceeds model.max_seq_length "
            f"{model.max_seq_length}",
        )
    elif room < 1:
        yield (
            "training.max_prompt_length",
            f"{training.max_prompt_length} leaves no room for a completion in model.max_seq_length "
            f"{model.max_seq_length}",
        )
    if config.method == "grpo":
        yield from _not_in_trl(config)
    if (
        config.rollout.importance_sampling_correction
        and config.rollout.engine != "transformers"
        and config.method == "gtpo"
        and config.resolved_objective().temperature(training.temperature) != training.temperature
    ):
        yield (
            "rollout.importance_sampling_correction",
            f"true compares vLLM's log-probabilities, at training.temperature {training.temperature}, with the "
            "objective's, at 1 (objective.entropy_temperature one); set training.temperature to 1.0, "
            "objective.entropy_temperature to sampling, or the correction to false",
        )


def _not_in_trl(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield what an objective asks for that TRL's own GRPO cannot do."""
    if config.preset_name() != "grpo":
        yield (
            "objective.preset",
            f'"{config.objective.preset}" contradicts method grpo, which is TRL\'s own GRPO; '
            "set method: gtpo to train with this preset",
        )
    trl = asdict(PRESETS["grpo"])
    for name, value in config.objective.changes().items():
        if value != trl[name] and name not in _TRL_GRPO_FIELDS:
            yield (
                f"objective.{name}",
                f"{value} contradicts method grpo, which is TRL's own GRPO and has no such switch; "
                "method: gtpo with objective.preset grpo or grpo-filtered has it",
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


def resolve(
    config: TrainConfig,
    origin: OriginOf,
    explicit_keys: Sequence[str],
    findings: Findings,
    world_size: int | None = None,
) -> TrainConfig:
    """Return the resolved copy of a valid config. Raises UserError with a line per contradiction.

    explicit_keys: the keys that were set to something other than their default.
    """
    findings.errors += [f"{origin(key)} {message}" for key, message in _contradictions(config)]
    findings.raise_errors()
    config = config.model_copy(deep=True)
    model, training = config.model, config.training
    _devices(config, origin, findings)
    if model.lora_rank:
        model.lora_alpha = model.lora_alpha or model.lora_rank
    _subsets(config, findings)
    _precision(config, origin, findings)
    source = training_source(config.dataset)
    findings.notices += [
        f"no effect {why}: {', '.join(keys)}" for keys, why in without_effect(config, source, explicit_keys) if keys
    ]
    if config.method != "sft":
        if training.max_completion_length is None:
            training.max_completion_length = model.max_seq_length - training.max_prompt_length
        config.objective.preset = config.preset_name()
        _batch(config, world_size or launched_processes(), origin, findings)
        findings.notices += baselines.coincidences(config)
    _trackers(config, origin, findings)
    return config
