"""An eval run as a reader sees it; and whether two records are of one kind of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.runs.eval_record import BenchmarkRecord, EvalRecord, PromptRecord, SamplingRecord
from gtpo.runs.train_run import TrainFolder

# Settings that a run keeps for life: samples drawn under others would not be of one kind.
IDENTITY = (
    "model.source", "model.adapter", "model.fingerprint", "model.weights", "model.tokenizer",
    "model.generation_config", "engine.name", "engine.dtype",
    *(f"sampling.{name}" for name in SamplingRecord.model_fields if name != "n"),
    *(f"prompt.{name}" for name in PromptRecord.model_fields if name not in ("protocol", "hash")),
)  # fmt: skip
# Where the weights were: this counts only for weights without a fingerprint.
PLACES = ("model.source", "model.adapter", "model.train_run", "model.checkpoint")

# Settings that a refusal names; it counts the others.
SHOWN = 3


@dataclass(frozen=True)
class EvalRun:
    """An eval run: one line of a table."""

    name: str
    folder: Path
    record: EvalRecord = field(repr=False)
    train: TrainFolder | None = None
    stored: dict[str, str] = field(default_factory=dict, repr=False)
    """Name of a benchmark here -> its name in the run's files, if the two differ."""

    @property
    def method(self) -> str:
        """The preset or method it was trained with; empty for a model that no train run made."""
        name = self.record.model.preset or self.record.model.method
        if not name and self.train is not None:
            name = self.train.preset
        return str(name or "")

    def entry(self, benchmark: str) -> BenchmarkRecord:
        """Return what its record says of a benchmark; an empty record if it was not run."""
        return self.record.benchmarks.get(benchmark, BenchmarkRecord())

    @property
    def benchmarks(self) -> list[str]:
        """Names of its benchmarks, in the order they were run; those without metrics yet are left out."""
        return [name for name, entry in self.record.benchmarks.items() if entry.pass_at_k]


def unlike(a: EvalRecord, b: EvalRecord, keys: Sequence[str] = IDENTITY) -> list[tuple[str, Any, Any]]:
    """Return (key, value of a, value of b) of each setting by which samples of the two are not of one kind."""
    found = []
    moved = a.model.has_fingerprint and b.model.has_fingerprint
    for key in keys:
        one, other = setting(a, key), setting(b, key)
        # What `auto` came to counts, not the word.
        if key == "engine.dtype":
            known = a.engine.compute_dtype, b.engine.compute_dtype
            if all(known):
                key, (one, other) = "engine.compute_dtype", known
            elif one == "auto" and other == known[0]:
                continue
        if one != other and not (moved and key in PLACES):
            found.append((key, one, other))
    return found


def check_identity(where: Path, old: EvalRecord, new: EvalRecord, also: Sequence[str] = ()) -> None:
    """Raise UserError that names the settings in which a run and a command differ. also: other differences, in words.

    The questions are none of them: a subset is a view on what is stored.
    """
    found = unlike(old, new)
    sections = [key.partition(".")[0] for key, *_ in found]
    # The first of each section says most: another model differs in five keys of one section.
    found = [found[i] for i in sorted(range(len(found)), key=lambda i: sections[:i].count(sections[i]))]
    differing = [f"{key} ({_short(before)} there, {_short(now)} now)" for key, before, now in found] + list(also)
    if differing:
        rest = f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        other = "choose another --out" + " (in gtpo compare NAME=FILE)" * (new.engine.name == "recorded")
        raise UserError(
            f"{where} was made with other settings: {'; '.join(differing[:SHOWN])}{rest}. Repeat those, or {other}"
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
