"""What this process frees is kept or given back, as it is told to: glibc's malloc, asked in processes of their own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc's malloc alone is told to")

FAULTS = """
import resource, sys, torch
from gtpo.common.vllm_cpu import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(20):  # the heap grows at first
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_that_is_kept_is_not_cleared_again() -> None:
    """Ten blocks of 64 MB one after another: the kernel gives their pages once, or ten times."""
    faults = {
        given: int(subprocess.run([sys.executable, "-c", FAULTS, given], check=True, capture_output=True).stdout)
        for given in ("keep", "return")
    }
    assert faults["keep"] * 20 < faults["return"]


HELD = """
from pathlib import Path
import torch
from gtpo.common.vllm_cpu import give_back_freed_memory, keep_freed_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
keep_freed_memory()
before = resident()
blocks = [torch.ones(2**18) for _ in range(512)]
last = torch.ones(1)  # at the top of the heap: nothing below it is given back by making the heap smaller
blocks.clear()
kept = resident()
give_back_freed_memory()
print(kept - before, resident() - before)
"""


def test_what_is_freed_is_given_back() -> None:
    """Half a GB of freed blocks below one in use."""
    done = subprocess.run([sys.executable, "-c", HELD], check=True, capture_output=True)
    kept, after = (int(text) / 2**20 for text in done.stdout.split())
    assert kept > 500
    assert after < 50
