"""TRL's own switches for method grpo: which there are, what contradicts them, and where two methods coincide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gtpo.config.schedule import one_step_per_rollout
from gtpo.config.schema import TrainConfig, TrainingSection
from gtpo.presets import PRESETS

SWITCHES = (
    "loss_type",
    "delta",
    "importance_sampling_level",
    "top_entropy_quantile",
    "entropy_coef",
    "use_adaptive_entropy",
    "entropy_coef_min",
    "entropy_coef_max",
    "entropy_coef_delta",
    "entropy_target",
)
"""Keys of `training` that only TRL's GRPO has, under the names of its GRPOConfig."""

CLIPPING = ("epsilon", "epsilon_high")
"""Keys of `training` that act in grpo and gtpo alike, where several optimizer steps share a rollout."""

_ADAPTIVE = ("entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target")
_CLIPPED_LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "luspo")
"""Values of loss_type whose ratio is clipped between 1 - epsilon and 1 + epsilon_high."""

_GRPO_IS = (
    "conflict",
    "filter",
    "entropy_mode",
    "group_reduction",
    "positive_advantage_weight",
    "negative_advantage_weight",
)
"""Fields of Objective that make GRPO's gradient, given its advantages."""


def contradictions(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong) for switches that this method or loss cannot have."""
    training = config.training
    if config.method != "grpo":
        why = (
            "GTPO's loss is that of its objective; TRL's losses are those of method grpo"
            if config.method == "gtpo"
            else "SFT has no RL loss"
        )
        for name in SWITCHES:
            if getattr(training, name) != TrainingSection.model_fields[name].default:
                yield f"training.{name}", f"{getattr(training, name)} contradicts method {config.method}: {why}"
        return
    if training.loss_type == "cispo" and (training.epsilon_high is None or training.epsilon_high < 1):
        yield (
            "training.epsilon_high",
            f"{training.epsilon_high} contradicts loss_type cispo, which cuts the ratio itself off at epsilon_high; "
            "set it above 1 (configs/recipes/cispo.yaml: 5.0)",
        )
    if training.loss_type == "luspo" and training.importance_sampling_level != "sequence":
        yield (
            "training.importance_sampling_level",
            f"{training.importance_sampling_level} contradicts loss_type luspo, a loss of whole sequences; "
            "set it to sequence",
        )
    if training.use_adaptive_entropy and not training.entropy_coef_min <= training.entropy_coef_max:
        yield (
            "training.entropy_coef_min",
            f"{training.entropy_coef_min} exceeds entropy_coef_max {training.entropy_coef_max}",
        )


def without_effect(config: TrainConfig, explicit_keys: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Yield (keys, why) for the explicit switches that change nothing in this run."""
    training = config.training

    def among(*names: str) -> list[str]:
        return [key for key in explicit_keys if key.removeprefix("training.") in names]

    if not training.use_adaptive_entropy:
        yield among(*_ADAPTIVE), "without training.use_adaptive_entropy"
    if one_step_per_rollout(config):
        # CISPO's bound is the one that may be far from 1, but a ratio of 1 never reaches it either.
        yield among(*CLIPPING, "delta"), "with one optimizer step per rollout, where every ratio is 1"
    elif config.method == "grpo" and training.loss_type == "cispo":
        yield among("epsilon", "delta"), "with loss_type cispo, which has an upper bound alone"
    elif config.method == "grpo" and training.loss_type not in _CLIPPED_LOSSES:
        yield among(*CLIPPING, "delta"), f"with loss_type {training.loss_type}, which does not clip"


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
