"""The Parquet files of a run: the columns of each, and how one is read.

results/eval/<run>/
    eval.json            settings, provenance, aggregated metrics (gtpo/runs/eval_record.py)
    questions.parquet    one row per question and scoring: the per-question figures that paired tests need
    problems.parquet     the questions and golds that the samples answer
    prompts.parquet      what the model read of each question, once
    samples/*.parquet    one row per sample, in parts written by write-then-rename
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gtpo.common.errors import UserError
from gtpo.common.files import check_schema_version
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_record import EVAL_SCHEMA_VERSION
from gtpo.runs.outcomes import Ending, Reply, Tokens, check_reply

# (benchmark, question id)
QuestionKey = tuple[str, str]
# (benchmark, question id, sample index)
Key = tuple[str, str, int]
# Messages, text as the model reads it, its tokens: `engines.base.Prompt`.
StoredPrompt = tuple[list[dict[str, str]], str | None, list[int] | None]
# What to do about a file that cannot be read.
REMEDY = "move it away and run the same gtpo eval command, which makes again what it held"

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
    completion: str = _column(
        pa.string(),
        "What the model wrote, after the tag of a thought that its prompt opened; of a failed sample what came of it.",
    )
    answer_strict: str | None = _column(pa.string(), "Answer inside the answer tags; null if there is none.")
    verdict_strict: str | None = _column(
        pa.string(), "Its verdict; null for a failed sample, or one that is yet to be verified."
    )
    answer_lenient: str | None = _column(pa.string(), "Answer by the lenient rules; null if there is none.")
    verdict_lenient: str | None = _column(pa.string(), "Its verdict, null as above.")
    format_ok: bool | None = _column(pa.bool_(), "Whether the completion has the full layout.")
    tokens: int | None = _column(pa.int32(), "Its tokens; null for recorded completions that do not say.")
    finish_reason: str | None = _column(
        pa.string(),
        "stop; length if it was cut off; a word that is not known as it was said; error or refused if it failed; null "
        "as above.",
    )
    seed: int | None = _column(pa.int64(), "Seed of this sample, with engine transformers of its batch; null as above.")
    error: str | None = _column(pa.string(), "Why there is no completion. Such a sample is unscored, never wrong.")
    prompt_tokens: int | None = _column(pa.int32(), "Tokens of its prompt; null if not known.")
    unfinished: bool | None = _column(
        pa.bool_(), "Whether it ends inside a thought, so that it has no answer; null if it failed."
    )
    outcome: str | None = _column(
        pa.string(),
        "What is known of its end: complete, cut off, empty, blocked, prompt cut, unknown; null if the server failed.",
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
            self.format_ok = self.unfinished = self.tokens = None

    def settle_as_stored(self, max_tokens: int | None, *, own: bool) -> None:
        """Do the same for a sample of a version that did not store how it ended."""
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


def _schema(columns: Columns) -> pa.Schema:
    named = [(name, kind) for name, kind, _ in columns]
    return pa.schema(named, metadata={b"gtpo_schema_version": str(EVAL_SCHEMA_VERSION).encode()})


SAMPLE_SCHEMA, QUESTION_SCHEMA, PROBLEM_SCHEMA, PROMPT_SCHEMA = map(
    _schema, (SAMPLE_COLUMNS, QUESTION_COLUMNS, PROBLEM_COLUMNS, PROMPT_COLUMNS)
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
    return sorted((folder / "samples").glob("part-*.parquet"))


def read_problems(folder: Path) -> list[tuple[str, Problem, bool]]:
    """Return (benchmark, problem, whether the last command asked for it) of all questions of an eval run."""
    return [
        (row.pop("benchmark"), Problem(**row), shown)
        for row in _rows(folder / "problems.parquet")
        for shown in [row.pop("asked", True)]
    ]


def read_prompts(folder: Path) -> dict[QuestionKey, StoredPrompt]:
    """Return what the model read of each question, as far as the run holds it."""
    return {
        (row["benchmark"], row["id"]): (json.loads(row["messages"] or "[]"), row["prompt"], row["tokens"])
        for row in _rows(folder / "prompts.parquet")
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    return read_table(path).to_pylist() if path.is_file() else []
