"""Row kernels in torch, for any device: a chunk of logits becomes statistics, and then its own gradient, in place.

    z     = softcap(scale * raw) / tau                          logits of the distribution            [m, V]
    lse   = log sum_v e^{z_v},  p = e^{z - lse},  logp = z_y - lse                                    [m]
    H     = - sum_v p_v q_v,  q_v = max(log p_v, log c)         c = 0 is Shannon's entropy            [m]
    dz    = g (p - onehot_y) - b p (q + H + k - K)              g = dloss/d(-logp), b = dloss/dH      [m, V]

k_v = 1 where the clamp c does not bite, K = sum_v p_v k_v (both 1 without a clamp). The vocabulary is walked in tiles
that stay in the cache, so every element comes from memory once a visit and temporaries are one tile.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 1024
"""Columns per tile: with a few hundred rows, a tile and its scratch stay in a core's cache (1 to 2 MiB)."""


class Transform(NamedTuple):
    """From the matmul's output to logits: z = cap * tanh(scale * raw / cap) / temperature."""

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0


class OnlineSoftmax(NamedTuple):
    """Sums over the tiles seen so far, per row [m], updated in place; symbols of `gtpo.kernels.vocabulary_tiles`."""

    reference: Tensor
    """r."""
    rest: Tensor
    """S."""
    weighted: Tensor
    """T."""
    target: Tensor
    """z_y."""

    @classmethod
    def empty(cls, rows: int, dtype: torch.dtype, device: torch.device) -> OnlineSoftmax:
        """Return the state before the first tile."""
        zeros = torch.zeros(4, rows, dtype=dtype, device=device)
        zeros[0] = -math.inf
        return cls(*zeros.unbind())


class RowStatistics(NamedTuple):
    """Per row [m], in the precision of the logits."""

    logps: Tensor
    entropies: Tensor
    lse: Tensor
    unclamped: Tensor | None
    """K: the probability mass on which the clamp does not bite; None without a clamp."""


def online_softmax_update_(
    state: OnlineSoftmax, z: Tensor, *, powers: Tensor, local: Tensor, transform: Transform
) -> Tensor | None:
    """Take a tile of raw scores z [m, w] into `state` and write what goes into the second product to powers [m, w].

    local [m]: the target's column in this tile, outside 0..w-1 if it is in another. Returns the factor [m] by which
    sums over earlier tiles are to be multiplied, or None for 1. Overwrites z.
    """
    apply_transform_(z, transform)
    inside = ((local >= 0) & (local < z.shape[1])).nonzero()[:, 0]
    columns = local[inside]
    state.target[inside] = z[inside, columns]
    highest = z.amax(dim=1)
    scale = None
    # On CPU the reference may lag behind the maximum: e^30 fits float32 and bfloat16, and most tiles then cost no
    # rescaling. On CUDA asking would wait for the device. Powers in float16 must stay below 1.
    lag = 0 if powers.dtype == torch.float16 else 30
    if z.is_cuda or bool((highest > state.reference + lag).any()):
        moved = torch.maximum(state.reference, highest)
        step = (state.reference - moved).clamp(min=-1e4)
        scale = step.exp()
        state.weighted.add_(state.rest * step).mul_(scale)
        state.rest.mul_(scale)
        state.reference.copy_(moved)
    slope = None
    if transform.softcap is not None:
        slope = 1 - (z * (transform.temperature / transform.softcap)).square_()
    z.sub_(state.reference[:, None])
    e = torch.exp(z, out=powers) if powers.dtype == z.dtype else z.exp()
    e[inside, columns] = 0
    state.rest.add_(e.sum(dim=1))
    state.weighted.add_(torch.mul(e, z, out=z).sum(dim=1))
    if slope is not None:
        e.mul_(slope)
    if e is not powers:
        powers.copy_(e)
    return scale


def statistics(z: Tensor, targets: Tensor, transform: Transform, log_clamp: float) -> RowStatistics:
    """Turn raw scores z [m, V] into logits, in place, and return log-probabilities of targets [m] and entropies."""
    apply_transform_(z, transform)
    highest = z.amax(dim=1)
    total, weighted = torch.zeros_like(highest), torch.zeros_like(highest)
    shift = highest[:, None]
    for tile in z.split(TILE, dim=1):
        centred = tile - shift
        exponential = centred.exp()
        total += exponential.sum(dim=1)
        weighted += exponential.mul_(centred).sum(dim=1)
    log_total = total.log()
    lse = highest + log_total
    entropies = log_total - weighted / total
    unclamped = None
    if log_clamp > 0:
        floor = math.log(log_clamp)
        entropies, unclamped = torch.zeros_like(lse), torch.zeros_like(lse)
        for tile in z.split(TILE, dim=1):
            log_p = tile - lse[:, None]
            p = log_p.exp()
            unclamped += (p * (log_p >= floor)).sum(dim=1)
            entropies -= p.mul_(log_p.clamp_(min=floor)).sum(dim=1)
    logps = z.gather(1, targets[:, None]).squeeze(1) - lse
    return RowStatistics(logps, entropies, lse, unclamped)


def gradient_(
    z: Tensor,
    targets: Tensor,
    rows: RowStatistics,
    transform: Transform,
    log_clamp: float,
    *,
    policy_scale: Tensor | None,
    entropy_scale: Tensor | None,
) -> Tensor:
    """Overwrite the logits z [m, V] with the gradient of the raw scores and return them.

    policy_scale [m]: g, by default 1; entropy_scale [m]: b, by default 0. The one-hot is subtracted in the precision
    of z, before any rounding to the weight's dtype: 1 - p_y would lose its digits after it.
    """
    factor = transform.scale / transform.temperature
    g = torch.full_like(rows.lse, factor) if policy_scale is None else policy_scale * factor
    b = None if entropy_scale is None else entropy_scale * factor
    squash = None if transform.softcap is None else transform.temperature / transform.softcap
    target_logits = rows.logps + rows.lse
    at_target = g if squash is None else g * (1 - (target_logits * squash).square())
    unscaled = policy_scale is None and factor == 1.0 and b is None and squash is None
    for tile in z.split(TILE, dim=1):
        slope = None if squash is None else 1 - (tile * squash).square_()
        tile.sub_(rows.lse[:, None])
        if unscaled:
            tile.exp_()
            continue
        p = tile.exp()
        if b is None:
            coefficient: Tensor = g[:, None]
        else:
            excess = tile if rows.unclamped is None else tile.clamp(min=math.log(log_clamp))
            excess = excess + rows.entropies[:, None]
            if rows.unclamped is not None:
                excess += (tile >= math.log(log_clamp)).to(tile.dtype) - rows.unclamped[:, None]
            coefficient = g[:, None] - b[:, None] * excess
        torch.mul(p, coefficient, out=tile)
        if slope is not None:
            tile.mul_(slope)
    z.scatter_add_(1, targets[:, None], -at_target[:, None])
    return z


def apply_transform_(z: Tensor, transform: Transform) -> None:
    """z = cap * tanh(scale * z / cap) / temperature, in place."""
    if transform.softcap is not None:
        z.mul_(transform.scale / transform.softcap).tanh_().mul_(transform.softcap / transform.temperature)
    elif transform.scale != transform.temperature:
        z.mul_(transform.scale / transform.temperature)
