"""Judge answers from the shell: `python -m gtpo.rewards FILE`, or `-` for JSON lines on standard input.

Each row of a .jsonl, .csv or .parquet file has `prediction` (or `completion`), `gold` (or `answer`, `ground_truth`) and
perhaps `problem`; --fields gives them other names. Prints each row again as JSON with its `verdict`, with --explain how
both answers were read too, and the counts on standard error. --against names a reward function with TRL's signature and
prints on which completions it differs from this judge instead.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError, explained
from gtpo.rewards import Verifier, extract_answer
from gtpo.rewards.adapters import audit, interval
from gtpo.rewards.extract import Scoring, choose_scoring
from gtpo.rewards.loading import import_dotted

PREDICTIONS, GOLDS = ("prediction", "pred", "completion"), ("gold", "answer", "ground_truth")


def main() -> int:
    """Judge the pairs of a file; 5 if the function beside the judge differs too often. Raises UserError."""
    parser = argparse.ArgumentParser(prog="python -m gtpo.rewards", description=__doc__)
    parser.add_argument("file", help="a .jsonl, .csv or .parquet file, or - for JSON lines on standard input")
    parser.add_argument("--scoring", choices=("auto", "strict", "lenient"), default="auto")
    parser.add_argument("--workers", type=_count, help="processes at most; default: the CPUs, at most 16")
    parser.add_argument("--fields", nargs="*", default=[], metavar="NAME=COLUMN", help="gold=target completion=text")
    parser.add_argument("--explain", action="store_true", help="add how both answers were read and the rule")
    parser.add_argument("--against", metavar="MODULE:FUNCTION", help="a reward function to audit")
    parser.add_argument("--fail-above", type=float, default=1.0, metavar="SHARE", help="of differing rows: exit code 5")
    args = parser.parse_args()
    names = dict(field.split("=", 1) for field in args.fields if "=" in field)
    if len(names) < len(args.fields):
        raise UserError(f"--fields {' '.join(args.fields)}: expected NAME=COLUMN, as in gold=target")
    try:
        rows = [_row(row, names, where) for row, where in _rows(args.file)]
    except (OSError, ValueError) as error:  # of pyarrow too
        raise UserError(f"{args.file}: {getattr(error, 'strerror', None) or error}") from None
    function = import_dotted(args.against, "reward function") if args.against else None
    scoring = _scoring(rows) if args.scoring == "auto" else args.scoring
    texts = [_prediction(row, scoring) for row in rows]
    golds = [next(row[name] for name in GOLDS if name in row) for row in rows]
    if function is not None:
        return _against(function, rows, golds, texts, scoring, args.fail_above)
    with Verifier(workers=args.workers) as verifier:
        problems = [row.get("problem") for row in rows]
        verdicts = verifier.verify_many(list(zip(texts, golds, strict=True)), problems, scoring=scoring)
        for row, text, gold, problem, verdict in zip(rows, texts, golds, problems, verdicts, strict=True):
            why = verifier.verify(text, gold, problem=problem, explain=True).why if args.explain else None
            print(json.dumps(row | {"verdict": str(verdict)} | ({"why": why} if why else {}), ensure_ascii=False))
    sys.stdout.flush()
    print(*(f"{verdict}: {count}" for verdict, count in Counter(verdicts).most_common()), sep=", ", file=sys.stderr)
    return 0


def _count(text: str) -> int:
    """Return a whole number from 1 on. Raises UserError."""
    if not re.fullmatch(r"0*[1-9]\d*", text, re.ASCII):
        raise UserError(f'--workers must be a whole number from 1 on, found "{text}"')
    return int(text)


def _against(
    function: Any,
    rows: list[dict[str, Any]],
    golds: list[Any],
    texts: list[str | None],
    scoring: Scoring,
    most: float,
) -> int:
    """Print how a reward function differs from the judge; 5 if by more than `most`."""
    raw = [str(next(row[name] for name in PREDICTIONS if name in row)) for row in rows]
    given = [row | {"completion": text, "gold": gold} for row, text, gold in zip(rows, raw, golds, strict=True)]
    flips, total = audit(function, given, texts, scoring)
    low, high = interval(len(flips), total) if total else (0.0, 1.0)
    print(f"{len(flips)} of {total} differ ({100 * low:.2f} to {100 * high:.2f} %)")
    for (direction, verdict), count in Counter((flip.direction, flip.verdict) for flip in flips).most_common():
        print(f"  {count} {direction} by the function, {verdict} here")
    for flip in sorted(flips, key=lambda flip: (flip.direction, flip.second == "CORRECT"))[:20]:
        print(
            f"  {flip.direction}: {flip.text[-200:]!r} | gold {flip.gold!r}: {flip.verdict}, Math-Verify {flip.second}"
        )
    return 5 if total and len(flips) / total > most else 0


def _rows(file: str) -> list[tuple[Any, str]]:
    """Return the rows of a file, each with the place where it stands."""
    if file.endswith(".parquet"):
        import pyarrow.parquet

        return [(row, f"{file}:{at}") for at, row in enumerate(pyarrow.parquet.read_table(file).to_pylist(), 1)]
    if file.endswith(".csv"):
        with Path(file).open(encoding="utf-8", newline="") as opened:
            return [(row, f"{file}:{at}") for at, row in enumerate(csv.DictReader(opened), 2)]
    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    # Not splitlines(), which breaks at U+2028 too: texts of GSM8K hold it.
    return [
        (_parsed(line, f"{file}:{at}"), f"{file}:{at}") for at, line in enumerate(text.split("\n"), 1) if line.strip()
    ]


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: no JSON ({error})") from None


def _row(row: Any, names: dict[str, str], where: str) -> dict[str, Any]:
    if isinstance(row, dict):
        row = row | {name: row[column] for name, column in names.items() if column in row}
    if not isinstance(row, dict) or not any(n in row for n in PREDICTIONS) or not any(n in row for n in GOLDS):
        raise UserError(f"{where}: expected an object with {' or '.join(PREDICTIONS)}, and {' or '.join(GOLDS)}")
    return row


def _scoring(rows: list[dict[str, Any]]) -> Scoring:
    """Return what the completions of a file want, as `gtpo eval` does; answers alone are judged strictly."""
    texts = [str(row["completion"]) for row in rows if "completion" in row]
    return choose_scoring(map(extract_answer, texts)) if texts else "strict"


def _prediction(row: dict[str, Any], scoring: Scoring) -> str | None:
    """Return the answer of a row, extracted if it is a whole completion."""
    given = next(row[name] for name in PREDICTIONS if name in row)
    return extract_answer(given, scoring) if "completion" in row else given


if __name__ == "__main__":
    with explained():
        sys.exit(main())
