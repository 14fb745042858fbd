"""Verifications per second, and agreement with every suite's labels: this project's Verifier against Math-Verify.

Speed: both get the same completions, as many processes, a warm start and the same rounds in turn; the fastest counts.
Ours extracts, removes duplicates and verifies, with an empty cache in every round; Math-Verify's documented `parse` +
`verify` runs on every completion. Expected before the first run: 10 times its throughput on 100 x 64 samples.

Agreement, false accepts and false rejects: lenient scoring of what each contender extracts itself, on the recorded
completions and the grader cases (for Math-Verify as they stand or in dollars, whichever suits it better on the suite;
for TRL's accuracy reward in a box). Answers to known problems, and the mutations (bench/mutations.py), as in
training. Contested cases, on which graders differ with reason, stand apart.

    python -m bench.verify [--shared DIR] [--workers N] [--rounds N] [--out FILE]
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.pool import Pool
from operator import eq
from pathlib import Path
from typing import Any

from bench import mutations
from bench.common import parser, save, table, with_shared
from bench.verdicts import Case, labelled
from gtpo.common.files import read_json
from gtpo.rewards import Verdict, Verifier

Pair = tuple[str, str]  # completion, gold
MEASURED = ("gtpo", "Math-Verify")


def suites(shared: Path) -> dict[str, list[Case]]:
    """Return the labelled completions and answers by suite."""
    found: dict[str, list[Case]] = {}
    for case in labelled(shared):
        if case.suite != "zeroeval":
            found.setdefault(case.suite, []).append(case)
    return found


def pairs_of(cases: Sequence[Case], around: str = "") -> list[Pair]:
    """Return texts with their golds. around: what stands before and behind each text."""
    return [(f"{around}{case.text or ''}{around}", case.gold) for case in cases]


def ours(cases: Sequence[Case], verifier: Verifier) -> list[bool]:
    """Return what this project accepts: of completions leniently, of answers to known problems as in training."""
    pairs, problems = [(case.prediction, case.gold) for case in cases], [case.problem for case in cases]
    known = cases[0].bare
    verdicts = verifier.verify_many(pairs, problems) if known else verifier.verify_many(pairs, scoring="lenient")
    return [verdict is Verdict.CORRECT for verdict in verdicts]


def trl_one(pair: Pair) -> bool:
    """Return whether TRL's accuracy reward pays a completion, which it wants boxed."""
    from trl.rewards import accuracy_reward

    text = pair[0] if "boxed" in pair[0] else f"\\boxed{{{pair[0]}}}"
    (score,) = accuracy_reward([[{"content": text}]], [f"${pair[1]}$"])
    return bool(score)


def math_verify_one(pair: Pair) -> bool:
    """Return whether Math-Verify accepts a completion."""
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    return bool(verify(parse(f"${pair[1]}$"), parse(pair[0])))


def throughput(name: str, cases: list[Case], workers: int, rounds: int, pool: Pool) -> list[dict[str, Any]]:
    """Return one row a contender: the fastest of `rounds` rounds, which take turns."""
    pairs = pairs_of(cases)
    seconds: dict[str, list[float]] = {contender: [] for contender in MEASURED}
    correct: dict[str, int] = {}

    def take(contender: str, run: Callable[[], list[bool]]) -> None:
        start = time.perf_counter()
        accepted = run()
        seconds[contender].append(time.perf_counter() - start)
        correct[contender] = sum(accepted)

    pool.map(math_verify_one, pairs[: 4 * workers], chunksize=1)
    for _ in range(rounds):
        with Verifier(workers=workers) as verifier:
            verifier.verify_many([(f"x+{i}", f"{i}+x+0") for i in range(8 * workers)])  # workers up
            take("gtpo", lambda verifier=verifier: ours(cases, verifier))  # type: ignore[misc]
        take("Math-Verify", lambda: pool.map(math_verify_one, pairs, chunksize=32))
    best = {contender: min(times) for contender, times in seconds.items()}
    rows = [
        {"set": name, "contender": contender, "completions": len(pairs), "rounds": rounds, "seconds": least,
         "per_second": len(pairs) / least, "correct": correct[contender]}
        for contender, least in best.items()
    ]  # fmt: skip
    rows[0]["times_math_verify"] = best["Math-Verify"] / best["gtpo"]
    return rows


def agreement(found: dict[str, list[Case]], workers: int, pool: Pool) -> list[dict[str, Any]]:
    """Return one row a suite and contender: agreement with the labels, wrong verdicts, contested cases apart."""
    listed = read_json(Path(__file__).parents[1] / "tests/rewards/grader_disagreements.json")["cases"]
    rows = []
    with Verifier(workers=workers) as verifier:
        for name, cases in found.items():
            labels = [bool(case.label) for case in cases]
            contested = {row["index"] for row in listed if row["contested"] and f"{row['suite']} cases" == name}
            # Bare answers: Math-Verify wants them in dollars, full solutions as they are.
            ways = ("", "$") if name.endswith("cases") else ("",)
            theirs = [pool.map(math_verify_one, pairs_of(cases, way), chunksize=32) for way in ways]
            accepted = {
                "gtpo": ours(cases, verifier),
                "Math-Verify": max(theirs, key=lambda each: sum(map(eq, each, labels))),
                "TRL": pool.map(trl_one, pairs_of(cases), chunksize=32),
            }
            for contender, verdicts in accepted.items():
                counted = [(v, y) for i, (v, y) in enumerate(zip(verdicts, labels, strict=True)) if i not in contested]
                rows.append({
                    "suite": name, "contender": contender, "cases": len(counted),
                    "agree": sum(v == y for v, y in counted),
                    "wrong": sum(not y for _, y in counted), "false_accepts": sum(v and not y for v, y in counted),
                    "right": sum(y for _, y in counted), "false_rejects": sum(y and not v for v, y in counted),
                    "contested": len(contested), "contested_agree": sum(verdicts[i] == labels[i] for i in contested),
                })  # fmt: skip
    return rows


def mutation_scores(shared: Path, workers: int, pool: Pool) -> list[dict[str, Any]]:
    """Return one row a contender: its score on the mutation suite, for Math-Verify as answers in dollars."""
    pairs = mutations.own_pairs() + mutations.real_pairs(shared)
    with Verifier(workers=workers) as verifier:
        accepted = mutations.ours(pairs, verifier)
    theirs = pool.map(math_verify_one, [(f"${pair.prediction}$", pair.gold) for pair in pairs], chunksize=32)
    both = zip(MEASURED, (accepted, theirs), strict=True)
    return [{"contender": c, **mutations.score(pairs, verdicts)} for c, verdicts in both]


def main() -> None:
    """Measure, write the JSON and print its tables."""
    args = with_shared(parser(__doc__, workers=2, rounds=3, out=Path("results/bench/verify.json")), "recorded")
    found = suites(args.shared)
    sets = {
        "math100x8": found["math100x8"],
        "math100x64": found["math100x8"] * 8,
        "gsm8k 4x1319": found["gsm8k 4x1319"],
    }
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        rows = [row for name, cases in sets.items() for row in throughput(name, cases, args.workers, args.rounds, pool)]
        agree = agreement(found, args.workers, pool)
        mutated = mutation_scores(args.shared, args.workers, pool)
    print(table(rows[0], (row.values() for row in rows)))
    print(table(agree[0], (row.values() for row in agree)))
    print(table(mutated[0], (row.values() for row in mutated)))
    report = {"workers": args.workers, "rounds": args.rounds, "rows": rows, "agreement": agree, "mutations": mutated}
    save(args.out, report)


if __name__ == "__main__":
    main()
