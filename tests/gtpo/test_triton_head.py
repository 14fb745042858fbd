"""The Triton kernels: in Triton's interpreter, on a GPU as they are, and through their compiler for three GPUs.

Run with `cuda` or without, it is the check that the tests below start in a process of its own: TRITON_INTERPRET must be
set before triton is imported.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from test_head import Launched, gradients, inputs, plain

from gtpo.common.packages import installed

IN_A_PROCESS = ("gtpo/triton_head.py",)

pytestmark = [
    pytest.mark.skipif(not installed("triton"), reason="triton is not installed"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]


def check(device: str) -> None:
    """Compare statistics and gradients with autograd on all logits, and count what is launched."""
    import gtpo.head
    from gtpo import triton_head

    torch.set_num_threads(1)
    launches, kernels = [0], triton_head.fold

    def counted(*arguments: Any) -> None:
        launches[0] += 1
        with torch.utils._python_dispatch._disable_current_modes():
            kernels(*arguments)

    triton_head.BLOCK = 8  # several blocks a row
    # A tile beside earlier ones that are kept in 16 bits: r moves in rows 1 and 2, and row 2 has a NaN.
    folded = []
    for fold in (gtpo.head.fold, kernels):
        draw = torch.Generator().manual_seed(0)
        z, kept = torch.randn(3, 23, generator=draw), torch.randn(3, 40, generator=draw).bfloat16().to(device)
        z[1:] += 30
        z[2, 5] = torch.nan
        sums, ids = torch.ones(3, 3, device=device), torch.tensor([17, 0, 39], device=device)
        fold(z.to(device), kept[:, 17:], sums, ids, 17, 10.0, kept[:, :17])
        assert sums[1:, 2].isnan().all(), "what is not finite is not hidden"
        folded.append((kept[:2], sums[:, :2]))
    torch.testing.assert_close(*folded, rtol=1e-2, atol=0)
    gtpo.head.fold = triton_head.fold = counted
    # The cap bounds logits, so that r never moves; it and the bias are no part of the kernels.
    for seed, (trained, (cap, spread)) in enumerate(itertools.product((False, True), ((3.0, 1.0), (None, 40.0)))):
        gtpo.head.CPU = gtpo.head.GPU = gtpo.head.CPU._replace(columns=1, tile_logits=90)
        hidden, weight, bias, ids = (t.to(device) for t in inputs(seed))
        hidden = (hidden * spread).requires_grad_()
        weight.requires_grad_(trained)
        options: dict[str, Any] = {"softcap": cap, "logit_scale": 1.3, "temperature": 0.8}
        found = gtpo.head.head_statistics(hidden, weight, ids, bias=bias, **options)
        wanted = plain(hidden, weight, bias, ids, **options)
        leaves = [hidden, weight][: 1 + trained]
        for value, target in zip(
            (*found, *gradients(found, leaves, False)), (*wanted, *gradients(wanted, leaves, False)), strict=True
        ):
            # A kernel's float arguments are rounded to float32.
            torch.testing.assert_close(value, target, rtol=1e-5, atol=1e-5 * spread)
    counts = []
    for columns in (4, 2):  # 6 and 12 tiles of one chunk
        gtpo.head.CPU = gtpo.head.GPU = gtpo.head.CPU._replace(columns=1, tile_logits=13 * columns)
        hidden, weight, _, ids = (t.to(device) for t in inputs(0))
        launches[0] = 0
        with Launched() as launched:
            gtpo.head.head_statistics(hidden.requires_grad_(), weight, ids)[0].sum().backward()
        counts.append(launched.operations + launches[0])
    print(f"a tile {(counts[1] - counts[0]) / 6:g} besides {2 * counts[0] - counts[1]}")


def run_check(*arguments: str, **environment: str) -> str:
    """Run this file and return what it printed."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | environment
    done = subprocess.run([sys.executable, __file__, *arguments], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kernels_under_the_interpreter() -> None:
    tile, besides = re.findall(r"[\d.]+", run_check(TRITON_INTERPRET="1"))
    assert float(tile) <= 3, "of forward and backward: a product, fold, a product"
    assert int(besides) <= 40


@pytest.mark.gpu
def test_kernels_on_a_gpu() -> None:
    assert "a tile" in run_check("cuda")


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_nothing_spills(architecture: int, tmp_path: Any, monkeypatch: Any) -> None:
    """Compiled for A100, H100 and B200 as a launch specialises them, without a GPU, for ragged vocabularies too."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gtpo import triton_head

    types = {"e_ptr": "*bf16", "ids_ptr": "*i64", "_ptr": "*fp32", "lag": "fp32", "BLOCK": "constexpr"}
    for aligned in (True, False) if architecture == 90 else (False,):
        signature, attributes, constants = {}, {}, {"BLOCK": triton_head.BLOCK}
        for index, name in enumerate(triton_head._fold.arg_names):
            signature[name] = next((kind for end, kind in types.items() if name.endswith(end)), "i32")
            if name.endswith("_ptr") or (signature[name] == "i32" and aligned):
                attributes[(index,)] = [["tt.divisibility", 16]]
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / str(aligned)))  # or it is not compiled again
        log = io.StringIO()
        with contextlib.redirect_stdout(log), triton.knobs.nvidia.scope():
            triton.knobs.nvidia.dump_ptxas_log = True
            source = ASTSource(fn=triton_head._fold, signature=signature, constexprs=constants, attrs=attributes)
            triton.compile(source, target=GPUTarget("cuda", architecture, 32))
        assert re.findall(r"Used (\d+) registers", log.getvalue())
        assert set(re.findall(r"(\d+) bytes (?:stack|spill)", log.getvalue())) == {"0"}


if __name__ == "__main__":
    check(sys.argv[1] if len(sys.argv) > 1 else "cpu")
