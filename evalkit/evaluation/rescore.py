"""Verify the stored samples of a run again (`gtpo eval RUN --rescore`)."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from pathlib import Path

from gtpo.common.errors import UserError
from gtpo.evalkit.evaluation.progress import EvalProgress
from gtpo.evalkit.evaluation.record import find_run, verifier_record, write_results
from gtpo.evalkit.evaluation.scoring import verify_stored
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.summary import Tally
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import EvalFolder
from gtpo.runs.eval_record import SCORINGS, EvalRecord
from gtpo.runs.tables import Sample

SHOWN = 20
"""Changed samples that are printed one by one."""


Change = tuple[str, str, str, str, str | None]
"""Of a sample: where it stands, scoring, verdict before and after, answer."""


def rescore_run(settings: EvalSettings) -> tuple[Path, EvalRecord]:
    """Score every stored completion of a run again; print the changes; return folder and eval.json.

    The headline stays the one that the run has, unless --scoring asks for another.
    """
    changes: list[Change] = []
    with EvalFolder(find_run(settings.model, "--rescore")) as folder:
        record = folder.record()
        assert record is not None
        if record.status != "complete":
            raise UserError(f"{folder.path} is incomplete; finish it first: {record.command}")
        headline = settings.scoring if "scoring" in settings.given else record.scoring
        judges = settings.verifier if "verifier" in settings.given else record.verifier.name
        record = record.model_copy(update={"verifier": verifier_record(judges)})
        with Verifier() as verifier, EvalProgress(headline) as progress:
            stored = folder.problems(everything=True)
            asked = {(name, p.id): p for name, chosen in stored.items() for p in chosen}
            for benchmark, entry in record.benchmarks.items():
                progress.add(benchmark, entry.samples, 0)
            progress.start()
            for before, after in verify_stored(folder, asked, verifier, judges):
                changes += _changes(before, after)
                progress.count(after)
            record = write_results(folder, record, Tally(folder, verifier), verifier, scoring=headline)
        path = folder.path
    _print(changes)
    return path, record


def _changes(before: list[Sample], after: list[Sample]) -> list[Change]:
    return [
        (f"{new.benchmark} {new.question_id} #{new.sample_index}", scoring, was or "", now or "", new.answer(scoring))
        for old, new in zip(before, after, strict=True)
        for scoring in SCORINGS
        if (was := old.verdict(scoring)) != (now := new.verdict(scoring))
    ]


def _print(changes: list[Change]) -> None:
    say = functools.partial(print, file=sys.stderr)
    say(f"rescored: {len(changes) or 'no'} verdicts changed")
    for (scoring, old, new), count in Counter(change[1:4] for change in changes).most_common():
        say(f"  {count:6d}  {scoring}: {old} -> {new}")
    for where, scoring, old, new, answer in changes[:SHOWN]:
        say(f"  {where} {scoring}: {old} -> {new}  {answer!r:.60}")
    if len(changes) > SHOWN:
        say(f"  ... and {len(changes) - SHOWN} more")
