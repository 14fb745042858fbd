"""An eval run as a reader sees it: its record, scores by question, problems and prompts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gtpo.common.errors import UserError
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_record import BenchmarkRecord, EvalRecord
from gtpo.runs.tables import read_problems, read_prompts, read_table, sample_parts
from gtpo.runs.train_run import TrainFolder

# Question -> (whether it is right, its tokens) of each scored sample whose length is known.
Lengths = dict[str, list[tuple[bool, int]]]


def rescore(folder: Path) -> str:
    """Return what to do about a questions.parquet that is missing or lacks something."""
    return f"write it again with: gtpo eval {shlex.quote(str(folder))} --rescore"


@dataclass(frozen=True)
class EvalRun:
    """An eval run: one line of a table."""

    name: str
    folder: Path
    record: EvalRecord = field(repr=False)
    train: TrainFolder | None = None
    # Name of a benchmark here -> its name in the run's files, if the two differ.
    stored: dict[str, str] = field(default_factory=dict, repr=False)

    def entry(self, benchmark: str) -> BenchmarkRecord:
        """Return what its record says of a benchmark; an empty record if it was not run."""
        return self.record.benchmarks.get(benchmark, BenchmarkRecord())

    @property
    def benchmarks(self) -> list[str]:
        """Names of its benchmarks, in the order they were run; those without metrics yet are left out."""
        return [name for name, entry in self.record.benchmarks.items() if entry.pass_at_k]

    def stored_name(self, benchmark: str) -> str:
        """Return the name of a benchmark in the run's files."""
        return self.stored.get(benchmark, benchmark)

    def questions(self, benchmark: str, scoring: str) -> Questions:
        """Return the figures of each question under one scoring. Raises UserError if the file does not hold them."""
        file = self.folder / "questions.parquet"
        # In one process another folder may be current, and a run may be resumed.
        every = _questions(file.resolve(), file.stat().st_mtime_ns if file.exists() else 0)
        name = self.stored_name(benchmark)
        if (name, scoring) not in every:
            raise UserError(f"{file}: no {scoring} scores of {name}; {rescore(self.folder)}")
        return replace(every[name, scoring], lengths=cache(partial(self._lengths, benchmark, scoring)))

    def _lengths(self, benchmark: str, scoring: str) -> Lengths:
        stored, n = self.stored_name(benchmark), self.entry(benchmark).n or np.inf
        lengths: Lengths = {}
        for path in sample_parts(self.folder):
            table = read_table(path, ["benchmark", "question_id", "sample_index", f"verdict_{scoring}", "tokens"])
            for name, question, index, verdict, tokens in zip(*(c.to_pylist() for c in table.columns), strict=True):
                if name == stored and index < n and verdict is not None and tokens is not None:
                    lengths.setdefault(question, []).append((verdict == "CORRECT", tokens))
        return lengths

    def problems(self, benchmark: str) -> dict[str, Problem]:
        """Return the problems of a benchmark by id, as far as the run holds them."""
        return {p.id: p for name, p, _ in read_problems(self.folder) if name == self.stored_name(benchmark)}

    def prompts(self, benchmark: str) -> dict[str, tuple[str, int | None]]:
        """Return id -> (what the model read, its tokens); a conversation if a server did not show the text."""
        return {
            question: (text or json.dumps(messages, ensure_ascii=False), None if tokens is None else len(tokens))
            for (name, question), (messages, text, tokens) in read_prompts(self.folder).items()
            if name == self.stored_name(benchmark)
        }


@dataclass(frozen=True)
class Questions:
    """Per-question figures of one run on one benchmark under one scoring, sorted by question id.

    ids [Q] str; subject [Q] str; level [Q] int (0: none); n, correct, format_ok, truncated [Q] counts;
    pass_at_k, maj_at_k [Q, K] for k = 1..K, K the largest n of a question; NaN if a question has fewer than k.
    """

    ids: NDArray[np.object_]
    subject: NDArray[np.object_]
    level: NDArray[np.int32]
    n: NDArray[np.int32]
    correct: NDArray[np.int32]
    format_ok: NDArray[np.int32]
    truncated: NDArray[np.int32]
    pass_at_k: NDArray[np.float64]
    maj_at_k: NDArray[np.float64]
    # Read when it is first asked for.
    lengths: Callable[[], Lengths] = field(default=dict, repr=False)

    def take(self, rows: NDArray[Any]) -> Questions:
        """Return the questions at `rows` (indices or mask)."""
        arrays: dict[str, Any] = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "lengths"}
        return Questions(**arrays, lengths=self.lengths)

    def tokens(self, *, right: bool) -> NDArray[np.float64]:
        """[N] Tokens of the right, or of all other, scored samples of these questions, as far as they are known."""
        lengths = self.lengths()
        return np.array([n for name in self.ids for is_right, n in lengths.get(name, ()) if is_right == right], float)


_COUNTS = ("level", "n", "correct", "format_ok", "truncated")
_BY_K = ("pass_at_k", "maj_at_k")


@cache
def _questions(path: Path, changed: int) -> dict[tuple[str, str], Questions]:
    """(benchmark, scoring) -> the rows of questions.parquet. Raises UserError if it lacks any.

    Without filters, scalars and `to_numpy` of Arrow, which import pandas: a quarter of a second.
    """
    columns = ["benchmark", "scoring", "question_id", "subject", *_COUNTS, *_BY_K]
    table = read_table(path, columns, remedy=rescore(path.parent))
    values = {name: table[name].to_pylist() for name in columns}
    groups: dict[tuple[str, str], list[int]] = {}
    for row in sorted(range(len(table)), key=values["question_id"].__getitem__):
        groups.setdefault((values["benchmark"][row], values["scoring"][row]), []).append(row)
    questions = {}
    for key, rows in groups.items():
        counts: dict[str, Any] = {name: np.array([values[name][row] or 0 for row in rows]) for name in _COUNTS}
        n = counts["n"]
        for name in _BY_K:
            counts[name] = np.full((len(rows), n.max()), np.nan)
            for place, row in enumerate(rows):
                if len(values[name][row] or ()) < n[place]:
                    raise UserError(f"{path}: {name} is shorter than n; {rescore(path.parent)}")
                counts[name][place, : n[place]] = (values[name][row] or [])[: n[place]]
        ids, subject = (
            np.array([values[name][row] or "" for row in rows], dtype=object) for name in ("question_id", "subject")
        )
        questions[key] = Questions(ids=ids, subject=subject, **counts)
    return questions
