"""The vocabulary-sized matmuls of the one-pass loss: float32 logits and sums whatever the weight's dtype.

On CUDA half-precision operands go to the tensor cores and come back in float32 (`out_dtype`). Elsewhere the weight is
widened a block of rows at a time, so no float32 copy of it exists.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

WIDENED_ROWS = 16384
"""Rows of a half-precision weight that are widened to float32 at a time."""


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of logits and statistics: float64 for float64, else float32."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def choose_matmul_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype that goes into the matmuls: autocast's or the weight's own on CUDA, else that of the logits."""
    if not weight.is_cuda:
        return compute_dtype(weight)
    if torch.is_autocast_enabled("cuda") and weight.dtype != torch.float64:
        return torch.get_autocast_dtype("cuda")
    return weight.dtype


def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left @ right, in the precision of `out`."""
    if left.dtype == out.dtype:
        torch.mm(left, right, out=out)
    else:
        torch.mm(left, right, out_dtype=out.dtype, out=out)


def multiply_add(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out += left @ right, in the precision of `out`."""
    if left.dtype == out.dtype:
        torch.addmm(out, left, right, out=out)
    else:
        torch.addmm(out, left, right, out_dtype=out.dtype, out=out)


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
    """Return total [V, D] (None for 0) + scores [m, V]^T @ hidden [m, D], summed in place in the scores' precision."""
    left, right = scores.to(matmul_dtype).t(), hidden.to(matmul_dtype)
    if total is None:
        total = scores.new_empty(scores.shape[1], hidden.shape[1])
        multiply(left, right, total)
    else:
        multiply_add(left, right, total)
    return total


def _blocks(weight: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    step = weight.shape[0] if weight.dtype == dtype else WIDENED_ROWS
    for start in range(0, weight.shape[0], step):
        rows = slice(start, min(start + step, weight.shape[0]))
        yield rows, weight[rows].to(dtype)
