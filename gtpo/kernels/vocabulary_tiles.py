"""The pass without a row of logits: the vocabulary in tiles, as attention over it with keys = values = lm_head rows.

    u = sum_{v != y} e^{z_v - r} W_v,   S = sum_{v != y} e^{z_v - r},   T = sum_{v != y} e^{z_v - r} (z_v - r)
    total = S + e^{z_y - r},  lse = r + log total,  H = log total - (T + e^{z_y - r} (z_y - r)) / total
    W^T (p - onehot_y) = u / total - (S / total) W_y

r is a running reference near the row's maximum; when it moves, u, S and T are rescaled. A tile of W is read once for
both products, a tile of logits lives only in the cache, and the target is kept out of u, so that 1 - p_y = S / total
keeps its digits whatever precision the tile is rounded to.

This serves a frozen lm_head where the entropy is not differentiated: there the softmax's normaliser is not needed
before the second product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gtpo.kernels import matmul
from gtpo.kernels.torch_rows import OnlineSoftmax, Transform

TILE_ELEMENTS = {"cpu": 2**19, "cuda": 2**25}
"""Logits per tile: 2 MiB of each core's cache; 128 MiB of a GPU's memory, where few large launches win."""
TILE_COLUMNS = {"cpu": (512, 4096), "cuda": (4096, 16384)}
"""Fewest and most columns of a tile."""


def tile_columns(rows: int, vocabulary: int, device: str) -> int:
    """Return the width of a tile of `rows` rows."""
    kind = device if device in TILE_COLUMNS else "cuda"
    least, most = TILE_COLUMNS[kind]
    cores = torch.get_num_threads() if kind == "cpu" else 1
    return min(vocabulary, max(least, min(most, TILE_ELEMENTS[kind] * cores // rows)))


def visit(
    *,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    transform: Transform,
    kernels: Any,
    matmul_dtype: torch.dtype,
    differentiate: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return logps [m], entropies [m] and, if asked, -dlogp/dhidden [m, D], from hidden [m, D] and weight [V, D].

    matmul_dtype: the dtype that goes into the matmul.
    """
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    dtype = matmul.compute_dtype(weight)
    hidden = hidden.to(matmul_dtype)
    state = OnlineSoftmax.empty(rows, dtype, hidden.device)
    gradient = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device) if differentiate else None
    width = tile_columns(rows, vocabulary, hidden.device.type)
    scores = torch.empty(rows * width, dtype=dtype, device=hidden.device)
    powers = torch.empty(rows * width, dtype=matmul_dtype, device=hidden.device)
    for start in range(0, vocabulary, width):
        block = weight[start : start + width].to(matmul_dtype)
        shape = (rows, len(block))
        z, e = (flat[: rows * len(block)].view(shape) for flat in (scores, powers))
        matmul.multiply(hidden, block.t(), z)
        if bias is not None:
            z += bias[start : start + width]
        scale = kernels.online_softmax_update_(state, z, powers=e, local=targets - start, transform=transform)
        if gradient is not None:
            if scale is not None:
                gradient *= scale[:, None]
            matmul.multiply_add(e, block, gradient)

    centred = state.target - state.reference
    power = centred.exp()
    total = state.rest + power
    log_total = total.log()
    entropies = log_total - (state.weighted + power * centred) / total
    if gradient is not None:
        factor = transform.scale / transform.temperature
        miss = state.rest / total * factor
        if transform.softcap is not None:
            miss *= 1 - (state.target * (transform.temperature / transform.softcap)).square()
        gradient *= (factor / total)[:, None]
        gradient.addcmul_(weight[targets].to(dtype), miss[:, None], value=-1)
    return centred - log_total, entropies, gradient
