"""Run folders as `gtpo view` shows them: read again and again while they grow; nothing is written.

A folder may hold anything between nothing yet and a finished run. What cannot be read is an `error` of that run, in
words; the others go on.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from gtpo.evalkit.comparison.training_curves import LN2, METRICS, Curve, Metric, curves_of, gate, initial_entropy
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
    """Return the folders of the runs of these names or paths, and of the eval runs made of them. Raises UserError."""
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
    # The time of a folder changes with its files.
    names = ("run.json", "metrics.jsonl", "trainer_state.json", "eval.json", "checkpoints", "completions", "samples")
    stats = [(path.stat().st_mtime_ns, path.stat().st_size) for path in (folder / n for n in names) if path.exists()]
    return f"{folder.stat().st_mtime_ns} {stats}"


class Training:
    """One train run, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = MetricsLog(TrainFolder(folder))

    def summary(self) -> dict[str, Any]:
        """Return status, steps, gate and curves, at most POINTS steps of each."""
        run, curves = TrainFolder(self.folder), curves_of(self._log)
        rewards = [key for key in curves if key.startswith("rewards/") and key.endswith("/mean")]
        shown = [key for key in (*rewards, *(metric.key for metric in SHOWN)) if key in curves]
        about = run.document
        return {
            "method": run.preset,
            "sft": run.method == "sft",
            "status": run.status if about else "starting",
            "step": max((float(curve.steps[-1]) for curve in curves.values()), default=about.get("step")),
            "steps": about.get("steps"),
            "stopped": str(about.get("stopped_because") or ""),
            "gate": gate(run),
            "initial_entropy": initial_entropy(run),
            "seconds": about.get("wall_time_s"),
            "written": self._log.written,
            "warnings": self._warnings(run, curves),
            "rollouts": [path.stem for path in run.completions_files()],
            "curves": {key: _for_page(curves[key]) for key in shown},
        }

    def _warnings(self, run: TrainFolder, curves: dict[str, Curve]) -> list[str]:
        """Return what is wrong with the run, in sentences; why it stopped, run.json says."""
        found = []
        steps = {step: ", ".join(row["nonfinite"]) for step, row in self._log.rows.items() if row.get("nonfinite")}
        if steps:
            found.append(
                f"values that were not finite at {len(steps)} step{'s' * (len(steps) > 1)}, the last at step "
                f"{max(steps):g} ({steps[max(steps)]})"
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


def _for_page(curve: Curve) -> dict[str, list[float]]:
    """A curve for the page: if it is thinned, each point has the lowest and the highest value of its steps too."""

    def short(values: Any) -> list[float]:
        return [float(f"{value:.5g}") for value in values.tolist()]

    thin = curve.thinned(POINTS)
    out = {"x": thin.steps.tolist(), "y": short(thin.values)}
    if thin is not curve:
        out["low"], out["high"] = map(short, curve.extremes(POINTS))
    return out


class _Row(NamedTuple):
    """A stored sample without its completion, and where that is."""

    path: Path
    place: int
    benchmark: str
    question_id: str
    sample_index: int
    format_ok: bool | None
    tokens: int | None
    finish_reason: str | None
    error: str | None
    verdict: str
    answer: str | None

    @property
    def kinds(self) -> list[str]:
        """The choices of the page's list that show it."""
        found = ["any", self.verdict] + ["format"] * (not self.format_ok)
        return found + ["truncated"] * (self.finish_reason == "length")


class Evaluation:
    """One eval run, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key: Any = None
        self._read: list[_Row] = []

    def _record(self) -> EvalRecord:
        return read_record(self.folder) if (self.folder / "eval.json").is_file() else EvalRecord()

    def summary(self) -> dict[str, Any]:
        """Return status, and of each benchmark its questions, samples, pass@1 and verdicts, from what is stored."""
        record, rows = self._record(), self._rows()
        samples, asked = Counter(row.benchmark for row in rows), {(row.benchmark, row.question_id) for row in rows}
        benchmarks = []
        for name in dict.fromkeys([*record.benchmarks, *samples]):
            entry = record.benchmarks.get(name)
            rate = entry.pass_at_k.get(1) if entry else None
            maj = max(entry.maj_at_k, default=1) if entry else 1
            benchmarks.append({
                "name": name,
                "questions": sum(benchmark == name for benchmark, _ in asked),
                "samples": samples[name],
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
        is that question only.
        """
        rows = [row for row in self._rows() if row.benchmark == benchmark]
        problems = load_problems(EvalRun("", (self.folder,), (self._record(),)), benchmark)
        questions = dict.fromkeys(row.question_id for row in rows)
        if (word := find.strip()) in questions:
            questions = {word: None}
        elif word := word.casefold():
            texts = {question: f"{question}\n{problems.get(question, ('',))[0]}" for question in questions}
            questions = dict.fromkeys(question for question, text in texts.items() if word in text.casefold())
        rows = [row for row in rows if row.question_id in questions]
        counts = Counter({"any": 0})
        for row in rows:
            counts.update(row.kinds)
        shown = _wrong_first([row for row in rows if verdict in row.kinds])
        page = max(0, min(page, -(-len(shown) // PAGE) - 1))
        return {
            "total": len(shown), "counts": counts, "page": page, "each": PAGE,
            "samples": self._with_texts(shown[page * PAGE : (page + 1) * PAGE], problems),
        }  # fmt: skip

    def _with_texts(self, rows: list[_Row], problems: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
        columns = {path: read_table(path, ["completion"], remedy=AGAIN).column(0) for path in {r.path for r in rows}}
        found = []
        for row in rows:
            text, cut = shortened(columns[row.path][row.place].as_py() or "", LONGEST)
            problem, gold = problems.get(row.question_id, ("", ""))
            found.append({
                "question": row.question_id, "problem": [segments(shortened(problem, LONGEST)[0]), gold],
                "index": row.sample_index, "verdict": row.verdict, "answer": row.answer, "format": bool(row.format_ok),
                "tokens": row.tokens, "finish": row.finish_reason, "error": row.error, "text": text, "cut": cut,
            })  # fmt: skip
        return found

    def _rows(self) -> list[_Row]:
        scoring, files = self._record().scoring, sorted((self.folder / "samples").glob("part-*.parquet"))
        key = scoring, *(path.stat().st_mtime_ns for path in files)
        if key != self._key:
            names = [*_Row._fields[2:-2], f"verdict_{scoring}", f"answer_{scoring}"]
            tables = ((path, read_table(path, names, remedy=AGAIN)) for path in files)
            rows = (
                (path, zip(*(column.to_pylist() for column in table.columns), strict=True)) for path, table in tables
            )
            every = [_Row(path, place, *values) for path, found in rows for place, values in enumerate(found)]
            self._key, self._read = key, [row._replace(verdict=row.verdict or "UNSCORED") for row in every]
        return self._read


def _wrong_first(rows: list[_Row]) -> list[_Row]:
    """Order samples: wrong ones first; of those, one of each question before a second of any."""
    rank = {name: place for place, name in enumerate(_WORST_FIRST)}
    seen: Counter[tuple[str, str]] = Counter()
    keyed: list[tuple[int, int, int, _Row]] = []
    for row in rows:
        keyed.append((rank.get(row.verdict, len(rank)), seen[row.verdict, row.question_id], len(keyed), row))
        seen[row.verdict, row.question_id] += 1
    return [row for *_, row in sorted(keyed, key=lambda entry: entry[:3])]
