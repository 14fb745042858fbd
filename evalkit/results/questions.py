"""The per-question scores of a run, read from questions.parquet (evalkit/results/schema.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gtpo.common.errors import UserError
from gtpo.common.files import check_schema_version
from gtpo.evalkit.metrics import pass_at_all_k
from gtpo.evalkit.results.record import EVAL_SCHEMA_VERSION

if TYPE_CHECKING:
    import pyarrow as pa

    from gtpo.evalkit.results.run import EvalRun


@dataclass(frozen=True)
class Questions:
    """Per-question figures of one run on one benchmark under one scoring, sorted by question id.

    ids [Q] str; subject [Q] str; level [Q] int (0: none); n, correct, format_ok, truncated [Q] counts;
    pass_at_k, maj_at_k [Q, K] for k = 1..K, K the largest n of a question; NaN where a question has fewer than k.
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
        """The questions at `rows` (indices or mask)."""
        return Questions(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


_COUNTS = ("level", "n", "correct", "format_ok", "truncated")
_COLUMNS = ("benchmark", "question_id", "scoring", "subject", *_COUNTS, "mean_tokens", "maj_at_k")


def load_questions(run: EvalRun, benchmark: str, scoring: str) -> Questions:
    """Return a run's per-question figures on one benchmark. Raises UserError where the file does not hold them."""
    parts = []
    for folder, record in zip(run.folders, run.records, strict=True):
        if benchmark in record.benchmarks:
            parts.append(_part(folder / "questions.parquet", run.stored.get(benchmark, benchmark), scoring))
    if not parts:
        raise UserError(f"{run.name}: {benchmark} was not evaluated")
    if len(parts) == 1:
        return parts[0]
    most = max(part.pass_at_k.shape[1] for part in parts)
    joined = {}
    for name in Questions.__dataclass_fields__:
        columns = [getattr(part, name) for part in parts]
        if columns[0].ndim == 2:
            columns = [np.pad(c, ((0, 0), (0, most - c.shape[1])), constant_values=np.nan) for c in columns]
        joined[name] = np.concatenate(columns)
    whole = Questions(**joined)
    return whole.take(np.argsort(whole.ids))


@cache
def _file(path: Path) -> tuple[NDArray[np.object_], Questions]:
    """One questions.parquet: `scoring benchmark` of each row, and the rows. UserError where it does not hold them.

    Without filters and scalars of Arrow, which import pandas: a quarter of a second.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, read_dictionary=["benchmark", "scoring", "subject"]) as file:
            version = int((file.schema_arrow.metadata or {}).get(b"gtpo_schema_version", b"0"))
            check_schema_version(path, version, EVAL_SCHEMA_VERSION)
            missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise UserError(f"{path}: column {missing[0]} is missing; write the file again: gtpo eval --rescore")
            table = file.read(columns=list(_COLUMNS), use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read ({error}); write it again with gtpo eval --rescore") from None
    benchmarks, scorings, subjects = (
        np.array([*column.dictionary.to_pylist(), ""], dtype=object)[_numbers(column.indices, -1)]
        for column in (table[name].combine_chunks() for name in ("benchmark", "scoring", "subject"))
    )
    counts = {name: _numbers(table[name], 0) for name in _COUNTS}
    n, most = counts["n"], int(counts["n"].max(initial=1))
    if np.any(_numbers(pc.list_value_length(table["maj_at_k"]), 0) < n):
        raise UserError(f"{path}: maj_at_k is shorter than n; write the file again: gtpo eval --rescore")
    by_k = pc.list_slice(table["maj_at_k"], 0, most, return_fixed_size_list=True).combine_chunks().flatten()
    rows = Questions(
        ids=np.array(table["question_id"].to_pylist(), dtype=object),
        subject=subjects,
        mean_tokens=_numbers(table["mean_tokens"], np.nan),
        pass_at_k=pass_at_all_k(n, counts["correct"]),
        maj_at_k=np.where(np.arange(most) < n[:, None], _numbers(by_k, np.nan).reshape(-1, most), np.nan),
        **counts,
    )
    return scorings + " " + benchmarks, rows


@cache
def _part(path: Path, benchmark: str, scoring: str) -> Questions:
    """Return the rows of one file, benchmark and scoring, by id."""
    keys, every = _file(path)
    rows = np.flatnonzero(keys == f"{scoring} {benchmark}")
    if not rows.size:
        raise UserError(f"{path}: no {scoring} scores of {benchmark}; write them again: gtpo eval --rescore")
    found = every.take(rows[np.argsort(every.ids[rows])])
    k = slice(int(found.n.max()))
    return replace(found, pass_at_k=found.pass_at_k[:, k], maj_at_k=found.maj_at_k[:, k])


def _numbers(column: Any, null: float) -> NDArray[Any]:
    """A column of numbers, nulls replaced."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    whole = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    values = np.from_dlpack(whole)
    return np.where(np.from_dlpack(array.is_null().cast("uint8")), null, values) if array.null_count else values


def read_table(path: Path, columns: Sequence[str] | None = None, *, remedy: str = "run gtpo eval again") -> pa.Table:
    """Read a Parquet file of a run. Raises UserError, with what to do, where it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:  # pq.read_table imports pandas
            table = file.read(columns=columns, use_threads=False)
        table.select(columns or [])
        return table
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]}); {remedy}") from None


def sample_files(run: EvalRun) -> list[Path]:
    """The sample parts of a run, in order."""
    return [path for folder in run.folders for path in sorted((folder / "samples").glob("part-*.parquet"))]


def _rows(run: EvalRun, benchmark: str, name: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a benchmark's rows of a Parquet file of the run's folders, where they hold it."""
    stored = run.stored.get(benchmark, benchmark)
    for path in (folder / name for folder in run.folders):
        if path.is_file():
            names = ["benchmark", *columns]
            table = read_table(path, names)
            rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
            yield from (dict(zip(names, row, strict=True)) for row in rows if row[0] == stored)


def load_problems(run: EvalRun, benchmark: str) -> dict[str, tuple[str, str]]:
    """id -> (question, gold) from the run's problems.parquet; empty where the run does not hold it."""
    rows = _rows(run, benchmark, "problems.parquet", ["id", "problem", "answer"])
    return {row["id"]: (row["problem"] or "", row["answer"]) for row in rows}


def load_prompts(run: EvalRun, benchmark: str) -> dict[str, tuple[str, int | None]]:
    """id -> (what the model read, its tokens) from prompts.parquet; a conversation where a server did not show it."""
    rows = _rows(run, benchmark, "prompts.parquet", ["id", "prompt", "messages", "tokens"])
    return {
        row["id"]: (row["prompt"] or row["messages"], None if row["tokens"] is None else len(row["tokens"]))
        for row in rows
    }
