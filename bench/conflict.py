"""Conflict weights: this project's `conflict_weights` against presence maps over vocabulary x length, in one run.

The presence-map contender is our own re-implementation of the published method from its description: for each group,
each direction and each sign, occurrences of every (position, token) pair are counted into a map of V x L 64-bit
integers; two maps meet in the pairs that both signs hold; each completion looks its own pairs up. It is granted more
than the description says: completion lengths in place of a pad id, so that it is right, and each direction's maps
are freed before the next direction's are made.

Both get the same ids, G completions for each of B prompts, ragged up to L tokens, with a shared beginning and end.
Equality of all weights is checked before anything is timed; then the two take turns in random order. Time is the
median; temporaries are the peak of the allocator's bytes during a call less the bytes of what it returns.

Expected, written down before the first run: at G = 8, L = 1024, V = 32000 at most 1 % of the presence maps' time,
and at most 1 MB of temporaries.

    python -m bench.conflict [--groups 8 12 16 64] [--lengths 256 1024 4096] [--prompts 1 8] [--threads N] [--out FILE]
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from gtpo.common.files import read_json, write_json
from gtpo.conflict import ConflictWeights, conflict_weights

SEED = 20250819
SHARED_TOKENS = 12
"""Tokens that all completions begin with, and as many that they end with: tags and EOS."""


def presence_map_weights(
    ids: Tensor, mask: Tensor, advantages: Tensor, num_generations: int, vocabulary: int
) -> Tensor:
    """Return lambda [N, L] by counting (position, token) pairs into maps of V x L, one group after the other."""
    rows, width = ids.shape
    position = torch.arange(width)
    lengths = mask.sum(dim=1)
    weights = torch.ones(rows, width)
    for first in range(0, rows, num_generations):
        group = slice(first, first + num_generations)
        sign, length, valid = advantages[group].sign(), lengths[group, None], mask[group]
        inside = torch.zeros_like(valid)
        for backward in (False, True):
            source = (length - 1 - position).clamp(min=0) if backward else position.expand_as(valid)
            keys = position * vocabulary + ids[group].gather(1, source)
            present = [
                torch.bincount(keys[valid & (sign == s)[:, None]], minlength=vocabulary * width).clamp(max=1).bool()
                for s in (1, -1)
            ]
            conflict = (present[0] & present[1])[keys] & valid & (sign != 0)[:, None]
            run = conflict.long().cumprod(dim=1).bool()
            inside |= run.gather(1, source) & valid
            del present
        amplified = torch.where(sign > 0, 2.0, 0.0)[:, None]
        weights[group] = torch.where(inside, amplified, 1.0)
    return weights


def batch(prompts: int, completions: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids [N, L], mask [N, L] and advantages [N] of completions as they come: alike at both ends, ragged."""
    generator = torch.Generator().manual_seed(SEED)
    rows = prompts * completions
    ids = torch.randint(0, vocabulary, (rows, length), generator=generator)
    lengths = torch.randint(max(length // 4, 2 * SHARED_TOKENS), length + 1, (rows,), generator=generator)
    lengths[0] = length
    ids[:, :SHARED_TOKENS] = torch.arange(SHARED_TOKENS)
    for row, size in enumerate(lengths.tolist()):
        ids[row, size - SHARED_TOKENS : size] = torch.arange(SHARED_TOKENS) + 100
    advantages = torch.randn(rows, generator=generator)
    advantages[::completions], advantages[1::completions] = 1.0, -1.0  # both signs in every group
    return ids, torch.arange(length) < lengths[:, None], advantages


def result_bytes(result: Tensor | ConflictWeights) -> int:
    return sum(t.untyped_storage().nbytes() for t in ([result] if isinstance(result, Tensor) else result))


def with_temporaries(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return what a call returns, and the allocator's peak bytes during it less the bytes of what it returns."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = call()
    assert recorded.profiler is not None
    assert recorded.profiler.kineto_results is not None
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return result, peak - result_bytes(result)


def seconds(call: Callable[[], Any], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def measure(
    prompts: int, completions: int, length: int, vocabulary: int, rounds: int, budget_s: float
) -> dict[str, Any]:
    """Return one row of the table."""
    ids, mask, advantages = batch(prompts, completions, length, vocabulary)
    contenders: dict[str, Callable[[], Any]] = {
        "conflict_weights": lambda: conflict_weights(ids, mask, advantages, completions),
        "presence_maps": lambda: presence_map_weights(ids, mask, advantages, completions, vocabulary),
    }
    begin = time.perf_counter()
    expected, map_bytes = with_temporaries(contenders["presence_maps"])  # also its warm-up
    first = time.perf_counter() - begin
    contenders["conflict_weights"]()
    found, our_bytes = with_temporaries(contenders["conflict_weights"])
    different = int((found.weights != expected).sum())
    if different:
        raise SystemExit(
            f"bench.conflict: the contenders differ in {different} weights at B {prompts}, G {completions}, L {length}"
            "; nothing was timed"
        )
    rounds = max(1, min(rounds, int(budget_s / first)))
    inner = max(1, min(200, int(0.05 / max(1e-6, seconds(contenders["conflict_weights"], 3)))))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(seconds(contenders[name], inner if name == "conflict_weights" else 1))
    row: dict[str, Any] = {"B": prompts, "G": completions, "L": length, "V": vocabulary}
    row |= {"conflict_tokens": int(found.union.sum()), "tokens": int(mask.sum()), "weights_equal": True}
    for name, held in (("conflict_weights", our_bytes), ("presence_maps", map_bytes)):
        row[name] = {
            "seconds": statistics.median(times[name]),
            "all_seconds": times[name],
            "temporary_bytes": held,
        }
    row["time_ratio"] = row["conflict_weights"]["seconds"] / row["presence_maps"]["seconds"]
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows of a JSON as a table."""
    lines = [
        f"{'B':>3}{'G':>4}{'L':>6}{'V':>8}{'ours ms':>11}{'maps ms':>11}{'time ratio':>12}"
        f"{'ours temp. MB':>15}{'maps temp. MB':>15}"
    ]
    for row in rows:
        head = f"{row['B']:>3}{row['G']:>4}{row['L']:>6}{row['V']:>8}"
        ours, maps = row["conflict_weights"], row["presence_maps"]
        lines.append(
            f"{head}{1e3 * ours['seconds']:>11.3f}{1e3 * maps['seconds']:>11.1f}{row['time_ratio']:>11.4%} "
            f"{ours['temporary_bytes'] / 1e6:>14.3f} {maps['temporary_bytes'] / 1e6:>14.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", type=int, nargs="+", default=[8, 12, 16, 64], help="G")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096], help="L")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 8], help="B")
    parser.add_argument("--vocabulary", type=int, default=32000, help="V")
    parser.add_argument("--rounds", type=int, default=7, help="at most, for each row")
    parser.add_argument("--row-seconds", type=float, default=6.0, help="presence maps' time for each row's rounds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--add", action="store_true", help="keep the other rows that --out holds")
    parser.add_argument("--out", type=Path, default=Path("results/bench/conflict.json"))
    args = parser.parse_args()
    if min(args.lengths) < 2 * SHARED_TOKENS or min(args.groups) < 2 or args.vocabulary < 200:
        parser.error(f"--lengths from {2 * SHARED_TOKENS}, --groups from 2, --vocabulary from 200")
    torch.set_num_threads(args.threads)
    random.seed(SEED)
    rows: list[dict[str, Any]] = []
    shape = ("B", "G", "L", "V")
    for length, prompts, completions in itertools.product(args.lengths, args.prompts, args.groups):
        row = measure(prompts, completions, length, args.vocabulary, args.rounds, args.row_seconds)
        rows.append(row | {"command": shlex.join(["python", "-m", "bench.conflict", *sys.argv[1:]])})
        print(table([row]).splitlines()[1], flush=True)
    environment = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "machine": platform.machine(),
        "threads": args.threads,
        "device": "cpu",
        "seed": SEED,
    }
    if args.add and args.out.is_file():
        measured = {tuple(row[name] for name in shape) for row in rows}
        kept = [row for row in read_json(args.out)["rows"] if tuple(row[name] for name in shape) not in measured]
        rows = sorted([*kept, *rows], key=lambda row: (row["L"], row["B"], row["G"]))
    write_json(args.out, {"environment": environment, "rows": rows})
    print(table(read_json(args.out)["rows"]))
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
