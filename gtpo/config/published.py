"""The second step of loading a config: the published dialect. The authors' files run unchanged, each mapping is logged.

No key of the dialect exists in a resolved config. Values keep the origin of the key that they were typed under.
docs/config.md lists what each key of the dialect means here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gtpo.common.errors import UserError
from gtpo.config.document import Document, read_scalar
from gtpo.config.keys import keys, sections, unknown_key
from gtpo.rewards.data.problems import FAMILIES

# class_path -> (method, what the log says; empty: a class of ours or TRL's, nothing to say).
TRAINERS: dict[str, tuple[str, str]] = {
    "gtpo.gtpo_training.UnslothGTPOTrainer": ("gtpo", "gtpo.GTPOTrainer, the paper's objective"),
    "custom_trainer.original.UnslothGRPOTrainer": ("grpo", "trl.GRPOTrainer (the published repository never had it)"),
    "gtpo.GTPOTrainer": ("gtpo", ""),
    "gtpo.trainer.GTPOTrainer": ("gtpo", ""),
    "trl.GRPOTrainer": ("grpo", ""),
    "trl.SFTTrainer": ("sft", ""),
}

REWARDS: dict[str, tuple[str, str]] = {
    "reward_math.final_reward": (
        "gtpo.rewards.final_reward",
        "gtpo.rewards.published_final_reward scores as the authors' did",
    ),
    "reward_math.scaled_adaptive_reward_func": ("gtpo.rewards.accuracy_reward", "the published code never had it"),
    "reward_math.formatting_penalty": ("gtpo.rewards.format_reward", "the published code never had it"),
}

# gtpo_runtime key -> field of objective.
RUNTIME: dict[str, str] = {
    "ent_threshold": "entropy_threshold",
    "ent_scale": "gamma",
    "w_raw": "positive_weight",
    "eps": "log_clamp",
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
    for step in (_flat_keys, _generations, _trainer_class, _rewards, _without_effect, _runtime, _subset):
        document = step(document, found)
    trackers = document.get("training.report_to")
    if isinstance(trackers, str) or trackers == ["none"]:  # transformers' word for no tracker
        document = document.put("training.report_to", [] if "none" in trackers else [trackers])
    return document, found


def _flat_keys(document: Document, found: Findings) -> Document:
    """Move a key of the old flat layout into its section."""
    for name, value in document.values.items():
        if name == "gtpo_runtime" or name in sections()[""].model_fields:
            continue
        origin = document.origin((name,))
        homes = [f"{section}.{name}" for section in ("training", "model", "dataset", "trainer")]
        home = next((key for key in homes if key in keys()), None)
        if home and not origin.is_flag and document.get(home) is None and not isinstance(value, dict):
            found.notices.append(f"{origin} (flat layout) is read as {home}")
            document = document.without(name).put(home, value, origin)
    return document


def _generations(document: Document, found: Findings) -> Document:
    """`num_generations: "8/12"` was the authors' way to note two runs; the first is taken."""
    key = "training.num_generations"
    value = document.get(key)
    if not isinstance(value, str) or not (several := re.fullmatch(r"\s*(\d+)\s*/.*", value)):
        return document
    found.notices.append(f'{document.origin(key)} "{value}": taking {several[1]}')
    return document.put(key, int(several[1]))


def _trainer_class(document: Document, found: Findings) -> Document:
    key = "trainer.class_path"
    path, origin = document.get(key), document.origin(key)
    if not isinstance(path, str) or (known := TRAINERS.get(path.replace(":", "."))) is None:
        return document
    (method, line), document = known, document.without(key)
    if (other := document.get("method")) not in (None, method):
        found.errors.append(
            f'{origin} {path} trains with method {method}, but {document.origin("method")} is "{other}"; remove one'
        )
        return document
    document = document.put("method", method)
    if not line:
        return document
    found.notices.append(f"{origin} {path} -> {line}")
    if path.endswith("UnslothGTPOTrainer") and document.get("objective.preset") is None:
        found.notices.append(
            "    what the authors' code computed (no division by std, always filtered, summed over the group) is "
            "--objective.preset gtpo-published; docs/paper_vs_code.md lists the differences"
        )
    if document.get("training.temperature") is None:
        found.notices.append(
            "    training.temperature 1.0, which nothing in this file sets; the authors' logged runs sampled at 0.9: "
            "--training.temperature 0.9"
        )
    # Off by default here: it costs a third more time, and a small model needs none.
    if document.get("training.gradient_checkpointing") is None:
        found.notices.append("    training.gradient_checkpointing true, as the published script had it")
        document = document.put("training.gradient_checkpointing", True)
    return document


def _rewards(document: Document, found: Findings) -> Document:
    key = "trainer.reward_funcs"
    paths, ours = document.get(key), []
    if not isinstance(paths, str | list):
        return document
    for path in [paths] if isinstance(paths, str) else paths:
        name, why = REWARDS.get(path.replace(":", "."), (path, "")) if isinstance(path, str) else (path, "")
        if why:
            found.notices.append(f"{document.origin(key)} {path} -> {name} ({why})")
        ours.append(name)
    return document.put(key, ours)


def _without_effect(document: Document, found: Findings) -> Document:
    for key, why in WITHOUT_EFFECT.items():
        if document.get(key) not in (None, {}):
            found.notices.append(f"{document.origin(key)} has no effect: {why}")
        document = document.without(key)
    return document


def _runtime(document: Document, found: Findings) -> Document:
    """Move gtpo_runtime's values to the objective's fields of the same meaning."""
    origin, runtime, method = document.origin("gtpo_runtime"), document.get("gtpo_runtime"), document.get("method")
    document, moved = document.without("gtpo_runtime"), []
    if not isinstance(runtime, dict | None):
        found.errors.append(f"{origin} must be a mapping, found {runtime!r}")
        return document
    values = {name: value for name, value in (runtime or {}).items() if value is not None or name not in RUNTIME}
    for name, value in values.items():
        place, key = document.origin(("gtpo_runtime", name)), f"objective.{RUNTIME.get(name)}"
        other = document.get(key)
        if name not in RUNTIME:
            found.errors.append(unknown_key(place, [f"gtpo_runtime.{known}" for known in RUNTIME]))
        elif method in ("grpo", "sft"):
            continue
        elif other is not None and read_scalar(other) != read_scalar(value):  # a flag's is text
            found.errors.append(f"{place} {value} and {document.origin(key)} {other} set the same thing; remove one")
        else:
            document = document.put(key, value, place)
            moved.append(f"{name} -> {key} {value}")
    if moved:
        found.notices.append(f"{origin}: {', '.join(moved)}")
    elif values and method in ("grpo", "sft"):
        found.notices.append(f"{origin} has no effect with method {method}")
    return document


def _subset(document: Document, found: Findings) -> Document:
    """`dataset.subset` names one subset: `main` for GSM8K, a subject for MATH."""
    key = "dataset.subset"
    origin, subset, document = document.origin(key), document.get(key), document.without(key)
    # `main` is all of GSM8K, so it divides nothing.
    several = document.get("dataset.subsets")
    family = FAMILIES.get(str(document.get("dataset.name") or "arithmetic").lower())
    if subset is None or (subset == "main" and family not in (None, "math")):
        return document
    if several in (None, [], [subset]):
        return document.put("dataset.subsets", [subset], origin)
    found.errors.append(f"{origin} {subset!r} and {document.origin('dataset.subsets')} are both set; remove one")
    return document
