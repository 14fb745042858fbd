"""What an eval run looks like on disk: the one definition that the store writes and that compare reads.

    results/eval/<run>/
        eval.json            settings, provenance, aggregated metrics (EVAL_JSON below)
        questions.parquet    one row a question and scoring: the per-question figures that paired tests need
        problems.parquet     the questions and golds that the samples answer
        samples/*.parquet    one row a sample, in parts written by write-then-rename

eval.json, in full (all rates and metrics are fractions in [0, 1]):

    schema_version   int
    status           "complete" | "incomplete"
    name             the run's name
    model            {source, adapter, fingerprint, train_run, checkpoint, method, preset}      (null where unknown)
    engine           {name, dtype (as asked for), compute_dtype, versions: {package: version}, hardware, ...}
    sampling         {temperature, top_p, max_tokens, n, seed}
    prompt           {system, chat_template_hash, hash}
    scoring          "strict" | "lenient"       the headline
    shard            "i/n" | null               part i of n: every n-th question
    verifier         {version, timeout_s, ...}
    created, wall_seconds, command, git_commit
    benchmarks       {name: {
        source, questions, samples, checksum (of ids + golds), excluded: [ids],
        "pass@k": {"1": {mean, low, high, low_sampling, high_sampling}, ...},   the headline scoring
        "maj@k":  {...},
        format_rate, truncation_rate, no_answer_rate, unsimplified_rate, mean_tokens,
        verdicts: {CORRECT: n, ...},
        strict:  {"pass@k": ..., "maj@k": ..., no_answer_rate, unsimplified_rate, verdicts},
        lenient: {...},
        labels: {compared, agree: {strict, lenient}}    (recorded completions that bring their owners' labels)
        by_subject / by_level: {value: {questions, "pass@k", "maj@k"}}           (MATH only)
    }}

low/high is the 95 % interval that covers the choice of questions as well as sampling noise (clustered by
question); low_sampling/high_sampling covers sampling noise on these very questions alone.
"""

from __future__ import annotations

import pyarrow as pa

EVAL_SCHEMA_VERSION = 1

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
    ],
    metadata={b"gtpo_schema_version": str(EVAL_SCHEMA_VERSION).encode()},
)
"""One sample. `answer_*` is null where nothing was extracted; `tokens`, `finish_reason` and `seed` are null for
recorded completions that do not state them."""

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
