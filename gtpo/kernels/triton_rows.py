"""Row kernels in Triton: the functions of `gtpo.kernels.torch_rows`, one program per row.

The row is read in blocks; running sums live in registers, in float32 (float64 for float64 logits). Symbols are those
of `gtpo.kernels.torch_rows` and `gtpo.kernels.vocabulary_tiles`. TRITON_INTERPRET=1, set before triton is imported,
runs them on CPU. Triton is imported here and nowhere else.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpo.kernels.torch_rows import OnlineSoftmax, RowStatistics, Transform

BLOCK = 2048


@triton.jit
def _logits(raw, scale, cap, inverse_temperature, CAPPED: tl.constexpr):
    z = raw * scale
    if CAPPED:
        # tanh(x) = 2 sigmoid(2x) - 1, with an exponential that cannot overflow
        x = z / cap
        small = tl.exp(-2 * tl.abs(x))
        tanh = (1 - small) / (1 + small)
        z = cap * tl.where(x < 0, -tanh, tanh)
    return z * inverse_temperature


@triton.jit
def _online_softmax_kernel(
    z_ptr, z_stride, powers_ptr, powers_stride, local_ptr, reference_ptr, rest_ptr, weighted_ptr, target_ptr, scale_ptr,
    columns, logit_scale, cap, inverse_temperature, CAPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    z_row = z_ptr + row * z_stride
    powers_row = powers_ptr + row * powers_stride
    local = tl.load(local_ptr + row)
    before = tl.load(reference_ptr + row)
    reference = before
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        valid = offsets < columns
        raw = tl.load(z_row + offsets, mask=valid, other=0.0)
        z = _logits(raw, logit_scale, cap, inverse_temperature, CAPPED)
        reference = tl.maximum(reference, tl.max(tl.where(valid, z, -float("inf")), axis=0))
    here = (local >= 0) & (local < columns)  # the target lies in this tile
    at_target = _logits(tl.load(z_row + local, mask=here, other=0.0), logit_scale, cap, inverse_temperature, CAPPED)
    tl.store(target_ptr + row, at_target, mask=here)
    step = tl.maximum(before - reference, -10000.0)
    scale = tl.exp(step)
    rest = tl.load(rest_ptr + row)
    weighted = (tl.load(weighted_ptr + row) + rest * step) * scale
    rest = rest * scale
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        valid = offsets < columns
        raw = tl.load(z_row + offsets, mask=valid, other=0.0)
        z = _logits(raw, logit_scale, cap, inverse_temperature, CAPPED)
        centred = tl.where(valid, z - reference, 0.0)
        e = tl.where(valid & (offsets != local), tl.exp(centred), 0.0)
        rest += tl.sum(e, axis=0)
        weighted += tl.sum(e * centred, axis=0)
        if CAPPED:
            t = z / (cap * inverse_temperature)
            e = e * (1 - t * t)
        tl.store(powers_row + offsets, e.to(powers_ptr.dtype.element_ty), mask=valid)
    tl.store(reference_ptr + row, reference)
    tl.store(rest_ptr + row, rest)
    tl.store(weighted_ptr + row, weighted)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _statistics_kernel(
    z_ptr, z_stride, targets_ptr, logps_ptr, entropies_ptr, lse_ptr, unclamped_ptr,
    columns, logit_scale, cap, inverse_temperature, floor,
    CAPPED: tl.constexpr, TRANSFORMED: tl.constexpr, CLAMPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    z_row = z_ptr + row * z_stride
    target = tl.load(targets_ptr + row)
    at_target = _logits(tl.load(z_row + target), logit_scale, cap, inverse_temperature, CAPPED)
    # Online sums relative to the running maximum; the target's logit is a finite start.
    highest = at_target
    total = at_target * 0.0
    weighted = at_target * 0.0
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        valid = offsets < columns
        raw = tl.load(z_row + offsets, mask=valid, other=0.0)
        z = _logits(raw, logit_scale, cap, inverse_temperature, CAPPED)
        moved = tl.maximum(highest, tl.max(tl.where(valid, z, -float("inf")), axis=0))
        step = highest - moved
        scale = tl.exp(step)
        centred = tl.where(valid, z - moved, 0.0)
        e = tl.where(valid, tl.exp(centred), 0.0)
        weighted = (weighted + total * step) * scale + tl.sum(e * centred, axis=0)
        total = total * scale + tl.sum(e, axis=0)
        highest = moved
        if TRANSFORMED:
            tl.store(z_row + offsets, z, mask=valid)
    log_total = tl.log(total)
    lse = highest + log_total
    entropy = log_total - weighted / total
    if CLAMPED:
        tl.debug_barrier()  # other lanes' transformed logits
        entropy = lse * 0.0
        unclamped = lse * 0.0
        for start in range(0, columns, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            valid = offsets < columns
            log_p = tl.load(z_row + offsets, mask=valid, other=0.0) - lse
            p = tl.where(valid, tl.exp(log_p), 0.0)
            unclamped += tl.sum(tl.where(log_p >= floor, p, 0.0), axis=0)
            entropy -= tl.sum(p * tl.maximum(log_p, floor), axis=0)
        tl.store(unclamped_ptr + row, unclamped)
    tl.store(logps_ptr + row, at_target - lse)
    tl.store(entropies_ptr + row, entropy)
    tl.store(lse_ptr + row, lse)


@triton.jit
def _gradient_kernel(
    z_ptr, z_stride, targets_ptr, lse_ptr, entropies_ptr, unclamped_ptr, policy_ptr, entropy_ptr,
    columns, squash, floor,
    CAPPED: tl.constexpr, CLAMPED: tl.constexpr, WITH_ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = offsets < columns
    pointers = z_ptr + row * z_stride + offsets
    z = tl.load(pointers, mask=valid, other=0.0)
    log_p = z - tl.load(lse_ptr + row)
    p = tl.exp(log_p)
    g = tl.load(policy_ptr + row)
    gradient = g * p
    if WITH_ENTROPY:
        excess = log_p
        if CLAMPED:
            excess = tl.maximum(log_p, floor) + tl.where(log_p >= floor, 1.0, 0.0) - tl.load(unclamped_ptr + row)
        gradient -= tl.load(entropy_ptr + row) * p * (excess + tl.load(entropies_ptr + row))
    gradient -= tl.where(offsets == tl.load(targets_ptr + row), g, g * 0.0)
    if CAPPED:
        t = z * squash
        gradient *= 1 - t * t
    tl.store(pointers, gradient, mask=valid)


def online_softmax_update_(
    state: OnlineSoftmax, z: Tensor, *, powers: Tensor, local: Tensor, transform: Transform
) -> Tensor:
    """See `torch_rows.online_softmax_update_`; z is left as it is."""
    scale = torch.empty_like(state.reference)
    _online_softmax_kernel[(z.shape[0],)](
        z, z.stride(0), powers, powers.stride(0), local.contiguous(), *state, scale, z.shape[1],
        *_transform_arguments(transform), CAPPED=transform.softcap is not None, BLOCK=_block(z.shape[1]),
    )  # fmt: skip
    return scale


def statistics(z: Tensor, targets: Tensor, transform: Transform, log_clamp: float) -> RowStatistics:
    """See `torch_rows.statistics`."""
    logps, entropies, lse, unclamped = torch.empty(4, z.shape[0], dtype=z.dtype, device=z.device).unbind()
    scale, cap, inverse = _transform_arguments(transform)
    capped, clamped = transform.softcap is not None, log_clamp > 0
    _statistics_kernel[(z.shape[0],)](
        z, z.stride(0), targets.contiguous(), logps, entropies, lse, unclamped, z.shape[1],
        scale, cap, inverse, math.log(log_clamp) if clamped else 0.0,
        CAPPED=capped, TRANSFORMED=capped or scale * inverse != 1.0, CLAMPED=clamped, BLOCK=_block(z.shape[1]),
    )  # fmt: skip
    return RowStatistics(logps, entropies, lse, unclamped if clamped else None)


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
    """See `torch_rows.gradient_`."""
    factor = transform.scale / transform.temperature
    g = torch.full_like(rows.lse, factor) if policy_scale is None else (policy_scale * factor).to(z.dtype)
    b = g if entropy_scale is None else (entropy_scale * factor).to(z.dtype)
    clamped, capped = rows.unclamped is not None, transform.softcap is not None
    block = _block(z.shape[1])
    _gradient_kernel[(z.shape[0], triton.cdiv(z.shape[1], block))](
        z, z.stride(0), targets.contiguous(), rows.lse.contiguous(), rows.entropies.contiguous(),
        rows.unclamped.contiguous() if rows.unclamped is not None else rows.lse, g, b, z.shape[1],
        transform.temperature / transform.softcap if transform.softcap is not None else 1.0,
        math.log(log_clamp) if clamped else 0.0,
        CAPPED=capped, CLAMPED=clamped, WITH_ENTROPY=entropy_scale is not None, BLOCK=block,
    )  # fmt: skip
    return z


def _transform_arguments(transform: Transform) -> tuple[float, float, float]:
    return transform.scale, transform.softcap or 1.0, 1.0 / transform.temperature


def _block(columns: int) -> Any:
    return min(BLOCK, triton.next_power_of_2(columns))
