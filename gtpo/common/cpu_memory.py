"""How this process holds the memory of tensors on a CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LARGE = 2**22
"""Bytes from which a block is taken from the kernel by itself."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
_LARGEST = 2**25
"""The largest block that glibc can keep in its heap."""
_NEVER = -1
"""Free memory at the heap's end from which glibc returns it: none is enough."""


def return_large_blocks() -> None:
    """Let the memory of a large tensor go back to the kernel when the tensor is freed.

    glibc learns to keep blocks of up to 32 MB in its heap, where they leave gaps: a training step of a model of 0.5
    billion parameters held 12.3 GiB where 7.1 are enough, and kept them (bench.laptop). A block of its own has its
    pages cleared anew each time. Huge pages make that cheap beside products in float32, not beside those in bfloat16
    (`keep_large_blocks`); PyTorch asks the kernel for them where THP_MEM_ALLOC_ENABLE is set.

    To be called before torch is imported, which looks at the variable once, maybe while it is imported: afterwards
    nothing happens, as without glibc or huge pages. What the user has set in the environment is left alone.
    """
    try:
        to_be_had = "[never]" not in HUGE_PAGES.read_text()
    except OSError:  # not Linux
        to_be_had = False
    if not to_be_had or "torch" in sys.modules:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt(_M_MMAP_THRESHOLD, LARGE)


def keep_large_blocks() -> None:
    """Let glibc keep what is freed after all, in blocks of up to 32 MB: for a run that has the room.

    glibc's own rule would return the end of the heap whenever 64 MB of it are free, which is a question of what happens
    to lie between the blocks. What the user has set in the environment is left alone; without glibc nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST)
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
