"""Stored completions, verified for the first time or again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gtpo.evalkit.engines.base import Generation
from gtpo.evalkit.evaluation.scoring import score
from gtpo.evalkit.results.store import EvalFolder, QuestionKey
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.verify import Verifier

Row = dict[str, Any]
"""One row of SAMPLE_SCHEMA."""

_FIELDS = ("benchmark", "question_id", "sample_index", "completion", "tokens", "finish_reason", "seed", "error")
"""The columns that make a `Generation`."""


def verify_stored(
    folder: EvalFolder, problems: Mapping[QuestionKey, Problem], verifier: Verifier, *, everything: bool
) -> Iterator[tuple[list[Row], list[Row]]]:
    """Verify stored completions, part by part, and yield each part's rows before and after.

    everything: also those that have their verdicts, after a change of the rules.
    """
    for part, light in folder.tables(["verdict_strict", "error"]):
        if everything or light.column("verdict_strict").null_count > light.num_rows - light.column("error").null_count:
            before = folder.part(part).to_pylist()
            after = score([Generation(*(row[field] for field in _FIELDS)) for row in before], problems, verifier)
            if before != after:
                folder.replace_part(part, after)
            yield before, after
