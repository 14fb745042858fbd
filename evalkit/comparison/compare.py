"""Methods against methods on the questions they share: one table a benchmark, every difference paired by question.

A method is one run, or several that differ only in their training seed (evalkit/comparison/methods.py). What is said of
it against the baseline, and how that is corrected, is in evalkit/comparison/verdicts.py. A method's verdict depends
neither on which columns are shown nor on the other methods of the table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from gtpo.common.errors import UserError, did_you_mean
from gtpo.evalkit.comparison.columns import MAJ, METRICS, PASS, Column
from gtpo.evalkit.comparison.like_for_like import check_settings, common_scoring
from gtpo.evalkit.comparison.methods import Method, group, members_of
from gtpo.evalkit.comparison.questions import Shared, name_alike, share_questions
from gtpo.evalkit.comparison.verdicts import Cell, correct_family, differ, pairing_note
from gtpo.evalkit.statistics import MethodMean, method_mean
from gtpo.runs.find import EvalRun
from gtpo.runs.train_run import TrainFolder

# The default baseline: the first of these presets (none: a model that was not trained here), else the first given.
BASELINE_ORDER = ("grpo", "sft", "")


@dataclass(frozen=True, kw_only=True)
class Table(Shared):
    """One benchmark (or one subject of it) compared."""

    columns: list[Column]
    cells: dict[tuple[str, Column], Cell] = field(repr=False)
    # None if there is nothing to compare with.
    baseline: str | None

    @property
    def title(self) -> str:
        """`math · geometry`."""
        return f"{self.benchmark} · {self.group}" if self.group else self.benchmark


@dataclass(frozen=True)
class MethodComparison:
    """Everything that any output of `gtpo compare` shows."""

    # Those with an eval run, in the order given.
    methods: list[Method]
    # Those with a train run.
    trained: list[Method]
    scoring: str
    baseline: str | None
    baseline_reason: str
    # Columns of the table for a paper; the first is the primary metric.
    metrics: list[Column]
    tables: list[Table]
    # What the reader must know: mismatches, missing parts, what is not covered.
    notes: list[str]
    shared_settings: dict[str, Any]
    # Margin of equivalence, as a fraction; None: not asked for.
    margin: float | None = None
    # Whether the metrics were asked for.
    metrics_chosen: bool = False
    # Comparisons planned in all as seeds are added; each is at its share of ALPHA.
    looks: int = 1

    @property
    def benchmarks(self) -> list[Table]:
        """The tables of whole benchmarks."""
        return [table for table in self.tables if not table.group]

    @property
    def all_notes(self) -> list[str]:
        """The notes, and those of benchmarks under their names."""
        where: dict[str, list[str]] = {}
        for table in self.benchmarks:
            for note in table.notes:
                where.setdefault(note, []).append(table.benchmark)
        return [*self.notes, *(f"{', '.join(names)}: {note}" for note, names in where.items())]

    def average(self, method: str, column: Column) -> tuple[float, float | None] | None:
        """(mean over the benchmarks, its standard deviation over seeds or None); None if one is missing."""
        cells = [table.cells.get((method, column)) for table in self.benchmarks]
        values = [cell.value for cell in cells if cell is not None]
        if len(values) < len(cells) or any(math.isnan(value.mean) for value in values):
            return None
        seeds = {len(value.seed_means) for value in values}
        by_seed = np.mean([value.seed_means for value in values], axis=0) if len(seeds) == 1 else np.zeros(1)
        return float(np.mean([value.mean for value in values])), (
            float(by_seed.std(ddof=1)) if by_seed.size > 1 else None
        )


def choose_ks(least: int, asked: Sequence[int] | None) -> list[int]:
    """The k to show: those asked for, else 1, 8, 16, 32, 64 as far as n goes, or 1, 2, 4, ... for small n; and n."""
    if asked:
        return sorted(set(asked))
    ladder = [k for k in ((1, 8, 16, 32, 64) if least >= 16 else (1, 2, 4, 8)) if k <= least]
    return sorted({*ladder, least})


def compare(
    runs: list[EvalRun],
    trains: list[TrainFolder],
    *,
    baseline: str | None = None,
    group_by: str = "config",
    labels: Sequence[str] = (),
    seeds: Sequence[str] = (),
    looks: int = 1,
    metrics: Sequence[Column] | None = None,
    ks: Sequence[int] | None = None,
    scoring: str | None = None,
    details: bool = True,
    per_subject: bool = False,
    allow_mismatch: bool = False,
    margin: float | None = None,
    notes: Iterable[str] = (),
) -> MethodComparison:
    """Compare eval runs. Raises UserError if they cannot be compared, naming the setting that differs.

    details: every k and the format rate; without, the columns of the table for a paper only. labels: names of outputs;
    seeds: declared trainings of one recipe, both NAME=RUN,RUN. looks: planned in all, as seeds are added.
    """
    notes = list(notes)
    runs = name_alike(runs, notes)
    grouped = group(members_of(runs, trains), group_by, labels, seeds, notes)
    methods = [method for method in grouped if method.runs]
    scoring = common_scoring(runs, scoring, notes)
    chosen, reason = choose_baseline(methods, baseline)
    shared_settings = check_settings(runs, scoring, allow_mismatch, notes)
    loaded = [
        share_questions(name, [m for m in methods if any(name in run.benchmarks for run in m.runs)],
                         scoring, allow_mismatch)
        for name in dict.fromkeys(name for run in runs for name in run.benchmarks)
    ]  # fmt: skip
    if len(runs) > 1 and all(sum(map(len, shared.runs.values())) < 2 for shared in loaded):
        sets = "; ".join(f"{run.name}: {', '.join(run.benchmarks)}" for run in runs)
        raise UserError(
            f"these runs have no question in common ({sets}): evaluate them on the same benchmark. Files of recorded "
            "completions count as one benchmark if their ids and golds are the same"
        )
    largest = min((shared.samples for shared in loaded), default=1)
    shown = list(metrics or dict.fromkeys([Column(PASS, 1), Column(MAJ, largest)]))
    parts = []
    for shared in loaded:
        shared.check_k(max([column.k for column in shown] + list(ks or [])))
        wanted = choose_ks(shared.samples, ks) if details else []
        every = [Column(metric, k) for metric in METRICS if details for k in (wanted if metric.by_k else (0,))]
        columns = sorted({*shown, *every}, key=lambda column: column.place)
        parts.append((shared, columns))
        if per_subject:
            parts += [(part, [c for c in columns if c.k <= part.samples]) for part in shared.groups()]
    tables = [_table(shared, columns, chosen, shown[0]) for shared, columns in parts]
    tables = _correct_all(tables, shown[0], margin, looks)
    trained = [method for method in grouped if method.trains]
    return MethodComparison(methods, trained, scoring, chosen, reason, shown, tables, notes, shared_settings, margin,
                      bool(metrics), looks)  # fmt: skip


def choose_baseline(methods: list[Method], asked: str | None) -> tuple[str | None, str]:
    """Return the baseline's name and why it is the baseline. `asked`: a method, or a run's name or folder."""
    if asked is not None:
        matching = [m.name for m in methods if m.name == asked] or [m.name for m in methods if m.is_named(asked)]
        if len(matching) == 1:
            return matching[0], "chosen with --baseline"
        names = matching or [method.name for method in methods]
        which = f"{len(matching) or 'none'} of the methods compared: name one of {', '.join(names)}"
        raise UserError(f'--baseline "{asked}" is {which}.{did_you_mean(asked, names)}')
    if len(methods) < 2:
        return None, "fewer than two methods with an eval run: nothing to compare with"
    # By preset before by order: the answer does not depend on how a shell sorts `results/eval/*`.
    for preset in BASELINE_ORDER:
        for method in methods:
            if method.preset == preset:
                what = f"trained with {preset}" if preset else "that was not trained here"
                return method.name, f"the first {what}; choose another with --baseline"
    return methods[0].name, "the first given; choose another with --baseline"


def _table(shared: Shared, columns: list[Column], baseline: str | None, primary: Column) -> Table:
    names, notes = shared.methods, list(shared.notes)
    if baseline is not None and baseline not in names:
        notes.append(f"no differences here: the baseline {baseline} was not evaluated on {shared.benchmark}")
    baseline = baseline if baseline in names and len(names) > 1 else None
    cells = {key: mean_cell(shared, *key) for key in itertools.product(names, columns)}
    for name in names:
        if baseline is None or name == baseline:
            continue
        # What a third method lacks must not change a verdict; in other columns all have the same questions.
        pair = shared.pair(name, baseline)
        for column in (column for column in columns if column.metric.tested):
            of = pair if column == primary else shared
            one, other = (cells[s, column] if of is shared else mean_cell(of, s, column) for s in (name, baseline))
            cells[name, column] = replace(
                cells[name, column], paired=differ(of, name, baseline, column), selected=one.to_mean - other.to_mean,
                # The worst case of one side meets the best case of the other.
                missing=(one.unknown[0] - other.unknown[1], one.unknown[1] - other.unknown[0]),
            )  # fmt: skip
        if not shared.group and (note := pairing_note(pair, name, baseline)):
            notes.append(note)
        if not shared.group and pair.questions != shared.questions:
            notes.append(
                f"{name} against {baseline}: {primary.label} on the {pair.questions} questions that they share"
            )
    of_shared = {f.name: getattr(shared, f.name) for f in fields(Shared)} | {"notes": notes}
    return Table(**of_shared, columns=columns, cells=cells, baseline=baseline)


def mean_cell(shared: Shared, name: str, column: Column) -> Cell:
    """A method's mean, its interval, and bounds if samples are missing; the median of a metric that is not tested."""
    if not column.metric.tested:
        medians = shared.medians(name, column)
        return Cell(MethodMean(sum(medians) / len(medians), math.nan, math.nan, False, tuple(medians)))
    value = method_mean(shared.scores(name, column), clusters=shared.clusters_at(column.k))
    checkpoints, to_mean = shared.checkpoints(name, column)
    return Cell(value, bounds=shared.bounds(name, column), checkpoints=checkpoints, to_mean=to_mean)


def with_baseline(comparison: MethodComparison, baseline: str, columns: Sequence[list[Column]]) -> list[Table]:
    """The tables against another baseline: columns[i] of table i, the primary ones corrected anew."""
    tables = [
        replace(_table(table, chosen, baseline, comparison.metrics[0]), notes=table.notes)
        for table, chosen in zip(comparison.tables, columns, strict=True)
    ]
    return _correct_all(tables, comparison.metrics[0], comparison.margin, comparison.looks)


def _correct_all(tables: list[Table], primary: Column, margin: float | None, looks: int) -> list[Table]:
    """The tables with each method's primary comparisons corrected jointly over the benchmarks, and marked."""
    cells = [dict(table.cells) for table in tables]
    for method in dict.fromkeys(name for table in tables for name in table.methods):
        at = [of for of in tables if not of.group and (cell := of.cells.get((method, primary))) and cell.paired]
        family = correct_family([table.cells[method, primary] for table in at], margin, looks)
        for table, cell in zip(at, family, strict=True):
            cells[tables.index(table)][method, primary] = cell
    return [replace(table, cells=new) for table, new in zip(tables, cells, strict=True)]
