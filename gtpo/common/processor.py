"""What a machine without a GPU computes in, and what a run takes of its memory."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path
from typing import Any

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Where a container reads how many bytes it may have, or `max` (cgroup v2)."""


@functools.cache
def cpu_model() -> str:
    """Return the name of this machine's processor, as its system says it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


@functools.cache
def has_bfloat16() -> bool:
    """Return whether this CPU has instructions that multiply bfloat16 (AVX512_BF16, AMX)."""
    import torch

    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def peak_memory() -> int | None:
    """Return the peak bytes of this process: of its GPU where it has one, else resident. None where Linux is not there
    to say it."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:  # getrusage would count what the process that started this one held
        found = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return 1024 * int(found[1]) if found else None


def free_memory() -> int:
    """Return the bytes that this process can have, with those that it has: of the machine, or of its container."""
    import psutil

    free = psutil.virtual_memory().available + psutil.Process().memory_info().rss
    try:
        limit = CONTAINER_LIMIT.read_text().strip()
    except OSError:
        return free
    return min(free, int(limit)) if limit.isdigit() else free


def dtype_on_cpu(config: Any) -> str:
    """Return what `dtype: auto` comes to on a CPU for weights that are not trained, from a transformers config.

    bfloat16 where the weights are stored in it and the CPU multiplies it: about three times as fast. Else float32:
    weights that are stored in it would lose digits.
    """
    stored = str(getattr(config, "dtype", None)).removeprefix("torch.")
    return "bfloat16" if stored == "bfloat16" and has_bfloat16() else "float32"
