"""From stored samples to eval.json and questions.parquet: every metric for every k, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evalkit.metrics import jackknife_variance, maj_at_all_k, pass_at_all_k
from evalkit.scoring import SCORINGS, count_votes
from evalkit.statistics import mean_interval
from evalkit.store import RunFolder
from rewards.data.problems import Problem
from rewards.support.errors import UserError
from rewards.verify import Verifier

Array = npt.NDArray[np.float64]

_COLUMNS = [
    "benchmark", "question_id", "sample_index", "format_ok", "tokens", "finish_reason",
    "answer_strict", "verdict_strict", "answer_lenient", "verdict_lenient",
]  # fmt: skip


@dataclass(slots=True)
class QuestionSamples:
    """What the metrics need of a question's samples."""

    answers: dict[str, list[str | None]] = field(default_factory=lambda: {s: [] for s in SCORINGS})
    verdicts: dict[str, list[str]] = field(default_factory=lambda: {s: [] for s in SCORINGS})
    format_ok: int = 0
    truncated: int = 0
    tokens: list[int] = field(default_factory=list)
    indices: set[int] = field(default_factory=set)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one sample; a sample that is stored twice counts once."""
        if row["sample_index"] in self.indices:
            return
        self.indices.add(row["sample_index"])
        for scoring in SCORINGS:
            self.answers[scoring].append(row[f"answer_{scoring}"])
            self.verdicts[scoring].append(row[f"verdict_{scoring}"])
        self.format_ok += bool(row["format_ok"])
        self.truncated += row["finish_reason"] == "length"
        if row["tokens"] is not None:
            self.tokens.append(row["tokens"])


class Scored(NamedTuple):
    """All questions of one benchmark under one scoring; rows in the order of the problems."""

    n: list[int]
    correct: list[int]
    abstentions: list[int]
    votes: list[list[int]]
    pass_at: Array
    maj_at: Array


def read_samples(folder: RunFolder) -> dict[tuple[str, str], QuestionSamples]:
    """Read the scores of every stored sample, completions left out: (benchmark, question id) -> samples."""
    found: dict[tuple[str, str], QuestionSamples] = {}
    for _, table in folder.tables(_COLUMNS):
        for row in table.to_pylist():
            found.setdefault((row["benchmark"], row["question_id"]), QuestionSamples()).add(row)
    return found


def _score(samples: Sequence[QuestionSamples], problems: Sequence[Problem], scoring: str, verifier: Verifier) -> Scored:
    counted = [
        count_votes(s.answers[scoring], s.verdicts[scoring], p.answer, verifier)
        for s, p in zip(samples, problems, strict=True)
    ]
    correct, abstentions, votes = [c for c, _, _ in counted], [a for _, a, _ in counted], [v for _, _, v in counted]
    n = [len(s.indices) for s in samples]
    return Scored(n, correct, abstentions, votes, pass_at_all_k(n, correct), maj_at_all_k(votes, correct, abstentions))


def _intervals(values: Array, variance: Array, k_max: int, mean_n: float) -> dict[str, dict[str, float | None]]:
    out = {}
    for k in range(1, k_max + 1):
        within = variance[:, k - 1]
        known = None if np.isnan(within).any() else within
        out[str(k)] = mean_interval(values[:, k - 1], known, draws=mean_n / k)._asdict()
    return out


def _metrics(scored: Scored, rows: Sequence[int] | None = None) -> dict[str, Any]:
    """Return pass@k and maj@k with intervals for k = 1..(fewest samples of a question)."""
    chosen = list(range(len(scored.n))) if rows is None else list(rows)
    k_max = min(scored.n[i] for i in chosen)
    mean_n = float(np.mean([scored.n[i] for i in chosen]))
    variance_pass, variance_maj = jackknife_variance(
        [scored.votes[i] for i in chosen],
        [scored.correct[i] for i in chosen],
        [scored.abstentions[i] for i in chosen],
    )
    return {
        "pass@k": _intervals(scored.pass_at[chosen], variance_pass, k_max, mean_n),
        "maj@k": _intervals(scored.maj_at[chosen], variance_maj, k_max, mean_n),
    }


def _means(scored: Scored, rows: Sequence[int]) -> dict[str, Any]:
    k_max = min(scored.n[i] for i in rows)
    return {
        "questions": len(rows),
        "pass@k": {str(k): float(scored.pass_at[rows, k - 1].mean()) for k in range(1, k_max + 1)},
        "maj@k": {str(k): float(scored.maj_at[rows, k - 1].mean()) for k in range(1, k_max + 1)},
    }


def _groups(problems: Sequence[Problem], key: Callable[[Problem], Any]) -> dict[str, list[int]]:
    groups: dict[Any, list[int]] = {}
    for i, problem in enumerate(problems):
        value = key(problem)
        if value not in ("", None):
            groups.setdefault(value, []).append(i)
    return {str(value): groups[value] for value in sorted(groups)}


def summarise(
    name: str,
    problems: Sequence[Problem],
    stored: Mapping[tuple[str, str], QuestionSamples],
    headline: str,
    verifier: Verifier,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (the benchmark's entry in eval.json, its rows of questions.parquet).

    Raises UserError where a question has no sample at all.
    """
    missing = [p.id for p in problems if (name, p.id) not in stored]
    if missing:
        raise UserError(f"{name}: {len(missing)} questions have no samples (first: {missing[0]})")
    samples = [stored[name, p.id] for p in problems]
    total = sum(len(s.indices) for s in samples)
    entry: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    by_scoring: dict[str, Scored] = {}
    for scoring in SCORINGS:
        scored = by_scoring[scoring] = _score(samples, problems, scoring, verifier)
        verdicts = Counter(v for s in samples for v in s.verdicts[scoring])
        entry[scoring] = {
            **_metrics(scored),
            "no_answer_rate": sum(scored.abstentions) / total,
            "verdicts": dict(sorted(verdicts.items())),
        }
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
                    "correct": scored.correct[i],
                    "abstentions": scored.abstentions[i],
                    "votes": scored.votes[i],
                    "pass_at_k": scored.pass_at[i, :n].tolist(),
                    "maj_at_k": scored.maj_at[i, :n].tolist(),
                    "format_ok": sample.format_ok,
                    "truncated": sample.truncated,
                    "mean_tokens": float(np.mean(sample.tokens)) if sample.tokens else None,
                }
            )
    head = by_scoring[headline]
    tokens = [t for s in samples for t in s.tokens]
    summary = {
        "questions": len(problems),
        "samples": total,
        "pass@k": entry[headline]["pass@k"],
        "maj@k": entry[headline]["maj@k"],
        "format_rate": sum(s.format_ok for s in samples) / total,
        "truncation_rate": sum(s.truncated for s in samples) / total,
        "no_answer_rate": entry[headline]["no_answer_rate"],
        "mean_tokens": float(np.mean(tokens)) if tokens else None,
        "verdicts": entry[headline]["verdicts"],
        **entry,
    }
    for label, key in (("by_subject", lambda p: p.subject), ("by_level", lambda p: p.level)):
        groups = _groups(problems, key)
        if len(groups) > 1:
            summary[label] = {value: _means(head, rows) for value, rows in groups.items()}
    return summary, rows
