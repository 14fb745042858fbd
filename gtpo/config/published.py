"""The published dialect: the authors' config files run unchanged, and each mapping is logged.

Works on the raw document, before validation: no key of the dialect exists in a resolved config. Values keep the
origin of the key that they were typed under. docs/config.md lists what each key of the dialect means here.
"""

from __future__ import annotations

import re
from typing import Any

from gtpo.config.document import Document, Findings, unknown_key
from gtpo.config.keys import keys, sections
from gtpo.config.resolve import FAMILIES
from gtpo.config.schema import DatasetSection

TRAINERS: dict[str, tuple[str, str]] = {
    "gtpo.gtpo_training.UnslothGTPOTrainer": ("gtpo", "gtpo.GTPOTrainer, the paper's objective"),
    "custom_trainer.original.UnslothGRPOTrainer": ("grpo", "trl.GRPOTrainer (the published repository never had it)"),
    "gtpo.GTPOTrainer": ("gtpo", ""),
    "gtpo.trainer.GTPOTrainer": ("gtpo", ""),
    "trl.GRPOTrainer": ("grpo", ""),
    "trl.SFTTrainer": ("sft", ""),
}
"""class_path -> (method, what the log says; empty: a class of ours or TRL's, nothing to say)."""

REWARDS: dict[str, tuple[str, str]] = {
    "reward_math.final_reward": (
        "gtpo.rewards.final_reward",
        "gtpo.rewards.published_final_reward scores as the authors' did",
    ),
    "reward_math.scaled_adaptive_reward_func": ("gtpo.rewards.accuracy_reward", "the published code never had it"),
    "reward_math.formatting_penalty": ("gtpo.rewards.format_reward", "the published code never had it"),
}

RUNTIME: dict[str, str] = {
    "ent_threshold": "entropy_threshold",
    "ent_scale": "gamma",
    "w_raw": "positive_weight",
    "eps": "log_clamp",
}
"""gtpo_runtime key -> field of objective."""

WITHOUT_EFFECT = {
    "gtpo_runtime.pad_id": "conflict spans are found by lengths, never by a pad id",
    "gtpo_runtime.torch_compile_options": "it had none in the published code either",
    "model.max_prompt_length": "training.max_prompt_length is the key that acts",
}


def translate(document: Document, findings: Findings) -> None:
    """Rewrite a document of the published dialect into ours, in place, with a notice per change."""
    _flat_keys(document, findings)
    _generations(document, findings)
    _trainer_class(document, findings)
    _rewards(document, findings)
    for key, why in WITHOUT_EFFECT.items():
        if document.drop(key) not in (None, {}):
            findings.notices.append(f"{document.origin(key)} has no effect: {why}")
    _runtime(document, findings)
    _subset(document, findings)
    trackers = document.get("training.report_to")
    if trackers in ("none", ["none"]):  # transformers' word for no tracker
        document.set("training.report_to", [])
    elif isinstance(trackers, str):
        document.set("training.report_to", [trackers])


def _flat_keys(document: Document, findings: Findings) -> None:
    """Move a key of the old flat layout into its section."""
    root = {*sections()[""].model_fields, "gtpo_runtime"}
    for name in [name for name in document.values if name not in root]:
        origin = document.origin((name,))
        homes = [f"{section}.{name}" for section in ("training", "model", "dataset", "trainer")]
        home = next((key for key in homes if key in keys()), None)
        if home and not origin.is_flag and document.get(home) is None and not isinstance(document.values[name], dict):
            findings.notices.append(f"{origin} (flat layout) is read as {home}")
            document.set(home, document.values.pop(name), origin)


def _generations(document: Document, findings: Findings) -> None:
    """`num_generations: "8/12"` was the authors' way to note two runs; the first is taken."""
    key = "training.num_generations"
    value = document.get(key)
    if isinstance(value, str) and (several := re.fullmatch(r"\s*(\d+)\s*/.*", value)):
        findings.notices.append(f'{document.origin(key)} "{value}": taking {several[1]}')
        document.set(key, int(several[1]))


def _trainer_class(document: Document, findings: Findings) -> None:
    path = document.get("trainer.class_path")
    known = TRAINERS.get(path.replace(":", ".")) if isinstance(path, str) else None
    if known is None:
        return
    method, line = known
    origin = document.origin("trainer.class_path")
    document.drop("trainer.class_path")
    if (other := document.get("method")) not in (None, method):
        findings.errors.append(
            f'{origin} {path} trains with method {method}, but {document.origin("method")} is "{other}"; remove one'
        )
        return
    document.set("method", method)
    if not line:
        return
    findings.notices.append(f"{origin} {path} -> {line}")
    if path.endswith("UnslothGTPOTrainer") and document.get("objective.preset") is None:
        findings.notices.append(
            "    what the authors' code computed (no division by std, always filtered, summed over the group) is "
            "--objective.preset gtpo-published; docs/paper_vs_code.md lists the differences"
        )
    if document.get("training.temperature") is None:
        findings.notices.append(
            "    training.temperature 1.0, which nothing in this file sets; the authors' logged runs sampled at 0.9: "
            "--training.temperature 0.9"
        )
    if document.get("training.gradient_checkpointing") is None:
        findings.notices.append("    training.gradient_checkpointing true, as the published script had it")
        document.set("training.gradient_checkpointing", True)


def _rewards(document: Document, findings: Findings) -> None:
    key = "trainer.reward_funcs"
    paths = document.get(key)
    if not isinstance(paths, str | list):
        return
    ours: list[Any] = []
    for path in [paths] if isinstance(paths, str) else paths:
        name, why = REWARDS.get(path.replace(":", "."), (path, "")) if isinstance(path, str) else (path, "")
        if why:
            findings.notices.append(f"{document.origin(key)} {path} -> {name} ({why})")
        ours.append(name)
    document.set(key, ours)


def _runtime(document: Document, findings: Findings) -> None:
    """Move gtpo_runtime's values to the objective's fields of the same meaning."""
    origin, runtime = document.origin("gtpo_runtime"), document.drop("gtpo_runtime")
    if runtime is None:
        return
    if not isinstance(runtime, dict):
        findings.errors.append(f"{origin} must be a mapping, found {runtime!r}")
        return
    known = [f"gtpo_runtime.{name}" for name in RUNTIME]
    origins = {name: document.origin(("gtpo_runtime", name)) for name in runtime}
    findings.errors += [unknown_key(origins[name], known) for name in runtime if name not in RUNTIME]
    values = {name: runtime[name] for name in RUNTIME if runtime.get(name) is not None}
    if values and (method := document.get("method")) in ("grpo", "sft"):
        findings.notices.append(f"{origin} has no effect with method {method}")
        return
    moved = []
    for name, value in values.items():
        key = f"objective.{RUNTIME[name]}"
        other = document.get(key)
        if other is not None and not _equal(other, value):
            findings.errors.append(
                f"{origins[name]} {value} and {document.origin(key)} {other} set the same thing; remove one"
            )
            continue
        document.set(key, value, origins[name])
        moved.append(f"{name} -> {key} {value}")
    if moved:
        findings.notices.append(f"{origin}: {', '.join(moved)}")


def _equal(one: Any, other: Any) -> bool:
    """Return whether two raw values are equal; a flag's is text."""
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return bool(one == other)


def _subset(document: Document, findings: Findings) -> None:
    """`dataset.subset` names one subset: `main` for GSM8K, a subject for MATH."""
    origin, subset = document.origin("dataset.subset"), document.drop("dataset.subset")
    family = FAMILIES.get(str(document.get("dataset.name") or DatasetSection().name).lower())
    if subset is None or (subset == "main" and family not in (None, "math")):
        return
    if document.get("dataset.subsets") not in (None, [], [subset]):
        findings.errors.append(f"{origin} {subset!r} and {document.origin('dataset.subsets')} are both set; remove one")
        return
    document.set("dataset.subsets", [subset], origin)
