"""The Triton kernels through their compiler: nothing spills on any architecture, and the docs show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kernels import ARCHITECTURES, VARIANTS, Variant, compile_variant, moved_bytes, occupancy, page
from gtpo.common.packages import installed

pytestmark = [
    pytest.mark.skipif(not installed("triton"), reason="triton is not installed"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
MOST_BYTES = {"online_softmax": 10, "statistics": 12, "gradient": 8}
"""Per logit: the row read twice and its powers written; read twice and written; read and written."""


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: f"{variant.kernel}: {variant.name}")
def test_nothing_spills(variant: Variant) -> None:
    for architecture in ARCHITECTURES:
        found = compile_variant(variant, architecture)
        assert (found["spill_bytes"], found["stack_bytes"]) == (0, 0), found
        assert found["cubin_bytes"] > 1000
        assert found["floor_bytes"] <= found["bytes_per_logit"] <= MOST_BYTES[variant.kernel], found
        assert found["occupancy"] >= 0.25, found


def test_a_spill_is_seen() -> None:
    found = compile_variant(VARIANTS[1], 90, maxnreg=24)
    assert found["registers"] <= 24
    assert found["spill_bytes"] > 0


@pytest.mark.parametrize(
    ("registers", "shared", "share"),
    [(32, 0, 1.0), (40, 16, 48 / 64), (64, 16, 32 / 64), (96, 16, 20 / 64), (255, 0, 8 / 64), (32, 57000, 16 / 64)],
)
def test_occupancy_by_hand(registers: int, shared: int, share: float) -> None:
    """sm_90: 65,536 registers, 64 warps, 228 KiB; blocks of 4 warps."""
    assert occupancy(90, registers, shared) == share


def test_bytes_of_a_loop_that_reads_a_row_and_writes_half_of_it() -> None:
    """16 logits a thread: read as four vectors of four, written as bfloat16 in two vectors of eight; scalars beside."""
    ptx = (
        4 * "ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];\n"
        + 2 * "@%p1 st.global.v4.b32 [ %rd2 + 0 ], { %r1, %r2, %r3, %r4 };\n"
        + "ld.global.b32 { %r9 }, [ %rd3 + 0 ];\nst.global.b64 [ %rd4 + 0 ], { %rd5 };\n"
    )
    assert moved_bytes(ptx, 2048) == 4 + 2


def test_the_table_in_the_docs_is_the_published_one(root: Path, published) -> None:
    rows = published("bench/kernels")["rows"]
    assert len(rows) == len(VARIANTS) * len(ARCHITECTURES)
    assert page(rows) in (root / "docs/one_pass.md").read_text()
    assert all(row["spill_bytes"] == 0 for row in rows)
