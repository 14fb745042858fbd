"""The second step of loading a config: the published dialect. The authors' files run unchanged, each mapping is logged.

No key of the dialect exists in a resolved config. Values keep the origin of the key that they were typed under.
docs/config.md lists what each key of the dialect means here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gtpo.common.errors import UserError
from gtpo.config.document import Document, read_scalar, unknown_key
from gtpo.config.keys import keys

# class_path -> (method, what the log says; empty: a class of ours or TRL's, nothing to say).
TRAINERS: dict[str, tuple[str, str]] = {
    "gtpo.gtpo_training.UnslothGTPOTrainer": ("gtpo", "gtpo.GTPOTrainer, the paper's objective"),
    "custom_trainer.original.UnslothGRPOTrainer": ("grpo", "trl.GRPOTrainer (the published repository never had it)"),
    "gtpo.GTPOTrainer": ("gtpo", ""),
    "gtpo.trainer.GTPOTrainer": ("gtpo", ""),
    "trl.GRPOTrainer": ("grpo", ""),
    "trl.SFTTrainer": ("sft", ""),
}

# What a file that names a class of the authors leaves to us: key -> (the value that it gets, if any; the log's words).
LEFT_OUT: dict[str, tuple[Any, str]] = {
    "objective.preset": (
        None,
        "what the authors' code computed (no division by std, always filtered, summed over the group) is "
        "--objective.preset gtpo-published; docs/paper_vs_code.md lists the differences",
    ),
    "training.temperature": (
        None,
        "training.temperature 1.0, which nothing in this file sets; the authors' logged runs sampled at 0.9: "
        "--training.temperature 0.9",
    ),
    # Off by default here: it costs a third more time, and a small model needs none.
    "training.gradient_checkpointing": (True, "training.gradient_checkpointing true, as the published script had it"),
}

REWARDS: dict[str, tuple[str, str]] = {
    "reward_math.final_reward": (
        "gtpo.rewards.final_reward",
        "gtpo.rewards.published_final_reward scores as the authors' did",
    ),
    "reward_math.scaled_adaptive_reward_func": ("gtpo.rewards.accuracy_reward", "the published code never had it"),
    "reward_math.formatting_penalty": ("gtpo.rewards.format_reward", "the published code never had it"),
}

# Key of the dialect, or TRL's own name of a published key -> ours, of the same meaning.
RENAMED: dict[str, str] = {
    "gtpo_runtime.ent_threshold": "objective.entropy_threshold",
    "gtpo_runtime.ent_scale": "objective.gamma",
    "gtpo_runtime.w_raw": "objective.positive_weight",
    "gtpo_runtime.eps": "objective.log_clamp",
    "dataset.subset": "dataset.subsets",
    "training.optim": "training.optimizer",
    "training.seed": "model.random_seed",
    "training.vllm_server_host": "rollout.server_host",
    "training.vllm_server_port": "rollout.server_port",
    "training.vllm_tensor_parallel_size": "rollout.tensor_parallel_size",
    "training.vllm_gpu_memory_utilization": "model.gpu_memory_utilization",
    "training.vllm_max_model_length": "model.max_seq_length",
    "training.vllm_importance_sampling_correction": "rollout.importance_sampling_correction",
}

WITHOUT_EFFECT = {
    "gtpo_runtime.pad_id": "conflict spans are found by lengths, never by a pad id",
    "gtpo_runtime.torch_compile_options": "it had none in the published code either",
    "model.max_prompt_length": "training.max_prompt_length is the key that acts",
}


@dataclass
class Findings:
    """What loading a config found: its errors, and what the user should know of a config that is accepted."""

    errors: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def raise_errors(self) -> None:
        """Raise one UserError with a line per error, if there are any."""
        if self.errors:
            raise UserError("\n      ".join(dict.fromkeys(self.errors)))


def translate(document: Document) -> tuple[Document, Findings]:
    """Return the document in our dialect, with a notice per change and the errors that only this dialect can have."""
    found = Findings()
    for step in (_without_effect, _trainer_class, _values, _renamed):
        document = step(document, found)
    return document, found


def _without_effect(document: Document, found: Findings) -> Document:
    for key, why in WITHOUT_EFFECT.items():
        if document.at(key).value is not None:
            found.notices.append(f"{document.at(key)} has no effect: {why}")
        document = document.without(key)
    return document


def _trainer_class(document: Document, found: Findings) -> Document:
    origin = document.at("trainer.class_path")
    method, line = TRAINERS.get(str(origin.value).replace(":", "."), ("", ""))
    if not method:
        return document
    document, other = document.without("trainer.class_path"), document.at("method")
    if other.value not in (None, method):
        words = f'trains with method {method}, but {other} is "{other.value}"; remove one'
        found.errors.append(f"{origin} {origin.value} {words}")
        return document
    document = document.put("method", method)
    if not line:
        return document
    found.notices.append(f"{origin} {origin.value} -> {line}")
    for key, (value, notice) in LEFT_OUT.items():
        # GRPO has no preset to choose.
        if document.at(key).value is None and (method == "gtpo" or key != "objective.preset"):
            found.notices.append(f"    {notice}")
            document = document if value is None else document.put(key, value)
    return document


def _values(document: Document, found: Findings) -> Document:
    """Take values that only the dialect has: "8/12", the authors' rewards, no tracker."""
    groups = document.at("training.num_generations")
    # The authors' way to note two runs.
    if isinstance(groups.value, str) and (several := re.fullmatch(r"\s*(\d+)\s*/.*", groups.value)):
        found.notices.append(f'{groups} "{groups.value}": taking {several[1]}')
        document = document.put("training.num_generations", int(several[1]))
    rewards = document.at("trainer.reward_funcs")
    if isinstance(rewards.value, str | list):
        paths = [rewards.value] if isinstance(rewards.value, str) else rewards.value
        ours = [REWARDS.get(str(path).replace(":", "."), (path, "")) for path in paths]
        changed = [(path, *new) for path, new in zip(paths, ours, strict=True) if new[1]]
        found.notices += [f"{rewards} {path} -> {name} ({why})" for path, name, why in changed]
        document = document.put("trainer.reward_funcs", [name for name, _ in ours])
    trackers = document.at("training.report_to").value
    if isinstance(trackers, str) or trackers == ["none"]:  # transformers' word for no tracker
        document = document.put("training.report_to", [] if "none" in trackers else [trackers])
    return document


def _renamed(document: Document, found: Findings) -> Document:
    """Move the values of the dialect's keys to ours; an error if those are set to something else."""
    runtime, method = document.at("gtpo_runtime"), document.at("method").value
    if runtime.value == {} and method in ("grpo", "sft"):
        found.notices.append(f"{runtime} has no effect with method {method}")
        document = document.without("gtpo_runtime")
    for old, new in RENAMED.items():
        origin, other, document = document.at(old), document.at(new), document.without(old)
        value = [origin.value] if keys()[new].many else origin.value
        if origin.value is None:
            continue
        # A flag's value is text.
        if other.value not in (None, []) and read_scalar(other.value) != read_scalar(value):
            found.errors.append(f"{origin} {origin.value} and {other} {other.value} set the same thing; remove one")
        else:
            found.notices.append(f"{origin} -> {new} {origin.value}")
            document = document.put(new, value, origin)
    for key, setting in document.items():
        if key[:-1] == ("gtpo_runtime",):
            found.errors.append(unknown_key(setting, RENAMED))
    # What is no section is an unknown key.
    return document if document.at("gtpo_runtime").value else document.without("gtpo_runtime")
