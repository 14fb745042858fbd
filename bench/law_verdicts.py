"""Verdicts on generated answers, approved: what a change of the judge moves is printed, and has to be approved.

    python -m bench.law_verdicts            prints each verdict that is another than the approved one
    python -m bench.law_verdicts --approve  writes them to tests/rewards/verdicts.txt, for the commit that moves them

The answers are those of the laws: texts with several values (`bench.law_values`), and undone and done forms of every
operation in every type (`bench.law_work`). A replay of known texts stays green while a repair opens a new hole beside
them: so nearly every fault of the judge came in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench import law_values, law_work
from bench.common import parser
from gtpo.rewards import Verifier

APPROVED = Path(__file__).parents[1] / "tests/rewards/verdicts.txt"
TEXTS, SEED = 400, 20260


def answers() -> Iterator[tuple[str, str, str | None]]:
    """Yield (text, gold, problem): each text with each of its values, undone and done."""
    for several in law_values.texts(TEXTS, SEED):
        yield from ((several.text, value, several.problem) for value in several.values)
    for undone, done in law_work.cases(TEXTS, SEED):
        yield from ((case.text, case.gold, case.problem) for case in (undone, done))


def judged(verifier: Verifier) -> list[str]:
    """Return a line for each answer: verdict, text and gold."""
    rows = list(answers())
    verdicts = verifier.verify_many([(text, gold) for text, gold, _ in rows], [problem for *_, problem in rows])
    return [f"{verdict}\t{text!r}\t{gold!r}" for verdict, (text, gold, _) in zip(verdicts, rows, strict=True)]


def moved(lines: list[str]) -> list[str]:
    """Return what is not as approved: `was -> is` with the answer; a text that is new counts as moved."""
    approved = dict(line.split("\t", 1)[::-1] for line in APPROVED.read_text(encoding="utf-8").split("\n") if line)
    found = [(approved.get(rest, "new"), verdict, rest) for verdict, rest in (line.split("\t", 1) for line in lines)]
    return [f"{was} -> {verdict}\t{rest}" for was, verdict, rest in found if was != verdict]


def main() -> None:
    """Print what moved, or approve what is."""
    args = parser(__doc__, approve=False).parse_args()
    with Verifier() as verifier:
        lines = judged(verifier)
    if args.approve:
        APPROVED.write_text("\n".join(dict.fromkeys(lines)) + "\n", encoding="utf-8")
    print(*moved(lines), f"{len(lines)} answers, {len(moved(lines))} with another verdict", sep="\n")


if __name__ == "__main__":
    main()
