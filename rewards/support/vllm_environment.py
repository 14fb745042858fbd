"""What vLLM reads from the environment as it is imported; training and evaluation set it alike."""

from __future__ import annotations

import os


def quiet_vllm(*, on_cpu: bool) -> None:
    """Set what vLLM reads, unless the user has: no usage reports, few log lines; on a CPU one process, 1 GiB of cache.

    Must be called before vLLM (or trl.generation) is imported.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if on_cpu:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
