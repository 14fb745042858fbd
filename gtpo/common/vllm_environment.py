"""What vLLM reads from the environment as it is imported; training and evaluation set it alike."""

from __future__ import annotations

import logging
import os

from gtpo.common.log import LOG

# Ranks of adapters that vLLM reserves memory for; it takes none above the last.
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Tokens in a block of vLLM's cache on a CPU. Samples share whole blocks of their prompt, and most prompts are shorter
# than its default of 128. Its AMX kernels need a multiple of 32.
CPU_KV_BLOCK = 32


def lora_rank_slot(rank: int) -> int:
    """Return the value of vLLM's max_lora_rank that holds adapters of this rank."""
    return next((slot for slot in LORA_RANKS if slot >= rank), rank)


def quiet_vllm(*, on_cpu: bool) -> None:
    """Set what vLLM reads, unless the user has: no usage reports, no log lines without --verbose, none on stdout.

    On a CPU: one process, 1 GiB of cache, and no attention whose rounding depends on what shares a batch.

    At level ERROR vLLM speaks even if nothing is wrong: it looks for a model's config beside an adapter's tokenizer.
    On stderr such a line is put aside while the engine starts (`libraries_aside`).

    With several threads vLLM's CPU attention cuts the sequences that lie where one thread's share ends and the next
    one's begins; which those are depends on the batch, and the sum of the pieces rounds otherwise than the whole.

    Must be called before vLLM (or trl.generation) is imported.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO" if LOG.isEnabledFor(logging.DEBUG) else "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    if on_cpu:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_CPU_ATTN_SPLIT_KV", "0")
