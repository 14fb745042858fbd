"""What compare reads of an eval run: scores by question, problems, prompts, and the samples themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gtpo.common.errors import UserError
from gtpo.runs.eval_run import EvalRun
from gtpo.runs.tables import read_rows, read_table

AGAIN = "run gtpo eval again"
RESCORE = "write it again with gtpo eval --rescore"


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
    mean_tokens: NDArray[np.float64]
    pass_at_k: NDArray[np.float64]
    maj_at_k: NDArray[np.float64]

    def take(self, rows: NDArray[Any]) -> Questions:
        """Return the questions at `rows` (indices or mask)."""
        return Questions(*(getattr(self, f.name)[rows] for f in fields(self)))


_TEXTS = ("benchmark", "scoring", "subject")
_COUNTS = ("level", "n", "correct", "format_ok", "truncated")
_BY_K = ("pass_at_k", "maj_at_k")


def load_questions(run: EvalRun, benchmark: str, scoring: str) -> Questions:
    """Return a run's per-question figures on one benchmark. Raises UserError if the file does not hold them."""
    file = run.folder / "questions.parquet"
    return _part(file, _identity(file), run.stored.get(benchmark, benchmark), scoring)


def _identity(path: Path) -> tuple[Path, int]:
    """Return what a file is cached by: in one process another folder may be current, and a run may be resumed."""
    try:
        return path.resolve(), path.stat().st_mtime_ns
    except OSError:  # who reads it says what is wrong
        return path.resolve(), 0


@cache
def _file(path: Path, identity: tuple[Path, int]) -> tuple[NDArray[np.object_], Questions]:
    """One questions.parquet: `scoring benchmark` of each row, and the rows. Raises UserError if it lacks any.

    Without filters and scalars of Arrow, which import pandas: a quarter of a second.
    """
    columns = [*_TEXTS, "question_id", *_COUNTS, "mean_tokens", *_BY_K]
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
    tokens = _numbers(table["mean_tokens"], np.nan)
    return scorings + " " + benchmarks, Questions(ids=ids, subject=subjects, mean_tokens=tokens, **counts, **by_k)


@cache
def _part(path: Path, identity: tuple[Path, int], benchmark: str, scoring: str) -> Questions:
    """Return the rows of one file, benchmark and scoring, by id."""
    keys, every = _file(path, identity)
    rows = np.flatnonzero(keys == f"{scoring} {benchmark}")
    if not rows.size:
        raise UserError(f"{path}: no {scoring} scores of {benchmark}; {RESCORE}")
    found = every.take(rows[np.argsort(every.ids[rows])])
    k = slice(int(found.n.max()))
    return replace(found, pass_at_k=found.pass_at_k[:, k], maj_at_k=found.maj_at_k[:, k])


def _numbers(column: Any, null: float) -> NDArray[Any]:
    """A column of numbers, nulls replaced."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    whole = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    values = np.from_dlpack(whole)
    return np.where(np.from_dlpack(array.is_null().cast("uint8")), null, values) if array.null_count else values


def sample_files(run: EvalRun) -> list[Path]:
    """Return the sample parts of a run, in order."""
    return sorted((run.folder / "samples").glob("part-*.parquet"))


def _rows(run: EvalRun, benchmark: str, name: str, columns: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return a benchmark's rows of a Parquet file of the run, if it has the file."""
    stored = run.stored.get(benchmark, benchmark)
    wanted = None if columns is None else ["benchmark", *columns]
    return [row for row in read_rows(run.folder / name, wanted, remedy=AGAIN) if row["benchmark"] == stored]


def load_problems(run: EvalRun, benchmark: str) -> dict[str, tuple[str, str]]:
    """Return id -> (question, gold) from the run's problems.parquet; empty if the run does not hold it."""
    rows = _rows(run, benchmark, "problems.parquet", ["id", "problem", "answer"])
    return {row["id"]: (row["problem"] or "", row["answer"]) for row in rows}


def load_clusters(run: EvalRun, benchmark: str, ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the text and the cluster of each question; empty if the run does not hold them."""
    rows = {row["id"]: row for row in _rows(run, benchmark, "problems.parquet", None)}
    found = [rows.get(question, {}) for question in ids]
    return [row.get("problem") or "" for row in found], [row.get("cluster") or "" for row in found]


def load_prompts(run: EvalRun, benchmark: str) -> dict[str, tuple[str, int | None]]:
    """Return id -> (what the model read, its tokens); a conversation if a server did not show the text."""
    rows = _rows(run, benchmark, "prompts.parquet", ["id", "prompt", "messages", "tokens"])
    return {
        row["id"]: (row["prompt"] or row["messages"], None if row["tokens"] is None else len(row["tokens"]))
        for row in rows
    }
