"""Verdicts on generated answers, approved: what a change of the judge moves is printed, and has to be approved.

    python -m bench.law_verdicts            prints each verdict that is another than the approved one
    python -m bench.law_verdicts --approve  writes them to tests/rewards/verdicts.txt, for the commit that moves them
    python -m bench.law_verdicts --draw     draws other answers: after a new type, a new operation or a new frame

The answers were drawn by the laws: texts with several values (`bench.law_values`), undone and done forms of every
operation in every type (`bench.law_work`). A replay of known texts stays green while a repair opens a new hole beside
them: so nearly every fault of the judge came in.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Sequence
from pathlib import Path

from bench import law_values, law_work
from bench.common import parser
from gtpo.rewards import Verifier

APPROVED = Path(__file__).parents[1] / "tests/rewards/verdicts.txt"
TEXTS, SEED = 300, 20260
Answer = tuple[str, str, str | None]
"""Text, gold, problem."""


def drawn() -> list[Answer]:
    """Return each text with each of its values as gold, and operations undone and done."""
    found = [(each.text, value, each.problem) for each in law_values.texts(TEXTS, SEED) for value in each.values]
    for undone, done in law_work.cases(TEXTS, SEED):
        found += [(case.text, case.gold, case.problem) for case in (undone, done)]
    return list(dict.fromkeys(found))


def approved() -> dict[Answer, str]:
    """Return the approved verdict of each answer."""
    lines = (line.split("\t", 1) for line in APPROVED.read_text(encoding="utf-8").split("\n") if line)
    return {literal_eval(answer): verdict for verdict, answer in lines}


def judged(answers: Sequence[Answer], verifier: Verifier) -> dict[Answer, str]:
    """Return the verdict on each answer today."""
    pairs, problems = [(text, gold) for text, gold, _ in answers], [problem for *_, problem in answers]
    return dict(zip(answers, map(str, verifier.verify_many(pairs, problems)), strict=True))


def main() -> None:
    """Print what moved, or approve what is."""
    args = parser(__doc__, approve=False, draw=False).parse_args()
    was = {} if args.draw else approved()
    with Verifier() as verifier:
        now = judged(drawn() if args.draw else list(was), verifier)
    if args.approve or args.draw:
        APPROVED.write_text("".join(f"{verdict}\t{answer!r}\n" for answer, verdict in now.items()), encoding="utf-8")
    moved = [
        f"{was[answer]} -> {verdict}\t{answer}" for answer, verdict in now.items() if was and was[answer] != verdict
    ]
    print(*moved, f"{len(now)} answers, {len(moved)} with another verdict", sep="\n")


if __name__ == "__main__":
    main()
