"""The Parquet files of an eval run: the one definition that the store writes and that compare reads.

    results/eval/<run>/
        eval.json            settings, provenance, aggregated metrics (evalkit/results/record.py)
        questions.parquet    one row per question and scoring: the per-question figures that paired tests need
        problems.parquet     the questions and golds that the samples answer
        samples/*.parquet    one row per sample, in parts written by write-then-rename
"""

from __future__ import annotations

import pyarrow as pa

from evalkit.results.record import EVAL_SCHEMA_VERSION

SAMPLE_SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("question_id", pa.string()),
        ("sample_index", pa.int32()),
        ("completion", pa.string()),
        ("answer_strict", pa.string()),
        ("verdict_strict", pa.string()),
        ("answer_lenient", pa.string()),
        ("verdict_lenient", pa.string()),
        ("format_ok", pa.bool_()),
        ("tokens", pa.int32()),
        ("finish_reason", pa.string()),
        ("seed", pa.int64()),
        ("error", pa.string()),
    ],
    metadata={b"gtpo_schema_version": str(EVAL_SCHEMA_VERSION).encode()},
)
"""One sample. `answer_*` is null where nothing was extracted; `tokens`, `finish_reason` and `seed` are null for
recorded completions that do not state them. `error` says why there is no completion: such a sample is unscored, its
verdicts are null. Verdicts are null without an error where an interrupted run has yet to verify the completion. Every
part's metadata holds, as `gtpo_run`, the eval.json of its run as it was then, without metrics."""

QUESTION_SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("question_id", pa.string()),
        ("scoring", pa.string()),
        ("subject", pa.string()),
        ("level", pa.int32()),
        ("n", pa.int32()),
        ("correct", pa.int32()),
        ("abstentions", pa.int32()),
        ("votes", pa.list_(pa.int32())),
        ("pass_at_k", pa.list_(pa.float64())),
        ("maj_at_k", pa.list_(pa.float64())),
        ("format_ok", pa.int32()),
        ("truncated", pa.int32()),
        ("mean_tokens", pa.float64()),
    ],
    metadata={b"gtpo_schema_version": str(EVAL_SCHEMA_VERSION).encode()},
)
"""One question under one scoring. `votes`: sizes of the wrong answer classes; `pass_at_k[k-1]` and
`maj_at_k[k-1]` for k = 1..n; `format_ok`, `truncated`: counts of samples."""

PROBLEM_SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("id", pa.string()),
        ("problem", pa.string()),
        ("answer", pa.string()),
        ("subject", pa.string()),
        ("level", pa.int32()),
        ("answers", pa.string()),
    ],
    metadata={b"gtpo_schema_version": str(EVAL_SCHEMA_VERSION).encode()},
)
"""One question as it was asked. `answer` is the gold; `problem` is empty for recorded completions without it; `answers`
is `text` where answers are compared as text."""
