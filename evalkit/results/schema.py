"""The Parquet files of an eval run: the one definition that the store writes and that compare reads.

results/eval/<run>/
    eval.json            settings, provenance, aggregated metrics (evalkit/results/record.py)
    questions.parquet    one row per question and scoring: the per-question figures that paired tests need
    problems.parquet     the questions and golds that the samples answer
    prompts.parquet      what the model read of each question, once
    samples/*.parquet    one row per sample, in parts written by write-then-rename
"""

from __future__ import annotations

import pyarrow as pa

from gtpo.evalkit.results.record import EVAL_SCHEMA_VERSION

Columns = tuple[tuple[str, pa.DataType, str], ...]
"""(name, type, meaning); docs/files.md is written from these."""


def _schema(columns: Columns) -> pa.Schema:
    fields = [(name, kind) for name, kind, _ in columns]
    return pa.schema(fields, metadata={b"gtpo_schema_version": str(EVAL_SCHEMA_VERSION).encode()})


SAMPLE_COLUMNS: Columns = (
    ("benchmark", pa.string(), "Name of the benchmark."),
    ("question_id", pa.string(), "The question."),
    ("sample_index", pa.int32(), "Which sample of the question, from 0."),
    (
        "completion",
        pa.string(),
        "What the model wrote, after the tag of a thought that its prompt opened; of a failed sample what came of it.",
    ),
    ("answer_strict", pa.string(), "Answer inside the answer tags; null where there is none."),
    ("verdict_strict", pa.string(), "Its verdict; null for a failed sample, or one that is yet to be verified."),
    ("answer_lenient", pa.string(), "Answer by the lenient rules; null where there is none."),
    ("verdict_lenient", pa.string(), "Its verdict, null as above."),
    ("format_ok", pa.bool_(), "Whether the completion has the full layout."),
    ("tokens", pa.int32(), "Its tokens; null for recorded completions that do not say."),
    (
        "finish_reason",
        pa.string(),
        "stop; length where it was cut off; error or refused where it failed; null as above.",
    ),
    ("seed", pa.int64(), "Seed of this sample, with engine transformers of its batch; null as above."),
    ("error", pa.string(), "Why there is no completion. Such a sample is unscored, never wrong."),
    ("prompt_tokens", pa.int32(), "Tokens of its prompt; null where not known."),
    ("unfinished", pa.bool_(), "Whether it ends inside a thought, so that it has no answer; null where it failed."),
)
SAMPLE_SCHEMA = _schema(SAMPLE_COLUMNS)
"""One sample. Every part's metadata holds, as `gtpo_run`, the eval.json of its run as it was then, without metrics."""

QUESTION_COLUMNS: Columns = (
    ("benchmark", pa.string(), "Name of the benchmark."),
    ("question_id", pa.string(), "The question."),
    ("scoring", pa.string(), "strict or lenient."),
    ("subject", pa.string(), "Its subject, where there is one."),
    ("level", pa.int32(), "Its level, where there is one."),
    ("n", pa.int32(), "Scored samples."),
    ("correct", pa.int32(), "Right ones."),
    ("abstentions", pa.int32(), "Samples without an answer."),
    ("votes", pa.list_(pa.int32()), "Sizes of the classes of equal wrong answers."),
    ("pass_at_k", pa.list_(pa.float64()), "pass@k for k = 1 to n."),
    ("maj_at_k", pa.list_(pa.float64()), "maj@k for k = 1 to n."),
    ("format_ok", pa.int32(), "Samples in the full layout."),
    ("truncated", pa.int32(), "Samples cut off at the token limit; null where it is not known how they ended."),
    ("mean_tokens", pa.float64(), "Tokens of a completion."),
)
QUESTION_SCHEMA = _schema(QUESTION_COLUMNS)
"""One question under one scoring: the figures that paired tests need."""

PROBLEM_COLUMNS: Columns = (
    ("benchmark", pa.string(), "Name of the benchmark."),
    ("id", pa.string(), "The question."),
    ("problem", pa.string(), "Its text; empty for recorded completions without it."),
    ("answer", pa.string(), "The gold."),
    ("subject", pa.string(), "Its subject, where there is one."),
    ("level", pa.int32(), "Its level, where there is one."),
    ("answers", pa.string(), "`text` where answers are compared as text."),
    ("asked", pa.bool_(), "Whether the last command asked for it: the metrics are of these questions."),
)
PROBLEM_SCHEMA = _schema(PROBLEM_COLUMNS)
"""One question: its text and gold."""

PROMPT_COLUMNS: Columns = (
    ("benchmark", pa.string(), "Name of the benchmark."),
    ("id", pa.string(), "The question."),
    ("messages", pa.string(), "The conversation, as JSON; null where the prompt is one text for a base model."),
    ("prompt", pa.string(), "The text as the model reads it; null where a server does not show it."),
    ("tokens", pa.list_(pa.int32()), "Its tokens; null as above."),
)
PROMPT_SCHEMA = _schema(PROMPT_COLUMNS)
"""One question as it was asked."""
