"""What is compared: runs whose settings agree, on the questions of a benchmark that all methods answered.

Runs that differ in what is measured (SETTINGS) are refused, or compared with a note if that was asked for. Everything
else that eval.json says of how samples came about, engine, dtype, quantisation, adapter, versions, hardware, is
compared key by key: what differs is named, nothing differs in silence.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
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
from gtpo.evalkit.statistics import FAMILIES, MethodMean, PairedDifference, clusters_of, wording
from gtpo.rewards.data.problem import Problem
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
)  # fmt: skip


@dataclass
class Cell:
    """One method's value of one column, and how it differs from the baseline (None for the baseline itself)."""

    column: Column
    value: MethodMean
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
    def unknown(self) -> tuple[float, float]:
        """How far missing samples could move the mean, down and up."""
        low, high = self.bounds or (self.value.mean, self.value.mean)
        return low - self.value.mean, high - self.value.mean

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
    # Name of a benchmark -> those with most of its questions, itself first: name, (id, gold) of each question.
    alike: dict[str, list[tuple[str, set[tuple[str, str]]]]] = {}
    firsts: list[dict[str, str]] = []
    for run in runs:
        firsts.append({})
        for name, entry in run.record.benchmarks.items():
            if run.record.engine.name != "recorded" or entry.source != run.record.model.source:
                continue
            mine = {(p.id, p.answer) for p in run.problems(name).values()}
            # Most of the smaller one's: a file may have lost rows, or one gold may have been corrected.
            has_most = (n for n, [(_, of), *_] in alike.items() if 2 * len(mine & of) > min(len(mine), len(of)))
            first = firsts[-1][name] = next(has_most, name)
            alike.setdefault(first, []).append((name, mine))
            if first != name and mine != alike[first][0][1]:
                notes.append(f"{name} has most of the questions and golds of {first}, and is shown as {first}")
    # Files are named after models, so their benchmarks are too: a model's name would not tell what was asked.
    several = (first for first, found in alike.items() if len({name for name, _ in found}) > 1)
    neutral = next((first for first in several if all(of == alike[first][0][1] for _, of in alike[first])), None)
    out = []
    for run, of in zip(runs, firsts, strict=True):
        shown = {name: SAME if first == neutral else first for name, first in of.items()}
        if any(name != other for name, other in shown.items()):
            entries = {shown.get(name, name): entry for name, entry in run.record.benchmarks.items()}
            stored = {other: name for name, other in shown.items()}
            run = replace(run, record=run.record.model_copy(update={"benchmarks": entries}), stored=stored)
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


# -- settings ----------------------------------------------------------------------------------------------------------


def settings(run: EvalRun) -> dict[str, Any]:
    """Return SETTINGS by name: the prompt's hash if its text is unknown."""
    record = run.record
    found = {name: attrgetter(key)(record) for name, key in SETTINGS.items()}
    if record.prompt.system is None:
        found["prompt"] = record.prompt.hash
    # Up to rules version 15 Math-Verify could judge in place of our verifier.
    if theirs := (record.verifier.model_extra or {}).get("math_verify"):
        found["verifier"] = f"Math-Verify {theirs}"
    return found


def by_run(values: Mapping[str, Any]) -> str:
    """`a: 0.7; b, c: 1.0`: runs by value."""
    names: dict[str, list[str]] = {}
    for run, value in values.items():
        text = _text(value)
        names.setdefault(text if len(text) <= 60 else f"{text[:57]}...", []).append(run)
    return "; ".join(f"{', '.join(runs)}: {value}" for value, runs in names.items())


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
    found = {run.name: settings(run) | {"scoring": scoring} for run in runs}
    by_key = {key: {name: of[key] for name, of in found.items()} for key in SETTINGS}
    names = dict.fromkeys(name for run in runs for name in run.benchmarks)
    counts = {name: {run.name: run.entry(name).n for run in runs if name in run.benchmarks} for name in names}
    by_key |= {f"n of {name}": values for name, values in counts.items()}
    differing = {key: of for key, of in by_key.items() if len(set(map(str, of.values()))) > 1}
    shared = {key: next(iter(by_key[key].values()), None) for key in SETTINGS if key not in differing}
    if counts and not any(key.startswith("n of ") for key in differing):
        shared["n"] = by_run({name: next(iter(values.values())) for name, values in counts.items()})
    rates = [entry.truncation_rate for run in runs for entry in run.record.benchmarks.values()]
    if "max_tokens" in differing and all(rate == 0 for rate in rates):  # None: not known
        notes.append(f"max_tokens differs ({by_run(differing.pop('max_tokens'))}), but no completion reached it")
    for key in [key for key, values in differing.items() if _is_off(key, values, runs)]:
        notes.append(f"{key} differs ({by_run(differing.pop(key))}), but a server that does not take it leaves it off")
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


def _is_off(key: str, values: Mapping[str, Any], runs: list[EvalRun]) -> bool:
    """Return whether a parameter is off where it was sent, and not sent to servers that do not take it."""
    left_out = [run.name for run in runs if key in run.record.engine.parameters_left_out]
    return key in OFF and all(value is None if run in left_out else value == OFF[key] for run, value in values.items())


def _mending_command(runs: list[EvalRun], problems: list[str]) -> str:
    """Return the commands that score the runs again, or else evaluate the last run as the first.

    Nothing for completions that were recorded, and by one judge.
    """
    if all(problem.startswith("verifier ") for problem in problems):
        return f". To mend it: {' && '.join(f'gtpo eval {shlex.quote(str(run.folder))} --rescore' for run in runs)}"
    first, last = runs[0], runs[-1]
    if last.record.engine.name == "recorded":  # nobody can sample them again
        return ""
    engine, model = last.record.engine, last.record.model.train_run or last.record.model.source
    urls = (engine.model_extra or {}).get("base_urls", []) if engine.serve is None else []
    server = [f"--serve {shlex.quote(engine.serve)}"] if engine.serve else [f"--base-url {url}" for url in urls]
    words = " ".join([shlex.quote(str(model)), *server, f"--like {shlex.quote(str(first.folder))}"])
    out = shlex.quote(str(RESULTS / "eval" / f"{last.name}-like-{first.name}"))
    return f". To mend it: gtpo eval {words} --out {out}"


def _other_differences(runs: list[EvalRun]) -> list[str]:
    """`engine.versions.vllm (a: 0.30; b: 0.31)` for every other key of eval.json."""
    flat = {run.name: _other_settings(run.record) for run in runs}
    found = {key: {run: _text(own.get(key)) for run, own in flat.items()} for keys in flat.values() for key in keys}
    # Adapters against the model that they lie on: the adapter is what is compared.
    if len({run.record.model.source for run in runs}) == 1:
        found.pop("adapter", None)
    return [f"{key} ({by_run(values)})" for key, values in found.items() if len(set(values.values())) > 1]


def _other_settings(record: EvalRecord) -> dict[str, Any]:
    skipped = {*NOT_SETTINGS, "engine.canaries", "engine.base_urls"}  # these differ between any two models
    keys = flatten(record.as_json())
    above = {key: {key, key.split(".")[0], ".".join(key.split(".")[:2])} for key in keys}
    kept = {key: value for key, value in keys.items() if not skipped & above[key]}
    return kept | {"adapter": "yes" if kept.pop("model.adapter", None) else "no"}


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


def unscored_notes(run: EvalRun, benchmark: str) -> list[str]:
    """`a: 6 of 24 samples are unscored (HTTP 500: 6)`: what the figures of a run on a benchmark do not count."""
    entry = run.entry(benchmark)
    if not entry.unscored:
        return []
    why = ", ".join(f"{reason}: {count}" for reason, count in Counter(entry.unscored_reasons).most_common(3))
    text = f"{run.name}: {entry.unscored} of {entry.unscored + entry.samples} samples are unscored"
    text += f" ({why})" * bool(why) + " and left out of its figures"
    if lost := len(entry.unscored_questions):
        text += f"; {lost} question{'s' * (lost != 1)} without a scored sample {'are' if lost != 1 else 'is'} left out"
    return [f"{text}. The gtpo eval command tries them again"]
