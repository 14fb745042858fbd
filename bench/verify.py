"""Verifications per second: this project's Verifier against Math-Verify on every completion, in one run.

Both contenders get the same completions, the same number of processes, and a warm start (processes up, imports
done). Ours extracts, removes duplicates and verifies, with an empty cache in every round; Math-Verify's contender
calls its documented `parse` + `verify` on every completion in a `multiprocessing` pool. Expected, written down
before the first run: at least 10 times Math-Verify's throughput on the 100 x 8 set repeated to 64 samples, since
64 samples of a question hold a handful of distinct answers and most of those are plain numbers.

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
from collections.abc import Callable
from pathlib import Path

from rewards import Verdict, Verifier, extract_answer
from rewards.support.files import write_json

Pair = tuple[str, str]  # completion, gold


def load_math(shared: Path, repeats: int) -> list[Pair]:
    with gzip.open(shared / "recorded/math100x8_qwen/math_cot_100.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [(text, row["gold"]) for row in rows for text in row["completions"] * repeats]


def load_gsm8k(shared: Path) -> list[Pair]:
    pairs = []
    for file in sorted((shared / "recorded/gsm8k_openai_gpt3").glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            pairs += [(row["completion"], row["gold"]) for row in map(json.loads, lines)]
    return pairs


def ours(pairs: list[Pair], verifier: Verifier) -> list[bool]:
    extracted = [(extract_answer(text, "lenient"), gold) for text, gold in pairs]
    return [verdict is Verdict.CORRECT for verdict in verifier.verify_many(extracted)]


def math_verify_one(pair: Pair) -> bool:
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    return bool(verify(parse(f"${pair[1]}$"), parse(pair[0])))


def timed(run: Callable[[], list[bool]]) -> tuple[float, int]:
    start = time.perf_counter()
    correct = sum(run())
    return time.perf_counter() - start, correct


def compare(name: str, pairs: list[Pair], workers: int, rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    times = []
    for _ in range(rounds):
        with Verifier(workers=workers) as verifier:
            verifier.verify_many([(f"x+{i}", f"{i}+x+0") for i in range(8 * workers)])  # workers up
            seconds, correct = timed(lambda verifier=verifier: ours(pairs, verifier))  # type: ignore[misc]
            times.append(seconds)
    rows.append({"set": name, "contender": "gtpo", "seconds": min(times), "correct": correct})
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(math_verify_one, pairs[: 4 * workers], chunksize=1)
        seconds, correct = timed(lambda: pool.map(math_verify_one, pairs, chunksize=32))
    rows.append({"set": name, "contender": "Math-Verify", "seconds": seconds, "correct": correct})
    for row in rows:
        row |= {"completions": len(pairs), "per_second": len(pairs) / float(str(row["seconds"]))}
    rows[0]["times_math_verify"] = float(str(rows[1]["seconds"])) / float(str(rows[0]["seconds"]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("GTPO_SHARED_DIR", "../shared")))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of ours; the fastest counts")
    parser.add_argument("--out", type=Path, default=Path("results/bench/verify.json"))
    args = parser.parse_args()
    if not (args.shared / "recorded").is_dir():
        parser.exit(
            2, f"bench.verify: {args.shared}/recorded: no such folder; name the recorded completions by --shared\n"
        )
    rows = compare("math100x8", load_math(args.shared, 1), args.workers, args.rounds)
    rows += compare("math100x64", load_math(args.shared, 8), args.workers, args.rounds)
    rows += compare("gsm8k 4x1319", load_gsm8k(args.shared), args.workers, args.rounds)
    write_json(args.out, {"workers": args.workers, "rows": rows})
    print(f"{'set':<14}{'contender':<14}{'completions':>12}{'seconds':>10}{'per second':>12}{'correct':>9}{'times':>8}")
    for row in rows:
        ratio = f"{row['times_math_verify']:.1f}" if "times_math_verify" in row else ""
        print(
            f"{row['set']:<14}{row['contender']:<14}{row['completions']:>12}{row['seconds']:>10.2f}"
            f"{row['per_second']:>12.0f}{row['correct']:>9}{ratio:>8}"
        )
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
