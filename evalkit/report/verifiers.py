"""`gtpo compare RUN... --verifiers`: the samples on which gtpo's verdict and Math-Verify's differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gtpo.common.errors import UserError
from gtpo.evalkit.report.text import visible
from gtpo.evalkit.results.questions import load_problems
from gtpo.evalkit.results.run import EvalRun

LONGEST = 100
"""Characters shown of an answer."""


class Difference(NamedTuple):
    """A sample that one of the two calls correct, and the other does not."""

    benchmark: str
    question: str
    sample: int
    ours: str
    theirs: str
    answer: str
    gold: str


def differences(run: EvalRun, scoring: str) -> Iterator[Difference]:
    """Yield the samples of a run that differ, under one scoring. UserError where Math-Verify did not judge them."""
    import pyarrow.parquet as pq

    if run.record.verifier.name != "both":
        raise UserError(
            f"--verifiers: {run.name} lacks the verdicts of one; gtpo eval {run.name} --rescore --verifier both"
        )
    golds = {name: load_problems(run, name) for name in run.benchmarks}
    columns = ["benchmark", "question_id", "sample_index", f"verdict_{scoring}", "verdict_math_verify"]
    for folder in run.folders:
        for part in sorted((folder / "samples").glob("part-*.parquet")):
            for row in pq.read_table(part, columns=[*columns, f"answer_{scoring}"]).to_pylist():
                name, question, sample, ours, theirs, answer = row.values()
                if theirs is not None and (ours == "CORRECT") != (theirs == "CORRECT"):
                    _, gold = golds.get(name, {}).get(question, ("", ""))
                    yield Difference(name, question, sample, ours, theirs, str(answer), gold)


def print_differences(runs: Sequence[EvalRun], scoring: str | None) -> None:
    """Print them, run by run. Raises UserError."""
    for run in runs:
        headline = scoring or run.record.scoring
        found = list(differences(run, headline))
        print(f"{run.name}: {len(found)} samples differ ({headline} scoring; gtpo, then Math-Verify)")
        for d in found:
            answer, gold = (visible(text[:LONGEST]) for text in (d.answer, d.gold))
            print(f"  {d.benchmark} {d.question} #{d.sample}  {d.ours}, {d.theirs}  {answer!r} | gold {gold!r}")
