"""From stored samples to eval.json and questions.parquet: every metric for every k, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gtpo.common.errors import UserError
from gtpo.evalkit.evaluation.scoring import Votes, count_votes, verify
from gtpo.evalkit.metrics import all_pass_at_all_k, maj_at_all_k, pass_at_all_k
from gtpo.evalkit.statistics import clusters_of, mean_interval
from gtpo.rewards.completions import format_ok
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.extract import Scoring, extract_answer
from gtpo.rewards.verify import Verdict, Verifier, default_verifier
from gtpo.runs.eval_folder import EvalFolder, Key, QuestionKey
from gtpo.runs.eval_record import SCORINGS, BenchmarkRecord, Interval, ScoringMetrics
from gtpo.runs.tables import Sample

Array = npt.NDArray[np.float64]


# What the metrics need of a sample: not the texts, which are most of a run.
_COLUMNS = [field.name for field in fields(Sample) if field.name not in ("completion", "seed")]


@dataclass(slots=True)
class QuestionSamples:
    """A question's samples by index, in the order in which they came, without their texts."""

    scored: dict[int, Sample] = field(default_factory=dict)
    failed: dict[int, Sample] = field(default_factory=dict)  # those with an error in place of a completion
    votes: dict[str, Votes] = field(default_factory=dict)  # by scoring, once they are counted

    def reached(self) -> int:
        """Return the n for which samples 0 to n - 1 are all stored, completed or failed."""
        there = {*self.scored, *self.failed}
        return next(i for i in range(len(there) + 1) if i not in there)

    def column(self, name: str) -> list[Any]:
        """Return a field of every sample that was scored, if it is known."""
        values = (getattr(sample, name) for sample in self.scored.values())
        return [value for value in values if value is not None]

    def said(self, scoring: str) -> tuple[list[str | None], list[str]]:
        """Return the answers and the verdicts under one scoring."""
        samples = self.scored.values()
        return [s.answer(scoring) for s in samples], [s.verdict(scoring) or "" for s in samples]

    def first(self, n: int) -> QuestionSamples:
        """Return the samples with an index below n."""
        if all(i < n for i in (*self.scored, *self.failed)):
            return self
        scored, failed = ({i: s for i, s in of.items() if i < n} for of in (self.scored, self.failed))
        return QuestionSamples(scored, failed)


class Tally:
    """The scores of all samples of a run: those that are stored, and those that come. Each is read once.

    Votes are counted here and nowhere else: on the way, when a question has what it was asked for, else at the end.
    """

    def __init__(self, folder: EvalFolder, verifier: Verifier) -> None:
        self._folder, self._verifier = folder, verifier
        self.questions: dict[QuestionKey, QuestionSamples] = {}
        for _, table in folder.tables(_COLUMNS):
            self.add(Sample(**row) for row in table.to_pylist())

    def add(self, samples: Iterable[Sample]) -> None:
        """Count new samples."""
        for sample in samples:
            of = self.questions.setdefault(sample.key[:2], QuestionSamples())
            if sample.error is not None:
                of.failed[sample.sample_index] = replace(sample, completion="")
            elif sample.sample_index not in of.scored:  # one that is stored twice counts once
                of.scored[sample.sample_index] = replace(sample, completion="")
                of.votes.clear()

    def keys(self, *, failed: bool = False) -> set[Key]:
        """Return the key of every completion; failed: of every sample that has an error instead."""
        of = ((key, samples.failed if failed else samples.scored) for key, samples in self.questions.items())
        return {(*key, index) for key, indices in of for index in indices}

    def may_hide_thoughts(self) -> bool:
        """Return whether some completion was cut off, and not in what is known to be a thought."""
        every = (sample for samples in self.questions.values() for sample in samples.scored.values())
        return any(sample.finish_reason == "length" and not sample.unfinished for sample in every)

    def drop_failed(self, keys: Set[Key]) -> None:
        """Forget samples with an error, here and in the folder: they are asked for again."""
        self._folder.drop_failed(keys)
        for *question, index in keys:
            self.questions[question[0], question[1]].failed.pop(index, None)

    def first(self, name: str, problems: Sequence[Problem], n: int) -> list[QuestionSamples]:
        """Return the first n samples of each question of a benchmark."""
        nothing = QuestionSamples()
        return [self.questions.get((name, p.id), nothing).first(n) for p in problems]

    def reached(self, name: str, problems: Sequence[Problem]) -> int:
        """Return the largest n for which every question has its samples 0 to n - 1, completed or failed."""
        return min((self.questions.get((name, p.id), QuestionSamples()).reached() for p in problems), default=0)

    def count_votes(self, samples: Sequence[QuestionSamples], problems: Sequence[Problem]) -> None:
        """Count the votes of some questions, if they are not known: both scorings together, which mostly agree."""
        asked = [(s, p, scoring) for scoring in SCORINGS for s, p in zip(samples, problems, strict=True)]
        missing = [(s, p, scoring) for s, p, scoring in asked if scoring not in s.votes]
        counted = count_votes([(*s.said(g), p) for s, p, g in missing], self._verifier)
        for (sample, _, scoring), votes in zip(missing, counted, strict=True):
            sample.votes[scoring] = votes


class Scored(NamedTuple):
    """All questions of one benchmark under one scoring; rows in the order of the problems."""

    n: list[int]
    votes: list[Votes]
    pass_at: Array
    maj_at: Array
    all_at: Array  # Arrays [questions, most samples of one]: column k - 1 is for k


def _score(samples: Sequence[QuestionSamples]) -> dict[Scoring, Scored]:
    """Score every question both ways, together: the two mostly agree, and what is alike is worked out once."""
    votes = [sample.votes[scoring] for scoring in SCORINGS for sample in samples]
    n = [len(sample.scored) for sample in samples]
    counts = [v.wrong for v in votes], [v.correct for v in votes], [v.abstentions for v in votes]
    every = n * len(SCORINGS)
    arrays = pass_at_all_k(every, counts[1]), maj_at_all_k(*counts), all_pass_at_all_k(every, counts[1])
    return {
        scoring: Scored(n, votes[rows], *(array[rows] for array in arrays))
        for scoring, rows in ((s, slice(i * len(n), (i + 1) * len(n))) for i, s in enumerate(SCORINGS))
    }


def _bounds(
    scored: Scored, samples: Sequence[QuestionSamples], n: int, lost: int
) -> Callable[[str, int], dict[str, float]]:
    """Return (metric, k) -> the mean over all questions if each missing sample were wrong, and if it were right.

    lost: questions without any sample. Empty if nothing is missing.
    """
    missing = [max(0, n - len(s.scored)) for s in samples] + [n] * lost
    if not any(missing):
        return lambda metric, k: {}
    # The most that wrong samples can do to maj@k is to agree with the largest wrong class.
    known = [*scored.votes, *[Votes(0, 0, [])] * lost]
    wrong = [[(v.wrong or [0])[0] + m, *v.wrong[1:]] for v, m in zip(known, missing, strict=True)]
    right, silent = [v.correct for v in known], [v.abstentions for v in known]
    most = [c + m for c, m in zip(right, missing, strict=True)]
    total = [max(n, v.total) for v in known]
    tables = {
        "pass": (pass_at_all_k(total, right), pass_at_all_k(total, most)),
        "all": (all_pass_at_all_k(total, right), all_pass_at_all_k(total, most)),
        "maj": (maj_at_all_k(wrong, right, silent), maj_at_all_k([v.wrong for v in known], most, silent)),
    }
    return lambda metric, k: {
        name: float(table[:, k - 1].mean()) for name, table in zip(("worst", "best"), tables[metric], strict=True)
    }


def _metrics(
    scored: Scored,
    samples: Sequence[QuestionSamples],
    scoring: Scoring,
    n: int,
    lost: int,
    clusters: npt.NDArray[np.int64] | None,
) -> ScoringMetrics:
    """Return pass@k and maj@k with intervals for every k up to n, each over the questions that have k samples."""
    counts, bounds = np.array(scored.n), _bounds(scored, samples, n, lost)
    verdicts = Counter(v for s in samples for v in s.said(scoring)[1])

    def intervals(metric: str, values: Array) -> dict[int, Interval]:
        found = {}
        for k in range(1, min(n, counts.max()) + 1):
            rows = counts >= k
            same = None if clusters is None else clusters[rows]
            interval = mean_interval(values[rows, k - 1], clusters=same)
            fewer = {} if rows.all() else {"questions": int(rows.sum())}
            found[k] = Interval(**interval._asdict(), **fewer, **bounds(metric, k))
        return found

    return ScoringMetrics(
        pass_at_k=intervals("pass", scored.pass_at),
        all_pass_at_k=intervals("all", scored.all_at),
        maj_at_k=intervals("maj", scored.maj_at),
        no_answer_rate=sum(votes.abstentions for votes in scored.votes) / sum(scored.n),
        unsimplified_rate=verdicts[Verdict.UNSIMPLIFIED] / sum(scored.n),
        verdicts=dict(sorted(verdicts.items())),
    )


def summarise(
    name: str,
    record: BenchmarkRecord,
    problems: Sequence[Problem],
    samples: Sequence[QuestionSamples],
    headline: Scoring,
    tally: Tally,
    n: int,
) -> tuple[BenchmarkRecord, list[dict[str, Any]]]:
    """Return (the benchmark's record with its metrics, its rows of questions.parquet).

    samples: of each problem. n: how many were asked for. Questions of which every sample failed are left out. Raises
    UserError if nothing could be scored.
    """
    without = [sample for s in samples for sample in s.failed.values()]
    errors = Counter(str(sample.error) for sample in without)
    failed = [p.id for p, s in zip(problems, samples, strict=True) if not s.scored]
    asked = [(p, s) for p, s in zip(problems, samples, strict=True) if s.scored]
    if not asked:
        raise UserError(f"{name}: no sample could be scored; the same command tries again")
    problems, samples = [p for p, _ in asked], [s for _, s in asked]
    tally.count_votes(samples, problems)
    metrics: dict[Scoring, ScoringMetrics] = {}
    rows: list[dict[str, Any]] = []
    by_scoring, clusters = _score(samples), clusters_of([p.problem for p in problems], [p.cluster for p in problems])
    for scoring, scored in by_scoring.items():
        metrics[scoring] = _metrics(scored, samples, scoring, n, len(failed), clusters)
        rows += [_row(name, scoring, p, s, scored, i) for i, (p, s) in enumerate(asked)]
    tokens, read, ended, in_thought, in_format = (
        [value for s in samples for value in s.column(name)]
        for name in ("tokens", "prompt_tokens", "finish_reason", "unfinished", "format_ok")
    )
    total = sum(len(s.scored) for s in samples)
    cut = [s.tokens or 0 for sample in samples for s in sample.scored.values() if s.finish_reason == "length"]
    rare: dict[str, Any] = {
        "texts": 0 if clusters is None else int(clusters.max()) + 1,
        "unscored": errors.total(),
        "unscored_reasons": dict(errors.most_common(10)),
        "unscored_questions": failed,
        "refused": sum(sample.finish_reason == "refused" for sample in without),
        "lacking": {p.id: len(s.scored) for p, s in asked if len(s.scored) < n},
        "unfinished_rate": sum(in_thought) / total,
        "cut_off_tokens": max(cut, default=0),
        "completion_tokens": sum(tokens),
        "prompt_tokens": sum(read),
        "labels": record.labels,
    }
    summary: dict[str, Any] = {
        "questions": len(problems),
        "samples": total,
        **{name: value for name, value in rare.items() if value},
        **{name: getattr(metrics[headline], name) for name in ScoringMetrics.model_fields},
        "format_rate": sum(in_format) / total,
        "truncation_rate": ended.count("length") / len(ended) if ended else None,
        "mean_tokens": float(np.mean(tokens)) if tokens else None,
        **{str(scoring): of_scoring for scoring, of_scoring in metrics.items()},
    }
    return record.before_samples().model_copy(update=summary), rows


def _row(
    name: str, scoring: Scoring, problem: Problem, sample: QuestionSamples, scored: Scored, i: int
) -> dict[str, Any]:
    """Return a row of QUESTION_SCHEMA: question i."""
    n, tokens, ended = scored.n[i], sample.column("tokens"), sample.column("finish_reason")
    return {
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
        "format_ok": sum(sample.column("format_ok")),
        "truncated": ended.count("length") if ended else None,
        "mean_tokens": float(np.mean(tokens)) if tokens else None,
    }


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
    votes = count_votes(list(zip(answers, grouped, problems, strict=True)), verifier)
    counts = [v.wrong for v in votes], [v.correct for v in votes], [v.abstentions for v in votes]
    rates = {
        "pass@1": pass_at_all_k([k] * len(votes), counts[1])[:, 0],
        **({f"maj@{k}": maj_at_all_k(*counts)[:, k - 1]} if k > 1 else {}),
        "format": np.array([np.mean([format_ok(text) for text in texts]) for texts in completions]),
    }
    found: dict[str, Any] = {name: mean_interval(values) for name, values in rates.items()}
    return found | {"problems": rates["pass@1"].tolist()}
