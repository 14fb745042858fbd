"""The published dialect: the authors' config files run unchanged, and everything mapped or idle is said.

Works on the raw document, before validation. What each key did in the authors' code is PUBLISHED fact; what it
does here stands in the lines below and in docs/config.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gtpo.config.keys import leaves, sections
from rewards.support.errors import UserError

if TYPE_CHECKING:
    from gtpo.config.document import Document

TRAINERS: dict[str, tuple[str, str]] = {
    "gtpo.gtpo_training.UnslothGTPOTrainer": ("gtpo", "gtpo.GTPOTrainer, the paper's objective"),
    "custom_trainer.original.UnslothGRPOTrainer": ("grpo", "trl.GRPOTrainer (the published repository never had it)"),
    "gtpo.GTPOTrainer": ("gtpo", ""),
    "gtpo.trainer.GTPOTrainer": ("gtpo", ""),
    "trl.GRPOTrainer": ("grpo", ""),
    "trl.SFTTrainer": ("sft", ""),
}
"""class_path -> (method, what the printed line says; empty: a class of ours or TRL's, nothing to say)."""

REWARDS: dict[str, tuple[str, str]] = {
    "reward_math.final_reward": ("rewards.final_reward", "rewards.published_final_reward scores as the authors' did"),
    "reward_math.scaled_adaptive_reward_func": ("rewards.accuracy_reward", "the published code never had it"),
    "reward_math.formatting_penalty": ("rewards.format_reward", "the published code never had it"),
}

RUNTIME: dict[str, str] = {
    "ent_threshold": "entropy_threshold",
    "ent_scale": "gamma",
    "w_raw": "positive_weight",
    "eps": "log_clamp",
}
"""gtpo_runtime key -> field of objective."""

_IDLE = {
    "gtpo_runtime.pad_id": "conflict spans are found by lengths, never by a pad id",
    "gtpo_runtime.torch_compile_options": "and it had none in the published code",
    "model.max_prompt_length": "training.max_prompt_length is the key that acts",
}


def translate(document: Document, say: Callable[[str], None]) -> None:
    """Rewrite a document of the published dialect into ours, in place, one printed line per change."""
    _flat_keys(document, say)
    _generations(document, say)
    _trainer_class(document, say)
    _rewards(document, say)
    for key, why in _IDLE.items():
        if document.get(key) not in (None, {}):
            say(f"{_at(document, key)}{key} has no effect: {why}")
            document.drop(key)
    _runtime(document, say)
    trackers = document.get("training.report_to")
    if isinstance(trackers, str):
        document.set(("training", "report_to"), [] if trackers == "none" else [trackers])


def _at(document: Document, dotted: str) -> str:
    place = document.place(tuple(dotted.split(".")))
    return f"{place}: " if place else ""


def _flat_keys(document: Document, say: Callable[[str], None]) -> None:
    """Move a key of the old flat layout into its section."""
    root = set(sections()[""].model_fields)
    for name in [name for name in document.values if name not in root]:
        homes = [
            f"{section}.{name}"
            for section in ("training", "model", "dataset", "trainer")
            if f"{section}.{name}" in leaves()
        ]
        if homes and document.get(homes[0]) is None and not isinstance(document.values[name], dict):
            place = document.place((name,))
            say(f"{place}: {name} (flat layout) is read as {homes[0]}")
            document.set(tuple(homes[0].split(".")), document.values.pop(name), place)


def _generations(document: Document, say: Callable[[str], None]) -> None:
    """`num_generations: "8/12"` was the authors' way to note two runs; the first is taken."""
    value = document.get("training.num_generations")
    if isinstance(value, str) and (several := re.fullmatch(r"\s*(\d+)\s*/.*", value)):
        say(f'{_at(document, "training.num_generations")}training.num_generations "{value}": taking {several[1]}')
        document.set(("training", "num_generations"), int(several[1]))


def _trainer_class(document: Document, say: Callable[[str], None]) -> None:
    path = document.get("trainer.class_path")
    known = TRAINERS.get(path.replace(":", ".")) if isinstance(path, str) else None
    if known is None:
        return
    method, line = known
    at = _at(document, "trainer.class_path")
    if document.get("method") not in (None, method):
        raise UserError(
            f'{at}trainer.class_path {path} trains with method {method}, but method is "{document.get("method")}"'
            f" ({_at(document, 'method').rstrip(': ')}); drop one of the two"
        )
    if line:
        say(f"{at}trainer.class_path {path} -> {line}")
    if path == "gtpo.gtpo_training.UnslothGTPOTrainer" and document.get("objective.preset") is None:
        say(
            "    what the authors' code computed (no division by std, always filtered, summed over the group) is "
            "--objective.preset gtpo-published; docs/paper_vs_code.md lists the differences"
        )
    if line and document.get("training.gradient_checkpointing") is None:
        say("    training.gradient_checkpointing true, as the published script had it")
        document.set(("training", "gradient_checkpointing"), True)
    document.set(("method",), method)
    document.drop("trainer.class_path")


def _rewards(document: Document, say: Callable[[str], None]) -> None:
    paths = document.get("trainer.reward_funcs")
    if isinstance(paths, str):
        paths = [paths]
    if not isinstance(paths, list):
        return
    at = _at(document, "trainer.reward_funcs")
    ours: list[Any] = []
    for path in paths:
        known = REWARDS.get(path.replace(":", ".")) if isinstance(path, str) else None
        if known:
            say(f"{at}trainer.reward_funcs {path} -> {known[0]} ({known[1]})")
        ours.append(known[0] if known else path)
    document.set(("trainer", "reward_funcs"), ours)


def _runtime(document: Document, say: Callable[[str], None]) -> None:
    """Move gtpo_runtime's values to the objective's fields of the same meaning."""
    runtime = document.get("gtpo_runtime")
    if not isinstance(runtime, dict):
        return
    present = [name for name in RUNTIME if runtime.get(name) is not None]
    if (method := document.get("method")) in ("grpo", "sft"):
        if present:
            say(f"{_at(document, 'gtpo_runtime')}gtpo_runtime has no effect with method {method}")
            for name in present:
                document.drop(f"gtpo_runtime.{name}")
        return
    moved = []
    for name in present:
        field, value = RUNTIME[name], document.drop(f"gtpo_runtime.{name}")
        place = document.place(("gtpo_runtime", name))
        other = document.get(f"objective.{field}")
        if other is not None and other != value:
            raise UserError(
                f"{place}: gtpo_runtime.{name} {value} and objective.{field} {other} set the same thing; drop one"
            )
        document.set(("objective", field), value, place)
        moved.append(f"{name} -> objective.{field} {value}")
    if moved:
        say(f"{_at(document, 'gtpo_runtime')}gtpo_runtime: {', '.join(moved)}")
