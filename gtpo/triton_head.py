"""`fold` of `gtpo.head` as a Triton kernel that asks nothing of the host.

One program works on a row, block by block; its sums live in registers, in the type of the logits. TRITON_INTERPRET=1,
set before triton is imported, runs it on a CPU. Triton is imported here and nowhere else.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# Most columns that a program holds at a time.
BLOCK = 2048


@triton.jit
def _fold(
    z_ptr, e_ptr, e_stride, ids_ptr, start, sums_ptr, earlier_ptr, earlier_stride, width, rows, columns, lag,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    z_ptr += row * columns
    e_ptr += row * e_stride
    target = tl.load(ids_ptr + row) - start
    before = tl.load(sums_ptr + row)
    highest = before
    for begin in range(0, columns, BLOCK):
        offsets = begin + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.max(tl.load(z_ptr + offsets, mask=offsets < columns, other=-float("inf"))))
    reference = tl.where(highest > before + lag, highest, before)
    factor = tl.exp(before - reference)
    # Hardly any row, after the first tile.
    if factor != 1.0:
        for begin in range(0, width, BLOCK):
            offsets = begin + tl.arange(0, BLOCK)
            pointers = earlier_ptr + row * earlier_stride + offsets
            values = tl.load(pointers, mask=offsets < width, other=0.0)
            tl.store(pointers, (values * factor).to(earlier_ptr.dtype.element_ty), mask=offsets < width)
    rest = tl.load(sums_ptr + rows + row)
    weighted = (tl.load(sums_ptr + 2 * rows + row) + rest * (before - reference)) * factor
    rest *= factor
    for begin in range(0, columns, BLOCK):
        offsets = begin + tl.arange(0, BLOCK)
        valid = offsets < columns
        centred = tl.load(z_ptr + offsets, mask=valid, other=0.0) - reference
        e = tl.where(valid & (offsets != target), tl.exp(centred), 0.0)
        rest += tl.sum(e)
        weighted += tl.sum(e * centred)
        tl.store(e_ptr + offsets, e.to(e_ptr.dtype.element_ty), mask=valid)
    tl.store(sums_ptr + row, reference)
    tl.store(sums_ptr + rows + row, rest)
    tl.store(sums_ptr + 2 * rows + row, weighted)


def fold(z: Tensor, e: Tensor, sums: Tensor, ids: Tensor, start: int, lag: float, earlier: Tensor) -> None:
    """See `gtpo.head.fold`. z is left as it is; rows of `earlier` whose factor is 1 are not read."""
    rows, columns = z.shape
    known = (earlier, earlier.stride(0), earlier.shape[1])
    block = min(BLOCK, triton.next_power_of_2(columns))
    _fold[(rows,)](z, e, e.stride(0), ids, start, sums, *known, rows, columns, lag, BLOCK=block)
