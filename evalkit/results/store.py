"""The folder of an eval run: one writer at a time, parts written whole, nothing overwritten.

Layout and schemas: `gtpo.evalkit.results.schema`. The system drops the lock when the process ends, however it ends.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from gtpo.evalkit.results.record import EVAL_SCHEMA_VERSION, EvalRecord, check_identity, parse_record
from gtpo.evalkit.results.schema import PROBLEM_SCHEMA, QUESTION_SCHEMA, SAMPLE_SCHEMA
from gtpo.rewards.data.problem import Problem

from gtpo.common.errors import UserError
from gtpo.common.files import LOCK_FILES, NewerSchema, check_schema_version, lock_folder, read_json, write_bytes
from gtpo.common.log import LOG

QuestionKey = tuple[str, str]
"""(benchmark, question id)"""
Key = tuple[str, str, int]
"""(benchmark, question id, sample index)"""

RUN = b"gtpo_run"
"""Metadata of a part: the record of its run (`EvalRecord.header`)."""


def _schema(path: Path) -> pa.Schema:
    """Return the schema of a file that gtpo wrote, with metadata. UserError where it is damaged or too new."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from None
    schema = schema.with_metadata(schema.metadata or {})
    check_schema_version(path, int(schema.metadata.get(b"gtpo_schema_version", b"0")), EVAL_SCHEMA_VERSION)
    return schema


def _damaged(path: Path, error: Exception) -> UserError:
    first = str(error).split("\n")[0][:160]
    return UserError(
        f"{path} is damaged ({first}): move it away and run the same command, which samples only what it held"
    )


def _read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file; a sample's columns that an older version did not write are null."""
    names = _schema(path).names
    try:
        table = pq.read_table(path, columns=[name for name in columns or names if name in names])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from None
    for name in columns or SAMPLE_SCHEMA.names if "completion" in names else ():
        if name not in names:
            field = SAMPLE_SCHEMA.field(name)
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table


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
        self._sample_schema = SAMPLE_SCHEMA
        self.samples = path / "samples"
        for leftover in self.samples.glob(".*.tmp"):  # a writer that was killed; its part was never renamed
            leftover.unlink()
        numbers = [int(p.stem.removeprefix("part-")) for p in self.parts()]
        self._next = max(numbers, default=-1) + 1

    def close(self) -> None:
        """Release the lock; remove a folder in which nothing was written."""
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
        """Return eval.json, or None in a new folder; where it is missing or damaged, what the parts say of their run.

        UserError where a part is of another run, or cannot say, and on a newer schema.
        """
        path, record, fault = self.path / "eval.json", None, "is missing"
        if path.is_file():
            try:
                record = parse_record(read_json(path), path)
            except NewerSchema:
                raise
            except UserError as error:
                fault = f"is damaged ({error})"
        headers: dict[bytes, tuple[Path, EvalRecord]] = {}
        for part in self.parts():
            found = _schema(part).metadata.get(RUN)
            if found is not None and found not in headers:
                headers[found] = part, parse_record(json.loads(found), part)
        if record is None and self.parts():
            if not headers:
                raise UserError(
                    f"{path} {fault}, and the samples beside it do not say of which run they are (an older gtpo "
                    "wrote them): restore eval.json, or choose another --out"
                )
            _, record = headers[next(reversed(headers))]
            LOG.warning("%s %s: rebuilt from the samples", path, fault)
        for part, header in headers.values():
            assert record is not None
            check_identity(part, header, record, questions=False)  # they may have grown, or a gold been corrected
        return record

    def parts(self) -> list[Path]:
        """Return the sample parts in the order in which they were written."""
        return sorted(self.samples.glob("part-*.parquet"))

    def begin(self, record: EvalRecord) -> None:
        """Write eval.json of a run that goes on; parts written from now on carry it."""
        self._sample_schema = SAMPLE_SCHEMA.with_metadata(
            {**SAMPLE_SCHEMA.metadata, RUN: json.dumps(record.header().as_json()).encode()}
        )
        record.write(self.path)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write rows of SAMPLE_SCHEMA as one more part."""
        if not rows:
            return
        table = pa.Table.from_pylist(list(rows), schema=self._sample_schema)
        with self._writing:
            write_parquet(self.samples / f"part-{self._next:06d}.parquet", table)
            self._next += 1

    def replace_part(self, path: Path, rows: Sequence[dict[str, Any]]) -> None:
        """Write a part again, whole and with the record it carries; without rows it goes."""
        if not rows:
            path.unlink()
            return
        metadata = {**(pq.read_schema(path).metadata or {}), **SAMPLE_SCHEMA.metadata}
        write_parquet(path, pa.Table.from_pylist(list(rows), schema=SAMPLE_SCHEMA.with_metadata(metadata)))

    def drop_failed(self, keys: Set[Key]) -> None:
        """Forget those of the samples with an error: they are asked for again."""
        for part, table in self.tables() if keys else ():
            if table.column("error").null_count < len(table):
                rows = table.to_pylist()
                kept = [
                    row
                    for row in rows
                    if row["error"] is None or (row["benchmark"], row["question_id"], row["sample_index"]) not in keys
                ]
                if len(kept) < len(rows):
                    self.replace_part(part, kept)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Path, pa.Table]]:
        """Yield (part, its table) with the given columns, one part in memory at a time."""
        for part in self.parts():
            yield part, _read_table(part, columns)

    def part(self, path: Path) -> pa.Table:
        """Return a whole part."""
        return _read_table(path)

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
