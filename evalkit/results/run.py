"""Runs as a reader sees them: an eval run (or its shards), the train run behind it; and whose samples are of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.evalkit.results.record import BenchmarkRecord, EvalRecord, PromptRecord, SamplingRecord

IDENTITY = (
    "model.source", "model.adapter", "model.fingerprint", "model.weights", "model.tokenizer",
    "model.generation_config", "engine.name", "engine.dtype",
    *(f"sampling.{name}" for name in SamplingRecord.model_fields if name != "n"),
    *(f"prompt.{name}" for name in PromptRecord.model_fields if name not in ("protocol", "hash")),
)  # fmt: skip
"""Settings that a run keeps for life: samples drawn under others would not be of one kind."""

COLLAPSED = "collapsed"
"""The status in run.json of a training whose policy collapsed."""


@dataclass(frozen=True)
class TrainRun:
    """A train run's folder and its run.json."""

    name: str
    folder: Path
    document: dict[str, Any] = field(repr=False)

    @property
    def method(self) -> str:
        """gtpo, grpo or sft."""
        return str(self.document.get("method") or "")

    @property
    def preset(self) -> str:
        """The objective's preset; empty for sft."""
        return str(self.document.get("preset") or "")

    @property
    def seed(self) -> int | None:
        """Its seed; None where unknown."""
        seed = self.document.get("seed")
        return None if seed is None else int(seed)

    @property
    def complete(self) -> bool:
        """Return whether training reached its end."""
        return self.document.get("status") in ("finished", COLLAPSED)

    @property
    def collapsed(self) -> bool:
        """Return whether training was seen to collapse."""
        return self.document.get("status") == COLLAPSED


@dataclass(frozen=True)
class EvalRun:
    """One line of a table: an eval run, or several that measured parts of the same thing."""

    name: str
    folders: tuple[Path, ...]
    records: tuple[EvalRecord, ...] = field(repr=False)
    train: TrainRun | None = None
    stored: dict[str, str] = field(default_factory=dict, repr=False)
    """Name of a benchmark here -> its name in the run's files, where the two differ."""

    @property
    def record(self) -> EvalRecord:
        """The (first) eval.json; the others agree with it in every setting."""
        return self.records[0]

    @property
    def method(self) -> str:
        """The preset or method it was trained with; empty for a model that no train run made."""
        name = self.record.model.preset or self.record.model.method
        if not name and self.train is not None:
            name = self.train.preset or self.train.method
        return str(name or "")

    def entries(self, benchmark: str) -> list[BenchmarkRecord]:
        """Return what its records say of a benchmark, as far as they have it."""
        return [record.benchmarks[benchmark] for record in self.records if benchmark in record.benchmarks]

    @property
    def benchmarks(self) -> list[str]:
        """Names of its benchmarks, in the order they were run; those without metrics yet are left out."""
        entries = (item for record in self.records for item in record.benchmarks.items())
        return list(dict.fromkeys(name for name, entry in entries if entry.pass_at_k))


def check_identity(where: Path, old: EvalRecord, new: EvalRecord, also: Sequence[str] = ()) -> None:
    """Raise UserError that names each setting in which a run and a command differ. also: other differences, in words.

    The questions are none of them: a subset or a shard is a view on what is stored.
    """
    # Where both have fingerprints, the weights count, not their place.
    moved = old.model.has_fingerprint and new.model.has_fingerprint
    differing = [
        f"{key} ({_short(before)} there, {_short(now)} now)"
        for key in IDENTITY
        if (before := setting(old, key)) != (now := setting(new, key))
        and not (moved and key in ("model.source", "model.adapter"))
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
