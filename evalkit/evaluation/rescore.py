"""`gtpo eval RUN --rescore`: verify stored completions again and show which verdicts changed."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from evalkit.engines.base import Generation
from evalkit.evaluation.progress import Progress
from evalkit.evaluation.record import EVAL_RUNS, finish
from evalkit.evaluation.scoring import SCORINGS, score
from evalkit.results.schema import SAMPLE_SCHEMA
from evalkit.results.store import RunFolder
from rewards.support.errors import UserError
from rewards.verify import Verifier

SHOWN = 20


class Change(NamedTuple):
    """A verdict that is another now."""

    benchmark: str
    question_id: str
    sample_index: int
    scoring: str
    answer: str | None
    before: str
    after: str


def find_run(name: str | None) -> Path:
    """Return the folder of an eval run given by path or name. UserError where there is none."""
    for path in (Path(name or ""), EVAL_RUNS / (name or "")):
        if name and (path / "eval.json").is_file():
            return path
    raise UserError(f'--rescore needs an eval run: no eval.json in "{name}" or {EVAL_RUNS / (name or "")}')


def rescore(name: str | None, *, scoring: str, quiet: bool = False) -> tuple[Path, dict[str, Any]]:
    """Score every stored completion of a run again; print the changes; return folder and eval.json."""
    changes: list[Change] = []
    with (
        RunFolder(find_run(name)) as folder,
        Verifier() as verifier,
        Progress(scoring, quiet=quiet) as progress,
    ):
        record = folder.record()
        assert record is not None
        if record["status"] != "complete":
            raise UserError(f"{folder.path} is incomplete; finish it first: {record['command']}")
        problems = folder.problems()
        asked = {(name, p.id): p for name, chosen in problems.items() for p in chosen}
        for benchmark, entry in record["benchmarks"].items():
            progress.add(benchmark, entry["samples"], 0)
        progress.start()
        for part, table in folder.tables():
            before = table.to_pylist()
            generations = [
                Generation(
                    row["benchmark"],
                    row["question_id"],
                    row["sample_index"],
                    row["completion"],
                    row["tokens"],
                    row["finish_reason"],
                    row["seed"],
                )
                for row in before
            ]
            after = score(generations, asked, verifier)
            changes += _changes(before, after)
            if before != after:
                folder.replace_part(part, pa.Table.from_pylist(after, schema=SAMPLE_SCHEMA))
            for benchmark in {row["benchmark"] for row in after}:
                rows = [row for row in after if row["benchmark"] == benchmark]
                right = sum(row[f"verdict_{scoring}"] == "CORRECT" for row in rows)
                progress.update(benchmark, len(rows), right, 0)
        finish(folder, record, scoring, verifier)
        path = folder.path
    _print(changes)
    return path, record


def _changes(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[Change]:
    return [
        Change(
            new["benchmark"],
            new["question_id"],
            new["sample_index"],
            scoring,
            new[f"answer_{scoring}"],
            old[f"verdict_{scoring}"],
            new[f"verdict_{scoring}"],
        )
        for old, new in zip(before, after, strict=True)
        for scoring in SCORINGS
        if old[f"verdict_{scoring}"] != new[f"verdict_{scoring}"]
    ]


def _print(changes: list[Change]) -> None:
    if not changes:
        print("rescored: no verdict changed", file=sys.stderr)
        return
    kinds = Counter((c.scoring, c.before, c.after) for c in changes)
    print(f"rescored: {len(changes)} verdicts changed", file=sys.stderr)
    for (scoring, old, new), count in kinds.most_common():
        print(f"  {count:6d}  {scoring}: {old} -> {new}", file=sys.stderr)
    for c in changes[:SHOWN]:
        answer = repr(c.answer)[:60]
        print(f"  {c.benchmark} {c.question_id} #{c.sample_index} {c.scoring}: {c.before} -> {c.after}  {answer}",
              file=sys.stderr)  # fmt: skip
    if len(changes) > SHOWN:
        print(f"  ... and {len(changes) - SHOWN} more", file=sys.stderr)
