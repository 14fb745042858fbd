"""The folder of an eval run: one writer at a time, parts written whole, nothing overwritten.

Layout and schemas: `gtpo.runs.tables`. The system drops the lock when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gtpo.common.errors import UserError
from gtpo.common.files import LOCK_FILES, NewerSchema, lock_folder, write_parquet
from gtpo.common.log import LOG
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_record import EvalRecord, check_identity, parse_record, read_record
from gtpo.runs.tables import (
    PROBLEM_SCHEMA,
    PROMPT_SCHEMA,
    QUESTION_SCHEMA,
    SAMPLE_SCHEMA,
    Key,
    QuestionKey,
    Sample,
    StoredPrompt,
    read_problems,
    read_prompts,
    read_table,
    sample_parts,
)

# The version of a part from which on it says how samples ended.
OUTCOMES_SINCE = 4

# Metadata of a part: the record of its run as it was then, without metrics.
RUN = b"gtpo_run"


class EvalFolder(contextlib.AbstractContextManager["EvalFolder"]):
    """An eval run on disk, locked for this process until `close`. Raises UserError if another process holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        existing = {entry.name for entry in path.iterdir()} - LOCK_FILES if path.is_dir() else path.exists()
        if existing and not (path / "eval.json").is_file() and not (path / "samples").is_dir():
            raise UserError(f"{path} exists and is not an eval run; choose another --out")
        self._lock = lock_folder(path)
        self._writing = threading.Lock()
        self._header = EvalRecord()
        self._begun: float | None = None
        self.samples = path / "samples"
        # A writer that was killed; its part was never renamed.
        for leftover in self.samples.glob(".*.tmp"):
            leftover.unlink()
        # The largest, not their count: if a part is missing, the count is another's number.
        numbers = [int(p.stem.removeprefix("part-")) for p in sample_parts(self.path)]
        self._next = max(numbers, default=-1) + 1

    def close(self) -> None:
        """Release the lock; remove a folder in which nothing was written."""
        if not {entry.name for entry in self.path.iterdir()} - LOCK_FILES:
            for name in LOCK_FILES:
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()
        self._lock.release()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def record(self) -> EvalRecord | None:
        """Return eval.json, or None in a new folder; if it is missing or damaged, what the parts say of their run.

        UserError if a part is of another run, or cannot say, and on a newer schema.
        """
        record = stored_record(self.path, LOG.warning)
        for part in sample_parts(self.path):
            header = _header(part)
            assert record is not None
            check_identity(part, header, record)
            if header.wall_seconds is not None:  # of a session that was killed, eval.json knows none
                record.wall_seconds = max(header.wall_seconds, record.wall_seconds or 0.0)
        return record

    def resume(self) -> EvalRecord | None:
        """Return the record of the run that goes on; None if no completion is stored: any of its settings may change.

        Samples that failed are dropped then.
        """
        record = self.record()
        if any(table.column("error").null_count for _, table in self.tables(["error"])):
            return record
        for part in sample_parts(self.path):
            self.replace_part(part, [])
        return None

    def begin(self, record: EvalRecord, since: float | None = None, earlier: float | None = None) -> None:
        """Write eval.json of a run that goes on; parts written from now on carry it, and the wall time of the run.

        since: when this session began, by the monotonic clock; None for as it was. earlier: seconds of other sessions.
        """
        if since is not None:
            self._begun = since - (earlier or 0.0)
        benchmarks = {name: entry.before_samples() for name, entry in record.benchmarks.items()}
        self._header = record.model_copy(update={"status": "incomplete", "benchmarks": benchmarks})
        record.write(self.path)

    def seconds(self) -> float | None:
        """Return the wall time of the run, all sessions; None if none has begun here."""
        return None if self._begun is None else round(time.monotonic() - self._begun, 2)

    def append(self, samples: Sequence[Sample]) -> None:
        """Write samples as one more part."""
        if not samples:
            return
        header = self._header.model_copy(update={"wall_seconds": self.seconds()}).as_json()
        metadata = {**SAMPLE_SCHEMA.metadata, RUN: json.dumps(header).encode()}
        with self._writing:
            _write_part(self.samples / f"part-{self._next:06d}.parquet", samples, metadata)
            # After the rename: a write that failed leaves no gap.
            self._next += 1

    def replace_part(self, path: Path, samples: Sequence[Sample]) -> None:
        """Write a part again, whole and with the record it carries; without samples it goes."""
        if samples:
            _write_part(path, samples, {**(pq.read_schema(path).metadata or {}), **SAMPLE_SCHEMA.metadata})
        else:
            path.unlink()

    def drop_failed(self, keys: Set[Key]) -> None:
        """Forget those of the samples with an error: they are asked for again."""
        for part, table in self.tables(["error"]) if keys else ():
            if table.column("error").null_count < len(table):
                samples = self.part(part)
                rest = [sample for sample in samples if sample.error is None or sample.key not in keys]
                if len(rest) < len(samples):
                    self.replace_part(part, rest)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Path, pa.Table]]:
        """Yield (part, its table) with the given columns, one part in memory at a time."""
        for part in sample_parts(self.path):
            if "outcome" in (columns or ()) or "error" in (columns or ()):
                metadata = read_table(part, []).schema.metadata or {}
                if int(metadata.get(b"gtpo_schema_version", b"0")) < OUTCOMES_SINCE:
                    rows = [asdict(sample) for sample in self.part(part)]
                    yield part, pa.Table.from_pylist(rows, schema=SAMPLE_SCHEMA).select(columns)
                    continue
            yield part, read_table(part, columns)

    def part(self, path: Path, *, as_written: bool = False) -> list[Sample]:
        """Return the samples of a part; how they ended, if its version did not store that, by what it stored."""
        table = read_table(path)
        samples = [Sample(**row) for row in table.to_pylist()]
        if "outcome" not in table.column_names and not as_written:
            record = _header(path)
            for sample in samples:
                sample.settle_as_stored(record.sampling.max_tokens, own=record.engine.name in ("vllm", "transformers"))
        return samples

    def problems(self, *, everything: bool = False) -> dict[str, list[Problem]]:
        """Return the problems that the last command asked for, by benchmark; everything: all that have samples."""
        problems: dict[str, list[Problem]] = {}
        for name, problem, shown in read_problems(self.path):
            if shown or everything:
                problems.setdefault(name, []).append(problem)
        return problems

    def questions(self) -> dict[QuestionKey, Problem]:
        """Return every problem that has samples, by benchmark and id."""
        return {(name, problem.id): problem for name, problem, _ in read_problems(self.path)}

    def add_problems(self, problems: dict[str, list[Problem]]) -> None:
        """Write problems.parquet: these as what is asked for of their benchmarks, before the others that are there."""
        rows = {(name, p.id): (p, True) for name, chosen in problems.items() for p in chosen}
        for name, p, shown in read_problems(self.path):
            rows.setdefault((name, p.id), (p, shown and name not in problems))
        fields = PROBLEM_SCHEMA.names[1:-1]
        table = [
            {"benchmark": name, **{field: getattr(p, field) for field in fields}, "asked": shown}
            for (name, _), (p, shown) in rows.items()
        ]
        write_parquet(self.path / "problems.parquet", pa.Table.from_pylist(table, schema=PROBLEM_SCHEMA))

    def add_prompts(self, prompts: Mapping[QuestionKey, StoredPrompt]) -> None:
        """Write prompts.parquet: these beside those that are there."""
        rows = [
            (*key, json.dumps(prompt[0], ensure_ascii=False) if prompt[0] else None, *prompt[1:])
            for key, prompt in {**read_prompts(self.path), **prompts}.items()
        ]
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(PROMPT_SCHEMA)
        write_parquet(self.path / "prompts.parquet", pa.table(columns, schema=PROMPT_SCHEMA))

    def write_questions(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write questions.parquet."""
        write_parquet(self.path / "questions.parquet", pa.Table.from_pylist(list(rows), schema=QUESTION_SCHEMA))


def stored_record(folder: Path, tell: Callable[..., None] = LOG.debug) -> EvalRecord | None:
    """Return eval.json of a run, else what its last part says of it; None in a new folder. Raises UserError."""
    path, parts = folder / "eval.json", sample_parts(folder)
    try:
        if path.is_file():
            return read_record(folder)
    except NewerSchema:
        raise
    except UserError as error:
        tell("%s", error)
    if parts:
        tell("%s is missing or damaged: rebuilt from the samples", path)
    return _header(parts[-1]) if parts else None


def _header(part: Path) -> EvalRecord:
    header = (read_table(part, []).schema.metadata or {}).get(RUN)
    if header is None:
        raise UserError(f"{part} does not say of which run it is: move it away, or choose another --out")
    return parse_record(json.loads(header), part)


def _write_part(path: Path, samples: Sequence[Sample], metadata: Mapping[bytes, bytes]) -> None:
    rows = [asdict(sample) for sample in samples]
    write_parquet(path, pa.Table.from_pylist(rows, schema=SAMPLE_SCHEMA.with_metadata(metadata)))
