"""What makes the samples of two runs, or of two sessions of one, of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.evalkit.results.record import EvalRecord

IDENTITY = (
    "model.source", "model.adapter", "model.fingerprint", "model.weights", "model.tokenizer",
    "model.generation_config", "engine.name", "engine.dtype",
    "engine.deterministic", "sampling.temperature", "sampling.top_p", "sampling.top_k", "sampling.min_p",
    "sampling.presence_penalty", "sampling.repetition_penalty", "sampling.max_tokens", "sampling.seed",
    "sampling.extra_body", "sampling.stop", "prompt.system", "prompt.system_role", "prompt.user",
    "prompt.fewshot", "prompt.api", "prompt.thoughts", "prompt.begins_in_thought",
    "prompt.chat_template_hash", "prompt.chat_template_kwargs",
)  # fmt: skip
"""Settings that a run keeps for life: samples drawn under others would not be of one kind."""


_LATER = ("model.weights", "model.tokenizer", "model.generation_config")
"""Settings that older versions did not record: unknown in one of two records, they are not compared."""


def check_identity(where: Path, old: EvalRecord, new: EvalRecord, also: Sequence[str] = ()) -> None:
    """Raise UserError that names each setting in which a run and a command differ. also: other differences, in words.

    The questions are none of them: a subset or a shard is a view on what is stored.
    """
    moved = old.model.has_fingerprint and new.model.has_fingerprint  # then the weights count, not where they lie
    differing = [
        f"{key} ({_short(before)} there, {_short(now)} now)"
        for key in IDENTITY
        if (before := setting(old, key)) != (now := setting(new, key))
        and not (moved and key in ("model.source", "model.adapter"))
        and not (key in _LATER and (before is None or now is None))
        and not (key == "engine.dtype" and before == "auto" and now == old.engine.compute_dtype)
    ]
    differing += also
    if differing:
        raise UserError(
            f"{where} was made with other settings: {'; '.join(differing)}. Repeat those, or choose another --out"
        )


def setting(record: EvalRecord, key: str) -> Any:
    """Return the value of a dotted key, e.g. `model.fingerprint`."""
    value: Any = record
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 48 else f"{text[:45]}..."
