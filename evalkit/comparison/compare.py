"""Runs against runs: one table a benchmark, every difference paired by question and corrected for their number.

A table holds, for R runs on the Q questions they share, pass@k and maj@k for the chosen k and the format rate, each
with its 95 % interval, and for every run but the baseline the paired difference to the baseline. All differences of
one table are one family for Holm's correction; a difference is significant where its corrected p-value is at most
5 %, and only then does any output emphasise it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evalkit.results.find import SETTINGS, settings
from evalkit.results.questions import Questions, load_problems, load_questions
from evalkit.results.run import EvalRun, TrainRun
from evalkit.statistics import Interval, PairedDifference, differences, holm, mean_interval
from rewards.support.errors import UserError, did_you_mean

ALPHA = 0.05
"""Family-wise error rate of one table."""
PASS, MAJ, FORMAT = "pass@k", "maj@k", "format"
BASELINE_ORDER = ("grpo", "sft", "")
"""The default baseline: the first run of the first of these methods (none: a model that was not trained here),
else the first run given."""


class Column(NamedTuple):
    """One measured quantity: pass@k or maj@k at a k, or the format rate (k = 0)."""

    metric: str
    k: int

    @property
    def label(self) -> str:
        """`pass@8`, `maj@64`, `format`."""
        return self.metric.replace("@k", f"@{self.k}")


@dataclass(frozen=True)
class Cell:
    """One run's value of one column, and how it differs from the baseline (None for the baseline itself)."""

    interval: Interval
    paired: PairedDifference | None = None
    p_holm: float = 1.0

    @property
    def significant(self) -> bool:
        """Whether the difference survives the correction."""
        return self.paired is not None and self.p_holm <= ALPHA

    @property
    def direction(self) -> int:
        """1: significantly better than the baseline, -1: worse, 0: no difference shown."""
        if not self.significant or self.paired is None:
            return 0
        return 1 if self.paired.difference > 0 else -1


@dataclass(frozen=True)
class Table:
    """One benchmark (or one subject of it) compared."""

    benchmark: str
    group: str
    """Subject or level; empty for the whole benchmark."""
    questions: int
    samples: int
    """Samples a question: the least over runs."""
    runs: list[str]
    columns: list[Column]
    cells: dict[tuple[str, Column], Cell] = field(repr=False)
    baseline: str | None
    """None where there is nothing to compare with."""
    tests: int
    """Size of the family that Holm's correction covers."""
    notes: list[str]

    @property
    def title(self) -> str:
        """`math · geometry`."""
        return f"{self.benchmark} · {self.group}" if self.group else self.benchmark

    def detectable(self, column: Column) -> float | None:
        """The smallest difference this column could have shown: the median over the runs compared."""
        found = [cell.paired.detectable for run in self.runs if (cell := self.cells[run, column]).paired is not None]
        return float(np.median(found)) if found else None


@dataclass(frozen=True)
class Comparison:
    """Everything that any output of `gtpo compare` shows."""

    runs: list[EvalRun]
    trains: list[TrainRun]
    scoring: str
    baseline: str | None
    baseline_reason: str
    tables: list[Table]
    notes: list[str]
    """What the reader must know: mismatches, missing parts, joined shards."""
    shared_settings: dict[str, Any]


def choose_ks(least: int, asked: Sequence[int] | None) -> list[int]:
    """The k to show: those asked for, else 1, 8, 16, 32, 64 as far as n goes, or 1, 2, 4, ... for small n; and n."""
    if asked:
        return sorted(set(asked))
    ladder = [k for k in (1, 8, 16, 32, 64) if k <= least]
    if least < 16:
        ladder = [k for k in (1, 2, 4, 8) if k <= least]
    return sorted({*ladder, least})


def compare(
    runs: list[EvalRun],
    trains: list[TrainRun],
    *,
    baseline: str | None = None,
    ks: Sequence[int] | None = None,
    scoring: str | None = None,
    per_subject: bool = False,
    allow_mismatch: bool = False,
    notes: Iterable[str] = (),
) -> Comparison:
    """Compare eval runs. Raises UserError where they cannot be compared, naming the setting that differs."""
    notes = list(notes)
    scoring = _scoring(runs, scoring)
    chosen, reason = choose_baseline(runs, baseline)
    benchmarks = list(dict.fromkeys(name for run in runs for name in run.benchmarks))
    shared = _check_settings(runs, scoring, allow_mismatch, notes)
    tables: list[Table] = []
    for benchmark in benchmarks:
        holders = [run for run in runs if benchmark in run.benchmarks]
        tables += _benchmark_tables(benchmark, holders, chosen, ks, scoring, per_subject, allow_mismatch)
    if len(runs) > 1 and all(len(table.runs) < 2 for table in tables):
        sets = "; ".join(f"{run.name}: {', '.join(run.benchmarks)}" for run in runs)
        raise UserError(f"these runs have no question in common ({sets}): evaluate them on the same benchmark")
    return Comparison(runs, trains, scoring, chosen, reason, tables, notes, shared)


def _scoring(runs: list[EvalRun], asked: str | None) -> str:
    headlines = {run.name: run.record.scoring for run in runs}
    if asked:
        return asked
    if len(set(headlines.values())) > 1:
        raise UserError(
            f"scoring differs ({_by_run(headlines)}); both are stored: pass --scoring strict or --scoring lenient"
        )
    return next(iter(headlines.values()), "strict")  # no eval run: only training is shown


def choose_baseline(runs: list[EvalRun], asked: str | None) -> tuple[str | None, str]:
    """Return the baseline's name and why it is the baseline. `asked`: a run's name, folder or method."""
    if asked is not None:
        for match in (
            lambda run: run.name == asked,
            lambda run: any(folder.resolve() == run_path(asked) for folder in run.folders),
            lambda run: run.train is not None and run.train.folder.resolve() == run_path(asked),
            lambda run: run.method == asked,
        ):
            found = [run.name for run in runs if match(run)]
            if len(found) == 1:
                return found[0], "chosen with --baseline"
        names = [run.name for run in runs]
        raise UserError(
            f'--baseline "{asked}" is not among the runs compared: {", ".join(names)}.{did_you_mean(asked, names)}'
        )
    if len(runs) < 2:
        return None, "fewer than two eval runs: nothing to compare with"
    for method in BASELINE_ORDER:
        for run in runs:
            if run.method == method:
                what = f"with method {method}" if method else "that was not trained here"
                return run.name, f"the first run {what}; choose another with --baseline"
    return runs[0].name, "the first run given; choose another with --baseline"


def run_path(text: str) -> Any:
    """The folder that a --baseline argument means, if it is one."""
    from pathlib import Path

    return Path(text).resolve()


def _by_run(values: dict[str, Any]) -> str:
    def short(value: Any) -> str:
        text = "unknown" if value is None else str(value)
        return text if len(text) <= 60 else f"{text[:57]}..."

    return "; ".join(f"{run}: {short(value)}" for run, value in values.items())


def _check_settings(runs: list[EvalRun], scoring: str, allow: bool, notes: list[str]) -> dict[str, Any]:
    """Refuse (or, allowed, note) every setting in which the runs differ; return those they share."""
    found = {run.name: settings(run) | {"scoring": scoring} for run in runs}
    shared = {}
    problems = []
    for key in SETTINGS:
        values = {name: entry[key] for name, entry in found.items()}
        if len({str(value) for value in values.values()}) <= 1:
            shared[key] = next(iter(values.values()), None)
            continue
        if key == "max_tokens" and not _any_cut_off(runs):
            notes.append(f"max_tokens differs ({_by_run(values)}), but no completion reached it")
            continue
        problems.append(f"{key} differs ({_by_run(values)})")
    if problems and not allow:
        raise UserError(
            f"these runs cannot be compared: {'; and '.join(problems)}. --allow-mismatch compares them all the same, "
            "with a note"
        )
    notes += [f"not like for like: {problem}" for problem in problems]
    return shared


def _any_cut_off(runs: list[EvalRun]) -> bool:
    """Whether any completion stopped at the token limit (or the run does not say)."""
    rates = [entry.truncation_rate for run in runs for r in run.records for entry in r.benchmarks.values()]
    return any(rate is None or rate > 0 for rate in rates)


def _benchmark_tables(
    benchmark: str,
    runs: list[EvalRun],
    baseline: str | None,
    ks: Sequence[int] | None,
    scoring: str,
    per_subject: bool,
    allow: bool,
) -> list[Table]:
    notes: list[str] = []
    loaded = {run.name: load_questions(run, benchmark, scoring) for run in runs}
    loaded = _common_questions(benchmark, runs, loaded, allow, notes)
    least = min(part.pass_at_k.shape[1] for part in loaded.values())
    for name, part in loaded.items():
        if ks and max(ks) > part.pass_at_k.shape[1]:
            had = part.pass_at_k.shape[1]
            raise UserError(
                f"k = {max(ks)} needs {max(ks)} samples a question; {name} has n = {had} on {benchmark} (gtpo eval "
                f"--k {max(ks)} with the same --out adds the missing ones)"
            )
    if baseline is not None and baseline not in loaded:
        notes.append(f"no differences here: the baseline {baseline} was not evaluated on {benchmark}")
        baseline = None
    elif len(loaded) < 2:
        baseline = None
    shown = choose_ks(least, ks)
    tables = [_table(benchmark, "", loaded, shown, baseline, notes)]
    if per_subject:
        first = next(iter(loaded.values()))
        groups: list[tuple[str, NDArray[np.bool_]]] = [
            (subject, first.subject == subject) for subject in sorted(set(first.subject)) if subject
        ]
        groups += [(f"level {level}", first.level == level) for level in sorted(set(first.level.tolist())) if level]
        for group, rows in groups:
            tables.append(
                _table(benchmark, group, {n: part.take(rows) for n, part in loaded.items()}, shown, baseline, [])
            )
    return tables


def _common_questions(
    benchmark: str, runs: list[EvalRun], loaded: dict[str, Questions], allow: bool, notes: list[str]
) -> dict[str, Questions]:
    """The questions that all runs answered, in one order; other questions are refused or, allowed, left out."""
    first = next(iter(loaded.values()))
    same_ids = all(np.array_equal(first.ids, part.ids) for part in loaded.values())
    other_golds = _other_golds(benchmark, runs)
    if same_ids and not other_golds:
        return loaded
    counts = "; ".join(f"{name}: {part.ids.size} questions" for name, part in loaded.items())
    if same_ids:
        problem = f"the golds of {benchmark} differ under the same ids ({other_golds})"
    else:
        problem = f"the questions of {benchmark} differ ({counts})"
    if not allow:
        raise UserError(
            f"these runs cannot be compared: {problem}. --allow-mismatch compares the questions they share, with a note"
        )
    common: Any = first.ids
    for part in loaded.values():
        common = np.intersect1d(common, part.ids)
    if common.size == 0:
        raise UserError(f"these runs have no question of {benchmark} in common ({counts})")
    notes.append(f"not like for like: {problem}; compared on the {common.size} questions they share")
    return {name: part.take(np.isin(part.ids, common)) for name, part in loaded.items()}


def _other_golds(benchmark: str, runs: list[EvalRun]) -> str:
    """Say how two runs' golds of the same ids differ; empty where they do not. Checksums settle it where they can."""
    sums = {
        run.name: sorted(
            str(record.benchmarks[benchmark].checksum) for record in run.records if benchmark in record.benchmarks
        )
        for run in runs
    }
    if len({tuple(found) for found in sums.values()}) <= 1:
        return ""
    first, *rest = runs
    golds = load_problems(first, benchmark)
    for run in rest:
        theirs = load_problems(run, benchmark)
        if not golds or not theirs:
            return f"checksums {_by_run(sums)}"
        for question in golds.keys() & theirs.keys():
            if golds[question][1] != theirs[question][1]:
                return f"{question}: {first.name} {golds[question][1]}, {run.name} {theirs[question][1]}"
    return ""


def _table(
    benchmark: str, group: str, loaded: dict[str, Questions], ks: list[int], baseline: str | None, notes: list[str]
) -> Table:
    columns = [Column(PASS, k) for k in ks] + [Column(MAJ, k) for k in ks] + [Column(FORMAT, 0)]
    names = list(loaded)
    scores = {(name, column): _scores(part, column) for name, part in loaded.items() for column in columns}
    paired: dict[tuple[str, Column], PairedDifference] = {}
    adjusted: dict[tuple[str, Column], float] = {}
    tests = 0
    if baseline is not None:
        keys = [(name, column) for name in names if name != baseline for column in columns]
        # maj@1 is pass@1 where ties and abstentions make no difference: one hypothesis, tested once.
        twins = {key for key in keys if key[1] == Column(MAJ, 1) and _is_twin(scores, key[0], baseline)}
        tested = [key for key in keys if key not in twins]
        a = np.stack([scores[key] for key in tested])
        b = np.stack([scores[baseline, column] for _, column in tested])
        paired = dict(zip(tested, differences(a[:, None], b[:, None]), strict=True))
        adjusted = dict(zip(tested, holm([paired[key].p_value for key in tested]).tolist(), strict=True))
        for name, column in twins & set(keys):
            if (name, Column(PASS, 1)) in paired:
                paired[name, column] = paired[name, Column(PASS, 1)]
                adjusted[name, column] = adjusted[name, Column(PASS, 1)]
        tests = len(tested)
    cells = {
        key: Cell(mean_interval(values), paired.get(key), adjusted.get(key, 1.0)) for key, values in scores.items()
    }
    least = int(min(part.n.min() for part in loaded.values()))
    return Table(
        benchmark, group, next(iter(loaded.values())).ids.size, least, names, columns, cells, baseline, tests, notes
    )


def _scores(part: Questions, column: Column) -> NDArray[np.float64]:
    """[Q] per-question scores of one column."""
    if column.metric == FORMAT:
        return part.format_ok / part.n
    source = part.pass_at_k if column.metric == PASS else part.maj_at_k
    return np.clip(source[:, column.k - 1], 0.0, 1.0)


def _is_twin(scores: dict[tuple[str, Column], NDArray[np.float64]], name: str, baseline: str) -> bool:
    one = (Column(PASS, 1), Column(MAJ, 1))
    return all(
        (run, one[0]) in scores and np.allclose(scores[run, one[0]], scores[run, one[1]], atol=1e-9)
        for run in (name, baseline)
    )


VERDICTS = ("better", "worse", "no difference shown")
"""What a comparison can end in."""


def verdict(table: Table, run: str) -> dict[str, list[str]]:
    """Phrases a reader can quote, by what they show: pass@1, maj@k and pass@k at the largest k, and format."""
    top = max(column.k for column in table.columns)
    wanted = [Column(PASS, 1), Column(MAJ, top), Column(PASS, top), Column(FORMAT, 0)]
    out: dict[str, list[str]] = {}
    for column in dict.fromkeys(column for column in wanted if column in table.columns):
        if column == Column(MAJ, 1):
            continue  # pass@1 again
        cell = table.cells[run, column]
        if cell.paired is None:
            continue
        d = cell.paired
        word = {1: "better", -1: "worse", 0: "no difference shown"}[cell.direction]
        spread = f"{100 * d.difference:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"
        out.setdefault(word, []).append(f"{column.label} {spread} ({p_text(cell.p_holm)})")
    return {word: out[word] for word in VERDICTS if word in out}


def p_text(p: float) -> str:
    """`p = 0.031`, `p = 0.0004`, `p < 0.0001`."""
    if p < 1e-4:
        return "p < 0.0001"
    return f"p = {p:.2f}" if p >= 0.1 else f"p = {p:.3f}" if p >= 0.001 else f"p = {p:.4f}"
