"""Keys that were set and change nothing in this run, and methods with the same gradient: named on stderr, with why.

Only keys that differ from what they would be unset are looked at: from the schema's default, and among those of
`objective` from the preset's value. So a recipe that spells a value out, and the resolved config of a run folder, need
no line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gtpo.config.schedule import one_step_per_rollout
from gtpo.config.schema import CLIPPING, RolloutSection, TrainConfig
from gtpo.presets import PRESETS
from gtpo.rewards.data.problems import SOURCES

Idle = tuple[Sequence[str], str]
"""(keys, why they change nothing)."""

_IDLE_IN_SFT = (
    "training.num_generations",
    "training.steps_per_generation",
    "training.num_iterations",
    *(f"training.{name}" for name in CLIPPING),
    "training.temperature",
    "training.max_completion_length",
    "training.log_completions_steps",
    "trainer.reward_funcs",
    "trainer.reward_weights",
    *(f"rollout.{name}" for name in RolloutSection.model_fields),
    "model.gpu_memory_utilization",
)
"""health.on_collapse is not among them: a loss that is not finite is a collapse in sft too."""

_CLIPPED_LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "luspo")
"""Values of loss_type whose ratio is clipped between 1 - epsilon and 1 + epsilon_high."""

_GRPO_IS = (
    *("conflict", "filter", "entropy_mode", "group_reduction"),
    *("positive_advantage_weight", "negative_advantage_weight"),
)
"""Fields of Objective that make GRPO's gradient, given its advantages."""


def is_file(name: str) -> bool:
    """Return whether a dataset.name is the path of a file."""
    return name.endswith((".jsonl", ".jsonl.gz", ".parquet"))


def without_effect(config: TrainConfig, source: str) -> Iterator[Idle]:
    """Yield the keys that act in other runs and change nothing in this one; `source` is its training source."""
    model, training, method = config.model, config.training, config.method
    if training.eval_steps is None:
        names = ("dataset.validation_problems", "dataset.validation_file", "training.eval_samples")
        yield (*names, "health.smoothing_evaluations"), "without validation (training.eval_steps)"
    elif config.dataset.validation_file is not None:
        yield ["dataset.validation_problems"], "with dataset.validation_file, which is used whole"
    if source not in SOURCES:
        why = "it is a file" if is_file(source) else "it is generated"
        yield ["dataset.data_dir"], f"on dataset {config.dataset.name} ({why})"
    if is_file(source):
        yield ["dataset.split"], f"on dataset {config.dataset.name} (a file is used whole)"
    if model.build:
        yield ["model.trust_remote_code"], "with model.build"
        if model.dtype == "bfloat16":  # other values decide what a GPU computes in
            yield ["model.dtype"], "with model.build, whose weights are float32"
    if not model.lora_rank:
        yield ["model.lora_alpha", "model.target_modules"], "without adapters (model.lora_rank 0)"
    if training.max_steps > 0:
        yield ["training.num_train_epochs"], f"with training.max_steps {training.max_steps}"
    if training.optimizer in ("adafactor", "sgd"):
        yield ["training.adam_beta1", "training.adam_beta2"], f"with optimizer {training.optimizer}"
    if method == "sft":
        yield _IDLE_IN_SFT, "with method sft"
        return
    yield ["dataset.malformed_targets"], "without SFT targets"
    yield from _loss(config)
    yield from _rollout(config)
    if method == "gtpo":
        for fields, why in _objective(config):
            yield [f"objective.{name}" for name in fields], why


def _loss(config: TrainConfig) -> Iterator[Idle]:
    """Yield the switches of TRL's losses."""
    training, grpo = config.training, config.method == "grpo"
    adaptive = [f"training.entropy_{name}" for name in ("coef_min", "coef_max", "coef_delta", "target")]
    clipping = [f"training.{name}" for name in (*CLIPPING, "delta")]
    if not training.use_adaptive_entropy:
        yield adaptive, "without training.use_adaptive_entropy"
    if one_step_per_rollout(config):
        # CISPO's bound is the one that may be far from 1, but a ratio of 1 never reaches it either.
        yield clipping, "with one optimizer step per rollout, where every ratio is 1"
    elif grpo and training.loss_type == "cispo":
        yield ["training.epsilon", "training.delta"], "with loss_type cispo, which has an upper bound alone"
    elif grpo and training.loss_type not in _CLIPPED_LOSSES:
        yield clipping, f"with loss_type {training.loss_type}, which does not clip"


def _rollout(config: TrainConfig) -> Iterator[Idle]:
    engine, sampled = config.rollout.engine, config.training.temperature
    idle = []
    if engine != "vllm_server":
        idle += ["rollout.server_host", "rollout.server_port"]
    if engine in ("transformers", "vllm_server"):  # a server was started with both
        idle += ["model.gpu_memory_utilization", "rollout.tensor_parallel_size"]
    if engine == "transformers":
        idle += ["rollout.importance_sampling_correction", "rollout.logp_difference_alarm"]
    yield idle, f"with rollout.engine {engine}"
    if (
        config.method == "gtpo"
        and engine != "transformers"
        and config.resolved_objective().temperature(sampled) != sampled
    ):
        why = f"at training.temperature {sampled} with objective.entropy_temperature one, where vLLM's "
        yield ["rollout.logp_difference_alarm"], why + "log-probabilities are not the trainer's"


def _objective(config: TrainConfig) -> Iterator[Idle]:
    """Yield the objective's fields whose part of it is off."""
    objective = config.resolved_objective()
    if not objective.conflict:
        yield ["combine", "positive_weight", "conflict_norm"], "with objective.conflict false"
    if objective.filter == "never":
        yield ["entropy_threshold", "filter_scope"], "with objective.filter never"
    if objective.entropy_mode == "none":
        yield ["gamma"], "with objective.entropy_mode none"
    if objective.entropy_mode != "loss":
        yield ["entropy_gated"], f"with objective.entropy_mode {objective.entropy_mode}"
    elif objective.filter == "never":
        yield ["entropy_gated"], "with objective.filter never"
    if objective.entropy_mode == "none" or not objective.gamma:
        why = "without an entropy term, where a group of equal rewards moves nothing"
        yield ["skip_zero_variance_groups"], why
        if objective.filter == "never":
            yield ["log_clamp"], "but on the logged entropy, without gate and entropy term"
    if config.training.temperature == 1:
        yield ["entropy_temperature"], "with training.temperature 1.0"


def coincidences(config: TrainConfig) -> Iterator[str]:
    """Yield a line for each other method whose gradient this config's is."""
    training = config.training
    if config.method == "gtpo":
        objective = config.resolved_objective()
        if not objective.gamma:
            objective = replace(objective, entropy_mode="none")
        if all(getattr(objective, name) == getattr(PRESETS["grpo"], name) for name in _GRPO_IS):
            yield (
                f"objective.preset {config.preset_name()}: no conflict weights, gate or entropy term, so the gradient "
                "is that of method grpo with loss_type grpo"
            )
        return
    if config.method != "grpo" or not one_step_per_rollout(config):
        return
    again = (
        "every ratio is 1 with one optimizer step per rollout (training.steps_per_generation above "
        "gradient_accumulation_steps, or training.num_iterations above 1, makes more)"
    )
    if training.importance_sampling_level == "sequence" and training.loss_type in (*_CLIPPED_LOSSES, "sapo"):
        yield (
            "training.importance_sampling_level sequence: the gradient of GSPO is that of the ratio per token (GRPO's "
            f"with loss_type grpo) here: {again}"
        )
    if training.loss_type == "cispo":
        yield f"training.loss_type cispo: the gradient of CISPO is DAPO's (loss_type dapo) here: {again}"
    if training.loss_type == "sapo":
        yield f"training.loss_type sapo: the gradient of SAPO is GRPO's (loss_type grpo) here: {again}"
