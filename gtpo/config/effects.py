"""Keys that were set and change nothing in this run: each is named on stderr, with why.

Only keys that differ from what they would be unset are looked at: from the schema's default, and among those of
`objective` from the preset's value. So a recipe that spells a value out, and the resolved config of a run folder, need
no line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gtpo.config import baselines
from gtpo.config.schema import TrainConfig
from gtpo.presets import PRESETS
from gtpo.rewards.data.problems import SOURCES

_WITHOUT_EFFECT_IN_SFT = (
    "training.num_generations",
    "training.steps_per_generation",
    "training.num_iterations",
    *(f"training.{name}" for name in baselines.CLIPPING),
    "training.temperature",
    "training.max_completion_length",
    "training.log_completions_steps",
    "trainer.reward_funcs",
    "trainer.reward_weights",
    "rollout.",
    "model.gpu_memory_utilization",
)
"""Starts of keys. health.on_collapse is not among them: a loss that is not finite is a collapse in sft too."""


def is_file(name: str) -> bool:
    """Return whether a dataset.name is the path of a file."""
    return name.endswith((".jsonl", ".jsonl.gz", ".parquet"))


def without_effect(config: TrainConfig, source: str, explicit_keys: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Yield (keys, why) for the explicit keys that change nothing in this run; `source` is its training source."""

    def among(*names: str) -> list[str]:
        return [key for key in explicit_keys if key in names]

    model, training = config.model, config.training
    if training.eval_steps is None:
        names = ("dataset.validation_problems", "dataset.validation_file", "training.eval_samples")
        yield among(*names, "health.smoothing_evaluations"), "without validation (training.eval_steps)"
    elif config.dataset.validation_file is not None:
        yield among("dataset.validation_problems"), "with dataset.validation_file, which is used whole"
    if source not in SOURCES:
        why = "it is a file" if is_file(source) else "it is generated"
        yield among("dataset.data_dir"), f"on dataset {config.dataset.name} ({why})"
    if is_file(source):
        yield among("dataset.split"), f"on dataset {config.dataset.name} (a file is used whole)"
    if model.build:
        yield among("model.trust_remote_code"), "with model.build"
        if model.dtype == "bfloat16":  # other values decide what a GPU computes in
            yield among("model.dtype"), "with model.build, whose weights are float32"
    if not model.lora_rank:
        yield among("model.lora_alpha", "model.target_modules"), "without adapters (model.lora_rank 0)"
    if training.max_steps > 0:
        yield among("training.num_train_epochs"), f"with training.max_steps {training.max_steps}"
    if training.optimizer in ("adafactor", "sgd"):
        yield among("training.adam_beta1", "training.adam_beta2"), f"with optimizer {training.optimizer}"
    if config.method != "gtpo":
        yield among("training.max_padding"), f"with method {config.method}"
    if config.method == "sft":
        yield [key for key in explicit_keys if key.startswith(_WITHOUT_EFFECT_IN_SFT)], "with method sft"
        return
    yield among("dataset.malformed_targets"), "without SFT targets"
    yield from baselines.without_effect(config, explicit_keys)
    yield from _rollout(config, explicit_keys)
    if config.method == "gtpo":
        yield from _objective(config)


def _rollout(config: TrainConfig, explicit_keys: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    engine = config.rollout.engine
    idle = []
    if engine != "vllm_server":
        idle += ["rollout.server_host", "rollout.server_port"]
    if engine in ("transformers", "vllm_server"):  # a server was started with both
        idle += ["model.gpu_memory_utilization", "rollout.tensor_parallel_size"]
    if engine == "transformers":
        idle += ["rollout.importance_sampling_correction", "rollout.logp_difference_alarm"]
    yield [key for key in explicit_keys if key in idle], f"with rollout.engine {engine}"
    sampled = config.training.temperature
    if (
        config.method == "gtpo"
        and engine != "transformers"
        and config.resolved_objective().temperature(sampled) != sampled
    ):
        yield (
            [key for key in explicit_keys if key == "rollout.logp_difference_alarm"],
            f"at training.temperature {sampled} with objective.entropy_temperature one, where vLLM's "
            "log-probabilities are not the trainer's",
        )


def _objective(config: TrainConfig) -> Iterator[tuple[list[str], str]]:
    """Yield the objective's fields whose part of it is off."""
    objective, preset = config.resolved_objective(), PRESETS[config.preset_name()]
    changed = {name for name, value in config.objective.changes().items() if value != getattr(preset, name)}

    def among(*names: str) -> list[str]:
        return [f"objective.{name}" for name in names if name in changed]

    entropy_term = objective.entropy_mode != "none" and objective.gamma > 0
    if not objective.conflict:
        yield among("combine", "positive_weight", "conflict_norm"), "with objective.conflict false"
    if objective.filter == "never":
        yield among("entropy_threshold", "filter_scope"), "with objective.filter never"
    if objective.entropy_mode == "none":
        yield among("gamma"), "with objective.entropy_mode none"
    if objective.entropy_mode != "loss":
        yield among("entropy_gated"), f"with objective.entropy_mode {objective.entropy_mode}"
    elif objective.filter == "never":
        yield among("entropy_gated"), "with objective.filter never"
    if not entropy_term:
        why = "without an entropy term, where a group of equal rewards moves nothing"
        yield among("skip_zero_variance_groups"), why
        if objective.filter == "never":
            yield among("log_clamp"), "but on the logged entropy, without gate and entropy term"
    if config.training.temperature == 1:
        yield among("entropy_temperature"), "with training.temperature 1.0"
