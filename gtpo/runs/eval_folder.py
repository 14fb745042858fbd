"""The folder of an eval run (results/FILES.md): its Parquet files' columns, how they are read, and how it is written.

One writer at a time, parts written whole, nothing overwritten. The system drops the lock when the process ends, however
it ends.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gtpo.common.errors import UserError
from gtpo.common.files import LOCK_FILES, NewerSchema, check_schema_version, lock_folder, write_parquet
from gtpo.common.log import LOG
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_record import EVAL_SCHEMA_VERSION, EvalRecord, check_identity, parse_record, read_record
from gtpo.runs.outcomes import Ending, Reply, Tokens, check_reply

# (benchmark, question id)
QuestionKey = tuple[str, str]
# (benchmark, question id, sample index)
Key = tuple[str, str, int]
# Messages, text as the model reads it, its tokens: `engines.base.Prompt`.
StoredPrompt = tuple[list[dict[str, str]], str | None, list[int] | None]
# What to do about a file that cannot be read.
REMEDY = "move it away and run the same gtpo eval command, which makes again what it held"
# The version of a part from which on it says how samples ended.
OUTCOMES_SINCE = 4

# Metadata of a part: the record of its run as it was then, without metrics.
RUN = b"gtpo_run"

# (name, type, meaning); results/FILES.md is written from these.
Columns = tuple[tuple[str, pa.DataType, str], ...]


def _column(kind: pa.DataType, meaning: str) -> Any:
    return field(default=None, metadata={"kind": kind, "meaning": meaning})


@dataclass(slots=True)
class Sample:
    """One sample of an eval run: a completion with its verdicts, or why there is none. Equal to a row on disk."""

    benchmark: str = _column(pa.string(), "Name of the benchmark.")
    question_id: str = _column(pa.string(), "The question.")
    sample_index: int = _column(pa.int32(), "Which sample of the question, from 0.")
    completion: str = _column(pa.string(), "Its text, after a thought's tag in its prompt; of a failed one what came.")
    answer_strict: str | None = _column(pa.string(), "Answer inside the answer tags; null if there is none.")
    verdict_strict: str | None = _column(pa.string(), "Its verdict; null if the sample failed, or is yet to be judged.")
    answer_lenient: str | None = _column(pa.string(), "Answer by the lenient rules; null if there is none.")
    verdict_lenient: str | None = _column(pa.string(), "Its verdict, null as above.")
    format_ok: bool | None = _column(pa.bool_(), "Whether the completion has the full layout.")
    tokens: int | None = _column(pa.int32(), "Its tokens; null for recorded completions that do not say.")
    finish_reason: str | None = _column(
        pa.string(), "stop; length if cut off; an unknown word as it is; error or refused if it failed; null as above."
    )
    seed: int | None = _column(pa.int64(), "Seed of this sample, with engine transformers of its batch; null as above.")
    error: str | None = _column(pa.string(), "Why there is no completion. Such a sample is unscored, never wrong.")
    prompt_tokens: int | None = _column(pa.int32(), "Tokens of its prompt; null if not known.")
    unfinished: bool | None = _column(pa.bool_(), "Whether it ends in a thought, without answer; null if it failed.")
    outcome: str | None = _column(
        pa.string(), "Its end: complete, cut off, empty, blocked, prompt cut, unknown; null if the server failed."
    )

    @property
    def key(self) -> Key:
        """Return its benchmark, question and index."""
        return self.benchmark, self.question_id, self.sample_index

    @property
    def cut_off(self) -> bool | None:
        """Return whether it was cut off; None if that is not known."""
        return None if self.finish_reason is None else self.finish_reason not in ("stop", "error", "refused")

    def settle(self, ending: Ending, *, own: bool = False) -> None:
        """Take how it ended. own: of an engine in this process, whose empty text is what the model wrote."""
        self.outcome, self.finish_reason = ending.outcome, ending.finish_reason
        if own and ending.outcome == "empty":
            self.finish_reason = "stop"
        elif ending.why:
            self.error, self.finish_reason = ending.why, "refused" if ending.outcome == "blocked" else "error"
            self.answer_strict = self.answer_lenient = self.verdict_strict = self.verdict_lenient = None
            self.format_ok = self.unfinished = None

    def settle_as_stored(self, max_tokens: int | None, *, own: bool) -> None:
        """Do the same by its own fields: of an engine of this process, or of a version that did not store it."""
        tokens = Tokens(self.tokens, self.prompt_tokens, self.tokens)
        if self.error is None:
            reply = Reply(self.completion, word=self.finish_reason or "", tokens=tokens)
            self.settle(check_reply(reply, None if own else max_tokens), own=own)

    def answer(self, scoring: str) -> str | None:
        """Return the answer under one scoring."""
        return self.answer_strict if scoring == "strict" else self.answer_lenient

    def verdict(self, scoring: str) -> str | None:
        """Return the verdict under one scoring."""
        return self.verdict_strict if scoring == "strict" else self.verdict_lenient


SAMPLE_COLUMNS: Columns = tuple((f.name, f.metadata["kind"], f.metadata["meaning"]) for f in fields(Sample))

# One question under one scoring: the figures that paired tests need.
QUESTION_COLUMNS: Columns = (
    ("benchmark", pa.string(), "Name of the benchmark."),
    ("question_id", pa.string(), "The question."),
    ("scoring", pa.string(), "strict or lenient."),
    ("subject", pa.string(), "Its subject, if there is one."),
    ("level", pa.int32(), "Its level, if there is one."),
    ("n", pa.int32(), "Scored samples."),
    ("correct", pa.int32(), "Right ones."),
    ("abstentions", pa.int32(), "Samples without an answer."),
    ("votes", pa.list_(pa.int32()), "Sizes of the classes of equal wrong answers."),
    ("pass_at_k", pa.list_(pa.float64()), "pass@k for k = 1 to n."),
    ("maj_at_k", pa.list_(pa.float64()), "maj@k for k = 1 to n."),
    ("format_ok", pa.int32(), "Samples in the full layout."),
    ("truncated", pa.int32(), "Samples cut off at the token limit; null if it is not known how they ended."),
    ("mean_tokens", pa.float64(), "Tokens of a completion."),
)

# One question: its text and gold.
PROBLEM_COLUMNS: Columns = (
    ("benchmark", pa.string(), "Name of the benchmark."),
    ("id", pa.string(), "The question."),
    ("problem", pa.string(), "Its text; empty for recorded completions without it."),
    ("answer", pa.string(), "The gold."),
    ("subject", pa.string(), "Its subject, if there is one."),
    ("level", pa.int32(), "Its level, if there is one."),
    ("cluster", pa.string(), "Family of questions that intervals count as one; empty: the question is its own."),
    ("answers", pa.string(), "`text` if answers are compared as text."),
    ("extract", pa.string(), "Rule by which its answer is found, if its task has one; empty: by the scoring."),
    ("asked", pa.bool_(), "Whether the last command asked for it: the metrics are of these questions."),
)

# One question as it was asked.
PROMPT_COLUMNS: Columns = (
    ("benchmark", pa.string(), "Name of the benchmark."),
    ("id", pa.string(), "The question."),
    ("messages", pa.string(), "The conversation, as JSON; null if the prompt is one text for a base model."),
    ("prompt", pa.string(), "The text as the model reads it; null if a server does not show it."),
    ("tokens", pa.list_(pa.int32()), "Its tokens; null as above."),
)


_VERSION = {b"gtpo_schema_version": str(EVAL_SCHEMA_VERSION).encode()}
SAMPLE_SCHEMA, QUESTION_SCHEMA, PROBLEM_SCHEMA, PROMPT_SCHEMA = (
    pa.schema([(name, kind) for name, kind, _ in columns], metadata=_VERSION)
    for columns in (SAMPLE_COLUMNS, QUESTION_COLUMNS, PROBLEM_COLUMNS, PROMPT_COLUMNS)
)


def read_table(
    path: Path, columns: Sequence[str] | None = None, *, remedy: str = REMEDY, newest: int = EVAL_SCHEMA_VERSION
) -> pa.Table:
    """Read a Parquet file of a run, with the metadata of its schema.

    remedy: what to do if it cannot be read. newest: the schema version up to which it can. Raises UserError if the file
    is damaged, too new, or lacks one of the columns.
    """
    try:
        # pq.read_table imports pandas: 0.25 s.
        with pq.ParquetFile(path) as file:
            metadata = file.schema_arrow.metadata or {}
            check_schema_version(path, int(metadata.get(b"gtpo_schema_version", b"0")), newest)
            missing = [name for name in columns or () if name not in file.schema_arrow.names]
            if missing:
                raise UserError(f"{path}: column {missing[0]} is missing; {remedy}")
            table = file.read(columns=None if columns is None else list(columns), use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        first = str(error).split("\n")[0][:160]
        raise UserError(f"{path} is damaged or cannot be read ({first}); {remedy}") from None
    return table.replace_schema_metadata(metadata)


def sample_parts(folder: Path) -> list[Path]:
    """Return the sample parts of an eval run in the order in which they were written."""
    # A copy by another program is called otherwise: part-000000 (1).parquet.
    return sorted(p for p in (folder / "samples").glob("part-*.parquet") if p.stem.removeprefix("part-").isdecimal())


def read_problems(folder: Path, *, everything: bool = False) -> dict[str, dict[str, Problem]]:
    """Return the problems that the last command asked for, by benchmark and id; everything: all that have samples."""
    problems: dict[str, dict[str, Problem]] = {}
    for row in _rows(folder / "problems.parquet"):
        name, shown = row.pop("benchmark"), row.pop("asked", True)
        if shown or everything:
            problems.setdefault(name, {})[row["id"]] = Problem(**row)
    return problems


def read_prompts(folder: Path) -> dict[QuestionKey, StoredPrompt]:
    """Return what the model read of each question, as far as the run holds it."""
    return {
        (row["benchmark"], row["id"]): (json.loads(row["messages"] or "[]"), row["prompt"], row["tokens"])
        for row in _rows(folder / "prompts.parquet")
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    return read_table(path).to_pylist() if path.is_file() else []


class EvalFolder(contextlib.AbstractContextManager["EvalFolder"]):
    """An eval run on disk, locked for this process until `close`. Raises UserError if another process holds it.

    since: when this session began, by the monotonic clock.
    """

    def __init__(self, path: Path, since: float | None = None) -> None:
        self.path, self._since, self._earlier = path, time.monotonic() if since is None else since, 0.0
        existing = {entry.name for entry in path.iterdir()} - LOCK_FILES if path.is_dir() else path.exists()
        if existing and not (path / "eval.json").is_file() and not (path / "samples").is_dir():
            raise UserError(f"{path} exists and is not an eval run; choose another --out")
        self._lock = lock_folder(path)
        self._header = EvalRecord()
        self.sampled: set[QuestionKey] = set()  # Questions with a completion, as `resume` found them
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

        What there is beside completions is dropped then.
        """
        record = self.record()
        parts = sample_parts(self.path)
        stored = (sample for part in parts for sample in self.part(part, ["benchmark", "question_id", "error"]))
        self.sampled = {sample.key[:2] for sample in stored if sample.error is None}
        if self.sampled:
            self._earlier = (record and record.wall_seconds) or 0.0
            return record
        for part in parts:
            self.replace_part(part, [])
        for name in ("problems.parquet", "prompts.parquet"):
            (self.path / name).unlink(missing_ok=True)
        return None

    def begin(self, record: EvalRecord) -> None:
        """Write eval.json of a run that goes on; parts written from now on carry it, and the wall time of the run."""
        benchmarks = {name: entry.before_samples() for name, entry in record.benchmarks.items()}
        self._header = record.model_copy(update={"status": "incomplete", "benchmarks": benchmarks})
        record.write(self.path)

    def seconds(self) -> float:
        """Return the wall time of the run, all sessions."""
        return round(self._earlier + time.monotonic() - self._since, 2)

    def append(self, samples: Sequence[Sample]) -> None:
        """Write samples as one more part."""
        if not samples:
            return
        header = self._header.model_copy(update={"wall_seconds": self.seconds()}).as_json()
        path = self.samples / f"part-{self._next:06d}.parquet"
        self.replace_part(path, samples, {RUN: json.dumps(header).encode()})
        # After the rename: a write that failed leaves no gap.
        self._next += 1

    def replace_part(self, path: Path, samples: Sequence[Sample], record: Mapping[bytes, bytes] | None = None) -> None:
        """Write a part whole, by default with the record that it carries; without samples it goes."""
        if not samples:
            path.unlink()
            return
        schema = SAMPLE_SCHEMA.with_metadata({**(record or _metadata(path)), **SAMPLE_SCHEMA.metadata})
        write_parquet(path, pa.Table.from_pylist([asdict(sample) for sample in samples], schema=schema))

    def drop_failed(self, keys: Set[Key]) -> None:
        """Forget those of the samples with an error: they are asked for again."""
        failing = (part for part in sample_parts(self.path) if any(s.error for s in self.part(part, ["error"])))
        for part in failing if keys else ():
            samples = self.part(part)
            rest = [sample for sample in samples if sample.error is None or sample.key not in keys]
            if len(rest) < len(samples):
                self.replace_part(part, rest)

    def part(self, path: Path, columns: Sequence[str] | None = None) -> list[Sample]:
        """Return the samples of a part, with some or all columns.

        How they ended, if its version did not store that, by what it stored.
        """
        if stores_outcomes(path):
            return [Sample(**row) for row in read_table(path, columns).to_pylist()]
        record, samples = _header(path), [Sample(**row) for row in read_table(path).to_pylist()]
        for sample in samples:
            sample.settle_as_stored(record.sampling.max_tokens, own=record.engine.name in ("vllm", "transformers"))
        return samples

    def questions(self) -> dict[QuestionKey, Problem]:
        """Return every problem that has samples, by benchmark and id."""
        every = read_problems(self.path, everything=True)
        return {(name, i): problem for name, problems in every.items() for i, problem in problems.items()}

    def add_problems(self, problems: Mapping[str, Sequence[Problem]]) -> None:
        """Write problems.parquet: these as what is asked for of their benchmarks, before the others that are there."""
        shown = read_problems(self.path)
        rows = {(name, p.id): (p, True) for name, chosen in problems.items() for p in chosen}
        for (name, i), p in self.questions().items():
            rows.setdefault((name, i), (p, name not in problems and i in shown.get(name, ())))
        table = [{"benchmark": name, **asdict(p), "asked": asked} for (name, _), (p, asked) in rows.items()]
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


def _metadata(part: Path) -> Mapping[bytes, bytes]:
    return read_table(part, []).schema.metadata or {}


def stores_outcomes(part: Path) -> bool:
    """Return whether the version that wrote a part stored how its samples ended."""
    return int(_metadata(part).get(b"gtpo_schema_version", b"0")) >= OUTCOMES_SINCE


def _header(part: Path) -> EvalRecord:
    if (header := _metadata(part).get(RUN)) is None:
        raise UserError(f"{part} does not say of which run it is: move it away, or choose another --out")
    return parse_record(json.loads(header), part)
