"""From stored samples to eval.json and questions.parquet: every metric for every k, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gtpo.evalkit.evaluation.scoring import Votes, count_votes
from gtpo.evalkit.metrics import jackknife_variance, maj_at_all_k, pass_at_all_k
from gtpo.evalkit.results.record import SCORINGS, BenchmarkRecord, GroupMetrics, Interval, ScoringMetrics
from gtpo.evalkit.results.store import EvalFolder, QuestionKey
from gtpo.evalkit.statistics import mean_interval
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.extract import Scoring
from gtpo.rewards.verify import Verdict, Verifier

from gtpo.common.errors import UserError

Array = npt.NDArray[np.float64]

_COLUMNS = [
    "benchmark", "question_id", "sample_index", "error", "format_ok", "tokens", "finish_reason",
    *(f"answer_{scoring}" for scoring in SCORINGS), *(f"verdict_{scoring}" for scoring in SCORINGS),
]  # fmt: skip


@dataclass(slots=True)
class QuestionSamples:
    """What the metrics need of a question's samples."""

    answers: dict[str, list[str | None]] = field(default_factory=lambda: {s: [] for s in SCORINGS})
    verdicts: dict[str, list[str]] = field(default_factory=lambda: {s: [] for s in SCORINGS})
    format_ok: int = 0
    truncated: int = 0
    ended: int = 0
    """Samples of which it is known how they ended: a file of recorded completions does not say."""
    tokens: list[int] = field(default_factory=list)
    indices: set[int] = field(default_factory=set)
    votes: dict[str, Votes] = field(default_factory=dict)
    """By scoring, where they are known."""
    errors: dict[int, str] = field(default_factory=dict)
    """Sample index -> why it has no completion."""

    @property
    def reached(self) -> int:
        """The n for which samples 0 to n - 1 are all stored, completed or failed."""
        return next(i for i in range(len(self.indices) + len(self.errors) + 1) if not self.has(i))

    def has(self, sample_index: int) -> bool:
        """Return whether a sample is stored, completed or failed."""
        return sample_index in self.indices or sample_index in self.errors

    def add(
        self,
        sample_index: int,
        format_ok: bool,
        tokens: int | None,
        finish_reason: str | None,
        answers: Sequence[str | None],
        verdicts: Sequence[str],
    ) -> None:
        """Count one sample (answers and verdicts in the order of SCORINGS); one that is stored twice counts once."""
        if sample_index in self.indices:
            return
        self.indices.add(sample_index)
        for scoring, answer, verdict in zip(SCORINGS, answers, verdicts, strict=True):
            self.answers[scoring].append(answer)
            self.verdicts[scoring].append(verdict)
        self.format_ok += format_ok
        self.truncated += finish_reason == "length"
        self.ended += finish_reason is not None
        if tokens is not None:
            self.tokens.append(tokens)


class Scored(NamedTuple):
    """All questions of one benchmark under one scoring; rows in the order of the problems."""

    n: list[int]
    votes: list[Votes]
    pass_at: Array
    maj_at: Array
    pass_variance: Array
    maj_variance: Array
    """Arrays [questions, most samples of one]: column k - 1 is for k."""


def read_samples(folder: EvalFolder, first: Mapping[str, int] | None = None) -> dict[QuestionKey, QuestionSamples]:
    """Read the scores of stored samples, completions left out: (benchmark, question id) -> samples.

    first: benchmark -> how many samples of each question to read, the first ones; all where it is not named.
    """
    limits = first or {}
    found: dict[QuestionKey, QuestionSamples] = {}
    for _, table in folder.tables(_COLUMNS):
        columns = (table.column(name).to_pylist() for name in _COLUMNS)
        for benchmark, question, index, error, form, tokens, reason, *both in zip(*columns, strict=True):
            if index >= limits.get(benchmark, index + 1):
                continue
            of_question = found.get((benchmark, question))
            if of_question is None:
                of_question = found[benchmark, question] = QuestionSamples()
            if error is not None:
                of_question.errors[index] = error
            else:
                of_question.add(index, bool(form), tokens, reason, both[:2], both[2:])
    return found


def _votes(samples: Sequence[QuestionSamples], problems: Sequence[Problem], verifier: Verifier) -> list[Votes]:
    """Return the votes of every question under the first scoring, then under the second."""
    asked = [(s, p, scoring) for scoring in SCORINGS for s, p in zip(samples, problems, strict=True)]
    missing = [(s, p, scoring) for s, p, scoring in asked if scoring not in s.votes]
    counted = count_votes([(s.answers[scoring], s.verdicts[scoring], p) for s, p, scoring in missing], verifier)
    for (sample, _, scoring), votes in zip(missing, counted, strict=True):
        sample.votes[scoring] = votes
    return [sample.votes[scoring] for sample, _, scoring in asked]


def _score(
    samples: Sequence[QuestionSamples], problems: Sequence[Problem], verifier: Verifier
) -> dict[Scoring, Scored]:
    """Score every question both ways, together: the two mostly agree, and what is alike is worked out once."""
    votes = _votes(samples, problems, verifier)
    n = [len(sample.indices) for sample in samples]
    counts = [v.wrong for v in votes], [v.correct for v in votes], [v.abstentions for v in votes]
    arrays = pass_at_all_k(n * len(SCORINGS), counts[1]), maj_at_all_k(*counts), *jackknife_variance(*counts)
    return {
        scoring: Scored(n, votes[rows], *(array[rows] for array in arrays))
        for scoring, rows in ((s, slice(i * len(n), (i + 1) * len(n))) for i, s in enumerate(SCORINGS))
    }


def _intervals(values: Array, variance: Array, k_max: int, mean_n: float) -> dict[int, Interval]:
    out = {}
    for k in range(1, k_max + 1):
        within = variance[:, k - 1]
        known = None if np.isnan(within).any() else within
        out[k] = Interval(**mean_interval(values[:, k - 1], known, draws=mean_n / k)._asdict())
    return out


def _metrics(scored: Scored, samples: Sequence[QuestionSamples], scoring: Scoring) -> ScoringMetrics:
    """Return pass@k and maj@k with intervals for k = 1..(fewest samples of a question)."""
    k_max, mean_n = min(scored.n), float(np.mean(scored.n))
    verdicts = Counter(v for s in samples for v in s.verdicts[scoring])
    return ScoringMetrics(
        pass_at_k=_intervals(scored.pass_at, scored.pass_variance, k_max, mean_n),
        maj_at_k=_intervals(scored.maj_at, scored.maj_variance, k_max, mean_n),
        no_answer_rate=sum(votes.abstentions for votes in scored.votes) / sum(scored.n),
        unsimplified_rate=verdicts[Verdict.UNSIMPLIFIED] / sum(scored.n),
        verdicts=dict(sorted(verdicts.items())),
    )


def _means(scored: Scored, rows: Sequence[int]) -> GroupMetrics:
    ks = range(1, min(scored.n[i] for i in rows) + 1)
    return GroupMetrics(
        questions=len(rows),
        pass_at_k={k: float(scored.pass_at[rows, k - 1].mean()) for k in ks},
        maj_at_k={k: float(scored.maj_at[rows, k - 1].mean()) for k in ks},
    )


def _groups(problems: Sequence[Problem], key: Callable[[Problem], Any]) -> dict[str, list[int]]:
    groups: dict[Any, list[int]] = {}
    for i, problem in enumerate(problems):
        value = key(problem)
        if value not in ("", None):
            groups.setdefault(value, []).append(i)
    return {str(value): groups[value] for value in sorted(groups)}


_WHERE_THERE_ARE_ANY = {"unscored", "unscored_reasons", "unscored_questions", "by_subject", "by_level"}


def _unscored(errors: Counter[str], failed: list[str]) -> dict[str, Any]:
    if not errors:
        return {}
    reasons = dict(errors.most_common(10))
    return {"unscored": errors.total(), "unscored_reasons": reasons, "unscored_questions": failed}


def summarise(
    name: str,
    record: BenchmarkRecord,
    problems: Sequence[Problem],
    stored: Mapping[QuestionKey, QuestionSamples],
    headline: Scoring,
    verifier: Verifier,
) -> tuple[BenchmarkRecord, list[dict[str, Any]]]:
    """Return (the benchmark's record with its metrics, its rows of questions.parquet).

    Every question has a stored sample; those of which every sample failed are left out. Raises UserError where nothing
    could be scored.
    """
    errors = Counter(e for p in problems for e in stored[name, p.id].errors.values())
    failed = [p.id for p in problems if not stored[name, p.id].indices]
    problems = [p for p in problems if stored[name, p.id].indices]
    if not problems:
        raise UserError(f"{name}: no sample could be scored; the same command tries again")
    samples = [stored[name, p.id] for p in problems]
    total, ended = sum(len(s.indices) for s in samples), sum(s.ended for s in samples)
    metrics: dict[Scoring, ScoringMetrics] = {}
    rows: list[dict[str, Any]] = []
    by_scoring = _score(samples, problems, verifier)
    for scoring, scored in by_scoring.items():
        metrics[scoring] = _metrics(scored, samples, scoring)
        for i, (problem, sample) in enumerate(zip(problems, samples, strict=True)):
            n = scored.n[i]
            rows.append(
                {
                    "benchmark": name,
                    "question_id": problem.id,
                    "scoring": scoring,
                    "subject": problem.subject or None,
                    "level": problem.level,
                    "n": n,
                    "correct": scored.votes[i].correct,
                    "abstentions": scored.votes[i].abstentions,
                    "votes": scored.votes[i].wrong,
                    "pass_at_k": scored.pass_at[i, :n].tolist(),
                    "maj_at_k": scored.maj_at[i, :n].tolist(),
                    "format_ok": sample.format_ok,
                    "truncated": sample.truncated if sample.ended else None,
                    "mean_tokens": float(np.mean(sample.tokens)) if sample.tokens else None,
                }
            )
    tokens = [t for s in samples for t in s.tokens]
    summary: dict[str, Any] = {
        "questions": len(problems),
        "samples": total,
        **_unscored(errors, failed),
        **{name: getattr(metrics[headline], name) for name in ScoringMetrics.model_fields},
        "format_rate": sum(s.format_ok for s in samples) / total,
        "truncation_rate": sum(s.truncated for s in samples) / ended if ended else None,
        "mean_tokens": float(np.mean(tokens)) if tokens else None,
        **{str(scoring): of_scoring for scoring, of_scoring in metrics.items()},
    }
    for label, key in (("by_subject", lambda p: p.subject), ("by_level", lambda p: p.level)):
        groups = _groups(problems, key)
        if len(groups) > 1:
            summary[label] = {value: _means(by_scoring[headline], rows) for value, rows in groups.items()}
    before = record.model_dump(exclude=_WHERE_THERE_ARE_ANY, exclude_unset=True)  # of an earlier summary
    return BenchmarkRecord(**before).model_copy(update=summary), rows
