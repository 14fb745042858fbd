"""Which rows of [N*L] are visited together: as many as default_rows says, or whole completions that fit in as many."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_BYTES = {"cpu": 2**26, "cuda": 2**29}
"""Default bound on the logits held at a time where rows are held whole, unless one completion alone needs more."""
TILED_ROWS = {"cpu": 1024, "cuda": 4096}
"""Default number of rows of a chunk where the vocabulary is walked in tiles; lm_head is read once a chunk."""
TRAINABLE_ROWS = {"cpu": (256, 512), "cuda": (4096, 4096)}
"""The same, least and most, where dloss/dW [V, D] is also read and written once a chunk, whose powers are kept for it:
in between a quarter of all rows, so that the powers are an eighth of what a pass with all logits holds."""


class Chunk(NamedTuple):
    """Indices into the N*L token positions: first those that may carry a gradient, then those that cannot."""

    positions: Tensor
    grad_rows: int


def default_rows(kind: str, *, tokens: int, row_bytes: int, tiled: bool, trainable: bool, threads: int = 1) -> int:
    """Return how many of `tokens` rows go into a chunk.

    kind is a key of the bounds above, row_bytes the size of a row of logits. threads: how many sums of a tiled chunk's
    gradient there are at a time.
    """
    if tiled and trainable:
        least, most = TRAINABLE_ROWS[kind]
        return max(least, min(most, tokens // 4))
    if tiled:
        return min(TILED_ROWS[kind], max(256, 2 * TILED_ROWS[kind] // threads))
    return max(16, CHUNK_BYTES[kind] // row_bytes)


def split(mask: Tensor, needs_grad: Tensor, rows: int, *, whole_completions: bool) -> list[Chunk]:
    """Return chunks that hold every unmasked position once; mask [N, L], needs_grad [N*L].

    Rows that cannot carry a gradient come last: in a chunk of whole completions, otherwise of all. Chunks of rows are
    equally long, since a chunk of few rows reads lm_head for little.
    """
    length = mask.shape[1]
    taking, others = mask.reshape(-1) & needs_grad, mask.reshape(-1) & ~needs_grad
    chunks = []
    if not whole_completions:
        positions = torch.cat([taking.nonzero()[:, 0], others.nonzero()[:, 0]])
        left = int(taking.sum())
        for part in positions.tensor_split(max(1, math.ceil(len(positions) / rows))):
            chunks.append(Chunk(part, min(len(part), left)))
            left -= chunks[-1].grad_rows
        return chunks
    begin, taken = 0, 0
    lengths = mask.sum(dim=1).tolist()
    for index in range(len(lengths) + 1):
        if index == len(lengths) or (taken and taken + lengths[index] > rows):
            span = slice(begin * length, index * length)
            first = taking[span].nonzero()[:, 0] + begin * length
            last = others[span].nonzero()[:, 0] + begin * length
            chunks.append(Chunk(torch.cat([first, last]), len(first)))
            begin, taken = index, 0
        if index < len(lengths):
            taken += lengths[index]
    return chunks
