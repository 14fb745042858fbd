"""Methods against methods on the questions they share: one table a benchmark, every difference paired by question.

A method is one run, or several that differ only in their training seed (evalkit/comparison/methods.py). The family of
primary comparisons is declared beforehand: one method against the baseline, in the primary metric (the first of
`metrics`), on every benchmark. Holm's correction covers that family, jointly over the benchmarks, and every interval
in it is given at the level at which Holm's procedure tests it. A difference is marked where its interval excludes 0,
which implies that Holm's procedure rejects it. Not the other way round: with few questions the score interval may
contain 0 where the exact test rejects.
A family belongs to one method, so that a verdict depends neither on what else is compared nor on what else is shown.
Every other difference is exploratory: shown with its own 95 % interval and p-value, and never marked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from gtpo.evalkit.comparison.like_for_like import check_settings, common_scoring
from gtpo.evalkit.comparison.methods import Method, group, members_of
from gtpo.evalkit.comparison.questions import Shared, shared_questions
from gtpo.evalkit.results.run import EvalRun, TrainRun
from gtpo.evalkit.statistics import SEEDS_NEEDED, MethodMean, PairedDifference, differences, holm, method_mean
from numpy.typing import NDArray

from gtpo.common.errors import UserError, did_you_mean

ALPHA = 0.05
"""Family-wise error rate of one method's primary comparisons."""
PASS, MAJ, FORMAT = "pass@k", "maj@k", "format"
BASELINE_ORDER = ("grpo", "sft", "")
"""The default baseline: the first of these presets (none: a model that was not trained here), else the first given."""


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
    """One method's value of one column, and how it differs from the baseline (None for the baseline itself)."""

    value: MethodMean
    paired: PairedDifference | None = None
    primary: bool = False
    p_corrected: float | None = None
    """Holm's, within the method's primary comparisons; None for an exploratory difference."""

    @property
    def direction(self) -> int:
        """1: shown to be better than the baseline, -1: worse, 0: not shown, or exploratory."""
        return self.paired.shown if self.primary and self.paired is not None else 0


@dataclass(frozen=True)
class Table:
    """One benchmark (or one subject of it) compared."""

    benchmark: str
    group: str
    """Subject or level; empty for the whole benchmark."""
    questions: int
    samples: int
    """Samples per question: the least over runs."""
    methods: list[str]
    columns: list[Column]
    cells: dict[tuple[str, Column], Cell] = field(repr=False)
    baseline: str | None
    """None where there is nothing to compare with."""
    best: dict[Column, tuple[str | None, str | None]]
    """Best and second best, each where it is shown to be better than the next (see `_ranks`)."""
    notes: list[str]
    shared: Shared = field(repr=False)
    """The per-question scores behind the cells."""

    @property
    def title(self) -> str:
        """`math · geometry`."""
        return f"{self.benchmark} · {self.group}" if self.group else self.benchmark


@dataclass(frozen=True)
class Comparison:
    """Everything that any output of `gtpo compare` shows."""

    runs: list[EvalRun]
    methods: list[Method]
    """Those with an eval run, in the order given."""
    trained: list[Method]
    """Those with a train run."""
    scoring: str
    baseline: str | None
    baseline_reason: str
    metrics: list[Column]
    """Columns of the table for a paper; the first is the primary metric."""
    tables: list[Table]
    notes: list[str]
    """What the reader must know: mismatches, missing parts, what is not covered."""
    shared_settings: dict[str, Any]

    @property
    def benchmarks(self) -> list[Table]:
        """The tables of whole benchmarks."""
        return [table for table in self.tables if not table.group]

    @property
    def all_notes(self) -> list[str]:
        """The notes, and those of each benchmark under its name."""
        return [*self.notes, *(f"{table.benchmark}: {note}" for table in self.benchmarks for note in table.notes)]

    def average(self, method: str, column: Column) -> tuple[float, float | None] | None:
        """(mean over the benchmarks, its standard deviation over seeds or None); None where one is missing."""
        cells = [table.cells.get((method, column)) for table in self.benchmarks]
        values = [cell.value for cell in cells if cell is not None]
        if len(values) < len(cells):
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
    trains: list[TrainRun],
    *,
    baseline: str | None = None,
    group_by: str = "config",
    labels: Sequence[str] = (),
    metrics: Sequence[Column] | None = None,
    ks: Sequence[int] | None = None,
    scoring: str | None = None,
    details: bool = True,
    per_subject: bool = False,
    allow_mismatch: bool = False,
    notes: Iterable[str] = (),
) -> Comparison:
    """Compare eval runs. Raises UserError where they cannot be compared, naming the setting that differs.

    details: every k and the format rate; without, the columns of the table for a paper only.
    """
    notes = list(notes)
    grouped = group(members_of(runs, trains), group_by, labels, notes)
    methods = [method for method in grouped if method.runs]
    scoring = common_scoring(runs, scoring)
    chosen, reason = choose_baseline(methods, baseline)
    shared_settings = check_settings(runs, scoring, allow_mismatch, notes)
    loaded = [
        shared_questions(name, [m for m in methods if any(name in run.benchmarks for run in m.runs)],
                         scoring, allow_mismatch)
        for name in dict.fromkeys(name for run in runs for name in run.benchmarks)
    ]  # fmt: skip
    if len(runs) > 1 and all(sum(len(m.runs) for m in shared.methods) < 2 for shared in loaded):
        sets = "; ".join(f"{run.name}: {', '.join(run.benchmarks)}" for run in runs)
        raise UserError(f"these runs have no question in common ({sets}): evaluate them on the same benchmark")
    largest = min((shared.samples for shared in loaded), default=1)
    shown = list(metrics or dict.fromkeys([Column(PASS, 1), Column(MAJ, largest)]))
    parts = []
    for shared in loaded:
        shared.check_k(max([column.k for column in shown] + list(ks or [])))
        wanted = choose_ks(shared.samples, ks) if details else []
        columns = list(dict.fromkeys(
            [*shown, *(Column(m, k) for m in (PASS, MAJ) for k in wanted), *([Column(FORMAT, 0)] if details else [])]
        ))  # fmt: skip
        columns.sort(key=lambda column: ((PASS, MAJ, FORMAT).index(column.metric), column.k))
        parts.append((shared, columns))
        if per_subject:
            parts += [(part, columns) for part in shared.groups()]
    tables = [_table(shared, columns, chosen, shown) for shared, columns in parts]
    tables = _corrected(tables, shown[0])
    few = [f"{m.name} ({_seeds(len(m.runs))})" for m in methods if m.trained and len(m.runs) < SEEDS_NEEDED]
    if few:
        notes.append(
            f"training variance is not covered for {', '.join(few)}: another training seed could come out otherwise; "
            f"from {SEEDS_NEEDED} seeds on it is part of interval and test"
        )
    trained = [method for method in grouped if method.trains]
    return Comparison(runs, methods, trained, scoring, chosen, reason, shown, tables, notes, shared_settings)


def _seeds(count: int) -> str:
    return f"{count} seed" + "s" * (count != 1)


def choose_baseline(methods: list[Method], asked: str | None) -> tuple[str | None, str]:
    """Return the baseline's name and why it is the baseline. `asked`: a method, or a run's name or folder."""
    if asked is not None:
        found = [m.name for m in methods if m.name == asked] or [m.name for m in methods if m.is_named(asked)]
        if len(found) == 1:
            return found[0], "chosen with --baseline"
        names = [method.name for method in methods]
        if found:
            raise UserError(
                f'--baseline "{asked}" stands for several: name one of {", ".join(found)}; or make them one method '
                "with --group-by method or --label"
            )
        raise UserError(
            f'--baseline "{asked}" is not among the methods compared: {", ".join(names)}.{did_you_mean(asked, names)}'
        )
    if len(methods) < 2:
        return None, "fewer than two methods with an eval run: nothing to compare with"
    for preset in BASELINE_ORDER:
        for method in methods:
            if method.preset == preset:
                what = f"trained with {preset}" if preset else "that was not trained here"
                return method.name, f"the first {what}; choose another with --baseline"
    return methods[0].name, "the first given; choose another with --baseline"


def pairing(a: Method, b: Method, benchmark: str) -> tuple[list[int], bool]:
    """(order of b's runs, whether its seeds pair with a's): they do where both trained the same seeds, each once."""
    of_a, of_b = ([m.seed for m in method.members if m.run and benchmark in m.run.benchmarks] for method in (a, b))
    same = len(of_a) > 1 and None not in of_a and len(set(of_a)) == len(of_a) and sorted(map(str, of_a)) == sorted(
        map(str, of_b)
    )  # fmt: skip
    return ([of_b.index(seed) for seed in of_a] if same else list(range(len(of_b)))), same


def differ(shared: Shared, a: str, b: str, columns: Sequence[Column]) -> list[PairedDifference]:
    """The differences of two methods in several columns, as their own 95 % comparisons."""
    order, paired = pairing(shared.method(a), shared.method(b), shared.benchmark)
    left = np.stack([scores(shared, a, column) for column in columns])
    right = np.stack([scores(shared, b, column)[order] for column in columns])
    return differences(left, right, seeds_paired=paired)


def scores(shared: Shared, method: str, column: Column) -> NDArray[np.float64]:
    """[S, Q] per-question scores of one column, one row per training seed."""
    return np.stack([
        part.format_ok / part.n if column.metric == FORMAT
        else np.clip((part.pass_at_k if column.metric == PASS else part.maj_at_k)[:, column.k - 1], 0.0, 1.0)
        for part in shared.parts[method]
    ])  # fmt: skip


def _table(
    shared: Shared,
    columns: list[Column],
    baseline: str | None,
    shown: list[Column],
    known: Mapping[tuple[str, Column], Cell] = MappingProxyType({}),
) -> Table:
    """Fill a table; `known`: cells of the same questions against another baseline, whose means are the same."""
    names, notes = list(shared.parts), list(shared.notes)
    if baseline is not None and baseline not in names:
        notes.append(f"no differences here: the baseline {baseline} was not evaluated on {shared.benchmark}")
        baseline = None
    elif len(names) < 2:
        baseline = None
    cells = {
        key: Cell(known[key].value if key in known else method_mean(scores(shared, *key)))
        for key in itertools.product(names, columns)
    }
    if baseline is not None:
        for name in names:
            if name != baseline:
                for column, found in zip(columns, differ(shared, name, baseline, columns), strict=True):
                    cells[name, column] = Cell(cells[name, column].value, found)
    best = {column: _ranks(shared, column, cells) for column in shown} if not shared.group else {}
    return Table(
        benchmark=shared.benchmark,
        group=shared.group,
        questions=shared.questions,
        samples=shared.samples,
        methods=names,
        columns=columns,
        cells=cells,
        baseline=baseline,
        best=best,
        notes=notes,
        shared=shared,
    )


def rebased(comparison: Comparison, baseline: str, columns: Sequence[list[Column]]) -> list[Table]:
    """The tables against another baseline: columns[i] of table i, the primary ones corrected anew."""
    tables = [
        replace(_table(table.shared, chosen, baseline, [], table.cells), notes=table.notes)
        for table, chosen in zip(comparison.tables, columns, strict=True)
    ]
    return _corrected(tables, comparison.metrics[0])


def _ranks(shared: Shared, column: Column, cells: dict[tuple[str, Column], Cell]) -> tuple[str | None, str | None]:
    """(best, second best), each only where its test against the next one shows it, two-sided at ALPHA.

    Comparing the winner with the runner-up alone, uncorrected, keeps the level (Hung and Fithian 2019, "Rank
    verification for exponential families").
    """
    order = sorted(shared.parts, key=lambda name: -cells[name, column].value.mean)
    found: list[str | None] = [None, None]
    for place in range(min(2, len(order) - 1)):
        if differ(shared, order[place], order[place + 1], [column])[0].shown != 1:
            break
        found[place] = order[place]
    return found[0], found[1]


def _corrected(tables: list[Table], primary: Column) -> list[Table]:
    """The tables with each method's primary comparisons corrected jointly over the benchmarks, and marked."""
    methods = dict.fromkeys(name for table in tables for name in table.methods)
    cells = [dict(table.cells) for table in tables]
    for method in methods:
        at = [
            i
            for i, table in enumerate(tables)
            if not table.group and (cell := table.cells.get((method, primary))) is not None and cell.paired is not None
        ]
        family = [tables[i].cells[method, primary] for i in at]
        p = np.array([cell.paired.p_value for cell in family if cell.paired is not None])
        for i, cell, adjusted, level in zip(at, family, holm(p), holm_levels(p), strict=True):
            assert cell.paired is not None
            cells[i][method, primary] = Cell(cell.value, cell.paired.at_level(float(level)), True, float(adjusted))
    return [replace(table, cells=new) for table, new in zip(tables, cells, strict=True)]


def holm_levels(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """The confidence level of each comparison such that p <= 1 - level exactly where Holm's procedure rejects it."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(np.maximum(p[order], 1e-300) * np.arange(p.size, 0, -1))
    levels = np.empty_like(p)
    levels[order] = 1 - ALPHA * np.maximum(p[order], 1e-300) / stepped
    return levels
