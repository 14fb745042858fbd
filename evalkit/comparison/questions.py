"""The questions of one benchmark that all methods answered, in one order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gtpo.evalkit.comparison.like_for_like import by_run, unscored_notes
from gtpo.evalkit.comparison.methods import Method
from gtpo.evalkit.results.questions import Questions, load_problems, load_questions
from gtpo.evalkit.results.run import EvalRun

from gtpo.common.errors import UserError


@dataclass(frozen=True)
class Shared:
    """One benchmark (or one subject of it): the same Q questions for every run of every method."""

    benchmark: str
    group: str
    methods: list[Method]
    parts: dict[str, list[Questions]] = field(repr=False)
    """method -> one entry per run."""
    runs: dict[str, list[EvalRun]] = field(repr=False)
    notes: list[str]

    @property
    def questions(self) -> int:
        """Q."""
        return int(next(iter(self.parts.values()))[0].ids.size)

    @property
    def samples(self) -> int:
        """Samples per question: the least over runs and their questions, those that are not shared included."""
        return min(part.pass_at_k.shape[1] for parts in self.parts.values() for part in parts)

    def method(self, name: str) -> Method:
        """The method of a name."""
        return next(method for method in self.methods if method.name == name)

    def check_k(self, k: int) -> None:
        """UserError where a run has fewer than k samples."""
        for name, parts in self.parts.items():
            for run, part in zip(self.runs[name], parts, strict=True):
                had = part.pass_at_k.shape[1]
                if k > had:
                    raise UserError(
                        f"k = {k} needs {k} samples per question; {run.name} has n = {had} on {self.benchmark} (gtpo "
                        f"eval --k {k} with the same --out adds the missing ones)"
                    )

    def groups(self) -> Iterator[Shared]:
        """One part for each subject and level."""
        first = next(iter(self.parts.values()))[0]
        masks = [(subject, first.subject == subject) for subject in sorted(set(first.subject)) if subject]
        masks += [(f"level {level}", first.level == level) for level in sorted(set(first.level.tolist())) if level]
        for name, rows in masks:
            taken = {method: [part.take(rows) for part in parts] for method, parts in self.parts.items()}
            yield replace(self, group=name, parts=taken, notes=[])


def shared_questions(benchmark: str, methods: list[Method], scoring: str, allow: bool) -> Shared:
    """Load a benchmark; UserError where the runs' questions or golds differ, unless `allow` takes what they share."""
    runs = {m.name: [run for run in m.runs if benchmark in run.benchmarks] for m in methods}
    loaded = [(name, run, load_questions(run, benchmark, scoring)) for name, found in runs.items() for run in found]
    notes = [
        f"{m.name}: only {len(runs[m.name])} of its {len(m.runs)} runs were evaluated on {benchmark}"
        for m in methods
        if len(runs[m.name]) < len(m.runs)
    ]
    notes += [note for _, run, _ in loaded for note in unscored_notes(run, benchmark)]
    first = loaded[0][2]
    same_ids = all(np.array_equal(first.ids, part.ids) for _, _, part in loaded)
    other_golds = _other_golds(benchmark, [run for _, run, _ in loaded])
    common: Any = first.ids
    if not same_ids or other_golds:
        counts = "; ".join(f"{run.name}: {part.ids.size} questions" for _, run, part in loaded)
        if same_ids:
            problem = f"the questions or golds of {benchmark} differ under the same ids ({other_golds})"
        else:
            problem = f"the questions of {benchmark} differ ({counts})"
        if not allow:
            raise UserError(
                f"these runs cannot be compared: {problem}. --allow-mismatch compares the questions they share, with a "
                "note"
            )
        for _, _, part in loaded:
            common = np.intersect1d(common, part.ids)
        if common.size == 0:
            raise UserError(f"these runs have no question of {benchmark} in common ({counts})")
        notes.append(f"not like for like: {problem}; compared on the {common.size} questions they share")
    parts: dict[str, list[Questions]] = {name: [] for name in runs}
    for name, _, part in loaded:
        parts[name].append(part if part.ids.size == common.size else part.take(np.isin(part.ids, common)))
    return Shared(benchmark, "", methods, parts, runs, notes)


def _other_golds(benchmark: str, runs: list[EvalRun]) -> str:
    """Say how two runs' questions or golds of the same ids differ; empty where they do not.

    Checksums settle it where they can. Runs of older versions have none of the content, nor have recorded completions
    without the questions' text.
    """
    entries = {run.name: [r.benchmarks[benchmark] for r in run.records if benchmark in r.benchmarks] for run in runs}
    sums = {name: sorted(str(entry.checksum) for entry in found) for name, found in entries.items()}
    contents = {name: sorted(str(entry.content_checksum) for entry in found) for name, found in entries.items()}
    known = {tuple(found) for found in contents.values() if "None" not in found}
    same_golds = len({tuple(found) for found in sums.values()}) <= 1
    if same_golds and len(known) <= 1:
        return ""
    first, *rest = runs
    golds = load_problems(first, benchmark)
    for run in rest:
        theirs = load_problems(run, benchmark)
        if not golds or not theirs:
            return f"checksums {by_run(sums if not same_golds else contents)}"
        for question in sorted(golds.keys() & theirs.keys()):
            if golds[question][1] != theirs[question][1]:
                return f"{question}: {first.name} {golds[question][1]}, {run.name} {theirs[question][1]}"
            texts = golds[question][0], theirs[question][0]
            if all(texts) and texts[0] != texts[1]:
                return f"{question}: the text of {run.name} is another than that of {first.name}"
    return f"answers are compared as text in one and not in another ({by_run(contents)})" if same_golds else ""
