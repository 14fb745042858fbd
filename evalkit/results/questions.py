"""The per-question scores of a run, read from questions.parquet (evalkit/results/schema.py).

Reading eight runs of 6,419 questions with 64 values each takes a fifth of a second: the buffers are used as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


_KEYS = ("benchmark", "question_id", "scoring", "subject")
_COUNTS = ("level", "n", "correct", "format_ok", "truncated")
_COLUMNS = (*_KEYS, *_COUNTS, "mean_tokens", "maj_at_k")
_FILES: dict[Path, _File] = {}


def load_questions(run: EvalRun, benchmark: str, scoring: str) -> Questions:
    """Return a run's per-question figures on one benchmark. Raises UserError where the file does not hold them."""
    parts = []
    for folder, record in zip(run.folders, run.records, strict=True):
        if benchmark in record.benchmarks:
            path = folder / "questions.parquet"
            if path not in _FILES:
                _FILES[path] = _File(path)
            parts.append(_FILES[path].questions(run.stored.get(benchmark, benchmark), scoring))
    if not parts:
        raise UserError(f"{run.name}: {benchmark} was not evaluated")
    if len(parts) == 1:
        return parts[0]
    most = max(part.pass_at_k.shape[1] for part in parts)
    joined = {}
    for name in Questions.__dataclass_fields__:
        columns = [getattr(part, name) for part in parts]
        joined[name] = np.concatenate([_widened(c, most) if c.ndim == 2 else c for c in columns])
    whole = Questions(**joined)
    return whole.take(np.argsort(whole.ids))


class _File:
    """One questions.parquet in memory; what is asked for is laid out when it is asked for."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            with pq.ParquetFile(path, read_dictionary=["benchmark", "scoring", "subject"]) as file:
                version = int((file.schema_arrow.metadata or {}).get(b"gtpo_schema_version", b"0"))
                check_schema_version(path, version, EVAL_SCHEMA_VERSION)
                missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
                if missing:
                    raise UserError(
                        f"{path}: column {missing[0]} is missing; write the file again: gtpo eval --rescore"
                    )
                table = file.read(columns=list(_COLUMNS), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: cannot be read ({error}); write it again with gtpo eval --rescore") from None
        # Strings come as dictionary codes and ids as Python strings: to_numpy on them would import pandas.
        columns = {name: table.column(name).combine_chunks() for name in _COLUMNS}
        self.ids = np.array(columns["question_id"].to_pylist(), dtype=object)
        self.coded = {
            name: (_numbers(columns[name].indices, np.int32, -1), columns[name].dictionary.to_pylist())
            for name in ("benchmark", "scoring", "subject")
        }
        self.counts = {name: _numbers(columns[name], np.int32, 0) for name in _COUNTS}
        self.tokens = _numbers(columns["mean_tokens"], np.float64, np.nan)
        self.offsets = _numbers(columns["maj_at_k"].offsets, np.int32, 0)
        self.maj_at_k = _numbers(columns["maj_at_k"].values, np.float64, np.nan)
        self.laid_out: dict[tuple[str, str], Questions] = {}

    def questions(self, benchmark: str, scoring: str) -> Questions:
        """The rows of one benchmark and scoring, by id."""
        key = (benchmark, scoring)
        if key not in self.laid_out:
            self.laid_out[key] = self._lay_out(benchmark, scoring)
        return self.laid_out[key]

    def _lay_out(self, benchmark: str, scoring: str) -> Questions:
        chosen = np.ones(self.ids.size, dtype=bool)
        for name, word in (("benchmark", benchmark), ("scoring", scoring)):
            codes, words = self.coded[name]
            chosen &= codes == (words.index(word) if word in words else -2)
        rows = np.flatnonzero(chosen)
        if rows.size == 0:
            raise UserError(f"{self.path}: no {scoring} scores of {benchmark}; write them again: gtpo eval --rescore")
        rows = rows[np.argsort(self.ids[rows])]
        counts = {name: column[rows] for name, column in self.counts.items()}
        most = int(counts["n"].max())
        if np.any(self.offsets[rows + 1] - self.offsets[rows] < counts["n"]):
            raise UserError(f"{self.path}: maj_at_k is shorter than n; write the file again: gtpo eval --rescore")
        codes, words = self.coded["subject"]
        return Questions(
            ids=self.ids[rows],
            subject=np.array([*words, ""], dtype=object)[codes[rows]],
            mean_tokens=self.tokens[rows],
            pass_at_k=_pass_at_k(counts["n"], counts["correct"], most),
            maj_at_k=self._maj_at_k(rows, counts["n"], most),
            **counts,
        )

    def _maj_at_k(self, rows: NDArray[Any], n: NDArray[np.int32], most: int) -> NDArray[np.float64]:
        places = self.offsets[rows][:, None] + np.arange(most)
        if n.min() == most:
            return self.maj_at_k[places]
        there = np.arange(most) < n[:, None]
        return np.where(there, self.maj_at_k[np.where(there, places, 0)], np.nan)


def _widened(values: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    return np.pad(values, ((0, 0), (0, most - values.shape[1])), constant_values=np.nan)


def _pass_at_k(n: NDArray[np.int32], correct: NDArray[np.int32], most: int) -> NDArray[np.float64]:
    """pass@k [Q, most] from the counts: the same table for all questions of one n, so it need not be read."""
    out = np.full((n.size, most), np.nan)
    for samples in set(n.tolist()):
        rows = n == samples
        table = pass_at_all_k([samples] * (samples + 1), range(samples + 1))
        out[rows, :samples] = table[correct[rows]]
    return out


def _numbers(array: Any, kind: Any, null: float) -> NDArray[Any]:
    """The buffer of a primitive array, nulls replaced. Arrow's own to_numpy imports pandas, a quarter of a second."""
    valid, data = array.buffers()
    if data is None:
        return np.zeros(0, dtype=kind)
    rows = slice(array.offset, array.offset + len(array))
    values = np.frombuffer(data, dtype=kind)[rows]
    if valid is None or array.null_count == 0:
        return values
    there = np.unpackbits(np.frombuffer(valid, dtype=np.uint8), bitorder="little")[rows].astype(bool)
    return np.where(there, values, np.asarray(null, dtype=kind))


def read_table(path: Path, columns: Sequence[str] | None = None, *, remedy: str = "run gtpo eval again") -> pa.Table:
    """Read a Parquet file of a run. Raises UserError, with what to do, where it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]}); {remedy}") from None


def sample_files(run: EvalRun) -> list[Path]:
    """The sample parts of a run, in order."""
    return [path for folder in run.folders for path in sorted((folder / "samples").glob("part-*.parquet"))]


def load_problems(run: EvalRun, benchmark: str) -> dict[str, tuple[str, str]]:
    """id -> (question, gold) from the run's problems.parquet; empty where the run does not hold it."""

    benchmark = run.stored.get(benchmark, benchmark)
    found: dict[str, tuple[str, str]] = {}
    for folder in run.folders:
        path = folder / "problems.parquet"
        if path.is_file():
            rows = read_table(path, ["benchmark", "id", "problem", "answer"]).to_pylist()
            found |= {row["id"]: (row["problem"] or "", row["answer"]) for row in rows if row["benchmark"] == benchmark}
    return found


def load_prompts(run: EvalRun, benchmark: str) -> dict[str, tuple[str, int | None]]:
    """id -> (what the model read, its tokens) from prompts.parquet; a conversation where a server did not show it."""

    benchmark = run.stored.get(benchmark, benchmark)
    found: dict[str, tuple[str, int | None]] = {}
    for path in (folder / "prompts.parquet" for folder in run.folders):
        for row in read_table(path).to_pylist() if path.is_file() else ():
            if row["benchmark"] == benchmark:
                tokens = row["tokens"]
                found[row["id"]] = row["prompt"] or row["messages"], None if tokens is None else len(tokens)
    return found
