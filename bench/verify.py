"""Verifications per second, and agreement with every suite's labels: this project's Verifier against Math-Verify.

Speed: both contenders get the same completions, the same number of processes, a warm start (processes up, imports done)
and the same number of rounds, in turn; the fastest round counts. Ours extracts, removes duplicates and verifies, with
an empty cache in every round; Math-Verify's contender calls its documented `parse` + `verify` on every completion in a
`multiprocessing` pool. Expected, written down before the first run: at least 10 times Math-Verify's throughput on the
100 x 8 set repeated to 64 samples, since 64 samples of a question hold a handful of distinct answers and most of those
are plain numbers.

Agreement: lenient scoring of what each contender extracts itself, on the recorded completions and the grader cases (for
Math-Verify as they stand or in dollars, whichever suits it better on the suite); the mutations (bench/mutations.py) as
in training. Contested cases, on which graders differ with reason, stand apart.

    python -m bench.verify [--shared DIR] [--workers N] [--rounds N] [--out FILE]
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

from bench import mutations
from gtpo.common.files import read_json, read_jsonl, write_json
from gtpo.rewards import Verdict, Verifier, extract_answer

Pair = tuple[str, str]  # completion, gold
CONTENDERS = ("gtpo", "Math-Verify")


def load_math(shared: Path, repeats: int) -> list[Pair]:
    """Return the recorded MATH completions, each question's samples `repeats` times over."""
    with gzip.open(shared / "recorded/math100x8_qwen/math_cot_100.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [(text, row["gold"]) for row in rows for text in row["completions"] * repeats]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def _labelled(shared: Path) -> dict[str, tuple[list[Pair], list[bool], set[int]]]:
    """Return name -> (completions with golds, labels, contested indices)."""
    listed = read_json(Path(__file__).parents[1] / "tests/rewards/grader_disagreements.json")["cases"]
    suites = {}
    for name in ("math_verify", "ms_swift", "qwen_math_equal", "trl"):
        cases = _rows(shared / f"grader_cases/{name}.jsonl")
        contested = {row["index"] for row in listed if row["suite"] == name and row["contested"]}
        suites[f"{name} cases"] = ([(c["pred"], c["gold"]) for c in cases], [c["expected"] for c in cases], contested)
    recorded = [row for p in sorted((shared / "recorded/gsm8k_openai_gpt3").glob("*.gz")) for row in _rows(p)]
    labels = [str(row["label"]) == "True" for row in recorded]
    suites["gsm8k 4x1319"] = ([(row["completion"], row["gold"]) for row in recorded], labels, set())
    labels = [x for row in _rows(shared / "recorded/math100x8_qwen/math_cot_100.jsonl.gz") for x in row["labels"]]
    suites["math100x8"] = (load_math(shared, 1), labels, set())
    return suites


def ours(pairs: Sequence[Pair], verifier: Verifier) -> list[bool]:
    """Return what this project accepts."""
    extracted = [(extract_answer(text, "lenient"), gold) for text, gold in pairs]
    return [verdict is Verdict.CORRECT for verdict in verifier.verify_many(extracted, scoring="lenient")]


def math_verify_one(pair: Pair) -> bool:
    """Return whether Math-Verify accepts a completion."""
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    return bool(verify(parse(f"${pair[1]}$"), parse(pair[0])))


def _timed(run: Callable[[], list[bool]]) -> tuple[float, list[bool]]:
    start = time.perf_counter()
    accepted = run()
    return time.perf_counter() - start, accepted


def throughput(name: str, pairs: list[Pair], workers: int, rounds: int, pool: Pool) -> list[dict[str, Any]]:
    """Return one row a contender: the fastest of `rounds` rounds, which take turns."""
    seconds: dict[str, list[float]] = {contender: [] for contender in CONTENDERS}
    correct: dict[str, int] = {}
    pool.map(math_verify_one, pairs[: 4 * workers], chunksize=1)
    for _ in range(rounds):
        with Verifier(workers=workers) as verifier:
            verifier.verify_many([(f"x+{i}", f"{i}+x+0") for i in range(8 * workers)])  # workers up
            elapsed, accepted = _timed(lambda verifier=verifier: ours(pairs, verifier))  # type: ignore[misc]
        seconds["gtpo"].append(elapsed)
        correct["gtpo"] = sum(accepted)
        elapsed, accepted = _timed(lambda: pool.map(math_verify_one, pairs, chunksize=32))
        seconds["Math-Verify"].append(elapsed)
        correct["Math-Verify"] = sum(accepted)
    times = min(seconds["Math-Verify"]) / min(seconds["gtpo"])
    return [
        {
            "set": name,
            "contender": contender,
            "completions": len(pairs),
            "rounds": rounds,
            "seconds": min(seconds[contender]),
            "per_second": len(pairs) / min(seconds[contender]),
            "correct": correct[contender],
            **({"times_math_verify": times} if contender == "gtpo" else {}),
        }
        for contender in CONTENDERS
    ]


def agreement(shared: Path, workers: int, pool: Pool) -> list[dict[str, Any]]:
    """Return one row a suite: on how many cases each contender agrees with the labels, contested ones apart."""
    rows = []
    with Verifier(workers=workers) as verifier:
        for name, (pairs, labels, contested) in _labelled(shared).items():
            theirs = [pool.map(math_verify_one, pairs, chunksize=32)]
            if name.endswith("cases"):  # bare answers: it wants them in dollars, full solutions as they are
                theirs.append(pool.map(math_verify_one, [(f"${text}$", gold) for text, gold in pairs], chunksize=32))
            better = max(theirs, key=lambda yes: sum(y == label for y, label in zip(yes, labels, strict=True)))
            accepted = {"gtpo": ours(pairs, verifier), "Math-Verify": better}
            agree = {
                contender: [yes == label for yes, label in zip(verdicts, labels, strict=True)]
                for contender, verdicts in accepted.items()
            }
            rows.append(
                {
                    "suite": name,
                    "cases": len(pairs) - len(contested),
                    "agree": {c: sum(ok for i, ok in enumerate(a) if i not in contested) for c, a in agree.items()},
                    "contested": len(contested),
                    "contested_agree": {c: sum(a[i] for i in contested) for c, a in agree.items()},
                }
            )
    return rows


def mutation_scores(shared: Path, workers: int) -> list[dict[str, Any]]:
    """Return one row a contender: its score on the mutation suite."""
    pairs = mutations.own_pairs() + mutations.real_pairs(shared)
    with Verifier(workers=workers) as verifier:
        accepted = {"gtpo": mutations.ours(pairs, verifier), "Math-Verify": mutations.math_verify(pairs)}
    return [{"contender": c, **mutations.score(pairs, verdicts)._asdict()} for c, verdicts in accepted.items()]


def main() -> None:
    """Measure, write the JSON and print its tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("GTPO_SHARED_DIR", "../shared")))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each contender; the fastest counts")
    parser.add_argument("--out", type=Path, default=Path("results/bench/verify.json"))
    args = parser.parse_args()
    if not (args.shared / "recorded").is_dir():
        parser.exit(
            2, f"bench.verify: {args.shared}/recorded: no such folder; name the recorded completions by --shared\n"
        )
    gsm8k = _labelled(args.shared)["gsm8k 4x1319"][0]
    sets = {"math100x8": load_math(args.shared, 1), "math100x64": load_math(args.shared, 8), "gsm8k 4x1319": gsm8k}
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        rows = [row for name, pairs in sets.items() for row in throughput(name, pairs, args.workers, args.rounds, pool)]
        suites = agreement(args.shared, args.workers, pool)
    mutated = mutation_scores(args.shared, args.workers)
    write_json(
        args.out,
        {"workers": args.workers, "rounds": args.rounds, "rows": rows, "agreement": suites, "mutations": mutated},
    )
    print(f"{'set':<14}{'contender':<14}{'completions':>12}{'seconds':>10}{'per second':>12}{'correct':>9}{'times':>8}")
    for row in rows:
        ratio = f"{row['times_math_verify']:.1f}" if "times_math_verify" in row else ""
        print(
            f"{row['set']:<14}{row['contender']:<14}{row['completions']:>12}{row['seconds']:>10.2f}"
            f"{row['per_second']:>12.0f}{row['correct']:>9}{ratio:>8}"
        )
    print(f"\n{'suite':<24}{'cases':>8}{'gtpo':>8}{'Math-Verify':>13}{'contested':>11}{'gtpo':>6}{'Math-Verify':>13}")
    for row in suites:
        agree, apart = row["agree"], row["contested_agree"]
        print(
            f"{row['suite']:<24}{row['cases']:>8}{agree['gtpo']:>8}{agree['Math-Verify']:>13}"
            f"{row['contested']:>11}{apart['gtpo']:>6}{apart['Math-Verify']:>13}"
        )
    for row in mutated:
        print(
            f"mutations, {row['contender']}: {row['accepted']} of {row['equal']} equal pairs accepted, "
            f"{row['false_accepts']} false accepts of {row['others']}; {row['contested']} contested left out"
        )
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
