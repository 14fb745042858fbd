"""From stored samples to eval.json and questions.parquet: every metric for every k, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gtpo.common.errors import UserError
from gtpo.evalkit.evaluation.scoring import Answered, Tally, Votes, count_votes, verify
from gtpo.evalkit.metrics import all_pass_at_all_k, if_missing, maj_at_all_k, pass_at_all_k
from gtpo.evalkit.statistics import clusters_of, mean_interval
from gtpo.rewards.completions import format_ok
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.extract import Scoring, extract_answer
from gtpo.rewards.verify import Verdict, default_verifier
from gtpo.runs.eval_record import SCORINGS, BenchmarkRecord, Interval, ScoringMetrics, TokenCounts

Array = npt.NDArray[np.float64]


def _tables(votes: Sequence[Votes], n: Sequence[int]) -> dict[str, Array]:
    """Return pass@k, pass^k and maj@k [questions, most samples of one]: column k - 1 is for k."""
    right = [v.correct for v in votes]
    majority = maj_at_all_k([v.wrong for v in votes], right, [v.abstentions for v in votes])
    return {"pass": pass_at_all_k(n, right), "all": all_pass_at_all_k(n, right), "maj": majority}


def _bounds(votes: Sequence[Votes], n: int, lost: int) -> dict[str, dict[str, Array]]:
    """Return the tables of all questions if each missing sample were wrong, and if it were right.

    lost: questions without any sample. Empty if nothing is missing.
    """
    known = [*votes, *[Votes(0, 0, [])] * lost]
    missing = [max(0, n - v.total) for v in known]
    if not any(missing):
        return {}
    total = [max(n, v.total) for v in known]
    ends = if_missing([v.wrong for v in known], [v.correct for v in known], missing)
    return {
        name: _tables([v._replace(wrong=w, correct=c) for v, w, c in zip(known, *end, strict=True)], total)
        for name, end in zip(("worst", "best"), ends, strict=True)
    }


def _metrics(
    name: str, scoring: Scoring, questions: Answered, n: int, lost: int, clusters: npt.NDArray[np.int64] | None
) -> tuple[ScoringMetrics, list[dict[str, Any]]]:
    """Return a benchmark's metrics under one scoring, and its rows of questions.parquet.

    Metrics are for every k up to n, each over the questions that have k samples. lost: questions without any.
    """
    votes = [samples.votes[scoring] for _, samples in questions]
    counts = [v.total for v in votes]
    tables, bounds = _tables(votes, counts), _bounds(votes, n, lost)
    verdicts = Counter(verdict for _, samples in questions for verdict in samples.answers(scoring)[1])

    def intervals(metric: str) -> dict[int, Interval]:
        found = {}
        for k in range(1, min(n, max(counts)) + 1):
            rows = np.array(counts) >= k
            same = None if clusters is None else clusters[rows]
            mean, low, high, *_ = mean_interval(tables[metric][rows, k - 1], clusters=same)
            fewer = {} if rows.all() else {"questions": int(rows.sum())}
            ends = {end: float(table[metric][:, k - 1].mean()) for end, table in bounds.items()}
            found[k] = Interval(mean=mean, low=low, high=high, **fewer, **ends)
        return found

    every = [sample for _, samples in questions for sample in samples.scored.values()]
    right, wrong = (
        [s.tokens for s in every if s.tokens is not None and (s.verdict(scoring) == Verdict.CORRECT) == is_right]
        for is_right in (True, False)
    )
    metrics = ScoringMetrics(
        pass_at_k=intervals("pass"),
        all_pass_at_k=intervals("all"),
        maj_at_k=intervals("maj"),
        no_answer_rate=sum(v.abstentions for v in votes) / sum(counts),
        unsimplified_rate=verdicts[Verdict.UNSIMPLIFIED] / sum(counts),
        verdicts=dict(sorted(verdicts.items())),
        tokens_right=_spread(right),
        tokens_wrong=_spread(wrong),
    )
    rows = [
        {
            "benchmark": name,
            "question_id": problem.id,
            "scoring": scoring,
            "subject": problem.subject or None,
            "level": problem.level,
            "n": v.total,
            "correct": v.correct,
            "abstentions": v.abstentions,
            "votes": v.wrong,
            "pass_at_k": tables["pass"][i, : v.total].tolist(),
            "maj_at_k": tables["maj"][i, : v.total].tolist(),
            "format_ok": sum(samples.column("format_ok")),
            # None if it is not known how any of them ended.
            "truncated": sum(known) if (known := samples.column("cut_off")) else None,
            "mean_tokens": _mean(samples.column("tokens")),
        }
        for i, ((problem, samples), v) in enumerate(zip(questions, votes, strict=True))
    ]
    return metrics, rows


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _spread(values: Sequence[int]) -> TokenCounts | None:
    return TokenCounts(median=float(np.median(values)), high=float(np.percentile(values, 95))) if values else None


def summarise(
    name: str, record: BenchmarkRecord, problems: Sequence[Problem], headline: Scoring, tally: Tally, n: int, most: int
) -> tuple[BenchmarkRecord, list[dict[str, Any]]]:
    """Return (the benchmark's record with its metrics, its rows of questions.parquet).

    n: how many samples of each question were asked for. most: how many of each count. Questions of which every sample
    failed are left out. Raises UserError if nothing could be scored.
    """
    asked = [(p, tally.questions[name, p.id].first(most)) for p in problems]
    questions = [(p, s) for p, s in asked if s.scored]
    if not questions:
        reasons = Counter(str(sample.error) for _, s in asked for sample in s.failed.values()).most_common(1)
        why = "".join(f" ({count}: {reason})" for reason, count in reasons)
        raise UserError(f"{name}: no sample could be scored{why}; the same command tries again")
    tally.count_votes(questions)
    clusters = clusters_of([p.problem for p, _ in questions], [p.cluster for p, _ in questions], record.source)
    lost = [p.id for p, s in asked if not s.scored]
    scored = {scoring: _metrics(name, scoring, questions, n, len(lost), clusters) for scoring in SCORINGS}
    tokens, read, ended, words, outcomes, in_thought, in_format = (
        [value for _, s in questions for value in s.column(field)]
        for field in ("tokens", "prompt_tokens", "cut_off", "finish_reason", "outcome", "unfinished", "format_ok")
    )
    total = sum(len(s.scored) for _, s in questions)
    failed = [sample for _, s in asked for sample in s.failed.values()]
    errors = Counter(str(sample.error) for sample in failed)
    counted = sum(None not in (s.tokens, s.prompt_tokens) for _, of in questions for s in of.scored.values())
    cut = [s.tokens or 0 for _, of in questions for s in of.scored.values() if s.finish_reason == "length"]
    rare: dict[str, Any] = {
        "outcomes": dict(sorted(Counter(outcomes).items())),
        "unknown_endings": dict(Counter(word for word in words if word not in ("stop", "length")).most_common(10)),
        "texts": 0 if clusters is None else int(clusters.max()) + 1,
        "unscored": errors.total(),
        "unscored_reasons": dict(errors.most_common(10)),
        "unscored_questions": lost,
        "refused": sum(sample.finish_reason == "refused" for sample in failed),
        "lacking": {p.id: len(s.scored) for p, s in questions if len(s.scored) < n},
        "unfinished_rate": sum(in_thought) / total,
        "cut_off_tokens": max(cut, default=0),
        "completion_tokens": sum(tokens),
        "prompt_tokens": sum(read),
        "uncounted": counted and total - counted,
        "labels": record.labels,
    }
    summary: dict[str, Any] = {
        "questions": len(questions),
        "samples": total,
        **{field: value for field, value in rare.items() if value},
        **{field: getattr(scored[headline][0], field) for field in ScoringMetrics.model_fields},
        "format_rate": sum(in_format) / total,
        "truncation_rate": _mean(ended),
        "mean_tokens": _mean(tokens),
        **{str(scoring): metrics for scoring, (metrics, _) in scored.items()},
    }
    return record.before_samples().model_copy(update=summary), [row for _, rows in scored.values() for row in rows]


def score_held_out(problems: Sequence[Problem], completions: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return pass@1, maj@k (k = samples per problem) and the share in format, each with its interval over problems.

    And "problems": pass@1 of each problem [n].

    completions: per problem its k >= 1 sampled texts, equally many for each. Raises ValueError if they are not.
    """
    k = len(completions[0]) if completions else 0
    if len(problems) != len(completions) or not k or any(len(texts) != k for texts in completions):
        raise ValueError(f"{len(problems)} problems need equally many completions each, at least one")
    verifier = default_verifier()
    answers = [[extract_answer(text) for text in texts] for texts in completions]
    asked = [problem for problem in problems for _ in range(k)]
    verdicts = verify([answer for row in answers for answer in row], asked, "strict", verifier)
    grouped = [[str(verdict) for verdict in verdicts[at : at + k]] for at in range(0, len(verdicts), k)]
    tables = _tables(count_votes(list(zip(answers, grouped, problems, strict=True)), verifier), [k] * len(problems))
    rates = {
        "pass@1": tables["pass"][:, 0],
        **({f"maj@{k}": tables["maj"][:, k - 1]} if k > 1 else {}),
        "format": np.array([np.mean([format_ok(text) for text in texts]) for texts in completions]),
    }
    found: dict[str, Any] = {name: mean_interval(values) for name, values in rates.items()}
    return found | {"problems": rates["pass@1"].tolist()}
