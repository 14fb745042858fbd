"""Runs as a reader finds them, by path or by name, checked; and an eval run: its record, scores, problems and prompts.

An eval run is a folder with `eval.json`; a train run is a folder with `run.json` and stands for the eval runs made of
it. What makes a run unreadable is a UserError that names it and says what to do.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gtpo.common.errors import UserError, did_you_mean
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_folder import read_problems, read_prompts, read_table, sample_parts
from gtpo.runs.eval_record import BenchmarkRecord, EvalRecord, read_record
from gtpo.runs.train_run import ENDED, RESULTS, TrainFolder, train_run_of

# Question -> (whether it is right, its tokens) of each scored sample whose length is known.
Lengths = dict[str, list[tuple[bool, int]]]
# Question -> (sizes of its wrong answer classes, the largest first; samples without an answer).
Votes = dict[str, tuple[list[int], int]]


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
        lengths = cache(partial(self._lengths, benchmark, scoring))
        votes = cache(partial(self._votes, benchmark, scoring))
        return replace(every[name, scoring], lengths=lengths, votes=votes)

    def _votes(self, benchmark: str, scoring: str) -> Votes:
        columns, wanted = ["benchmark", "scoring", "question_id", "votes", "abstentions"], self.stored_name(benchmark)
        rows = read_table(self.folder / "questions.parquet", columns, remedy=rescore(self.folder)).to_pylist()
        return {
            row["question_id"]: (row["votes"] or [], row["abstentions"] or 0)
            for row in rows if (row["benchmark"], row["scoring"]) == (wanted, scoring)
        }  # fmt: skip

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
        return read_problems(self.folder, everything=True).get(self.stored_name(benchmark), {})

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
    # Read when they are first asked for.
    lengths: Callable[[], Lengths] = field(default=dict, repr=False)
    votes: Callable[[], Votes] = field(default=dict, repr=False)

    def take(self, rows: NDArray[Any]) -> Questions:
        """Return the questions at `rows` (indices or mask)."""
        arrays = {name: of[rows] for name, of in vars(self).items() if isinstance(of, np.ndarray)}
        return replace(self, **arrays)

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
    rows = sorted(read_table(path, columns, remedy=rescore(path.parent)).to_pylist(), key=itemgetter(*columns[:3]))
    questions = {}
    for key, group in groupby(rows, itemgetter(*columns[:2])):
        of = [*group]
        values: dict[str, Any] = {name: np.array([row[name] or 0 for row in of]) for name in _COUNTS}
        for name in _BY_K:
            by_k = [(row[name] or [])[: row["n"] or 0] for row in of]
            if any(len(each) < (row["n"] or 0) for each, row in zip(by_k, of, strict=True)):
                raise UserError(f"{path}: {name} is shorter than n; {rescore(path.parent)}")
            values[name] = np.array([*zip_longest(*by_k, fillvalue=np.nan)]).T.reshape(len(of), -1)
        for name, column in (("ids", "question_id"), ("subject", "subject")):
            values[name] = np.array([row[column] or "" for row in of], dtype=object)
        questions[key] = Questions(**values)
    return questions


# -- finding -----------------------------------------------------------------------------------------------------------

# Folders of results/, in the order in which a name is looked up.
KINDS = ("train", "eval")
# Files and folders by which a run's folder is known, however little it holds yet.
_PARTS = ("eval.json", "samples", "run.json", "config.yaml", ".lock", "metrics.jsonl")


def find_runs(
    names: list[str], *, allow_incomplete: bool = False
) -> tuple[list[EvalRun], list[TrainFolder], list[str]]:
    """Resolve paths and names to eval runs (table lines), the train runs behind them, and notes for the reader.

    Train runs without an eval run are returned too: they still have dynamics. Raises UserError on a run that is not
    there, not complete (unless `allow_incomplete`), of a newer schema, or whose name is taken by another.
    """
    evals: list[EvalRun] = []
    trains: dict[Path, TrainFolder] = {}
    notes: list[str] = []
    alone: list[str] = []
    for name, folder in [(name, resolve(name)) for name in names]:
        if is_eval(folder) or not (folder / "run.json").is_file():
            run = _read_eval_run(folder, allow_incomplete, notes)
            evals.append(run)
            if run.train is not None:
                trains.setdefault(run.train.root.resolve(), run.train)
            continue
        train = trains[folder.resolve()] = TrainFolder(folder)
        if train.status not in ENDED:
            resume = f"resume it with: gtpo train {shlex.quote(str(train.config_yaml))}"
            resume = "the script that began it resumes it" if train.output is not None else resume
            if not allow_incomplete:
                raise UserError(f'{folder}: train run "{train.name}" is incomplete (status {train.status}); {resume}')
            notes.append(
                f"{train.name} is an incomplete train run (status {train.status}): shown as far as it got ({resume})"
            )
        evaluation = _evaluation(train, notes)
        if evaluation is None:
            alone.append(name)
        else:
            evals.append(replace(_read_eval_run(evaluation, False, notes), name=train.name, train=train))
    for train in trains.values():
        if train.collapsed:
            why = f" ({train.run()['stopped_because']})" if train.run().get("stopped_because") else ""
            notes.append(f"{train.name} collapsed{why} and is compared as it is")
    if alone:
        how = f"gtpo eval {shlex.quote(alone[0])} --benchmarks NAME"
        notes.append(f"no eval run yet of {', '.join(alone)}: training only ({how})")
    named: dict[str, EvalRun] = {}
    for run in evals:
        if (other := named.setdefault(run.name, run)) is run:
            continue
        if run.folder.resolve() == other.folder.resolve():
            raise UserError(f'run "{run.name}" is given twice ({run.folder}); name it once')
        raise UserError(
            f'two runs are called "{run.name}" ({other.folder} and {run.folder}): rename one (its eval.json '
            "carries the name)"
        )
    return evals, list(trains.values()), notes


def _evaluation(train: TrainFolder, notes: list[str]) -> Path | None:
    """Return the eval run that a train run stands for; None if there is none. Raises UserError if it is not clear."""
    every = evals_of(train.root)
    complete = [entry for entry, record in every.items() if record.status == "complete"]
    left_out = (entry.name for entry in every if entry not in complete)
    notes += [f"{train.name}: eval run {name} is incomplete and left out" for name in left_out]
    if len(complete) < 2:
        return next(iter(complete), None)
    several = f"has {len(complete)} eval runs ({', '.join(map(str, complete))})"
    # The one of its name is where `gtpo eval RUN` puts it; the others were put elsewhere with --out.
    if own := next((entry for entry in complete if entry.name == train.root.resolve().name), None):
        notes.append(f"{train.name} {several}: {own} is compared")
        return own
    raise UserError(f'train run "{train.name}" {several}: name the one to compare')


def resolve(name: str) -> Path:
    """Return the folder of a path to it or to its eval.json, or of a name under results/.

    UserError, with the nearest name, if there is none.
    """
    path = Path(name)
    if path.name in ("eval.json", "run.json") and path.is_file():
        return path.parent
    if path.is_dir() and any((path / part).exists() for part in _PARTS):
        return path
    there = [] if path.is_absolute() else [place for kind in KINDS if (place := RESULTS / kind / name).is_dir()]
    # Evaluating a train run under its own name is the usual case; the train run then stands for both.
    if len(there) == 2 and _record_of(there[1], there[0]) is None:
        raise UserError(f'"{name}" is an eval run and another train run: give the path, {there[1]} or {there[0]}')
    if there:
        return there[0]
    if path.is_dir():
        raise UserError(f"{path}: neither an eval run (eval.json) nor a train run (run.json)")
    if path.is_file():
        raise UserError(
            f"{path} is a file, not a run; score it first: gtpo eval --completions {shlex.quote(str(path))}"
        )
    near = did_you_mean(name, [entry.name for entry in every_folder()])
    raise UserError(
        f'no run "{name}": no such folder, and none of that name in {RESULTS}/eval or {RESULTS}/train.{near}'
    )


def every_folder() -> list[Path]:
    """Return the folders of all runs under results/, train runs first, by name."""
    return [folder for kind in KINDS for folder in sorted((RESULTS / kind).glob("*")) if folder.is_dir()]


def is_eval(folder: Path) -> bool:
    """Return whether a run's folder is an eval run's."""
    return (folder / "eval.json").is_file() or (folder / "samples").is_dir()


def evals_of(folder: Path) -> dict[Path, EvalRecord]:
    """Return the eval runs of a train run, complete or not: beside it (results/train/X -> results/eval/*), or here."""
    beside = (Path(os.path.abspath(folder)).parent.parent / "eval", folder.resolve().parent.parent / "eval")
    homes = {home.resolve() for home in (*beside, RESULTS / "eval")}
    entries = sorted(entry for home in homes for entry in home.glob("*"))
    return {entry: record for entry in entries if (record := _record_of(entry, folder)) is not None}


def _record_of(entry: Path, train: Path) -> EvalRecord | None:
    """Return the record of an eval run of a train run; None of any other folder, which may hold anything."""
    try:
        record = _read_once(entry.resolve(), (entry / "eval.json").stat().st_mtime_ns)
    except (UserError, OSError):
        return None
    of = _train_run_of(record, entry)
    return record if of is not None and of.root.resolve() == train.resolve() else None


@lru_cache(maxsize=1024)
def _read_once(folder: Path, changed: int) -> EvalRecord:
    """Every train run looks through the same eval runs for its own; `changed` makes a rewritten file another one."""
    return read_record(folder)


def _train_run_of(record: EvalRecord, folder: Path) -> TrainFolder | None:
    """Return the train run that an eval run's weights are of, if its folder is still there."""
    model = record.model
    return train_run_of([model.adapter or model.source, model.train_run], folder) if model.train_run else None


def _read_eval_run(folder: Path, allow_incomplete: bool, notes: list[str]) -> EvalRun:
    """Read and check one eval run. Raises UserError naming file and field."""
    if not (folder / "eval.json").is_file():
        raise UserError(f"{folder}: no eval.json and no run.json yet; the command that started it resumes it")
    record = read_record(folder)
    name = record.name or folder.resolve().name
    scored = (folder / "questions.parquet").is_file()
    if record.status != "complete":
        resume = f"resume it with: {record.command}" if record.command else "run its gtpo eval command again"
        if not (allow_incomplete and scored):
            raise UserError(f'{folder}: eval run "{name}" is incomplete; {resume}')
        notes.append(f"{name} is incomplete: compared as far as it got ({resume})")
    if not scored:
        raise UserError(f"{folder}: questions.parquet is missing; {rescore(folder)}")
    return EvalRun(name, folder, record, _train_run_of(record, folder))
