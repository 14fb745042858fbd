"""The Triton row kernels as their compiler sees them, without a GPU: registers, spills, occupancy, bytes moved.

Each kernel is compiled by Triton for sm_80 (A100), sm_90 (H100, H200) and sm_100 (B200), specialised as a launch
specialises it: float32 logits, bfloat16 powers, aligned pointers, and rows whose length and stride are multiples of 16
(the vocabularies of Llama and Qwen) or, in the rows `ragged`, are not (GPT-2's 50257). Registers, spills and shared
memory are what ptxas says. Occupancy follows from them and the limits of a multiprocessor, as NVIDIA's occupancy
calculator has it. Bytes per logit are those of the vector loads and stores in the PTX, each loop over the row counted
once; the floor is what any kernel must move that reads its row once and writes its results once.

    python -m bench.kernels [--out FILE]
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from bench.common import parser, save, table

ARCHITECTURES = (80, 90, 100)
WARPS = 4
"""Triton's default, which `gtpo.kernels.triton_rows` launches with."""


SHARED_BYTES = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}
"""Of a multiprocessor, as is what follows (CUDA C++ programming guide, specifications by compute capability)."""
MOST_WARPS, MOST_BLOCKS, REGISTERS = 64, 32, 65536
REGISTERS_PER_UNIT = 256
"""Registers are handed out to a warp in units of this many."""
SHARED_PER_BLOCK = 1024
"""What the system takes of a block's shared memory."""


class Variant(NamedTuple):
    """A kernel with its switches as one use sets them."""

    kernel: str
    name: str
    floor_bytes: int
    """Bytes per logit that must be moved: the row read once, what it leaves written once."""
    switches: tuple[str, ...] = ()
    aligned: bool = True


_ALL = ("CAPPED", "CLAMPED", "TRANSFORMED", "WITH_ENTROPY")
VARIANTS = (
    Variant("online_softmax", "plain", 4 + 2),
    Variant("online_softmax", "soft cap", 4 + 2, ("CAPPED",)),
    Variant("online_softmax", "plain, ragged", 4 + 2, aligned=False),
    Variant("statistics", "plain", 4),
    Variant("statistics", "soft cap, clamp", 4 + 4, _ALL),
    Variant("statistics", "plain, ragged", 4, aligned=False),
    Variant("gradient", "plain", 4 + 4),
    Variant("gradient", "soft cap, clamp, entropy", 4 + 4, _ALL),
    Variant("gradient", "plain, ragged", 4 + 4, aligned=False),
)


def occupancy(architecture: int, registers: int, shared_bytes: int, warps: int = WARPS) -> float:
    """Return the share of a multiprocessor's warps that blocks of this kernel can fill."""
    per_warp = -(-registers * 32 // REGISTERS_PER_UNIT) * REGISTERS_PER_UNIT
    by_registers = REGISTERS // per_warp // warps
    by_shared = SHARED_BYTES[architecture] // (shared_bytes + SHARED_PER_BLOCK)
    return min(by_registers, by_shared, MOST_BLOCKS, MOST_WARPS // warps) * warps / MOST_WARPS


def moved_bytes(ptx: str, block: int, warps: int = WARPS) -> float:
    """Return the bytes per logit of the global loads and stores in the PTX; what a row has once does not count.

    A thread's share of a block of the row is `block / threads` logits. Scalars of the row are loaded by one instruction
    of 4 or 8 bytes each, outside the loops or before them, and are told apart by their number: an array access moves
    all of a thread's logits.
    """
    share = block // (32 * warps)
    accesses = re.findall(r"\b(ld|st)\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", ptx)
    widths = Counter((kind, int(vector or 1) * int(bits) // 8) for kind, vector, bits in accesses)
    total = 0.0
    for (_, width), count in widths.items():
        for element in (4, 2):  # float32 logits, bfloat16 powers
            per_access = width // element
            if per_access and count >= share // per_access and width % element == 0:
                total += count // max(1, share // per_access) * element
                break
    return total


def compile_variant(variant: Variant, architecture: int, **options: Any) -> dict[str, Any]:
    """Compile for an architecture (80 is sm_80) and return what the compiler says. options: of Triton's compiler."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gtpo.kernels import triton_rows

    kernel = getattr(triton_rows, f"_{variant.kernel}_kernel")
    kinds = {"_ptr": "*fp32", "stride": "i32", "columns": "i32"}
    special = {"targets_ptr": "*i64", "local_ptr": "*i64", "powers_ptr": "*bf16"}
    constants: dict[str, Any] = {"BLOCK": triton_rows.BLOCK}
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name.isupper():
            constants.setdefault(name, name in variant.switches)
            signature[name] = "constexpr"
            continue
        kind = next((kind for end, kind in kinds.items() if name.endswith(end)), "fp32")
        signature[name] = special.get(name, kind)
        if name.endswith("_ptr") or (kind == "i32" and variant.aligned):
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    log = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as cache,
        patch.dict(os.environ, TRITON_CACHE_DIR=cache),
        contextlib.redirect_stdout(log),
        triton.knobs.nvidia.scope(),
    ):
        triton.knobs.nvidia.dump_ptxas_log = True
        compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    said = log.getvalue()

    def number(pattern: str) -> int:
        found = re.search(pattern, said)
        return int(found[1]) if found else 0

    registers = number(r"Used (\d+) registers")
    assert registers, f"ptxas said nothing of registers:\n{said}"
    shared = int(compiled.metadata.shared)
    return {
        "kernel": variant.kernel,
        "variant": variant.name,
        "architecture": architecture,
        "registers": registers,
        "spill_bytes": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        "stack_bytes": number(r"(\d+) bytes stack frame"),
        "shared_bytes": shared,
        "occupancy": occupancy(architecture, registers, shared),
        "bytes_per_logit": moved_bytes(compiled.asm["ptx"], triton_rows.BLOCK),
        "floor_bytes": variant.floor_bytes,
        "cubin_bytes": len(compiled.asm["cubin"]),
    }


def page(rows: list[dict[str, Any]]) -> str:
    """Return the measurement as Markdown; values of several architectures stand side by side."""
    names = " / ".join(f"sm_{architecture}" for architecture in ARCHITECTURES)
    cells = []
    for variant in VARIANTS:
        same = [row for row in rows if (row["kernel"], row["variant"]) == (variant.kernel, variant.name)]
        same.sort(key=lambda row: row["architecture"])
        cells.append((
            variant.kernel,
            variant.name,
            " / ".join(str(row["registers"]) for row in same),
            f"{max(row['spill_bytes'] for row in same)} B",
            f"{max(row['shared_bytes'] for row in same)} B",
            " / ".join(f"{row['occupancy']:.0%}" for row in same),
            f"{same[0]['bytes_per_logit']:g}",
            same[0]["floor_bytes"],
        ))  # fmt: skip
    columns = ("kernel", "variant", f"registers, {names}", "spills", "shared memory", f"occupancy, {names}")
    return table((*columns, "bytes per logit", "floor"), cells)


def main() -> None:
    args = parser(__doc__, out=Path("results/bench/kernels.json")).parse_args()
    import triton
    from triton.backends.nvidia.compiler import get_ptxas_version

    rows = [compile_variant(variant, architecture) for variant in VARIANTS for architecture in ARCHITECTURES]
    version = re.search(r"V([\d.]+)", get_ptxas_version(max(ARCHITECTURES)))
    environment = {"triton": triton.__version__, "ptxas": version[1] if version else "", "warps": WARPS}
    print(page(rows))
    save(args.out, {"environment": environment, "rows": rows})


if __name__ == "__main__":
    main()
