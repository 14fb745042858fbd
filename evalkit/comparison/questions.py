"""The questions of one benchmark that all methods answered, in one order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gtpo.common.errors import UserError
from gtpo.evalkit.comparison.columns import Cell, Column
from gtpo.evalkit.comparison.like_for_like import by_run, unscored_notes
from gtpo.evalkit.comparison.methods import Method
from gtpo.evalkit.statistics import FAMILIES, clusters_of, wording
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_record import BenchmarkRecord, Interval
from gtpo.runs.find import EvalRun, Questions

# Name of a benchmark that several recorded files have in common.
SAME = "the same questions"


@dataclass(frozen=True)
class Table:
    """One benchmark (or one subject of it): the same Q questions for every run of every method, and what they show."""

    benchmark: str
    # Subject or level; empty for the whole benchmark.
    group: str
    by_name: dict[str, Method] = field(repr=False)
    # method -> one entry per run.
    parts: dict[str, list[Questions]] = field(repr=False)
    runs: dict[str, list[EvalRun]] = field(repr=False)
    notes: list[str]
    scoring: str = "strict"
    # [Q] Questions of the same text have the same number; None if there are none.
    clusters: NDArray[np.int64] | None = field(default=None, repr=False)
    # Different texts apart from their numbers, if these are so few that they are not families; else 0.
    wordings: int = 0
    # Whether every run has all samples of all questions that any run has.
    even: bool = True
    columns: list[Column] = field(default_factory=list)
    cells: dict[tuple[str, Column], Cell] = field(default_factory=dict, repr=False)
    # None if there is nothing to compare with.
    baseline: str | None = None

    @property
    def title(self) -> str:
        """`math · geometry`."""
        return f"{self.benchmark} · {self.group}" if self.group else self.benchmark

    @property
    def methods(self) -> list[str]:
        """Names of the methods."""
        return list(self.parts)

    @property
    def questions(self) -> int:
        """Q."""
        return int(next(iter(self.parts.values()))[0].ids.size)

    @property
    def samples(self) -> int:
        """Samples per question: the most that every run has of one."""
        return int(self._least.max())

    def having(self, k: int) -> NDArray[np.bool_]:
        """[Q] The questions of which every run has k scored samples."""
        return self._least >= k

    @cached_property
    def _least(self) -> NDArray[np.int32]:
        least: NDArray[np.int32] = np.minimum.reduce([part.n for parts in self.parts.values() for part in parts])
        return least

    def scores(self, method: str, column: Column) -> NDArray[np.float64]:
        """[S, Q] A method's scores in one column, one row per draw of training, of the questions with k samples."""
        rows = self.having(max(column.k, 1))
        scores = np.stack([column.metric.values(part, column.k)[rows] for part in self.parts[method]])
        return np.stack([scores[places].mean(axis=0) for places in self.draws(method)])

    def draws(self, method: str) -> list[list[int]]:
        """Return the places of a method's runs by draw of training."""
        return self.by_name[method].by_draw(self.runs[method])

    def sampling(self, method: str, column: Column) -> NDArray[np.float64]:
        """[S, Q] The variance that samples give to each of `scores`; [0, Q] if it cannot be told."""
        rows, parts = self.having(max(column.k, 1)), self.parts[method]
        found = [one for part in parts if (one := column.metric.sampling(part, column.k)) is not None]
        if len(found) < len(parts):
            return np.zeros((0, int(rows.sum())))
        each = np.stack(found)[:, rows]
        return np.stack([each[places].mean(axis=0) / len(places) for places in self.draws(method)])

    def medians(self, method: str, column: Column) -> list[float]:
        """The median of a method's values of a metric that is not tested, of each draw; NaN without values."""
        values = [column.metric.values(part, column.k) for part in self.parts[method]]
        medians = np.array([np.median(of) if of.size else math.nan for of in values])
        return [float(medians[places].mean()) for places in self.draws(method)]

    def clusters_at(self, k: int) -> NDArray[np.int64] | None:
        """[Q] The cluster of each question in `scores`; None if every question is its own."""
        return None if self.clusters is None else self.clusters[self.having(max(k, 1))]

    def bounds(self, method: str, column: Column) -> tuple[float, float] | None:
        """A method's mean if every missing sample were wrong, and if it were right; None if none is missing."""
        if self.group or not column.metric.by_k:
            return None
        stored = [self._stored(run.entry(self.benchmark), column) for run in self.runs[method]]
        known = [at for at in stored if at is not None]
        if len(known) < len(stored) or all(at.worst is None for at in known):
            return None
        worst = [at.mean if at.worst is None else at.worst for at in known]
        return float(np.mean(worst)), float(np.mean([at.mean if at.best is None else at.best for at in known]))

    def _stored(self, entry: BenchmarkRecord, column: Column) -> Interval | None:
        """What a record says of a column that has a k."""
        of_k: dict[int, Interval] = getattr(
            getattr(entry, self.scoring) or entry, column.metric.name.replace("@", "_at_")
        )
        return of_k.get(column.k)

    def checkpoints(self, method: str, column: Column) -> tuple[int, float]:
        """Return how many checkpoints of a training were evaluated here, and how far their mean lies above the figure.

        The most of any training of the method. best/ was chosen on other questions: 1, 0.0.
        """
        most, gaps, members = 1, list[float](), {member.name: member for member in self.by_name[method].members}
        for run in self.runs[method]:
            means: dict[str | None, list[float]] = {}  # of each checkpoint
            for record in members[run.name].evaluations if column.metric.by_k and not self.group else ():
                if at := self._stored(record.benchmarks.get(self.benchmark, BenchmarkRecord()), column):
                    means.setdefault(record.model.checkpoint, []).append(at.mean)
            own = means.get(run.record.model.checkpoint)
            most = max(most, len(means) if own else 1)
            gaps.append(float(np.mean([np.mean(of) for of in means.values()]) - np.mean(own)) if own else 0.0)
        return most, float(np.mean([np.mean([gaps[i] for i in places]) for places in self.draws(method)]))

    def cut_off(self, method: str) -> float | None:
        """Return the share of a method's samples that were cut off at the token limit; None if unknown."""
        rates = [run.entry(self.benchmark).truncation_rate for run in self.runs[method]]
        known = [rate for rate in rates if rate is not None]
        return float(np.mean(known)) if len(known) == len(rates) else None

    def pair(self, a: str, b: str) -> Table:
        """Return the same of two methods only: what a third one lacks changes nothing between them."""
        if self.even:
            return self
        pair = share_questions(self.benchmark, [self.by_name[a], self.by_name[b]], self.scoring, allow=True)
        return next(part for part in pair.groups() if part.group == self.group) if self.group else pair

    def check_k(self, k: int) -> None:
        """UserError if a run has fewer than k samples."""
        for name, parts in self.parts.items():
            for run, part in zip(self.runs[name], parts, strict=True):
                had = part.pass_at_k.shape[1]
                if k > had:
                    raise UserError(
                        f"k = {k} needs {k} samples per question; {run.name} has n = {had} on {self.benchmark} (gtpo "
                        f"eval --k {k} with the same --out adds the missing ones)"
                    )

    def groups(self) -> Iterator[Table]:
        """One part for each subject and level."""
        first = next(iter(self.parts.values()))[0]
        masks = [(subject, first.subject == subject) for subject in sorted(set(first.subject)) if subject]
        masks += [(f"level {level}", first.level == level) for level in sorted(set(first.level.tolist())) if level]
        for name, rows in masks:
            taken = {method: [part.take(rows) for part in parts] for method, parts in self.parts.items()}
            kept = None if self.clusters is None else self.clusters[rows]
            yield replace(self, group=name, parts=taken, notes=[], clusters=kept)


def name_alike(runs: list[EvalRun], notes: list[str]) -> list[EvalRun]:
    """The runs, with one name for recorded files of the same questions and golds, which are named after their files."""
    golds = {
        (run.name, name): {(p.id, p.answer) for p in run.problems(name).values()}
        for run in runs for name, entry in run.record.benchmarks.items()
        if run.record.engine.name == "recorded" and entry.source == run.record.model.source
    }  # fmt: skip
    (_, first), whole = next(iter(golds.items()), (("", ""), set()))
    # Most of the smaller one's: a file may have lost rows, or one gold may have been corrected.
    alike = [key for key, mine in golds.items() if 2 * len(mine & whole) > min(len(mine), len(whole))]
    others = [name for run, name in alike if golds[run, name] != whole]
    if {name for _, name in alike} <= {first}:
        return runs
    notes += [f"{name} has most of the questions and golds of {first}, and is shown as {first}" for name in others]
    # Files are named after models, so their benchmarks are too: a model's name would not tell what was asked.
    shown, out = first if others else SAME, []
    for run in runs:
        for own in [name for name in run.record.benchmarks if (run.name, name) in alike]:
            entries = {shown if name == own else name: entry for name, entry in run.record.benchmarks.items()}
            run = replace(run, record=run.record.model_copy(update={"benchmarks": entries}), stored={shown: own})
        out.append(run)
    return out


def share_questions(benchmark: str, methods: list[Method], scoring: str, allow: bool) -> Table:
    """Load a benchmark; UserError if the runs' questions or golds differ, unless `allow` takes what they share."""
    runs = {m.name: [run for run in m.runs if benchmark in run.benchmarks] for m in methods}
    loaded = [(name, run, run.questions(benchmark, scoring)) for name, found in runs.items() for run in found]
    notes = [
        f"{m.name}: only {len(runs[m.name])} of its {len(m.runs)} runs were evaluated on {benchmark}"
        for m in methods
        if len(runs[m.name]) < len(m.runs)
    ]
    notes += [note for _, run, _ in loaded for note in unscored_notes(run, benchmark)]
    for run in (run for found in runs.values() for run in found):
        if seen := run.entry(benchmark).trained_on:
            notes.append(f"{run.name} was trained on {seen} of these questions: its figures say little of others")
    same_ids = all(np.array_equal(loaded[0][2].ids, part.ids) for _, _, part in loaded)
    even = same_ids and len({n for _, _, part in loaded for n in part.n.tolist()}) == 1
    common = np.array(sorted(set.intersection(*(set(part.ids) for _, _, part in loaded))), dtype=object)
    counts = "; ".join(f"{run.name}: {part.ids.size} questions" for _, run, part in loaded)
    problem = f"the questions of {benchmark} differ ({counts})"
    if same_ids or _only_unscored(benchmark, [(run, part) for _, run, part in loaded]):
        other_golds = _other_golds(benchmark, [run for _, run, _ in loaded])
        problem = other_golds and f"the questions or golds of {benchmark} differ under the same ids ({other_golds})"
    if problem and not allow:
        raise UserError(
            f"these runs cannot be compared: {problem}. --allow-mismatch compares the questions they share, with a note"
        )
    if common.size == 0:
        raise UserError(f"these runs have no question of {benchmark} in common ({counts})")
    if problem:
        notes.append(f"not like for like: {problem}; compared on the {common.size} questions they share")
    elif not same_ids:
        notes.append(f"compared on the {common.size} questions of which every run has a scored sample")
    parts: dict[str, list[Questions]] = {name: [] for name in runs}
    for name, _, part in loaded:
        parts[name].append(part if part.ids.size == common.size else part.take(np.isin(part.ids, common)))
    known, unknown = loaded[0][1].problems(benchmark), Problem("", "", "")
    asked = [known.get(question, unknown) for question in next(iter(parts.values()))[0].ids.tolist()]
    source = loaded[0][1].entry(benchmark).source
    wordings = len({wording(p.problem) for p in asked if p.problem and not source.startswith("generated")})
    clusters = clusters_of([p.problem for p in asked], [p.cluster for p in asked], source)
    wordings *= clusters is None and wordings < min(FAMILIES, common.size)
    by_name = {method.name: method for method in methods}
    table = Table(benchmark, "", by_name, parts, runs, notes, scoring, clusters, wordings, even)
    if clusters is not None:
        notes.append(
            f"{clusters.size} questions have {clusters.max() + 1} texts, apart from numbers, or clusters: those "
            "of one count as one question (a `cluster` column says otherwise)"
        )
    short = int((~table.having(table.samples)).sum())
    if short:
        notes.append(
            f"{short} of {table.questions} questions have fewer than {table.samples} scored samples in some run: "
            f"they count up to the k that they have"
        )
    return table


def _only_unscored(benchmark: str, parts: list[tuple[EvalRun, Questions]]) -> bool:
    """Return whether what a run lacks of the others' questions are those that its record names as unscored."""
    every = {question for _, part in parts for question in part.ids}
    return all(every <= {*run.entry(benchmark).unscored_questions, *part.ids} for run, part in parts)


def _other_golds(benchmark: str, runs: list[EvalRun]) -> str:
    """Say how two runs' questions or golds of the same ids differ; empty if they do not.

    Checksums settle it if they can. Recorded completions without the questions' text have none of the content.
    """
    sums, contents = (
        {run.name: getattr(run.entry(benchmark), of) for run in runs} for of in ("checksum", "content_checksum")
    )
    rules = {run.name: (run.entry(benchmark).task or {}).get("extract", "as --scoring says") for run in runs}
    if len(set(rules.values())) > 1:
        return f"answers are read by different rules ({by_run(rules)})"
    same_golds = len(set(sums.values())) <= 1
    if same_golds and len(set(contents.values()) - {None}) <= 1:
        return ""
    first, *rest = runs
    golds = first.problems(benchmark)
    for run in rest:
        theirs = run.problems(benchmark)
        if not golds or not theirs:
            return f"checksums {by_run(contents if same_golds else sums)}"
        for question in sorted(golds.keys() & theirs.keys()):
            one, other = golds[question], theirs[question]
            if one.answer != other.answer:
                return f"{question}: {first.name} {one.answer}, {run.name} {other.answer}"
            if one.problem and other.problem and one.problem != other.problem:
                return f"{question}: the text of {run.name} is another than that of {first.name}"
    return f"answers are compared as text in one and not in another ({by_run(contents)})" if same_golds else ""
