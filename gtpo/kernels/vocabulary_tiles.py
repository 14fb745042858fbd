"""The pass without a row of logits: the vocabulary in tiles, as attention over it with keys = values = lm_head rows.

    u = sum_{v != y} e^{z_v - r} W_v,   S = sum_{v != y} e^{z_v - r},   T = sum_{v != y} e^{z_v - r} (z_v - r)
    total = S + e^{z_y - r},  lse = r + log total,  H = log total - (T + e^{z_y - r} (z_y - r)) / total
    W^T (p - onehot_y) = u / total - (S / total) W_y

r is a running reference near the row's maximum; when it moves, u, S and T are rescaled. A tile of W is read once for
both products, a tile of logits lives only in the cache, and the target is kept out of u, so that 1 - p_y = S / total
keeps its digits whatever precision the tile is rounded to.

With a trainable lm_head the powers e^{z - r} of the chunk are kept, tile by tile (each with the r that it was made
with), for the product that has to wait for the rows' factors s:

    dloss/dW_v = sum_t (s_t e^{r_tile - r} / total_t) e_tv h_t  -  sum_{t: y_t = v} (s_t S_t / total_t) h_t

s, total and r scale the rows of h, not the powers: no element of [m, V] is visited for them. Rows with s = 0 are left
out of the product.

On a CPU each of torch's threads walks a part of the vocabulary with sums of its own; these are put together at the end,
and the product that waits is made part by part too. So threads wait for each other twice a chunk, not at the end of
every operation on a tile.

This serves wherever the entropy is not differentiated and its logarithm not clamped: there the softmax's normaliser is
not needed before the second product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpo.kernels import matmul, workers
from gtpo.kernels.torch_rows import OnlineSoftmax, Transform, apply_transform_

TILE_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}
"""Logits per tile: 2 MiB for each core, since the width hardly matters; 256 MiB on a GPU, where large launches win."""
TILE_COLUMNS = {"cpu": (256, 16384), "cuda": (4096, 65536)}
"""Fewest and most columns of a tile."""


def tile_columns(rows: int, vocabulary: int, device: str) -> int:
    """Return the width of a tile of `rows` rows that a core works on."""
    kind = device if device in TILE_COLUMNS else "cuda"
    least, most = TILE_COLUMNS[kind]
    return min(vocabulary, max(least, min(most, TILE_ELEMENTS[kind] // rows)))


class Part(NamedTuple):
    """What the visit of some tiles that follow one another yields."""

    start: int
    """The first column."""
    state: OnlineSoftmax
    gradient: Tensor | None
    """u of the leading rows."""
    tiles: list[Tensor]
    """Kept e^{z - r} [m, w] of each tile, 0 at the target; where logits are soft-capped, times the cap's slope."""
    references: list[Tensor]
    """r [m] when the tile was visited; the same tensor as its predecessor's where it had not moved."""


class Powers(NamedTuple):
    """What dloss/dW and dloss/dbias of a chunk still need besides the rows' factors."""

    parts: list[Part]
    reference: Tensor
    """r [m] at the end."""
    hit: Tensor
    """dz/draw / total [m]."""
    miss: Tensor
    """S / total [m], times dz/draw at the target."""


class Visited(NamedTuple):
    """What one visit of the vocabulary yields for m rows."""

    logps: Tensor
    entropies: Tensor
    gradient: Tensor | None
    """-dlogp/dhidden of the leading rows."""
    powers: Powers | None


def visit(
    *,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    transform: Transform,
    kernels: Any,
    matmul_dtype: torch.dtype,
    grad_rows: int,
    keep: Tensor | None,
    threads: int = 1,
) -> Visited:
    """Visit the vocabulary with hidden [m, D] and weight [V, D].

    matmul_dtype: the dtype that goes into the matmul. grad_rows: how many leading rows want -dlogp/dhidden. keep: a
    flat buffer of at least m V elements of that dtype for the powers, if they will be needed. threads: how many parts
    of the vocabulary are visited at a time.
    """
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    dtype = matmul.compute_dtype(weight)
    hidden = hidden.to(matmul_dtype)
    count = threads if vocabulary >= threads * TILE_COLUMNS["cpu"][0] else 1
    width = tile_columns(rows, vocabulary // count, hidden.device.type)

    # What the parts need is made here: an allocator that is asked by one thread is asked in the same order every time,
    # and the profiler sees it.
    all_scores = torch.empty(count, rows * width, dtype=dtype, device=hidden.device)
    scratch_size = 0 if keep is not None else rows * width
    all_scratch = torch.empty(count, scratch_size, dtype=matmul_dtype, device=hidden.device)
    gradients = torch.zeros(count, grad_rows, hidden.shape[1], dtype=dtype, device=hidden.device) if grad_rows else None

    def visit_columns(number: int) -> Part:
        columns = range(vocabulary * number // count, vocabulary * (number + 1) // count, width)
        state = OnlineSoftmax.empty(rows, dtype, hidden.device)
        gradient = None if gradients is None else gradients[number]
        scores = all_scores[number]
        tiles, references, reference = [], [], state.reference
        for start in columns:
            block = weight[start : min(start + width, columns.stop)].to(matmul_dtype)
            shape = (rows, len(block))
            z = scores[: rows * len(block)].view(shape)
            powers = all_scratch[number] if keep is None else keep[rows * start :]
            e = powers[: rows * len(block)].view(shape)
            matmul.multiply(hidden, block.t(), z)
            if bias is not None:
                z += bias[start : start + len(block)]
            scale = kernels.online_softmax_update_(state, z, powers=e, local=targets - start, transform=transform)
            if gradient is not None:
                if scale is not None:
                    gradient *= scale[:grad_rows, None]
                matmul.multiply_add(e[:grad_rows], block, gradient)
            if keep is not None:
                if scale is not None:
                    reference = state.reference.clone()
                tiles.append(e)
                references.append(reference)
        return Part(columns.start, state, gradient, tiles, references)

    parts = workers.run(visit_columns, range(count))
    state, gradient = _together(parts)
    if matmul.comes_rounded(matmul_dtype, hidden.device):
        exact = matmul.target_logits(hidden, weight, bias, targets)[:, None]
        apply_transform_(exact, transform)
        state.target.copy_(exact[:, 0])
    centred = state.target - state.reference
    power = centred.exp()
    total = state.rest + power
    log_total = total.log()
    entropies = log_total - (state.weighted + power * centred) / total
    factor = transform.scale / transform.temperature
    hit, miss = factor / total, state.rest / total * factor
    if transform.softcap is not None:
        miss *= 1 - (state.target * (transform.temperature / transform.softcap)).square()
    if gradient is not None:
        gradient *= hit[:grad_rows, None]
        gradient.addcmul_(weight[targets[:grad_rows]].to(dtype), miss[:grad_rows, None], value=-1)
    kept = None if keep is None else Powers(parts, state.reference, hit, miss)
    return Visited(centred - log_total, entropies, gradient, kept)


def _together(parts: list[Part]) -> tuple[OnlineSoftmax, Tensor | None]:
    """Return the sums over all parts, put into the first one's."""
    state, gradient = parts[0].state, parts[0].gradient
    for part in parts[1:]:
        moved = torch.maximum(state.reference, part.state.reference)
        for each, sums in ((state, gradient), (part.state, part.gradient)):
            step = (each.reference - moved).clamp(min=-1e4)
            scale = step.exp()
            each.weighted.add_(each.rest * step).mul_(scale)
            each.rest.mul_(scale)
            if sums is not None:
                sums *= scale[: len(sums), None]
        state.reference.copy_(moved)
        for mine, other in zip(state[1:], part.state[1:], strict=True):
            mine.add_(other)
        if gradient is not None and part.gradient is not None:
            gradient += part.gradient
    return state, gradient


def accumulate_outer(
    powers: Powers,
    *,
    scale: Tensor,
    hidden: Tensor,
    targets: Tensor,
    grad_weight: Tensor | None,
    grad_bias: Tensor | None,
    fresh: bool,
    matmul_dtype: torch.dtype,
) -> None:
    """Add the chunk's dloss/dW and dloss/dbias to grad_weight [V, D] and grad_bias [V], of the leading rows.

    scale [m]: dloss/d(-logp), not 0 everywhere. hidden [m, D], targets [m]. fresh: grad_weight holds nothing yet.
    """
    count = len(scale)
    rows = scale.nonzero()[:, 0]
    everything = len(rows) == count
    if not everything:
        scale, hidden, targets = scale[rows], hidden[rows], targets[rows]
    select = slice(count) if everything else rows
    hidden = hidden.to(scale.dtype)
    widest = 0 if everything else len(rows) * max(tile.shape[1] for tile in powers.parts[0].tiles)
    all_gathered = torch.empty(len(powers.parts), widest, dtype=matmul_dtype, device=hidden.device)
    all_right = torch.empty(len(powers.parts), *hidden.shape, dtype=matmul_dtype, device=hidden.device)

    def add(number: int) -> None:
        part, right = powers.parts[number], all_right[number]
        start, reference = part.start, None
        for tile, then in zip(part.tiles, part.references, strict=True):
            if then is not reference:
                reference = then
                row_scale = scale * (powers.hit * (then - powers.reference).exp())[select]
                torch.mul(hidden, row_scale[:, None], out=right)
            if everything:
                e = tile[:count]
            else:
                e = all_gathered[number, : len(rows) * tile.shape[1]].view(len(rows), tile.shape[1])
                torch.index_select(tile, 0, rows, out=e)
            columns = slice(start, start + e.shape[1])
            if grad_weight is not None:
                product = matmul.multiply if fresh else matmul.multiply_add
                product(e.t(), right, grad_weight[columns])
            if grad_bias is not None:
                grad_bias[columns] += e.t().to(row_scale.dtype) @ row_scale
            start += e.shape[1]

    workers.run(add, range(len(powers.parts)))
    at_target = scale * powers.miss[select]
    if grad_weight is not None and grad_weight.dtype == hidden.dtype:
        grad_weight.index_add_(0, targets, hidden * at_target[:, None], alpha=-1)
    elif grad_weight is not None:  # a row is rounded once, however often its token occurs
        updated, places = targets.unique(return_inverse=True)
        sums = hidden.new_zeros(len(updated), hidden.shape[1])
        sums.index_add_(0, places, hidden * at_target[:, None])
        grad_weight[updated] = (grad_weight[updated] - sums).to(grad_weight.dtype)
    if grad_bias is not None:
        grad_bias.index_add_(0, targets, at_target, alpha=-1)
