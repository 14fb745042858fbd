"""Run folders as a reader finds them: by path or by name, checked.

An eval run is a folder with `eval.json`; a train run is a folder with `run.json` and stands for the eval runs made of
it. What makes a run unreadable is a UserError that names it and says what to do.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from gtpo.common.errors import UserError, did_you_mean
from gtpo.runs.eval_record import EvalRecord, read_record
from gtpo.runs.eval_run import EvalRun
from gtpo.runs.train_run import ENDED, RESULTS, TrainFolder


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
    for given, folder in [(name, resolve(name)) for name in names]:
        if (folder / "run.json").is_file() and not (folder / "eval.json").is_file():
            train = TrainFolder(folder)
            if train.status not in ENDED:
                resume = f"resume it with: gtpo train {train.config_yaml}"
                if not allow_incomplete:
                    raise UserError(
                        f'{folder}: train run "{train.name}" is incomplete (status {train.status}); {resume}'
                    )
                notes.append(
                    f"{train.name} is an incomplete train run (status {train.status}): shown as far as it got "
                    f"({resume})"
                )
            elif train.collapsed:
                notes.append(f"{train.name} collapsed: {train.document.get('stopped_because')}")
            trains[folder.resolve()] = train
            found = []
            for entry, record in evals_of(folder):
                if record.status == "complete":
                    found.append(entry)
                else:
                    notes.append(f"{train.name}: eval run {entry.name} is incomplete and left out")
            if len(found) > 1:
                listed = ", ".join(map(str, found))
                # The one of its name is where `gtpo eval RUN` puts it; the others were put elsewhere with --out.
                own = [entry for entry in found if entry.name == folder.resolve().name]
                if not own:
                    raise UserError(
                        f'train run "{train.name}" has {len(found)} eval runs ({listed}): name the one to compare'
                    )
                notes.append(f"{train.name} has {len(found)} eval runs ({listed}): {own[0]} is compared")
                found = own
            if found:
                evals.append(replace(read_eval_run(found[0]), name=train.name, train=train))
            else:
                alone.append(given)
        else:
            run = read_eval_run(folder, allow_incomplete=allow_incomplete, notes=notes)
            behind = _train_run_of(run)
            if behind is not None:
                trains.setdefault(behind.root.resolve(), behind)
                run = replace(run, train=behind)
            evals.append(run)
    if alone:
        notes.append(f"no eval run yet of {', '.join(alone)}: training only (gtpo eval {alone[0]})")
    for i, run in enumerate(evals):
        for other in evals[:i]:
            if run.folder.resolve() == other.folder.resolve():
                raise UserError(f'run "{run.name}" is given twice ({run.folder}); name it once')
            if run.name == other.name:
                raise UserError(
                    f'two runs are called "{run.name}" ({other.folder} and {run.folder}): rename one (its eval.json '
                    "carries the name)"
                )
    return evals, list(trains.values()), notes


def resolve(given: str) -> Path:
    """Return the folder of a path to it or to its eval.json, or of a name under results/.

    UserError, with the nearest name, if there is none.
    """
    path = Path(given)
    if path.name in ("eval.json", "run.json") and path.is_file():
        return path.parent
    if path.is_dir() and any(
        (path / part).exists() for part in ("eval.json", "run.json", "samples", "metrics.jsonl", "trainer_state.json")
    ):
        return path
    places = [RESULTS / kind / given for kind in ("eval", "train")]
    there = [] if path.is_absolute() else [place for place in places if place.is_dir()]
    if len(there) == 2:
        # Evaluating a train run under its own name is the usual case; the train run then stands for both.
        if _names_train_run(_peek(there[0]), there[1]):
            return there[1]
        raise UserError(f'"{given}" is an eval run and another train run: give the path, {there[0]} or {there[1]}')
    if there:
        return there[0]
    if path.is_dir():
        raise UserError(f"{path}: neither an eval run (eval.json) nor a train run (run.json)")
    if path.is_file():
        raise UserError(f"{path} is a file, not a run; score it first: gtpo eval --completions {path}")
    known = [entry.name for kind in ("eval", "train") for entry in subfolders(RESULTS / kind)]
    raise UserError(
        f'no run "{given}": no such folder, and none of that name in {RESULTS}/eval or {RESULTS}/train.'
        f"{did_you_mean(given, known)}"
    )


def subfolders(parent: Path) -> list[Path]:
    """Return the folders in a folder, by name; none if it is not there."""
    return sorted(entry for entry in parent.iterdir() if entry.is_dir()) if parent.is_dir() else []


def _peek(folder: Path) -> EvalRecord | None:
    """Return the eval.json of a folder, or None if it cannot be read: for searching among runs nobody asked for."""
    try:
        return _read_once(folder.resolve(), (folder / "eval.json").stat().st_mtime_ns)
    except (UserError, OSError):
        return None


@lru_cache(maxsize=1024)
def _read_once(folder: Path, changed: int) -> EvalRecord:
    """Every train run looks through the same eval runs for its own; `changed` makes a rewritten file another one."""
    return read_record(folder)


def read_eval_run(folder: Path, *, allow_incomplete: bool = False, notes: list[str] | None = None) -> EvalRun:
    """Read and check one eval run. Raises UserError naming file and field."""
    if not (folder / "eval.json").is_file():
        raise UserError(
            f"{folder}: the eval run is incomplete (no eval.json yet); run the gtpo eval command that started it "
            "again, it resumes"
        )
    record = read_record(folder)
    name = record.name or folder.resolve().name
    if record.status != "complete":
        resume = f"resume it with: {record.command}" if record.command else "run its gtpo eval command again"
        if not (allow_incomplete and (folder / "questions.parquet").is_file()):
            raise UserError(f'{folder}: eval run "{name}" is incomplete; {resume}')
        if notes is not None:
            notes.append(f"{name} is incomplete: compared as far as it got ({resume})")
    if not (folder / "questions.parquet").is_file():
        raise UserError(f"{folder}: questions.parquet is missing; write it again with gtpo eval --rescore")
    return EvalRun(name, folder, record)


def _names_train_run(record: EvalRecord | None, folder: Path) -> bool:
    """Return whether an eval.json says that its model is this train run."""
    named = record.model.train_run if record is not None else None
    if not named:
        return False
    return Path(named).name == folder.resolve().name or Path(named).resolve() == folder.resolve()


def _both(folder: Path) -> tuple[Path, Path]:
    """The folder as it was given and as links lead to it: results/ or its parts may be links to a larger disk."""
    return Path(os.path.abspath(folder)), folder.resolve()


def _lies_in(record: EvalRecord, folder: Path) -> bool:
    """Return whether the weights that were evaluated lay in a train run's folder."""
    places = [Path(place) for place in (record.model.adapter, record.model.source) if place]
    return any(place.resolve().is_relative_to(folder.resolve()) for place in places)


def evals_of(folder: Path) -> list[tuple[Path, EvalRecord]]:
    """Return the eval runs of a train run, complete or not: beside it (results/train/X -> results/eval/*), or here.

    A name says nothing across projects: under this results/ another one's train run has those made of its folder.
    """
    own = {(place.parent.parent / "eval").resolve() for place in _both(folder)}
    here = (RESULTS / "eval").resolve()
    if folder.resolve().parent == (RESULTS / "train").resolve():
        own.add(here)
    found = []
    for entry in sorted(entry for home in own | {here} for entry in subfolders(home)):
        record = _peek(entry)
        if record is None or not _names_train_run(record, folder):
            continue
        if entry.parent in own or _lies_in(record, folder):
            found.append((entry, record))
    return found


def _train_run_of(run: EvalRun) -> TrainFolder | None:
    """The train run that an eval run names, if its folder is still there.

    It is looked for beside the eval run, under results/ for an eval run within the working directory, and where the
    weights were: a run of that name elsewhere is another one.
    """
    named = run.record.model.train_run
    if not named:
        return None
    name, folder = Path(named).name, run.folder
    places = [Path(named)] if Path(named).is_absolute() else []
    places += [place.parent.parent / "train" / name for place in _both(folder)]
    if any(place.is_relative_to(Path.cwd()) for place in _both(folder)):
        places.append(RESULTS / "train" / name)
    for weights in (run.record.model.adapter, run.record.model.source):
        if weights and Path(weights).is_absolute():
            places += [parent for parent in Path(weights).parents if parent.name == name]
    for place in places:
        if (place / "run.json").is_file():
            return TrainFolder(place)
    return None
