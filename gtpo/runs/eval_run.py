"""An eval run as a reader sees it: its record, scores by question, problems and prompts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gtpo.common.errors import UserError
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_record import BenchmarkRecord, EvalRecord
from gtpo.runs.tables import read_problems, read_prompts, read_table, sample_parts
from gtpo.runs.train_run import TrainFolder

# Question -> (whether it is right, its tokens) of each scored sample whose length is known.
Lengths = dict[str, list[tuple[bool, int]]]


def rescore(folder: Path) -> str:
    """Return what to do about a questions.parquet that is missing or lacks something."""
    return f"write it again with: gtpo eval {shlex.quote(str(folder))} --rescore"


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
            raise UserError(f"{file}: no {scoring} scores of {self.stored_name(benchmark)}; {rescore(self.folder)}")
        found = every.take(rows[np.argsort(every.ids[rows])])
        k = slice(int(found.n.max()))
        lengths = cache(partial(self._lengths, benchmark, scoring))
        return replace(found, pass_at_k=found.pass_at_k[:, k], maj_at_k=found.maj_at_k[:, k], lengths=lengths)

    def _lengths(self, benchmark: str, scoring: str) -> Lengths:
        parts = tuple((path.resolve(), path.stat().st_mtime_ns) for path in sample_parts(self.folder))
        stored, n = self.stored_name(benchmark), self.entry(benchmark).n or np.inf
        return {
            question: [(right, tokens) for sample, right, tokens in samples if sample < n]
            for (name, question), samples in _samples(parts, scoring).items()
            if name == stored
        }

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
    # Read when it is first asked for.
    lengths: Callable[[], Lengths] = field(default=dict, repr=False)

    def take(self, rows: NDArray[Any]) -> Questions:
        """Return the questions at `rows` (indices or mask)."""
        arrays: dict[str, Any] = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "lengths"}
        return Questions(**arrays, lengths=self.lengths)

    def tokens(self, *, right: bool) -> NDArray[np.float64]:
        """[N] Tokens of the right, or of all other, scored samples of these questions, as far as they are known."""
        lengths = self.lengths()
        return np.array([n for name in self.ids for is_right, n in lengths.get(name, ()) if is_right == right], float)


_TEXTS = ("benchmark", "scoring", "subject")
_COUNTS = ("level", "n", "correct", "format_ok", "truncated")
_BY_K = ("pass_at_k", "maj_at_k")


@cache
def _questions(path: Path, changed: int) -> tuple[NDArray[np.object_], Questions]:
    """One questions.parquet: `scoring benchmark` of each row, and the rows. Raises UserError if it lacks any.

    Without filters and scalars of Arrow, which import pandas: a quarter of a second.
    """
    columns = [*_TEXTS, "question_id", *_COUNTS, *_BY_K]
    table = read_table(path, columns, remedy=rescore(path.parent), dictionary=_TEXTS).combine_chunks()
    benchmarks, scorings, subjects = (
        np.array([*column.dictionary.to_pylist(), ""], dtype=object)[_numbers(column.indices, -1)]
        for column in (table[name].combine_chunks() for name in _TEXTS)
    )
    counts: dict[str, Any] = {name: _numbers(table[name], 0) for name in _COUNTS}
    n, most = counts["n"], int(counts["n"].max(initial=1))
    by_k = {}
    for name in _BY_K:
        if np.any(_numbers(pc.list_value_length(table[name]), 0) < n):
            raise UserError(f"{path}: {name} is shorter than n; {rescore(path.parent)}")
        flat = pc.list_slice(table[name], 0, most, return_fixed_size_list=True).combine_chunks().flatten()
        by_k[name] = np.where(np.arange(most) < n[:, None], _numbers(flat, np.nan).reshape(-1, most), np.nan)
    ids = np.array(table["question_id"].to_pylist(), dtype=object)
    return scorings + " " + benchmarks, Questions(ids=ids, subject=subjects, **(counts | by_k))


@cache
def _samples(parts: tuple[tuple[Path, int], ...], scoring: str) -> dict[tuple[str, str], list[tuple[int, bool, int]]]:
    """(benchmark, question) -> (index, whether it is right, tokens) of each scored sample whose length is known.

    parts: the files, with the times of their last change.
    """
    samples: dict[tuple[str, str], list[tuple[int, bool, int]]] = {}
    for path, _ in parts:
        columns = read_table(path, ["benchmark", "question_id", "sample_index", f"verdict_{scoring}", "tokens"])
        for name, question, index, verdict, tokens in zip(*(c.to_pylist() for c in columns.columns), strict=True):
            if verdict is not None and tokens is not None:
                samples.setdefault((name, question), []).append((index, verdict == "CORRECT", tokens))
    return samples


def _numbers(column: Any, null: float) -> NDArray[Any]:
    """A column of numbers, nulls replaced."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    whole = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    values = np.from_dlpack(whole)
    return np.where(np.from_dlpack(array.is_null().cast("uint8")), null, values) if array.null_count else values
