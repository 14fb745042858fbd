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


def project(hidden: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out [m, V] = hidden [m, D] @ weight [V, D]^T (+ bias [V])."""
    if _native(weight):
        torch.mm(hidden.to(weight.dtype), weight.t(), out=out)
    elif weight.is_cuda:
        torch.mm(hidden.to(weight.dtype), weight.t(), out_dtype=out.dtype, out=out)
    else:
        wide = hidden.to(out.dtype)
        for rows, block in _widened(weight, out.dtype):
            torch.mm(wide, block.t(), out=out[:, rows])
    if bias is not None:
        out += bias


def pull_back(scores: Tensor, weight: Tensor) -> Tensor:
    """Return scores [m, V] @ weight [V, D] in the precision of the scores."""
    if _native(weight):
        return torch.mm(scores, weight)
    if weight.is_cuda:
        return torch.mm(scores.to(weight.dtype), weight, out_dtype=scores.dtype)
    total = scores.new_zeros(scores.shape[0], weight.shape[1])
    for rows, block in _widened(weight, scores.dtype):
        torch.addmm(total, scores[:, rows], block, out=total)
    return total


def accumulate_outer(scores: Tensor, hidden: Tensor, total: Tensor) -> None:
    """total [V, D] += scores [m, V]^T @ hidden [m, D], summed in the precision of `total`."""
    if hidden.is_cuda and hidden.dtype != total.dtype:
        torch.addmm(total, scores.to(hidden.dtype).t(), hidden, out_dtype=total.dtype, out=total)
    else:
        torch.addmm(total, scores.t(), hidden.to(total.dtype), out=total)


def _native(weight: Tensor) -> bool:
    return weight.dtype in (torch.float32, torch.float64)


def _widened(weight: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, weight.shape[0], WIDENED_ROWS):
        rows = slice(start, min(start + WIDENED_ROWS, weight.shape[0]))
        yield rows, weight[rows].to(dtype)
