"""Parts of one pass side by side on a CPU, each on a thread of its own.

torch splits every operation among its threads and waits for the slowest of them at its end. A pass of ten operations a
tile waits a thousand times, and on cores that other processes use nearly every time. Parts that share nothing wait for
each other once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
"""By process and number of threads: a forked child has none of its parent's threads."""


def available(device: torch.device) -> int:
    """Return how many parts may run side by side: torch's number of threads on a CPU, 1 elsewhere."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def run(call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return call(item) of each item, in order; as many at a time as torch has threads, without autograd."""
    threads = torch.get_num_threads()
    if threads == 1 or len(items) == 1:
        return [call(item) for item in items]

    def without_autograd(item: Item) -> Result:
        with torch.no_grad():
            return call(item)

    return list(_pool(threads).map(without_autograd, items))


def _pool(threads: int) -> ThreadPoolExecutor:
    key = os.getpid(), threads
    if key not in _pools:
        pool = ThreadPoolExecutor(threads, "gtpo", initializer=torch.set_num_threads, initargs=(1,))
        all_started = Barrier(threads)
        list(pool.map(lambda _: all_started.wait(), range(threads)))
        torch.set_num_threads(threads)  # a thread's own number is also what later threads of the process begin with
        _pools[key] = pool
    return _pools[key]
