"""The `gtpo` section of a verl config, and what verl's own settings must be for its loss to be GTPO's.

Its policy loss `vanilla` with `seq-mean-token-mean` is GTPO's for the advantages of `token_advantages`;
entropy mode `loss` is its own entropy bonus with a negative coefficient. Whatever else would change the loss is refused
here, by name, before a model is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.files import flatten
from gtpo.presets import PRESETS, Objective
from gtpo.rewards.loading import source_hash

# The name for `trainer.v1.trainer_mode`.
TRAINER_MODE = "gtpo_sync"


@dataclass(frozen=True)
class Settings:
    """What the trainer takes from a verl config."""

    preset: str
    objective: Objective
    initial_entropy: float | None
    """H_ini in nats as given; None if it is not."""
    needs_calibration: bool
    """Whether H_ini must be measured or read before the first step."""
    batch_rows: int
    """N of verl's loss: the completions of one optimizer step, padding included."""
    max_completion_length: int


def _requirements(objective: Objective, preset: str, config: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield (key of verl's config, the value it must have, why)."""
    samples = config.get("actor_rollout_ref.rollout.n")
    coefficient = 0.0
    if objective.entropy_mode == "loss":
        coefficient = -objective.gamma * (samples if objective.group_reduction == "sum" else 1)
    actor = "actor_rollout_ref.actor"
    yield "trainer.use_v1", True, "the trainer is one of verl's v1 trainers"
    yield "algorithm.adv_estimator", "grpo", "GTPO compares the samples of a prompt and has no critic"
    yield "algorithm.norm_adv_by_std_in_grpo", True, "it has no effect: gtpo.scale_rewards decides"
    yield "algorithm.use_kl_in_reward", False, "GTPO has no reference model"
    if preset != "grpo":
        yield f"{actor}.use_kl_loss", False, "GTPO has no reference model"
    yield f"{actor}.policy_loss.loss_mode", "vanilla", "the token-level advantages are made for this loss"
    yield f"{actor}.loss_agg_mode", "seq-mean-token-mean", "each completion is divided by its own length |o_i|"
    yield f"{actor}.entropy_coeff", coefficient, "gtpo.entropy_mode loss is this coefficient, other modes have none"
    yield f"{actor}.ppo_epochs", 1, "one optimizer step per batch of sampling"
    once = "one optimizer step per batch of sampling: the mini-batch is data.train_batch_size"
    yield f"{actor}.ppo_mini_batch_size", config.get("data.train_batch_size"), once
    correction = "algorithm.rollout_correction"
    yield f"{correction}.bypass_mode", False, "the entropies come from the pass that this mode leaves out"
    yield f"{correction}.rollout_rs", None, "rejected tokens would change |o_i| after the spans were found"
    yield "actor_rollout_ref.rollout.multi_turn.enable", False, "a completion holds only the policy's tokens"
    yield "skip.rollout_tq.enable", False, "stored completions are not this policy's"
    yield "distillation.enabled", False, "distillation adds a loss of its own"
    yield "trainer.critic_warmup", 0, "GTPO has no critic"


def check_settings(config: Mapping[str, Any]) -> Settings:
    """Return what the trainer takes from a resolved verl config (plain mappings).

    Raises UserError with one line for each key that verl's loss could not honour: the key, its value, why, and what
    to set.
    """
    section, flat = config.get("gtpo"), flatten(config)
    if not isinstance(section, Mapping):
        raise UserError(f"gtpo must be a mapping with a preset ({', '.join(PRESETS)}); found {section!r}")
    changes = {name: value for name, value in section.items() if value is not None}
    preset, initial_entropy = changes.pop("preset", "gtpo"), changes.pop("initial_entropy", None)
    if preset not in PRESETS:
        raise UserError(
            f"gtpo.preset must be one of {', '.join(PRESETS)}; found {preset!r}.{did_you_mean(str(preset), PRESETS)}"
        )
    known = isinstance(initial_entropy, int | float) and 0 <= initial_entropy < math.inf
    if initial_entropy is not None and not known:
        raise UserError(f"gtpo.initial_entropy must be a number >= 0; found {initial_entropy!r}")
    if loss := changes.get("loss"):
        changes["loss_source"] = source_hash(loss, "gtpo.loss")
    try:
        objective = replace(PRESETS[preset], **changes)
    except ValueError as error:
        raise UserError(f"section gtpo: {error}") from None

    faults, temperature = list[str](), flat.get("actor_rollout_ref.rollout.temperature")
    if objective.scale_rewards == "batch":
        faults.append("gtpo.scale_rewards batch: groups of one size are scaled together here; set it to group or none")
    if objective.log_clamp:
        clamp = f"gtpo.log_clamp {objective.log_clamp:g}"
        faults.append(f"{clamp}: verl computes the exact entropy; set gtpo.log_clamp to 0")
    if objective.entropy_temperature == "one" and temperature != 1:
        faults.append(
            f"gtpo.entropy_temperature one: verl takes log-probabilities and entropy at the sampling temperature "
            f"{temperature}; set actor_rollout_ref.rollout.temperature to 1.0 or gtpo.entropy_temperature to sampling"
        )
    of_completions = ("entropy_gated", "skip_zero_variance_groups", "mask_truncated")
    for name in of_completions if objective.entropy_mode == "loss" else ():
        if getattr(objective, name):
            faults.append(
                f"gtpo.{name} with gtpo.entropy_mode loss: verl's entropy term covers every completion of the batch; "
                f"set gtpo.{name} to false or gtpo.entropy_mode to advantage"
            )
    for key, wanted, why in _requirements(objective, preset, flat):
        found = flat.get(key)
        # A switch that is absent has verl's default, which is what is wanted.
        absent = found is None and isinstance(wanted, bool)
        if found != wanted and not absent:
            shown = "null" if wanted is None else str(wanted).lower() if isinstance(wanted, bool) else wanted
            faults.append(f"{key} is {found!r}: {why}; set it to {shown}")
    samples = flat.get("actor_rollout_ref.rollout.n")
    if not isinstance(samples, int) or samples < 2:
        faults.append(f"actor_rollout_ref.rollout.n is {samples!r}: a group has at least 2 samples; set it to 8, say")
    if faults:
        raise UserError(f"GTPO (preset {preset}) cannot run with this verl config:\n  " + "\n  ".join(faults))
    rows, longest = flat["data.train_batch_size"] * samples, flat["data.max_response_length"]
    measures = objective.filter == "auto" and initial_entropy is None
    return Settings(preset, objective, initial_entropy, measures, rows, longest)
