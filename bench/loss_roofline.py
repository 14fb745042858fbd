"""What the one-pass loss should take on a GPU, by arithmetic: nothing here has been run on one.

bf16 lm_head, hidden states and powers; float32 scores and dlm_head. N x D x V, chunks of m rows, tiles of w columns
(`gtpo.kernels.chunks`, `gtpo.kernels.vocabulary_tiles`). Operations: 2 N D V a product. Bytes that cross memory:

    lm_head     a chunk reads it for the first product and, its tiles being larger than the L2 cache, for the second
    scores      written by the product (4 bytes), read twice by the row kernel, powers written (2): 14 a logit
    powers      read by the second product, and by the third with a trainable head: 2 a logit each
    gradients   dhidden [m, D] in float32, there and back once a tile; dlm_head in float32, written by the first chunk,
                there and back by the others, then read and written once more in bf16 for autograd

Products and row work do not overlap in the present design (cuBLAS, then one Triton kernel), so times add up.

    python -m bench.loss_roofline [--tflops 790] [--terabytes 4.3]
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from bench.loss import expand
from gtpo.kernels import chunks, vocabulary_tiles

SHAPES = [f"{tokens}@{model}" for model in ("Llama-3.2-1B", "Llama-3.1-8B") for tokens in (256, 1024, 8192)]
H200 = (790.0, 4.3)
"""TFLOP/s of bf16 products and TB/s of memory that an H200 sustains, as others report; not measured by us."""


def estimate(shape: str, trainable: bool, tflops: float, terabytes: float) -> dict[str, float]:
    """Return milliseconds of products and of memory, and bytes beside the returned gradients."""
    tokens, features, vocabulary = (int(part) for part in expand(shape).split("x"))
    kind = "cuda"
    default = chunks.default_rows(kind, tokens=tokens, row_bytes=4 * vocabulary, tiled=True, trainable=trainable)
    rows = min(tokens, default)
    visits, tiles = (
        math.ceil(tokens / rows),
        math.ceil(vocabulary / vocabulary_tiles.tile_columns(rows, vocabulary, kind)),
    )
    logits, head = tokens * vocabulary, vocabulary * features
    products = (3 if trainable else 2) * 2 * logits * features / tflops / 1e9
    moved = visits * 2 * 2 * head + (14 + 2) * logits + tiles * 8 * tokens * features
    held = rows * vocabulary_tiles.tile_columns(rows, vocabulary, kind) * (4 if trainable else 6) + 4 * rows * features
    if trainable:
        moved += 2 * logits + 4 * head * (2 * visits - 1) + 6 * head
        held += 2 * rows * vocabulary + 4 * head
    return {"products": products, "memory": moved / terabytes / 1e9, "extra_bytes": held}


def table(tflops: float, terabytes: float) -> str:
    """Return the table of docs/one_pass.md."""
    lines = [
        "| N, head of | lm_head | products, ms | memory, ms | products / sum | extra memory, GB |",
        "|---|---|---|---|---|---|",
    ]
    for shape in SHAPES:
        for trainable in (False, True):
            found: dict[str, Any] = estimate(shape, trainable, tflops, terabytes)
            total = found["products"] + found["memory"]
            lines.append(
                f"| {shape.replace('@', ', ')} | {'trainable' if trainable else 'frozen'} | {found['products']:.1f} "
                f"| {found['memory']:.1f} | {found['products'] / total:.2f} | {found['extra_bytes'] / 1e9:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tflops", type=float, default=H200[0])
    parser.add_argument("--terabytes", type=float, default=H200[1])
    arguments = parser.parse_args()
    print(table(arguments.tflops, arguments.terabytes))


if __name__ == "__main__":
    main()
