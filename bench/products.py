"""How fast this processor multiplies bfloat16, and float32: `taskset -c 0 python -m bench.products`.

[rows, 896] x [896, 4864], the largest layer of Qwen2.5-0.5B, by one thread: as 16 sequences are decoded, as 256, and as
a micro-batch of 1,600 tokens is trained on. Contenders in turn:

    float32    torch, both factors in float32
    bfloat16   torch, both factors in bfloat16
    widened    bfloat16 factors by way of float32 (bench.bfloat16_cpu)
    packed     the same with a float32 copy of the weight that oneDNN packed before, as vLLM samples with it

A processor with instructions for bfloat16 has no use for the last two: there `bfloat16` is to be the fastest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bench.bfloat16_cpu import WideProducts, widened_linear
from bench.common import SEED, parser, save
from gtpo.common.hub import has_bfloat16
from gtpo.common.provenance import cpu_model

ROWS = (16, 256, 1600)
WIDTH, COLUMNS = 896, 4864
WEIGHTS = 8
"""Visited one after the other, so that none lies in the cache."""
TURNS = 5


def contenders(x: Tensor, weights: list[Tensor]) -> dict[str, Callable[[], object]]:
    """Return what multiplies x [rows, width] with each of the weights [columns, width], all bfloat16."""
    wide_x, wide = x.float(), [weight.float() for weight in weights]
    packed = [widened_linear(weight) for weight in weights]

    def widened() -> list[Tensor]:
        with WideProducts():
            return [torch.nn.functional.linear(x, weight) for weight in weights]

    return {
        "float32": lambda: [torch.nn.functional.linear(wide_x, weight) for weight in wide],
        "bfloat16": lambda: [torch.nn.functional.linear(x, weight) for weight in weights],
        "widened": widened,
        "packed": lambda: [multiply(x, None, None) for multiply in packed],
    }


def main() -> None:
    """Measure, print and save."""
    asked = parser(__doc__, out=Path("results/bench/products.json")).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    weights = [torch.randn(COLUMNS, WIDTH).bfloat16() for _ in range(WEIGHTS)]
    rows = []
    for count in ROWS:
        taking: dict[str, list[float]] = {}
        found = contenders(torch.randn(count, WIDTH).bfloat16(), weights)
        for turn in range(TURNS + 1):
            for name, compute in found.items():
                begin = time.perf_counter()
                compute()
                if turn:  # the first warms up
                    taking.setdefault(name, []).append(time.perf_counter() - begin)
        work = 2e-9 * count * WIDTH * COLUMNS * WEIGHTS
        rates = {name: round(work / statistics.median(seconds), 1) for name, seconds in taking.items()}
        rows.append({"rows": count, "gflop_per_second": rates})
        print(rows[-1], flush=True)
    save(asked.out, {"processor": cpu_model(), "multiplies_bfloat16": has_bfloat16(), "threads": 1, "rows": rows})


if __name__ == "__main__":
    main()
