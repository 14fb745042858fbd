"""Judge answers from the shell: `python -m gtpo.rewards FILE.jsonl`, or `-` for standard input.

Each line is an object with `prediction` (or `completion`), `gold` (or `answer`, `ground_truth`) and perhaps `problem`.
Prints each line again with its `verdict`, and the counts on standard error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

from gtpo.common.errors import UserError, explained
from gtpo.rewards import Verifier, extract_answer
from gtpo.rewards.extract import Scoring

PREDICTIONS, GOLDS = ("prediction", "pred", "completion"), ("gold", "answer", "ground_truth")


def main() -> None:
    """Judge the pairs of a file. Raises UserError if it cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m gtpo.rewards", description=__doc__)
    parser.add_argument("file", help="a .jsonl file, or - for standard input")
    parser.add_argument("--scoring", choices=("strict", "lenient"), default="strict")
    parser.add_argument("--workers", type=_count, help="processes at most; default: the CPUs, at most 16")
    args = parser.parse_args()
    try:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text(encoding="utf-8")
        # Not splitlines(), which breaks at U+2028 too: texts of GSM8K hold it.
        rows = [_row(line, f"{args.file}:{at}") for at, line in enumerate(text.split("\n"), 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{args.file}: {getattr(error, 'strerror', None) or error}") from None
    with Verifier(workers=args.workers) as verifier:
        pairs = [(_prediction(row, args.scoring), next(row[name] for name in GOLDS if name in row)) for row in rows]
        verdicts = verifier.verify_many(pairs, [row.get("problem") for row in rows], scoring=args.scoring)
    for row, verdict in zip(rows, verdicts, strict=True):
        print(json.dumps(row | {"verdict": str(verdict)}, ensure_ascii=False))
    sys.stdout.flush()
    print(*(f"{verdict}: {count}" for verdict, count in Counter(verdicts).most_common()), sep=", ", file=sys.stderr)


def _count(text: str) -> int:
    """Return a whole number from 1 on. Raises UserError."""
    if not re.fullmatch(r"0*[1-9]\d*", text, re.ASCII):
        raise UserError(f'--workers must be a whole number from 1 on, found "{text}"')
    return int(text)


def _row(line: str, where: str) -> dict[str, str]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: no JSON ({error})") from None
    if not isinstance(row, dict) or not any(n in row for n in PREDICTIONS) or not any(n in row for n in GOLDS):
        raise UserError(f"{where}: expected an object with {' or '.join(PREDICTIONS)}, and {' or '.join(GOLDS)}")
    return row


def _prediction(row: dict[str, str], scoring: Scoring) -> str | None:
    """Return the answer of a row, extracted if it is a whole completion."""
    given = next(row[name] for name in PREDICTIONS if name in row)
    return extract_answer(given, scoring) if "completion" in row else given


if __name__ == "__main__":
    with explained():
        main()
