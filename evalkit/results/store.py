"""The folder of an eval run: one writer at a time, parts written whole, nothing overwritten.

Layout and schemas: `evalkit.results.schema`. The system drops the lock when the process ends, however it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evalkit.results.record import EVAL_SCHEMA_VERSION, EvalRecord, read_record
from evalkit.results.schema import PROBLEM_SCHEMA, QUESTION_SCHEMA, SAMPLE_SCHEMA
from rewards.data.problem import Problem
from rewards.support.errors import UserError
from rewards.support.files import LOCK_FILES, check_schema_version, lock_folder, write_bytes

QuestionKey = tuple[str, str]
"""(benchmark, question id)"""
Key = tuple[str, str, int]
"""(benchmark, question id, sample index)"""


def _read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    try:
        metadata = pq.read_schema(path).metadata or {}
        check_schema_version(path, int(metadata.get(b"gtpo_schema_version", b"0")), EVAL_SCHEMA_VERSION)
        return pq.read_table(path, columns=columns)
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, ValueError) as error:
        first = str(error).split("\n")[0][:160]
        raise UserError(
            f"{path} is damaged ({first}): move it away and run the same command, which samples only what it held"
        ) from None


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table by write-then-rename."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_bytes(path, sink.getvalue().to_pybytes())


class EvalFolder:
    """An eval run on disk, locked for this process until `close`. Raises UserError where another process holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        existing = {entry.name for entry in path.iterdir()} - LOCK_FILES if path.is_dir() else path.exists()
        if existing and not (path / "eval.json").is_file() and not (path / "samples").is_dir():
            raise UserError(f"{path} exists and is not an eval run; choose another --out")
        self._lock = lock_folder(path)
        self._writing = threading.Lock()
        self.samples = path / "samples"
        for leftover in self.samples.glob(".*.tmp"):  # a writer that was killed; its part was never renamed
            leftover.unlink()
        numbers = [int(p.stem.removeprefix("part-")) for p in self.parts()]
        self._next = max(numbers, default=-1) + 1

    def close(self) -> None:
        """Give up the lock; a folder in which nothing was written goes again."""
        if not {entry.name for entry in self.path.iterdir()} - LOCK_FILES:
            for name in LOCK_FILES:
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()
        self._lock.release()

    def __enter__(self) -> EvalFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def record(self) -> EvalRecord | None:
        """Return eval.json, or None in a new folder. UserError on a newer schema."""
        return read_record(self.path) if (self.path / "eval.json").is_file() else None

    def parts(self) -> list[Path]:
        """Return the sample parts in the order in which they were written."""
        return sorted(self.samples.glob("part-*.parquet"))

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write rows of SAMPLE_SCHEMA as one more part."""
        if not rows:
            return
        table = pa.Table.from_pylist(list(rows), schema=SAMPLE_SCHEMA)
        with self._writing:
            write_parquet(self.samples / f"part-{self._next:06d}.parquet", table)
            self._next += 1

    def replace_part(self, path: Path, table: pa.Table) -> None:
        """Write a part again (after --rescore), whole."""
        write_parquet(path, table.cast(SAMPLE_SCHEMA))

    def keys(self) -> set[Key]:
        """Return the key of every stored sample."""
        found: set[Key] = set()
        for part in self.parts():
            table = _read_table(part, ["benchmark", "question_id", "sample_index"])
            found.update(zip(*(table.column(i).to_pylist() for i in range(3)), strict=True))
        return found

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Path, pa.Table]]:
        """Yield (part, its table) with the given columns, one part in memory at a time."""
        for part in self.parts():
            yield part, _read_table(part, columns)

    def problems(self) -> dict[str, list[Problem]]:
        """Return the problems of the run by benchmark: what its samples answer, golds included."""
        path = self.path / "problems.parquet"
        found: dict[str, list[Problem]] = {}
        if path.is_file():
            for row in _read_table(path).to_pylist():
                found.setdefault(row.pop("benchmark"), []).append(Problem(**row))
        return found

    def add_problems(self, problems: dict[str, list[Problem]]) -> None:
        """Write problems.parquet: these benchmarks beside those that are there."""
        rows = [
            {"benchmark": name, **{key: getattr(p, key) for key in PROBLEM_SCHEMA.names[1:]}}
            for name, chosen in {**self.problems(), **problems}.items()
            for p in chosen
        ]
        write_parquet(self.path / "problems.parquet", pa.Table.from_pylist(rows, schema=PROBLEM_SCHEMA))

    def write_questions(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write questions.parquet."""
        write_parquet(self.path / "questions.parquet", pa.Table.from_pylist(list(rows), schema=QUESTION_SCHEMA))
