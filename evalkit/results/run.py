"""Runs as a reader sees them: an eval run (or its shards) and the train run behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
    def complete(self) -> bool:
        """Whether training reached its end."""
        return self.document.get("status") == "finished"


@dataclass(frozen=True)
class EvalRun:
    """One line of a table: an eval run, or several that measured parts of the same thing."""

    name: str
    folders: tuple[Path, ...]
    documents: tuple[dict[str, Any], ...] = field(repr=False)
    train: TrainRun | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The (first) eval.json; the others agree with it in every setting."""
        return self.documents[0]

    @property
    def model(self) -> dict[str, Any]:
        """The model block of eval.json."""
        return self.document.get("model") or {}

    @property
    def method(self) -> str:
        """The preset or method it was trained with; empty for a model that no train run made."""
        name = self.model.get("preset") or self.model.get("method")
        if not name and self.train is not None:
            name = self.train.preset or self.train.method
        return str(name or "")

    @property
    def benchmarks(self) -> list[str]:
        """Names of its benchmarks, in the order they were run."""
        return list(dict.fromkeys(name for document in self.documents for name in document["benchmarks"]))
