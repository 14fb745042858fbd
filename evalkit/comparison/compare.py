"""Methods against methods on the questions they share: one table a benchmark, every difference paired by question.

A method is one run, or several that differ only in their training seed (evalkit/comparison/methods.py). What is said of
it against the baseline: better, worse, equivalent within a margin, or undecided. That depends neither on which columns
are shown nor on the other methods of the table.

The family of primary comparisons is declared beforehand: one method against the baseline, in the primary metric, on
every benchmark, and with a margin also the equivalence of each. Holm's correction covers that family jointly, and every
interval in it is given at the level at which Holm's procedure tests it: a difference is marked exactly if its interval
excludes 0. If samples are missing, a verdict must also hold at both extremes of what they could have been; and if the
checkpoint of a training was chosen among several that were evaluated on these questions, also for the mean of them. A
family belongs to one method. Every other difference is exploratory: shown with its own 95 % interval, and never marked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gtpo.common.errors import UserError, did_you_mean
from gtpo.evalkit import statistics
from gtpo.evalkit.comparison import questions
from gtpo.evalkit.comparison.columns import MAJ, METRICS, PASS, Array, Column
from gtpo.evalkit.comparison.methods import Method, group, members_of, named_by
from gtpo.evalkit.comparison.questions import ALPHA, Cell, Table
from gtpo.evalkit.design import Design, Noise, measure_noise, parts
from gtpo.evalkit.statistics import PAIRS_NEEDED, PairedDifference, by_cluster
from gtpo.runs.find import EvalRun
from gtpo.runs.train_run import TrainFolder

# The default baseline: the first of these presets (none: a model that was not trained here), else the first given.
BASELINE_ORDER = ("grpo", "sft", "")


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

    def primary(self) -> Iterator[tuple[Table, str, Cell, PairedDifference]]:
        """Yield the primary comparisons: a benchmark, a method, its cell, and how it differs from the baseline."""
        for method, table in itertools.product(self.methods, self.benchmarks):
            cell = table.cells.get((method.name, self.metrics[0]))
            if cell is not None and cell.paired is not None:
                yield table, method.name, cell, cell.paired

    @property
    def all_notes(self) -> list[str]:
        """The notes, and those of benchmarks under their names."""
        where: dict[str, list[str]] = {}
        for table in self.benchmarks:
            for note in table.notes:
                where.setdefault(note, []).append(table.benchmark)
        return [*self.notes, *(f"{', '.join(names)}: {note}" for note, names in where.items())]


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
    runs = questions.name_alike(runs, notes)
    grouped = group(members_of(runs, trains), group_by, labels, seeds, notes)
    methods = [method for method in grouped if method.runs]
    scoring = questions.common_scoring(runs, scoring, notes)
    chosen, reason = choose_baseline(methods, baseline)
    shared_settings = questions.check_settings(runs, scoring, allow_mismatch, notes)
    loaded = [
        questions.share_questions(name, [m for m in methods if any(name in run.benchmarks for run in m.runs)],
                         scoring, allow_mismatch)
        for name in dict.fromkeys(name for run in runs for name in run.benchmarks)
    ]  # fmt: skip
    if len(runs) > 1 and all(sum(len(side.runs) for side in shared.sides.values()) < 2 for shared in loaded):
        sets = "; ".join(f"{run.name}: {', '.join(run.benchmarks)}" for run in runs)
        raise UserError(
            f"these runs have no question in common ({sets}): evaluate them on the same benchmark. Files of recorded "
            "completions count as one benchmark if their ids and golds are the same"
        )
    largest = min((shared.samples for shared in loaded), default=1)
    shown = list(metrics or dict.fromkeys([Column(PASS, 1), Column(MAJ, largest)]))
    parts: list[tuple[Table, list[Column]]] = []
    for shared in loaded:
        shared.check_k(max([column.k for column in shown] + list(ks or [])))
        n = shared.samples
        ladder = ks or [*(k for k in ((1, 8, 16, 32, 64) if n >= 16 else (1, 2, 4, 8)) if k <= n), n]
        every = [Column(metric, k) for metric in METRICS if details for k in (ladder if metric.by_k else (0,))]
        columns = sorted({*shown, *every}, key=lambda column: (METRICS.index(column.metric), column.k))
        parts.append((shared, columns))
        if per_subject:
            parts += [(part, [c for c in columns if c.k <= part.samples]) for part in shared.groups()]
    trained = [method for method in grouped if method.trains]
    comparison = MethodComparison(methods, trained, scoring, chosen, reason, shown, [], notes, shared_settings, margin,
                                  bool(metrics), looks)  # fmt: skip
    return replace(comparison, tables=fill_tables(comparison, parts, chosen))


def choose_baseline(methods: list[Method], asked: str | None) -> tuple[str | None, str]:
    """Return the baseline's name and why it is the baseline. `asked`: a method, or a run's name or folder."""
    if asked is not None:
        matching = [m.name for m in methods if m.name == asked] or [
            m.name for m in methods if named_by(asked, m.members)
        ]
        if len(matching) == 1:
            return matching[0], "chosen with --baseline"
        names = matching or [method.name for method in methods]
        which = f"{len(matching) or 'none'} of the methods compared: name one of {', '.join(names)}"
        raise UserError(f'--baseline "{asked}" is {which}.{did_you_mean(asked, names)}')
    if len(methods) < 2:
        return None, "fewer than two methods with an eval run: nothing to compare with"
    # By preset before by order: the answer does not depend on how a shell sorts `results/eval/*`.
    candidates = (m for preset in BASELINE_ORDER for m in methods if m.preset == preset and bool(preset) == m.trained)
    first = next(candidates, None)
    if first is None:
        return methods[0].name, "the first given; choose another with --baseline"
    what = f"trained with {first.preset}" if first.preset else "that was not trained here"
    return first.name, f"the first {what}; choose another with --baseline"


class Contrast:
    """A method against another on the questions that both answered."""

    def __init__(self, table: Table, a: str, b: str) -> None:
        self.table, self.names = table, (a, b)
        first, second = table.sides[a].method, table.sides[b].method
        self.known = not (first.doubt or second.doubt)
        # Weights from which all runs of the other side began are as they are, whatever their own training seed.
        self.trained = first.trained and not first.is_base_of(second), second.trained and not second.is_base_of(first)
        # The rows of both methods' scores that trained the same seeds; None if seeds do not pair. They do if at least
        # PAIRS_NEEDED seeds are common, each once, and these are at least half of either method's.
        self.common: tuple[list[int], list[int]] | None = None
        of_a, of_b = table.sides[a].seeds, table.sides[b].seeds
        # Runs of one seed saw the same problems in the same order: a difference within the pair varies less.
        common = [seed for seed in of_a if seed in of_b]
        known_once = all(None not in of and len(set(of)) == len(of) for of in (of_a, of_b))
        if all(self.trained) and known_once and len(common) >= max(PAIRS_NEEDED, len(of_a) / 2, len(of_b) / 2):
            self.common = [of_a.index(seed) for seed in common], [of_b.index(seed) for seed in common]

    def _rows(self, a: Array, b: Array) -> tuple[Array, Array]:
        return (a, b) if self.common is None else (a[self.common[0]], b[self.common[1]])

    def difference(self, column: Column) -> PairedDifference:
        """Return the difference in a column, as its own 95 % comparison."""
        a, b = self._rows(*(self.table.scores(name, column) for name in self.names))
        return statistics.differences(
            a[None], b[None], paired=self.common is not None, trained=self.trained, known=self.known,
            clusters=self.table.clusters_at(column.k),
        ).at(0)  # fmt: skip

    def missing(self, column: Column, found: float) -> tuple[float, float]:
        """Return how far missing samples, and questions, could move the difference that was found, down and up."""
        ours, theirs = (self.table.extremes(name, column) for name in self.names)
        if ours is None or theirs is None:
            return 0.0, 0.0
        (worst, best), (their_worst, their_best) = (of.mean(axis=0).tolist() for of in self._rows(ours, theirs))
        # The worst case of one side meets the best case of the other.
        return worst - their_best - found, best - their_worst - found

    def noise(self, column: Column) -> tuple[Noise, Design] | None:
        """Return where the noise of the difference comes from, and the design that it was measured by.

        Unlike numbers of seeds count as the smaller. None if too few questions differ to say it: three quarters of V_Q
        are then the test's prior.
        """
        clusters, samples = self.table.clusters_at(column.k), self.table.samples
        a, b = self._rows(*(self.table.scores(name, column) for name in self.names))
        of_a, of_b = (self.table.sampling(name, column) for name in self.names)
        d, weight = by_cluster(a.mean(axis=0) - b.mean(axis=0), clusters)
        if d.size < 2:
            return None
        noise = measure_noise(
            a, b, sampling=None if of_a is None or of_b is None else self._rows(of_a, of_b), samples=samples,
            trained=all(self.trained) and self.known, paired=self.common is not None, clusters=clusters,
        )  # fmt: skip
        design = Design(d.size, samples, min(len(a), len(b)) if noise.training else 0)
        of = parts(noise, design)
        enough = 4 * (of.questions + of.samples) >= statistics.question_variance(d[None], weight)[0]
        return (noise, design) if enough else None


def _compared(table: Table, columns: list[Column], baseline: str | None, primary: Column) -> Table:
    """Return a table with its cells."""
    names, notes = list(table.sides), list(table.notes)
    cells = {key: table.cell(*key) for key in itertools.product(names, columns)}
    if baseline is not None and baseline not in names:
        notes.append(f"no differences here: the baseline {baseline} was not evaluated on {table.benchmark}")
    if baseline is None or baseline not in names or len(names) < 2:
        return replace(table, columns=columns, cells=cells, baseline=None, notes=notes)
    for name in names:
        if name == baseline:
            continue
        # What a third method lacks must not change a verdict; in other columns all have the same questions.
        of_all, of_pair = Contrast(table, name, baseline), Contrast(table.pair(name, baseline), name, baseline)
        for column in (column for column in columns if column.metric.tested):
            contrast, cell = of_pair if column == primary else of_all, cells[name, column]
            one, other = (contrast.table.cell(side, column) for side in (name, baseline))
            cell.paired, cell.selected = contrast.difference(column), one.to_mean - other.to_mean
            cell.missing = contrast.missing(column, float(cell.paired.difference))
            cell.noise = of_all.noise(column) if column == primary else None
        both, seeds, notes_of_pair = of_pair.table, of_pair.common and len(of_pair.common[0]), list[str]()
        if seeds and seeds < max(len(both.sides[side].draws) for side in (name, baseline)):
            notes_of_pair.append(f"only the {seeds} seeds that both trained are compared")
        if both.questions != table.questions:
            notes_of_pair.append(f"{primary.label} on the {both.questions} questions that they share")
        notes += [f"{name} against {baseline}: {note}" for note in notes_of_pair if not table.group]
    return replace(table, columns=columns, cells=cells, baseline=baseline, notes=notes)


def fill_tables(
    comparison: MethodComparison, parts: Iterable[tuple[Table, list[Column]]], baseline: str | None
) -> list[Table]:
    """Return tables with their cells against a baseline: those of each method's primary comparisons corrected jointly.

    parts: tables, with or without cells, and the columns to fill. Of planned looks each has its share of ALPHA.
    """
    primary, margin = comparison.metrics[0], comparison.margin
    tables = [_compared(table, columns, baseline, primary) for table, columns in parts]
    for method in dict.fromkeys(name for table in tables for name in table.sides):
        judged: list[tuple[Cell, PairedDifference]] = []
        for cell in (table.cells.get((method, primary)) for table in tables if not table.group):
            if cell is not None and (d := cell.paired) is not None:
                cell.primary = True
                judged += [(cell, d)] if d.judged else []
        p = [float(d.p_value) for _, d in judged]
        p += [float(d.equivalence_p(margin, cell.moved)) for cell, d in judged] if margin else []
        if not p:
            continue
        # Of one comparison only one hypothesis can be true, so its two p-values share an owner (Shaffer 1986).
        owners = [*range(len(judged))] * (len(p) // len(judged))
        factors = statistics.holm_factors(np.array(p), owners) * comparison.looks
        adjusted = np.minimum(np.array(p) * factors, 1.0).tolist()
        for place, (cell, d) in enumerate(judged):
            cell.paired = d._replace(level=float(1 - ALPHA / factors[place]))
            cell.p_corrected = adjusted[place]
            cell.p_equivalent = adjusted[len(judged) + place] if margin else None
    return tables
