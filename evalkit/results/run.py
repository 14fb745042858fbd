"""Runs as a reader sees them: an eval run (or its shards) and the train run behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gtpo.evalkit.results.record import EvalRecord

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
        published = self.document.get("seeds") or {}
        seed = self.document.get("seed", published.get("random_seed"))
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

    @property
    def benchmarks(self) -> list[str]:
        """Names of its benchmarks, in the order they were run; those without metrics yet are left out."""
        entries = (item for record in self.records for item in record.benchmarks.items())
        return list(dict.fromkeys(name for name, entry in entries if entry.pass_at_k))
