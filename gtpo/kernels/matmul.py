"""The vocabulary-sized matmuls of the one-pass loss: float32 statistics and sums whatever the weight's dtype.

On CUDA half-precision operands go to the tensor cores and come back in float32 (`out_dtype`). A CPU that multiplies
bfloat16 or float16 sums in float32 too, but torch hands the product over rounded to the operands' dtype, as it does a
model's own lm_head. Logits of targets are therefore computed apart, in float32 (`target_logits`). Elsewhere the weight
is widened a block of rows at a time, so no float32 copy of it exists.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_ROWS = 16384
"""Rows of a half-precision weight on a CPU that are widened to float32, or multiplied, at a time."""


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of logits and statistics: float64 for float64, else float32."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def choose_matmul_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype that goes into the matmuls: autocast's or the weight's own where the device multiplies it."""
    if not weight.is_cuda:
        return weight.dtype if cpu_multiplies(weight.dtype) else compute_dtype(weight)
    if torch.is_autocast_enabled("cuda") and weight.dtype != torch.float64:
        return torch.get_autocast_dtype("cuda")
    return weight.dtype


@functools.cache
def cpu_multiplies(dtype: torch.dtype) -> bool:
    """Return whether this CPU has instructions for products of this half-precision dtype (AVX512_BF16, AMX)."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def comes_rounded(matmul_dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether products of factors of this dtype are rounded to it before they can be used."""
    return device.type == "cpu" and matmul_dtype in (torch.bfloat16, torch.float16)


def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left @ right, in the precision of `out` where the device offers it."""
    if left.dtype == out.dtype:
        torch.mm(left, right, out=out)
    elif comes_rounded(left.dtype, left.device):
        out.copy_(torch.mm(left, right))
    else:
        torch.mm(left, right, out_dtype=out.dtype, out=out)


def multiply_add(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out += left @ right, in the precision of `out` where the device offers it."""
    if left.dtype == out.dtype:
        torch.addmm(out, left, right, out=out)
    elif comes_rounded(left.dtype, left.device):
        out += torch.mm(left, right)
    else:
        torch.addmm(out, left, right, out_dtype=out.dtype, out=out)


def sum_dtype(weight: Tensor, matmul_dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which dloss/dW [V, D] is summed: that of the products where these come rounded.

    A chunk's product is summed in float32 and rounded once, as a model's own backward does with all rows; a float32
    [V, D] beside the gradient that is handed over would be larger than all logits.
    """
    return matmul_dtype if comes_rounded(matmul_dtype, weight.device) else compute_dtype(weight)


def target_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return the raw logits [m] of targets [m] in float32, from hidden [m, D] and weight [V, D]."""
    found = torch.einsum("md,md->m", hidden.float(), weight[targets].float())
    return found if bias is None else found + bias[targets]


def logits_from_hidden(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, matmul_dtype: torch.dtype
) -> None:
    """out [m, V] = hidden [m, D] @ weight [V, D]^T (+ bias [V]), from factors of `matmul_dtype`."""
    hidden = hidden.to(matmul_dtype)
    for rows, block in _blocks(weight, matmul_dtype):
        multiply(hidden, block.t(), out[:, rows])
    if bias is not None:
        out += bias


def hidden_grad(scores: Tensor, weight: Tensor, matmul_dtype: torch.dtype) -> Tensor:
    """Return scores [m, V] @ weight [V, D] in the precision of the scores, from factors of `matmul_dtype`."""
    total = scores.new_zeros(scores.shape[0], weight.shape[1])
    for rows, block in _blocks(weight, matmul_dtype):
        multiply_add(scores[:, rows].to(matmul_dtype), block, total)
    return total


def accumulate_outer(scores: Tensor, hidden: Tensor, total: Tensor | None, matmul_dtype: torch.dtype) -> Tensor:
    """Return total [V, D] (None for 0) + scores [m, V]^T @ hidden [m, D], summed in place (`sum_dtype`)."""
    left, right = scores.to(matmul_dtype).t(), hidden.to(matmul_dtype)
    if total is None:
        dtype = sum_dtype(scores, matmul_dtype)
        total = torch.empty(scores.shape[1], hidden.shape[1], dtype=dtype, device=scores.device)
        multiply(left, right, total)
    else:
        multiply_add(left, right, total)
    return total


def _blocks(weight: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    step = weight.shape[0]
    if weight.dtype != dtype or comes_rounded(dtype, weight.device):
        step = BLOCK_ROWS
    for start in range(0, weight.shape[0], step):
        rows = slice(start, min(start + step, weight.shape[0]))
        yield rows, weight[rows].to(dtype)
