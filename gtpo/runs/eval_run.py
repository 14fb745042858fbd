"""An eval run as a reader sees it: its record, scores by question, problems and prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gtpo.common.errors import UserError
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_record import BenchmarkRecord, EvalRecord
from gtpo.runs.tables import read_problems, read_prompts, read_table
from gtpo.runs.train_run import TrainFolder

RESCORE = "write it again with gtpo eval --rescore"


@dataclass(frozen=True)
class EvalRun:
    """An eval run: one line of a table."""

    name: str
    folder: Path
    record: EvalRecord = field(repr=False)
    train: TrainFolder | None = None
    # Name of a benchmark here -> its name in the run's files, if the two differ.
    stored: dict[str, str] = field(default_factory=dict, repr=False)

    def entry(self, benchmark: str) -> BenchmarkRecord:
        """Return what its record says of a benchmark; an empty record if it was not run."""
        return self.record.benchmarks.get(benchmark, BenchmarkRecord())

    @property
    def benchmarks(self) -> list[str]:
        """Names of its benchmarks, in the order they were run; those without metrics yet are left out."""
        return [name for name, entry in self.record.benchmarks.items() if entry.pass_at_k]

    def stored_name(self, benchmark: str) -> str:
        """Return the name of a benchmark in the run's files."""
        return self.stored.get(benchmark, benchmark)

    def questions(self, benchmark: str, scoring: str) -> Questions:
        """Return the figures of each question under one scoring. Raises UserError if the file does not hold them."""
        file = self.folder / "questions.parquet"
        # In one process another folder may be current, and a run may be resumed.
        keys, every = _questions(file.resolve(), file.stat().st_mtime_ns if file.exists() else 0)
        rows = np.flatnonzero(keys == f"{scoring} {self.stored_name(benchmark)}")
        if not rows.size:
            raise UserError(f"{file}: no {scoring} scores of {self.stored_name(benchmark)}; {RESCORE}")
        found = every.take(rows[np.argsort(every.ids[rows])])
        k = slice(int(found.n.max()))
        return replace(found, pass_at_k=found.pass_at_k[:, k], maj_at_k=found.maj_at_k[:, k])

    def problems(self, benchmark: str) -> dict[str, Problem]:
        """Return the problems of a benchmark by id, as far as the run holds them."""
        return {p.id: p for name, p, _ in read_problems(self.folder) if name == self.stored_name(benchmark)}

    def prompts(self, benchmark: str) -> dict[str, tuple[str, int | None]]:
        """Return id -> (what the model read, its tokens); a conversation if a server did not show the text."""
        return {
            question: (text or json.dumps(messages, ensure_ascii=False), None if tokens is None else len(tokens))
            for (name, question), (messages, text, tokens) in read_prompts(self.folder).items()
            if name == self.stored_name(benchmark)
        }


@dataclass(frozen=True)
class Questions:
    """Per-question figures of one run on one benchmark under one scoring, sorted by question id.

    ids [Q] str; subject [Q] str; level [Q] int (0: none); n, correct, format_ok, truncated [Q] counts;
    pass_at_k, maj_at_k [Q, K] for k = 1..K, K the largest n of a question; NaN if a question has fewer than k.
    """

    ids: NDArray[np.object_]
    subject: NDArray[np.object_]
    level: NDArray[np.int32]
    n: NDArray[np.int32]
    correct: NDArray[np.int32]
    format_ok: NDArray[np.int32]
    truncated: NDArray[np.int32]
    pass_at_k: NDArray[np.float64]
    maj_at_k: NDArray[np.float64]

    def take(self, rows: NDArray[Any]) -> Questions:
        """Return the questions at `rows` (indices or mask)."""
        return Questions(*(getattr(self, f.name)[rows] for f in fields(self)))


_TEXTS = ("benchmark", "scoring", "subject")
_COUNTS = ("level", "n", "correct", "format_ok", "truncated")
_BY_K = ("pass_at_k", "maj_at_k")


@cache
def _questions(path: Path, changed: int) -> tuple[NDArray[np.object_], Questions]:
    """One questions.parquet: `scoring benchmark` of each row, and the rows. Raises UserError if it lacks any.

    Without filters and scalars of Arrow, which import pandas: a quarter of a second.
    """
    columns = [*_TEXTS, "question_id", *_COUNTS, *_BY_K]
    table = read_table(path, columns, remedy=RESCORE, dictionary=_TEXTS).combine_chunks()
    benchmarks, scorings, subjects = (
        np.array([*column.dictionary.to_pylist(), ""], dtype=object)[_numbers(column.indices, -1)]
        for column in (table[name].combine_chunks() for name in _TEXTS)
    )
    counts = {name: _numbers(table[name], 0) for name in _COUNTS}
    n, most = counts["n"], int(counts["n"].max(initial=1))
    by_k = {}
    for name in _BY_K:
        if np.any(_numbers(pc.list_value_length(table[name]), 0) < n):
            raise UserError(f"{path}: {name} is shorter than n; {RESCORE}")
        flat = pc.list_slice(table[name], 0, most, return_fixed_size_list=True).combine_chunks().flatten()
        by_k[name] = np.where(np.arange(most) < n[:, None], _numbers(flat, np.nan).reshape(-1, most), np.nan)
    ids = np.array(table["question_id"].to_pylist(), dtype=object)
    return scorings + " " + benchmarks, Questions(ids=ids, subject=subjects, **counts, **by_k)


def _numbers(column: Any, null: float) -> NDArray[Any]:
    """A column of numbers, nulls replaced."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    whole = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    values = np.from_dlpack(whole)
    return np.where(np.from_dlpack(array.is_null().cast("uint8")), null, values) if array.null_count else values
