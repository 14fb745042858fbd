"""Conflict weights: this project's `conflict_weights` against presence maps over vocabulary x length, in one run.

The presence-map contender is our own re-implementation of the published method from its description: for each group,
direction and sign, occurrences of every (position, token) pair are counted into a map of V x L 64-bit integers; each
completion looks its own pairs up. It is granted completion lengths in place of a pad id, so that it is right.

All weights must be equal before anything is timed; then the two take turns in random order. Time is the median;
temporaries are the allocator's peak during a call less what it returns. Expected before the first run: at G = 8,
L = 1024, V = 32000 at most 1 % of the presence maps' time, and at most 1 MB of temporaries.

    python -m bench.conflict [--groups 8 12 16 64] [--lengths 256 1024 4096] [--prompts 1 8] [--vocabulary V]
"""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.common import SEED, command, in_turns, parser, save, seconds, table, with_temporaries
from gtpo.common.provenance import package_versions
from gtpo.conflict import conflict_weights

SHARED_TOKENS = 12  # Tokens that all completions begin with, and as many that they end with: tags and EOS


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


def measure(prompts: int, completions: int, length: int, vocabulary: int, rounds: int) -> dict[str, Any]:
    """Return one row of the table."""
    ids, mask, advantages = batch(prompts, completions, length, vocabulary)
    ours = partial(conflict_weights, ids, mask, advantages, completions)
    maps = partial(presence_map_weights, ids, mask, advantages, completions, vocabulary)
    expected, map_bytes = with_temporaries(maps, lambda weights: [weights])
    ours()
    found, our_bytes = with_temporaries(ours, list)
    row: dict[str, Any] = {"B": prompts, "G": completions, "L": length, "V": vocabulary}
    if different := int((found.weights != expected).sum()):
        raise SystemExit(f"bench.conflict: the contenders differ in {different} weights at {row}; nothing was timed")
    row |= {"conflict_tokens": int(found.union.sum()), "tokens": int(mask.sum()), "weights_equal": True}
    row["conflict_weights"] = {"all_seconds": [], "temporary_bytes": our_bytes}
    row["presence_maps"] = {"all_seconds": [], "temporary_bytes": map_bytes}
    calls = max(1, min(200, int(0.05 / max(1e-6, seconds(ours, 3)))))
    turns = {"conflict_weights": partial(seconds, ours, calls), "presence_maps": partial(seconds, maps)}
    for _, name in in_turns(turns, rounds):
        row[name]["all_seconds"].append(turns[name]())
    for name in turns:
        row[name]["seconds"] = statistics.median(row[name]["all_seconds"])
    row["time_ratio"] = row["conflict_weights"]["seconds"] / row["presence_maps"]["seconds"]
    return row


def page(rows: list[dict[str, Any]]) -> str:
    """Return the rows of a JSON as a table."""
    cells = [
        (*(row[name] for name in "BGLV"), f"{1e3 * ours['seconds']:.3f}", f"{1e3 * maps['seconds']:.1f}",
         f"{row['time_ratio']:.4%}", *(f"{its['temporary_bytes'] / 1e6:.3f}" for its in (ours, maps)))
        for row in rows
        for ours, maps in [(row["conflict_weights"], row["presence_maps"])]
    ]  # fmt: skip
    return table([*"BGLV", "ours, ms", "maps, ms", "ratio", "ours, temporary MB", "maps, MB"], cells)


def main() -> None:
    made = parser(__doc__, groups=[8, 12, 16, 64], lengths=[256, 1024, 4096], prompts=[1, 8], vocabulary=32000,
                  rounds=3, threads=1, out=Path("results/bench/conflict.json"))  # fmt: skip
    args = made.parse_args()
    if min(args.lengths) < 2 * SHARED_TOKENS or min(args.groups) < 2 or args.vocabulary < 200:
        made.error(f"--lengths from {2 * SHARED_TOKENS}, --groups from 2, --vocabulary from 200")
    torch.set_num_threads(args.threads)
    rows = [
        measure(prompts, completions, length, args.vocabulary, args.rounds)
        for length, prompts, completions in itertools.product(args.lengths, args.prompts, args.groups)
    ]
    print(page(rows))
    environment = {**package_versions("torch"), "threads": args.threads, "device": "cpu", "seed": SEED}
    save(args.out, {"command": command(), "environment": environment, "rows": rows})


if __name__ == "__main__":
    main()
