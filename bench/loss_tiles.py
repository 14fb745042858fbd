"""How the one-pass loss should be cut at the width of a real model: a model of its cost against the measurement.

Per chunk of m rows, lm_head [V, D] comes from memory once (its tile is used twice while it is in the cache) and
dlm_head goes there and back; per tile of w columns, the hidden gradient [m, D] goes to the cache and back. With F
operations and B bytes a second, k seconds a logit for the row work (float32):

    trainable head, chunks of m rows:    t(m) = 6 N V D / F + k N V + (N / m) 12 V D / B + 8 N V / B
    frozen head, tiles of w columns:     t(w) = 4 N V D / F + k N V + (V / w) 8 N D / B'

F, B, B' (a buffer that fits the last cache) and k are measured in the same run. The gate drops nothing here. Expected,
written down before the first run: F / B about 8 operations a byte, so that chunks of 64, 128, 256 and 512 rows cost
24, 12, 6 and 3 % beside the products; tiles from 256 columns up within 2 % of each other. With two threads and chunks
of 1024 rows, from a trial by hand: 512 columns (2 MiB of logits a thread) 5 % faster than 1024.

    python -m bench.loss_tiles [--shape 512x2048x32000] [--threads 1] [--repeats 3] [--out FILE] [--page FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.loss import environment
from bench.loss_contenders import Case, bare_matmuls, ours
from bench.loss_inputs import make_case
from gtpo.common.files import read_json, write_json
from gtpo.kernels import chunks, torch_rows, vocabulary_tiles

ROWS = (32, 64, 128, 256, 512)
WIDTHS = (128, 256, 512, 1024, 2048, 4096)
CACHED = 2**20
"""Elements of a buffer that fits the last cache: 4 MiB."""


def best(call: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of a call."""
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def bytes_per_second(elements: int, repeats: int) -> float:
    """Return the rate at which a buffer is read and written."""
    buffer = torch.zeros(elements)
    times = max(1, 2**26 // elements)

    def call() -> None:
        for _ in range(times):
            buffer.add_(1.0)

    call()
    return times * buffer.nbytes * 2 / best(call, repeats)


def row_seconds(case: Case, repeats: int) -> float:
    """Return the seconds that the row kernel takes for a logit."""
    rows = case.ids.numel()
    scores = torch.randn(rows, vocabulary_tiles.tile_columns(rows, len(case.lm_head), "cpu"))
    powers, z = torch.empty_like(scores), scores.clone()
    state = torch_rows.OnlineSoftmax.empty(rows, torch.float32, scores.device)
    update = partial(
        torch_rows.online_softmax_update_, state, z, powers=powers, local=case.ids.flatten(),
        transform=torch_rows.Transform(),
    )  # fmt: skip
    copy = best(lambda: z.copy_(scores), 5 * repeats)
    return (best(lambda: (z.copy_(scores), update()), 5 * repeats) - copy) / z.numel()


def measure(shape: str, repeats: int) -> dict[str, Any]:
    """Return the constants, and predicted and measured seconds of every cut."""
    tokens, features, vocabulary = (int(part) for part in shape.split("x"))
    case = make_case(tokens, features, vocabulary, True, torch.float32, "cpu")
    case = case._replace(objective=replace(case.objective, entropy_threshold=1e3))
    one = tokens * vocabulary * features
    run, bare = partial(ours("torch"), case), partial(bare_matmuls, case)
    bare()
    floor = best(bare, repeats)
    rate = 6 * one / floor
    memory, cache = bytes_per_second(vocabulary * features, repeats), bytes_per_second(CACHED, repeats)
    row = row_seconds(case, repeats)
    found: dict[str, Any] = {
        "shape": shape, "threads": torch.get_num_threads(), "operations_per_second": rate, "bytes_per_second": memory,
        "cached_bytes_per_second": cache, "row_seconds_per_logit": row, "bare_seconds": floor, "rows": [], "widths": [],
    }  # fmt: skip
    default = dict(chunks.TRAINABLE_ROWS)
    for rows in (count for count in ROWS if count <= tokens and count * 8 >= tokens):
        chunks.TRAINABLE_ROWS["cpu"] = (rows, rows)
        predicted = 6 * one / rate + row * tokens * vocabulary
        predicted += (tokens / rows * 12 * features + 8 * tokens) * vocabulary / memory
        found["rows"].append({"rows": rows, "predicted": predicted, "measured": best(run, repeats)})
    chunks.TRAINABLE_ROWS.update(default)
    case.lm_head.requires_grad_(False)
    bare()
    found["frozen_bare_seconds"] = best(bare, repeats)
    default_widths = dict(vocabulary_tiles.TILE_COLUMNS)
    for width in (count for count in WIDTHS if count <= vocabulary):
        vocabulary_tiles.TILE_COLUMNS["cpu"] = (width, width)
        predicted = found["frozen_bare_seconds"] + row * tokens * vocabulary
        predicted += vocabulary / width * 8 * tokens * features / cache
        found["widths"].append({"width": width, "predicted": predicted, "measured": best(run, repeats)})
    vocabulary_tiles.TILE_COLUMNS.update(default_widths)
    return found


def page(report: dict[str, Any]) -> str:
    """Return the tables of docs/one_pass.md."""
    lines = []
    for shape in report["shapes"]:
        rate, memory = shape["operations_per_second"], shape["bytes_per_second"]
        lines += [
            f"N x D x V {shape['shape'].replace('x', ' x ')}, {shape['threads']} thread(s): {rate / 1e9:.0f} Gflop/s, "
            f"{memory / 1e9:.1f} GB/s from memory, {shape['cached_bytes_per_second'] / 1e9:.1f} from the cache, "
            f"{1e9 * shape['row_seconds_per_logit']:.2f} ns of row work a logit.",
            "",
            "| cut | predicted / bare matmuls | measured / bare matmuls |",
            "|---|---|---|",
        ]
        for name, kind, key, floor in (
            ("trainable, chunks of {} rows", "rows", "rows", "bare_seconds"),
            ("frozen, tiles of {} columns", "widths", "width", "frozen_bare_seconds"),
        ):
            for cut in shape[kind]:
                cells = " | ".join(f"{cut[each] / shape[floor]:.2f}" for each in ("predicted", "measured"))
                lines.append(f"| {name.format(cut[key])} | {cells} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="512x2048x32000")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/bench/loss_tiles.json"))
    parser.add_argument("--page", type=Path, metavar="FILE", help="print this file's tables and stop")
    arguments = parser.parse_args()
    if not arguments.page:
        torch.set_num_threads(arguments.threads)
        report = read_json(arguments.out) if arguments.out.exists() else {"shapes": []}
        here = (arguments.shape, arguments.threads)
        others = [shape for shape in report["shapes"] if (shape["shape"], shape["threads"]) != here]
        found = measure(arguments.shape, arguments.repeats)
        report = {"environment": environment("cpu"), "shapes": [*others, found]}
        write_json(arguments.out, report)
    print(page(read_json(arguments.page or arguments.out)))


if __name__ == "__main__":
    main()
