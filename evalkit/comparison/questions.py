"""What is compared: runs whose settings agree, on the questions of a benchmark that all methods answered.

Runs that differ in what is measured (SETTINGS) are refused, or compared with a note if that was asked for. Everything
else that eval.json says of how samples came about, engine, dtype, quantisation, adapter, versions, hardware, is
compared key by key: what differs is named, nothing differs in silence.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gtpo.common.errors import UserError
from gtpo.common.files import flatten
from gtpo.evalkit.comparison.columns import Column
from gtpo.evalkit.comparison.methods import Method
from gtpo.evalkit.design import Design, Noise
from gtpo.evalkit.engines.model_ref import fingerprint
from gtpo.evalkit.metrics import if_missing, maj_at_all_k, pass_at_all_k
from gtpo.evalkit.statistics import FAMILIES, PairedDifference, ScoreInterval, clusters_of, method_mean, wording
from gtpo.runs.eval_record import BenchmarkRecord, EvalRecord, Interval
from gtpo.runs.find import EvalRun, Questions
from gtpo.runs.prompt import DERIVED
from gtpo.runs.train_run import RESULTS

# Family-wise error rate of one method's primary comparisons.
ALPHA = 0.05
BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"
VERDICTS = (BETTER, WORSE, EQUIVALENT, UNDECIDED)
# Name of a benchmark that several recorded files have in common.
SAME = "the same questions"
# What two runs must share to be comparable: name for a reader -> key in eval.json. `n` belongs to a benchmark.
SETTINGS = {
    "scoring": "scoring", "temperature": "sampling.temperature", "top_p": "sampling.top_p", "top_k": "sampling.top_k",
    "min_p": "sampling.min_p", "presence_penalty": "sampling.presence_penalty",
    "repetition_penalty": "sampling.repetition_penalty", "max_tokens": "sampling.max_tokens", "stop": "sampling.stop",
    "prompt": "prompt.system", "user template": "prompt.user", "few-shot examples": "prompt.fewshot",
    "api": "prompt.api", "chat template": "prompt.chat_template_hash",
    "chat template kwargs": "prompt.chat_template_kwargs", "verifier": "verifier.version",
}  # fmt: skip

# Values at which a sampling parameter changes nothing.
OFF = {"top_p": 1, "top_k": 0, "min_p": 0, "presence_penalty": 0, "repetition_penalty": 1}
# Keys of eval.json that identify a run, count its work, or are compared elsewhere.
NOT_SETTINGS = (
    *SETTINGS.values(), "schema_version", "status", "name", "created", "wall_seconds", "command", "benchmarks",
    "model.source", "model.fingerprint", "model.weights", "model.tokenizer", "model.generation_config",
    "model.train_run", "model.checkpoint", "model.method", "model.preset", "sampling.n", "scoring_by",
    *(f"prompt.{name}" for name in DERIVED if name != "time"),
    "engine.canaries", "engine.base_urls",  # these differ between any two models
)  # fmt: skip


@dataclass
class Cell:
    """One method's value of one column, and how it differs from the baseline (None for the baseline itself)."""

    column: Column
    value: ScoreInterval
    paired: PairedDifference | None = None
    # The mean if every missing sample were wrong, and if it were right; None if none is missing.
    bounds: tuple[float, float] | None = None
    # How far missing samples of this method and of the baseline could move the difference, down and up.
    missing: tuple[float, float] = (0.0, 0.0)
    # Checkpoints of one of its trainings that were evaluated on these questions, the most of any; 1 if none was chosen
    # among them. And how far their mean lies above `value`.
    checkpoints: int = 1
    to_mean: float = 0.0
    # How far the difference would move if both sides scored as their checkpoints do in the mean.
    selected: float = 0.0
    # Where the noise of the difference comes from, and the design that it was measured by; of the primary metric only.
    noise: tuple[Noise, Design] | None = None
    primary: bool = False
    # Holm's, within the method's primary comparisons; None for an exploratory difference, and if too few seeds are
    # known to judge.
    p_corrected: float | None = None
    # The same, of equivalence within the margin; None without a margin.
    p_equivalent: float | None = None

    @property
    def moved(self) -> tuple[float, float]:
        """How far the difference could move, down and up: a verdict holds at both ends."""
        return self.missing[0] + min(self.selected, 0.0), self.missing[1] + max(self.selected, 0.0)

    @property
    def direction(self) -> int:
        """1: shown to be better than the baseline, -1: worse, 0: not shown, or exploratory."""
        return int(self.paired.shown(self.moved)) if self.primary and self.paired is not None else 0

    @property
    def verdict(self) -> str | None:
        """One of VERDICTS; None for the baseline and for an exploratory difference."""
        if not self.primary or self.paired is None:
            return None
        if self.direction:
            return BETTER if self.direction > 0 else WORSE
        return EQUIVALENT if self.p_equivalent is not None and self.p_equivalent <= ALPHA else UNDECIDED


@dataclass(frozen=True)
class Side:
    """A method in a table: its runs there, and the questions of each."""

    method: Method
    runs: list[EvalRun]
    parts: list[Questions]
    # The same with all questions of each run, also those that another lacks.
    whole: list[Questions]

    @cached_property
    def draws(self) -> list[list[int]]:
        """Places of its runs, those of one draw of training together."""
        return self.method.by_draw(self.runs)

    @property
    def seeds(self) -> list[str | None]:
        """The training seed of each draw; None if unknown."""
        seeds = {member.name: member.seed for member in self.method.members}
        return [seeds[self.runs[places[0]].name] for places in self.draws]

    def by_draw(self, of_runs: Sequence[Any]) -> NDArray[np.float64]:
        """[S, ...] The mean over the runs of each draw of training."""
        return np.stack([np.mean([of_runs[i] for i in places], axis=0) for places in self.draws])


@dataclass(frozen=True)
class Table:
    """One benchmark (or one subject of it): the same Q questions for every run of every method, and what they show."""

    benchmark: str
    # Subject or level; empty for the whole benchmark.
    group: str
    sides: dict[str, Side] = field(repr=False)
    notes: list[str]
    scoring: str = "strict"
    # [Q] Questions of the same text have the same number; None if there are none.
    clusters: NDArray[np.int64] | None = field(default=None, repr=False)
    # Different texts apart from their numbers, if these are so few that they are not families; else 0.
    wordings: int = 0
    # Whether every run has all samples of all questions that any run has.
    even: bool = True
    # Ids of the questions that every run was asked, scored or not.
    asked: NDArray[np.object_] | None = field(default=None, repr=False)
    columns: list[Column] = field(default_factory=list)
    cells: dict[tuple[str, Column], Cell] = field(default_factory=dict, repr=False)
    # None if there is nothing to compare with.
    baseline: str | None = None

    @property
    def title(self) -> str:
        """`math · geometry`."""
        return f"{self.benchmark} · {self.group}" if self.group else self.benchmark

    @property
    def first(self) -> Questions:
        """The questions of the first run; those of all others are the same."""
        return next(iter(self.sides.values())).parts[0]

    @property
    def questions(self) -> int:
        """Q."""
        return int(self.first.ids.size)

    @property
    def samples(self) -> int:
        """Samples per question: the most that every run has of one."""
        return int(self._least.max())

    def having(self, k: int) -> NDArray[np.bool_]:
        """[Q] The questions of which every run has k scored samples."""
        return self._least >= max(k, 1)

    @cached_property
    def _least(self) -> NDArray[np.int32]:
        least: NDArray[np.int32] = np.minimum.reduce([part.n for side in self.sides.values() for part in side.parts])
        return least

    def scores(self, method: str, column: Column) -> NDArray[np.float64]:
        """[S, Q] A method's scores in one column, one row per draw of training, of the questions with k samples."""
        side, rows = self.sides[method], self.having(column.k)
        return side.by_draw([column.metric.values(part, column.k)[rows] for part in side.parts])

    def sampling(self, method: str, column: Column) -> NDArray[np.float64] | None:
        """[S, Q] The variance that samples give to each of `scores`; None if it cannot be told."""
        side, rows = self.sides[method], self.having(column.k)
        each = [of[rows] for part in side.parts if (of := column.metric.sampling(part, column.k)) is not None]
        runs = np.array([[len(places)] for places in side.draws])
        return side.by_draw(each) / runs if len(each) == len(side.parts) else None

    def clusters_at(self, k: int) -> NDArray[np.int64] | None:
        """[Q] The cluster of each question in `scores`; None if every question is its own."""
        return None if self.clusters is None else self.clusters[self.having(k)]

    def _stored(self, record: EvalRecord, column: Column) -> float | None:
        """A record's mean of a column; None if it has none, and for a part of a benchmark."""
        entry = record.benchmarks.get(self.benchmark)
        if self.group or entry is None:
            return None
        if not column.metric.by_k:
            return entry.format_rate
        name = column.metric.name.replace("@", "_at_")
        of_k: dict[int, Interval] = getattr(getattr(entry, self.scoring) or entry, name)
        return of_k[column.k].mean if column.k in of_k else None

    def extremes(self, method: str, column: Column) -> NDArray[np.float64] | None:
        """[S, 2] Each draw's mean over all questions asked if every missing sample were wrong, and if it were right.

        None if no run of any method misses one, and for a part of a benchmark, on which nothing is tested.
        """
        if self.asked is None or not any(map(self.lacks, self.sides)):
            return None
        ends = []
        for complete, filled, lost in self._filled[method]:
            known = column.metric.values(complete, column.k).sum()
            either = [column.metric.values(of, column.k).sum() for of in filled] or [0, 0]
            ends.append((known + np.array(either) + [0, lost]) / len(self.asked))
        return self.sides[method].by_draw(ends)

    def lacks(self, method: str) -> bool:
        """Return whether samples of a method are missing."""
        return any(filled or lost for _, filled, lost in self._filled[method])

    @cached_property
    def _filled(self) -> dict[str, list[tuple[Questions, list[Questions], int]]]:
        """Of each run: complete questions; the others if what they lack were wrong, and right; how many it has not."""
        found: dict[str, list[tuple[Questions, list[Questions], int]]] = {}
        asked = self.first.ids if self.asked is None else self.asked
        for name, side in self.sides.items():
            found[name] = []
            for run, whole in zip(side.runs, side.whole, strict=True):
                part, n = whole.take(np.isin(whole.ids, asked)), run.entry(self.benchmark).n or 0
                short = part.take(part.n < n)
                filled = [*_completed(short, n)] if short.ids.size else []
                found[name].append((part.take(part.n >= n), filled, len(asked) - part.ids.size))
        return found

    def _alike(self, one: EvalRecord, other: EvalRecord) -> bool:
        """Whether two evaluations asked the same questions in the same way, however often."""
        places = [place for name, place in SETTINGS.items() if name not in ("scoring", "verifier")]
        sums = [record.benchmarks.get(self.benchmark, BenchmarkRecord()).checksum for record in (one, other)]
        return sums[0] == sums[1] and all(attrgetter(place)(one) == attrgetter(place)(other) for place in places)

    def checkpoints(self, method: str, column: Column) -> tuple[int, float]:
        """Return how many checkpoints of a training were evaluated here, and how far their mean lies above the figure.

        The most of any training of the method. best/ was chosen on other questions: 1, 0.0. How far is not known (-1.0,
        as far as can be) if one of them was evaluated only in another way.
        """
        side = self.sides[method]
        most, gaps, members = 1, list[float](), {member.name: member for member in side.method.members}
        for run in side.runs:
            means: dict[str | None, list[float]] = {}  # of each checkpoint
            for record in members[run.name].evaluations:
                if (mean := self._stored(record, column)) is not None:
                    of = means.setdefault(record.model.checkpoint, [])
                    of += [mean] if self._alike(record, run.record) else []
            own = means.get(run.record.model.checkpoint)
            most = max(most, len(means) if own else 1)
            if own and not all(means.values()):
                return most, -1.0
            gaps.append(float(np.mean([np.mean(of) for of in means.values()]) - np.mean(own)) if own else 0.0)
        return most, float(side.by_draw(gaps).mean())

    def cell(self, method: str, column: Column) -> Cell:
        """A method's mean, its interval and bounds; the median of a metric that is not tested."""
        if not column.metric.tested:
            side = self.sides[method]
            values = [column.metric.values(part, column.k) for part in side.parts]
            medians = side.by_draw([np.median(of) if of.size else math.nan for of in values]).tolist()
            return Cell(column, ScoreInterval(sum(medians) / len(medians), math.nan, math.nan, False, tuple(medians)))
        value = method_mean(self.scores(method, column), clusters=self.clusters_at(column.k))
        (checkpoints, to_mean), ends = self.checkpoints(method, column), self.extremes(method, column)
        bounds = tuple(ends.mean(axis=0).tolist()) if ends is not None and self.lacks(method) else None
        return Cell(column, value, None, bounds, checkpoints=checkpoints, to_mean=to_mean)

    def pair(self, a: str, b: str) -> Table:
        """Return the same of two methods only: what a third one lacks changes nothing between them."""
        if self.even or self.group:  # of a part, no verdict is given
            return self
        return share_questions(self.benchmark, [self.sides[of].method for of in (a, b)], self.scoring, allow=True)

    def check_k(self, k: int) -> None:
        """UserError if there is no question of which every run has k samples."""
        for side in self.sides.values():
            for run, part in zip(side.runs, side.parts, strict=True):
                if k > (had := int(part.n.max())):
                    raise UserError(
                        f"k = {k} needs {k} samples per question; {run.name} has n = {had} on {self.benchmark} (gtpo "
                        f"eval --k {k} with the same --out adds the missing ones)"
                    )
        if k > self.samples:
            raise UserError(
                f"k = {k}: there is no question of {self.benchmark} of which every run has {k} scored samples; "
                f"{self.samples} is the largest k"
            )

    def groups(self) -> Iterator[Table]:
        """One part for each subject and level."""
        parts = [part for side in self.sides.values() for part in side.parts]
        # Of each question those of the first run that has one.
        subjects, levels = parts[0].subject, parts[0].level
        for part in parts[1:]:
            subjects, levels = np.where(subjects == "", part.subject, subjects), np.where(levels, levels, part.level)
        masks = {subject: subjects == subject for subject in sorted(set(subjects) - {""})}
        masks |= {f"level {level}": levels == level for level in sorted(set(levels.tolist()) - {0})}
        for name, rows in masks.items():
            sides = {
                of: replace(side, parts=[part.take(rows) for part in side.parts]) for of, side in self.sides.items()
            }
            clusters = None if self.clusters is None else self.clusters[rows]
            yield replace(self, group=name, sides=sides, notes=[], clusters=clusters, asked=None)


def _completed(part: Questions, n: int) -> Iterator[Questions]:
    """Yield questions with fewer than n samples as if what they lack were wrong, and as if it were right."""
    counted, every = part.votes(), np.full_like(part.n, n)
    votes, silent = zip(*(counted[question] for question in part.ids), strict=True)
    for wrong, correct in if_missing(votes, part.correct.tolist(), (every - part.n).tolist()):
        right = np.array(correct)
        yield replace(
            part, n=every, correct=right, format_ok=part.format_ok + right - part.correct,
            pass_at_k=pass_at_all_k(every, right), maj_at_k=maj_at_all_k(wrong, correct, silent),
        )  # fmt: skip


def name_alike(runs: list[EvalRun], notes: list[str]) -> list[EvalRun]:
    """The runs, with one name for recorded files of the same questions and golds, which are named after their files."""
    # Name of a benchmark -> those with most of its questions, itself first: run, name, (id, gold) of each question.
    alike: dict[str, list[tuple[int, str, set[tuple[str, str]]]]] = {}
    for i, run in enumerate(runs):
        for name, entry in run.record.benchmarks.items():
            if run.record.engine.name != "recorded" or entry.source != run.record.model.source:
                continue
            mine = {(p.id, p.answer) for p in run.problems(name).values()}
            # Most of the smaller one's: a file may have lost rows, or one gold may have been corrected.
            has_most = (n for n, [(*_, of), *_] in alike.items() if 2 * len(mine & of) > min(len(mine), len(of)))
            first = next(has_most, name)
            alike.setdefault(first, []).append((i, name, mine))
            if first != name and mine != alike[first][0][2]:
                notes.append(f"{name} has most of the questions and golds of {first}, and is shown as {first}")
    # Files are named after models, so their benchmarks are too: a model's name would not tell what was asked.
    several = (first for first, files in alike.items() if len({name for _, name, _ in files}) > 1)
    neutral = next((first for first in several if all(of == alike[first][0][2] for *_, of in alike[first])), None)
    out = list(runs)
    for first, (i, name, _) in ((first, file) for first, files in alike.items() for file in files):
        shown = SAME if first == neutral else first
        if shown != name:
            entries = {shown if key == name else key: entry for key, entry in out[i].record.benchmarks.items()}
            record = out[i].record.model_copy(update={"benchmarks": entries})
            out[i] = replace(out[i], record=record, stored=out[i].stored | {shown: name})
    return out


def share_questions(benchmark: str, methods: list[Method], scoring: str, allow: bool) -> Table:
    """Load a benchmark; UserError if the runs' questions or golds differ, unless `allow` takes what they share."""
    sides, notes = dict[str, Side](), list[str]()
    for method in methods:
        evaluated = [run for run in method.runs if benchmark in run.benchmarks]
        whole = [run.questions(benchmark, scoring) for run in evaluated]
        sides[method.name] = Side(method, evaluated, [*whole], whole)
        if len(evaluated) < len(method.runs):
            number = f"{len(evaluated)} of its {len(method.runs)} runs"
            notes.append(f"{method.name}: only {number} were evaluated on {benchmark}")
    runs = [run for side in sides.values() for run in side.runs]
    parts = [part for side in sides.values() for part in side.parts]
    notes += [text for run in runs if (text := _unscored(run, benchmark))]
    notes += [
        f"{run.name} was trained on {seen} of these questions: its figures say little of others"
        for run in runs if (seen := run.entry(benchmark).trained_on)
    ]  # fmt: skip
    ids = [set(part.ids) for part in parts]
    common, every = set[str].intersection(*ids), set[str].union(*ids)
    counts = "; ".join(f"{run.name}: {len(of)} questions" for run, of in zip(runs, ids, strict=True))
    # What runs lack of the others' questions, if their records name it as unscored, is missing and nothing else.
    asked_of = [of.union(run.entry(benchmark).unscored_questions) for run, of in zip(runs, ids, strict=True)]
    if all(every <= of for of in asked_of):
        other_golds = _other_golds(benchmark, runs)
        problem = other_golds and f"the questions or golds of {benchmark} differ under the same ids ({other_golds})"
    else:
        problem = f"the questions of {benchmark} differ ({counts})"
    if problem and not allow:
        raise UserError(
            f"these runs cannot be compared: {problem}. --allow-mismatch compares the questions they share, with a note"
        )
    if not common:
        raise UserError(f"these runs have no question of {benchmark} in common ({counts})")
    if problem:
        notes.append(f"not like for like: {problem}; compared on the {len(common)} questions they share")
    elif common != every:
        notes.append(f"compared on the {len(common)} questions of which every run has a scored sample")
    for side in sides.values():
        for i, part in enumerate(side.parts):
            if part.ids.size > len(common):
                side.parts[i] = part.take(np.isin(part.ids, list(common)))
    # Of each question the text, and the cluster, of the first run that has one.
    known: dict[str, dict[str, str]] = {"problem": {}, "cluster": {}}
    for problems in (run.problems(benchmark).values() for run in reversed(runs)):
        for name, of in known.items():
            of |= {problem.id: text for problem in problems if (text := getattr(problem, name))}
    texts, named = ([of.get(question, "") for question in sorted(common)] for of in known.values())
    source = next((run.entry(benchmark).source for run in runs if run.entry(benchmark).source), "")
    clusters = clusters_of(texts, named, source)
    wordings = len({wording(text) for text in texts if text and not source.startswith("generated")})
    wordings *= clusters is None and wordings < min(FAMILIES, len(common))
    alike = len({n for part in parts for n in part.n.tolist()}) == len(set(map(frozenset, asked_of))) == 1
    even = common == every and alike
    asked_all = np.array(sorted(set[str].intersection(*asked_of)), dtype=object)
    table = Table(benchmark, "", sides, notes, scoring, clusters, wordings, even, asked_all)
    if clusters is not None:
        notes.append(
            f"{clusters.size} questions have {clusters.max() + 1} texts, apart from numbers, or clusters: those "
            "of one count as one question (a `cluster` column says otherwise)"
        )
    if short := int((~table.having(table.samples)).sum()):
        notes.append(
            f"{short} of {table.questions} questions have fewer than {table.samples} scored samples in some run: "
            f"they count up to the k that they have"
        )
    return table


def _unscored(run: EvalRun, benchmark: str) -> str:
    """`a: 6 of 24 samples are unscored (HTTP 500: 6)`: what the figures of a run on a benchmark do not count."""
    entry = run.entry(benchmark)
    if not entry.unscored:
        return ""
    why = ", ".join(f"{reason}: {count}" for reason, count in Counter(entry.unscored_reasons).most_common(3))
    text = f"{run.name}: {entry.unscored} of {entry.unscored + entry.samples} samples are unscored"
    text += f" ({why})" * bool(why) + " and left out of its figures"
    if lost := len(entry.unscored_questions):
        text += f"; {lost} question{'s' * (lost != 1)} without a scored sample {'are' if lost != 1 else 'is'} left out"
    return f"{text}. The gtpo eval command tries them again"


def _other_golds(benchmark: str, runs: list[EvalRun]) -> str:
    """Say how two runs' questions or golds of the same ids differ; empty if they do not.

    Checksums settle it if they can. Recorded completions without the questions' text have none of the content.
    """
    rules = {run.name: (run.entry(benchmark).task or {}).get("extract", "as --scoring says") for run in runs}
    if len(set(rules.values())) > 1:
        return f"answers are read by different rules ({by_run(rules)})"
    sums = {run.name: run.entry(benchmark).checksum for run in runs}
    contents = {run.name: run.entry(benchmark).content_checksum for run in runs}
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


def by_run(values: Mapping[str, Any]) -> str:
    """`a: 0.7; b, c: 1.0`: runs by value."""
    names: dict[str, list[str]] = {}
    for run, value in values.items():
        names.setdefault(_text(value), []).append(run)
    # Long texts from a little before the place from which they differ.
    same = len(os.path.commonprefix([*names])) if len(names) > 1 else 0  # noqa: RUF071  # by letters
    start = max(same - 20, 0) if max(map(len, names), default=0) > 60 else 0
    shown = [("..." * (start > 0) + text[start:], runs) for text, runs in names.items()]
    return "; ".join(f"{', '.join(runs)}: {text if len(text) <= 60 else text[:57] + '...'}" for text, runs in shown)


def common_scoring(runs: list[EvalRun], asked: str | None, notes: list[str]) -> str:
    """The one scoring that all runs are compared under: as asked, else their headline.

    If completions chose different ones, it is the lenient one. UserError if flags or protocols did.
    """
    headlines = {run.name: run.record.scoring for run in runs}
    if asked or len(set(headlines.values())) < 2:
        return asked or next(iter(headlines.values()), "strict")  # no eval run: only training is shown
    if any(run.record.scoring_by != "completions" for run in runs):
        raise UserError(f"scoring differs ({by_run(headlines)}); pass --scoring strict or --scoring lenient")
    notes.append(f"the headlines differ ({by_run(headlines)}); all runs are read by lenient scoring")
    return "lenient"


def check_settings(runs: list[EvalRun], scoring: str, allow: bool, notes: list[str]) -> dict[str, Any]:
    """Refuse (or, allowed, note) what must agree and does not; note what else differs; return what the runs share."""
    by_key: dict[str, dict[str, Any]] = {key: {} for key in SETTINGS}
    for run in runs:
        record = run.record
        values = {key: attrgetter(place)(record) for key, place in SETTINGS.items()} | {"scoring": scoring}
        if record.prompt.system is None:  # its text is unknown
            values["prompt"] = record.prompt.hash
        # Up to rules version 15 Math-Verify could judge in place of our verifier.
        if theirs := (record.verifier.model_extra or {}).get("math_verify"):
            values["verifier"] = f"Math-Verify {theirs}"
        for key, value in (values | {f"n of {name}": run.entry(name).n for name in run.benchmarks}).items():
            by_key.setdefault(key, {})[run.name] = value
    differing = {key: values for key, values in by_key.items() if len(set(map(str, values.values()))) > 1}
    shared = {key: next(iter(by_key[key].values()), None) for key in SETTINGS if key not in differing}
    counts = {key.removeprefix("n of "): next(iter(by_key[key].values())) for key in by_key if key not in SETTINGS}
    if counts and not differing.keys() - SETTINGS:
        shared["n"] = by_run(counts)
    rates = [entry.truncation_rate for run in runs for entry in run.record.benchmarks.values()]
    for key, values in list(differing.items()):
        why, left_out = "", [run.name for run in runs if key in run.record.engine.parameters_left_out]
        if key == "max_tokens" and all(rate == 0 for rate in rates):  # None: not known
            why = "no completion reached it"
        elif key in OFF and all(of is None if run in left_out else of == OFF[key] for run, of in values.items()):
            why = "a server that does not take it leaves it off"
        if why:
            notes.append(f"{key} differs ({by_run(differing.pop(key))}), but {why}")
    problems = [f"{key} differs ({by_run(values)})" for key, values in differing.items()]
    if problems and not allow:
        raise UserError(
            f"these runs cannot be compared: {'; and '.join(problems)}. --allow-mismatch compares them anyway, "
            f"with a note{_mending_command(runs, problems)}"
        )
    notes += [f"not like for like: {problem}" for problem in problems]
    kinds = {run.name: run.record.model.checkpoint for run in runs if run.record.model.checkpoint is not None}
    if len(set(kinds.values())) > 1:
        notes.append(f"the checkpoints differ ({by_run(kinds)}): best/ is chosen by accuracy, others are not")
    notes += [note for run in runs for note in _changed_weights(run)]
    if others := _other_differences(runs):
        notes.append("also different, which can move samples: " + "; and ".join(others))
    return shared


def _mending_command(runs: list[EvalRun], problems: list[str]) -> str:
    """Return the commands that score the runs again, or else evaluate the last run as the first.

    Nothing for completions that were recorded, by one judge; nor if chat templates differ, which --like does not set.
    """
    if all(problem.startswith("verifier ") for problem in problems):
        return f". To mend it: {' && '.join(f'gtpo eval {shlex.quote(str(run.folder))} --rescore' for run in runs)}"
    first, last = runs[0], runs[-1]
    if "recorded" in (first.record.engine.name, last.record.engine.name):  # nobody can sample them again
        return ""
    if any(problem.startswith("chat template ") for problem in problems):
        return ""
    engine, of = last.record.engine, last.record.model
    model, weights = of.train_run or of.adapter or of.source, of.checkpoint if of.train_run else None
    urls = (engine.model_extra or {}).get("base_urls", []) if engine.serve is None else []
    server = [f"--serve {shlex.quote(engine.serve)}"] if engine.serve else [f"--base-url {url}" for url in urls]
    chosen = [f"--checkpoint {shlex.quote(weights)}"] if weights else []
    words = " ".join([shlex.quote(str(model)), *chosen, *server, f"--like {shlex.quote(str(first.folder))}"])
    out = shlex.quote(str(RESULTS / "eval" / f"{last.name}-like-{first.name}"))
    return f". To mend it: gtpo eval {words} --out {out}"


def _other_differences(runs: list[EvalRun]) -> list[str]:
    """`engine.versions.vllm (a: 0.30; b: 0.31)` for every other key of eval.json."""
    skipped, flat = tuple(f"{name}." for name in NOT_SETTINGS), dict[str, dict[str, Any]]()
    for run in runs:
        own = flat[run.name] = flatten(run.record.as_json())
        own["adapter"] = "yes" if own.pop("model.adapter", None) else "no"
    keys = [key for key in dict.fromkeys(itertools.chain(*flat.values())) if not f"{key}.".startswith(skipped)]
    # Adapters against the model that they lie on: the adapter is what is compared.
    if len({run.record.model.source for run in runs}) == 1:
        keys.remove("adapter")
    values = {key: {run: _text(own.get(key)) for run, own in flat.items()} for key in keys}
    return [f"{key} ({by_run(of)})" for key, of in values.items() if len(set(of.values())) > 1]


def _changed_weights(run: EvalRun) -> Iterator[str]:
    """Say whether the train run behind a run holds other weights now than those evaluated; it may hold none."""
    kind, before = run.record.model.checkpoint, (run.record.model.fingerprint or "").rpartition("-")[2]
    with suppress(UserError):
        there = run.train.weights(kind) if run.train is not None and kind and before else None
        if run.train and there and any(there.glob("*.safetensors")) and fingerprint(there) != before:
            yield (
                f"{run.name}: the weights in {there} have changed since they were evaluated: these are the figures of "
                f"the old ones. gtpo eval {run.train.root} --checkpoint {kind} --out NEW measures the new"
            )


def _text(value: Any) -> str:
    return "unknown" if value is None else str(value)
