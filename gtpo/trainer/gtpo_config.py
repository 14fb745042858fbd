"""The arguments of GTPOTrainer: GRPOConfig plus the objective."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig

from gtpo.own_loss import loss_function
from gtpo.presets import PRESETS, Objective
from gtpo.rewards.loading import source_hash

# Settings that are not the user's -> what to do instead, by who decides them (objective, run, sampler): setting one is
# an error, never ignored.
DECIDED = tomllib.loads(Path(__file__).with_name("decided.toml").read_text(encoding="utf-8"))


def sampling_faults(args: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, why) for what TRL's GRPO takes, and fails with, or trains otherwise, when the first round begins."""
    batches = args.accelerator_config
    for name in ("split_batches", "dispatch_batches"):
        if batches.get(name) if isinstance(batches, dict) else getattr(batches, name, None):
            yield (
                f"accelerator_config {name}",
                "hands a group's rows to processes by another order than TRL's; remove it",
            )
    if args.use_transformers_continuous_batching and (args.fp16 or args.bf16 in (None, True)):
        yield (
            "use_transformers_continuous_batching",
            "casts the trained weights to 16 bits for good; set bf16=False, or sample without it",
        )
    # TRL corrects by default; a script that comes from there may say how, and lose the correction in silence.
    for entry in fields(args) if not args.vllm_importance_sampling_correction else ():
        how = entry.name.startswith("vllm_importance_sampling_") and entry.name != "vllm_importance_sampling_correction"
        if how and getattr(args, entry.name) != entry.default:
            key = "vllm_importance_sampling_correction=True (a config: rollout.importance_sampling_correction: true)"
            yield entry.name, f"does nothing without {key}"


@dataclass
class GTPOConfig(GRPOConfig):
    """GRPOConfig plus the objective.

    Raises ValueError for an unknown preset or field of the objective, and for a field of GRPOConfig that the
    objective decides.
    """

    preset: str = field(default="gtpo", metadata={"help": "A preset of docs/method.md."})
    # `str | None` is for TRL's parser, which passes JSON.
    objective: dict[str, Any] | str | Objective | None = field(
        default=None,
        metadata={"help": "Fields of gtpo.objective.Objective that differ from the preset; or an Objective, whole."},
    )
    initial_entropy: float | None = field(
        default=None,
        metadata={"help": "H_ini in nats, if already known; measured before step 0 when the filter is `auto`."},
    )
    resample_equal_groups: int = field(
        default=0, metadata={"help": "How many times groups whose rewards are all equal are drawn again."}
    )
    learning_rate: float = field(default=1e-6, metadata={"help": "The initial learning rate for AdamW."})
    disable_dropout: bool = field(
        default=True, metadata={"help": "Set dropout to 0: the loss is of the policy that samples."}
    )
    loss_type: str = field(default="grpo", metadata={"help": "The objective's own loss; no other."})
    scale_rewards: str = field(default="", metadata={"help": "As the objective has it."})
    vllm_importance_sampling_correction: bool | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "Correct vLLM's rounding by importance weights, as TRL does; costs a forward more a round. Unset: "
            "True, if the objective takes the sampling temperature. False: the paper's exact loss."
        },
    )

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"preset {self.preset!r} is not one of {', '.join(PRESETS)}")
        # As JSON can hold it: GTPOConfig(**to_dict()) has the same objective.
        if isinstance(self.objective, Objective):
            self.objective = asdict(self.objective)
        objective = self.resolved_objective()
        # Tried before a model is loaded.
        loss_function(objective)
        defaults = {entry.name: entry.default for entry in fields(self)}
        faults = list[str]()
        for name, instead in DECIDED["objective"].items():
            as_decided = name == "scale_rewards" and getattr(self, name) == objective.scale_rewards
            if name in defaults and getattr(self, name) != defaults[name] and not as_decided:
                faults.append(f"remove {name}={getattr(self, name)!r}: {instead}")
        on_cpu = self.use_cpu or not torch.accelerator.is_available()
        # TRL's default is True, which transformers refuses there without use_cpu.
        if self.bf16 is None and on_cpu:
            self.bf16 = False
        if self.fp16 and on_cpu:
            faults.append("fp16=True needs a GPU; on a CPU train in float32, or with bf16=True")
        comparable = objective.temperature(self.temperature) == self.temperature
        if self.vllm_importance_sampling_correction is None:
            self.vllm_importance_sampling_correction = comparable
        faults += [f"{name} {why}" for name, why in sampling_faults(self)]
        if self.use_vllm and self.vllm_importance_sampling_correction and not comparable:
            faults.append(
                "vllm_importance_sampling_correction compares vLLM's log-probabilities, at temperature "
                f"{self.temperature}, with the objective's at 1 (entropy_temperature 'one'): set temperature=1.0, "
                "objective={'entropy_temperature': 'sampling'} or vllm_importance_sampling_correction=False"
            )
        if faults:
            raise ValueError(f"GTPOConfig: {'; '.join(faults)}")
        self.scale_rewards = objective.scale_rewards
        # The objective's `mask_truncated` leaves them out of the loss.
        self.mask_truncated_completions = False
        super().__post_init__()

    def resolved_objective(self) -> Objective:
        """Return the preset with the fields changed that `objective` names."""
        changes: Any = self.objective or {}
        if isinstance(changes, str):
            with contextlib.suppress(json.JSONDecodeError):
                changes = json.loads(changes)
        if not isinstance(changes, dict):
            raise ValueError(
                f"GTPOConfig: objective must be an Objective or a dict of its fields; found {self.objective!r} "
                "(the name of a preset goes into preset)"
            )
        try:
            if loss := changes.get("loss"):
                changes = {**changes, "loss_source": source_hash(loss, "objective.loss")}
            return replace(PRESETS[self.preset], **changes)
        except ValueError as error:
            raise ValueError(f"GTPOConfig: {error}") from None
