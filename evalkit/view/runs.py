"""Run folders as `gtpo view` shows them: read again and again while they grow, by whom nothing is written.

A folder may hold anything between nothing yet and a finished run. What cannot be read is an `error` of that run, in
words; the others go on.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gtpo.evalkit.comparison.training_curves import (
    LN2,
    METRICS,
    Curve,
    Metric,
    curves_of,
    gate,
    initial_entropy,
)
from gtpo.evalkit.report.excerpts import groups_of, shortened
from gtpo.evalkit.report.maths import segments
from gtpo.runs.eval_record import EvalRecord, read_record
from gtpo.runs.eval_run import EvalRun
from gtpo.runs.find import RESULTS, evals_of, resolve, subfolders
from gtpo.runs.questions import AGAIN, load_problems
from gtpo.runs.tables import read_table
from gtpo.runs.train_run import MetricsLog, TrainFolder

POINTS = 500
"""Steps of a curve that the page gets; longer ones are averaged."""
PAGE = 50
"""Samples that the page gets at a time."""
LONGEST = 60_000
"""Characters of a completion or question that the page gets."""
ROLLOUT_BYTES = 600_000
"""Text of the last rollout that the page gets."""
_REST = tuple(metric for metric in METRICS if metric.key not in ("conflict/forward", "conflict/backward"))
SHOWN = (
    *_REST[:2],
    Metric("validation/pass@1", "Accuracy on held-out problems", "share", 0.0, 1.0),
    *_REST[2:],
    Metric("kl/untrained", "KL to the untrained model", "nats", 0.0),
    Metric("time/step", "Time of a step", "seconds", 0.0),
)
"""The curves of the page, after those of the reward functions."""
RECENT = 20
"""Logged steps that a warning is about."""
_WORST_FIRST = ("INCORRECT", "UNSIMPLIFIED", "NO_ANSWER", "REJECTED", "TIMEOUT", "UNUSABLE_GOLD", "UNSCORED", "CORRECT")


def find_folders(names: list[str]) -> list[Path]:
    """Return the folders of the runs of these names or paths, and of the eval runs made of them.

    UserError where there is none.
    """
    found: list[Path] = []
    for name in names:
        path = Path(name)
        # The folder of a run that has only begun holds little more than its lock.
        begun = is_eval(path) or any((path / part).exists() for part in ("config.yaml", "run.json", ".lock"))
        for folder in [path] if begun else resolve(name):
            found += [folder, *(entry for entry, _ in evals_of(folder))]
    return list({folder.resolve(): folder for folder in found}.values())


def every_folder() -> list[Path]:
    """Return the folders of all runs under results/, by name."""
    return [*subfolders(RESULTS / "train"), *subfolders(RESULTS / "eval")]


def is_eval(folder: Path) -> bool:
    """Return whether a folder is that of an eval run."""
    return (folder / "eval.json").is_file() or (folder / "samples").is_dir()


def stamp(folder: Path) -> str:
    """Return what changes whenever a run has something new to show."""
    files = [folder / name for name in ("run.json", "metrics.jsonl", "eval.json")]
    # The time of a folder changes with its files.
    files += [folder / "completions", folder / "samples"]
    stats = [(path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.exists()]
    return "-".join(f"{time}.{size}" for time, size in stats)


def _short(values: Any) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


def _thinned(curve: Curve) -> dict[str, list[float]]:
    """A curve for the page: where it is thinned, each point has the lowest and the highest value of its steps too."""
    thin = curve.thinned(POINTS)
    out = {"x": thin.steps.tolist(), "y": _short(thin.values)}
    if thin is not curve:
        out["low"], out["high"] = map(_short, curve.extremes(POINTS))
    return out


class Training:
    """One train run, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = MetricsLog(TrainFolder(folder))

    def summary(self) -> dict[str, Any]:
        """Return status, steps, gate and curves, at most POINTS steps of each."""
        run = TrainFolder(self.folder)
        curves = curves_of(self._log)
        rewards = [key for key in curves if key.startswith("rewards/") and key.endswith("/mean")]
        shown = [key for key in (*rewards, *(metric.key for metric in SHOWN)) if key in curves]
        files = run.completions_files()
        last = max((float(curve.steps[-1]) for curve in curves.values()), default=None)
        return {
            "method": run.preset,
            "sft": run.method == "sft",
            "status": run.status if run.document else "starting",
            "step": last if last is not None else run.document.get("step"),
            "steps": run.document.get("steps"),
            "stopped": str(run.document.get("stopped_because") or ""),
            "gate": gate(run),
            "initial_entropy": initial_entropy(run),
            "seconds": run.document.get("wall_time_s"),
            "written": self._log.path.stat().st_mtime if curves else None,
            "warnings": self._warnings(run, curves),
            "rollouts": [path.stem for path in files],
            "curves": {key: _thinned(curves[key]) for key in shown},
        }

    def _warnings(self, run: TrainFolder, curves: dict[str, Curve]) -> list[str]:
        """Return what is wrong with the run, in sentences; why it stopped, run.json says."""
        found = []
        steps = {step: row["nonfinite"] for step, row in self._log.rows.items() if row.get("nonfinite")}
        if steps:
            found.append(
                f"values that were not finite at {len(steps)} step{'s' * (len(steps) > 1)}, the last at step "
                f"{max(steps):g} ({', '.join(steps[max(steps)])})"
            )
        if run.method != "sft" and "entropy/mean" in curves:
            entropy = float(curves["entropy/mean"].values[-RECENT:].mean())
            if entropy > LN2:
                found.append(f"entropy {entropy:.3f} nats, above ln 2 = {LN2:.3f} (mean of the last {RECENT} lines)")
        return found

    def rollout(self, log: str) -> list[dict[str, Any]]:
        """Return the groups of a logged rollout (else of the last one), the most telling first."""
        files = {path.stem: path for path in TrainFolder(self.folder).completions_files()}
        path = files.get(log) or (list(files.values())[-1] if files else None)
        return groups_of(path, ROLLOUT_BYTES) if path else []


def _wrong_first(verdicts: Any, questions: Any) -> Any:
    """Order of samples [N]: wrong ones first; of those, one of each question before a second of any."""
    rank = {name: place for place, name in enumerate(_WORST_FIRST)}
    number: dict[str, int] = {}
    seen: Counter[tuple[int, str]] = Counter()
    keys = []
    for verdict, question in zip(verdicts, questions, strict=True):
        place = rank.get(verdict, len(rank))
        keys.append((place, seen[place, question], number.setdefault(question, len(number))))
        seen[place, question] += 1
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=int)


def _matching(questions: Any, problems: dict[str, tuple[str, str]], find: str) -> Any:
    """Which samples [N] are of a question that has `find` in its id or text; a whole id is that question alone."""
    known = dict.fromkeys(questions.tolist())
    word = find.casefold()
    found = {q for q in known if word in q.casefold() or word in problems.get(q, ("",))[0].casefold()}
    return np.isin(questions.astype(str), [find] if find in known else sorted(found))


_LIGHT = ("benchmark", "question_id", "sample_index", "format_ok", "tokens", "finish_reason", "error")


class _Loaded(NamedTuple):
    key: Any
    files: tuple[Path, ...]
    starts: list[int]
    columns: dict[str, Any]


class Evaluation:
    """One eval run, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: _Loaded | None = None

    def _record(self) -> EvalRecord:
        return read_record(self.folder) if (self.folder / "eval.json").is_file() else EvalRecord()

    def summary(self) -> dict[str, Any]:
        """Return status, and of each benchmark its questions, samples, pass@1 and verdicts, from what is stored."""
        record = self._record()
        rows = self._rows()
        benchmarks = []
        for name in dict.fromkeys([*record.benchmarks, *rows["benchmark"].tolist()]):
            entry = record.benchmarks.get(name)
            mine = rows["benchmark"] == name
            rate = entry.pass_at_k.get(1) if entry else None
            maj = max(entry.maj_at_k, default=1) if entry else 1
            benchmarks.append({
                "name": name,
                "questions": len(set(rows["question_id"][mine].tolist())),
                "samples": int(mine.sum()),
                "asked": entry.questions * (entry.n_asked or entry.n or 0) if entry else 0,
                "pass1": [rate.mean, rate.low, rate.high] if rate else None,
                "maj": [maj, entry.maj_at_k[maj].mean] if entry and maj > 1 else None,
                "format": entry.format_rate if entry else None,
                "truncated": entry.truncation_rate if entry else None,
                "tokens": entry.mean_tokens if entry else None,
            })  # fmt: skip
        return {"status": record.status, "scoring": record.scoring, "benchmarks": benchmarks}

    def samples(self, benchmark: str, verdict: str, find: str, page: int) -> dict[str, Any]:
        """Return one page of the samples of a benchmark, wrong answers first, and how many there are of each verdict.

        verdict: a verdict, format (a wrong one), truncated, or any. find: part of a question's id or text; a whole id
        is that question alone.
        """
        rows = self._rows()
        problems = load_problems(EvalRun("", (self.folder,), (self._record(),)), benchmark)
        chosen = np.flatnonzero(rows["benchmark"] == benchmark)
        chosen = chosen[_matching(rows["question_id"][chosen], problems, find.strip())]
        verdicts = rows["verdict"][chosen]
        only = {
            "format": ~rows["format_ok"][chosen].astype(bool),
            "truncated": rows["finish_reason"][chosen] == "length",
            **{name: verdicts == name for name in dict.fromkeys((*_WORST_FIRST, *verdicts))},
        }
        counts = {name: int(those.sum()) for name, those in only.items() if those.any()}
        counts["any"] = len(chosen)
        if verdict in only:
            chosen = chosen[only[verdict]]
        order = chosen[_wrong_first(rows["verdict"][chosen], rows["question_id"][chosen])]
        page = max(0, min(page, -(-len(order) // PAGE) - 1))
        shown = order[page * PAGE : (page + 1) * PAGE]
        texts = self._completions(shown)
        found = []
        for row, text in zip(shown.tolist(), texts, strict=True):
            question = str(rows["question_id"][row])
            completion, cut = shortened(text or "", LONGEST)
            asked, gold = problems.get(question, ("", ""))
            found.append({
                "question": question,
                "problem": [segments(shortened(asked, LONGEST)[0]), gold],
                "index": int(rows["sample_index"][row]),
                "verdict": str(rows["verdict"][row]),
                "answer": rows["answer"][row],
                "format": bool(rows["format_ok"][row]),
                "tokens": rows["tokens"][row],
                "finish": rows["finish_reason"][row],
                "error": rows["error"][row],
                "text": completion,
                "cut": cut,
            })  # fmt: skip
        return {"total": int(order.size), "counts": counts, "page": page, "each": PAGE, "samples": found}

    def _rows(self) -> dict[str, Any]:
        """Return all columns but the completions: name -> [N]."""
        scoring = self._record().scoring
        files = tuple(sorted((self.folder / "samples").glob("part-*.parquet")))
        key = (scoring, tuple(path.stat().st_mtime_ns for path in files))
        if self._loaded is None or self._loaded.key != key:
            names = {name: name for name in _LIGHT} | {name: f"{name}_{scoring}" for name in ("verdict", "answer")}
            tables = [read_table(path, list(names.values()), remedy=AGAIN) for path in files]
            columns = {
                name: np.array([value for table in tables for value in table.column(stored).to_pylist()], dtype=object)
                for name, stored in names.items()
            }
            columns["verdict"] = np.array([value or "UNSCORED" for value in columns["verdict"]], dtype=object)
            starts = np.cumsum([0, *(len(table) for table in tables)]).tolist()
            self._loaded = _Loaded(key, files, starts, columns)
        return self._loaded.columns

    def _completions(self, rows: Any) -> list[str | None]:
        assert self._loaded is not None
        texts: dict[int, str | None] = {}
        for path, start, end in zip(self._loaded.files, self._loaded.starts, self._loaded.starts[1:], strict=False):
            mine = [row for row in rows.tolist() if start <= row < end]
            if mine:
                column = read_table(path, ["completion"], remedy=AGAIN).column(0)
                texts |= {row: column[row - start].as_py() for row in mine}
        return [texts[row] for row in rows.tolist()]
