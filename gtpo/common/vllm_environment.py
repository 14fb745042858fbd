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


def vllm_environment(*, on_cpu: bool) -> dict[str, str]:
    """Return what vLLM reads in this process or as a server: no usage reports; on a CPU 1 GiB of cache."""
    on_any = {"VLLM_NO_USAGE_STATS": "1"}
    # With several threads its CPU attention cuts the sequences that lie where one thread's share ends and the next
    # one's begins; which those are depends on the batch, and the sum of the pieces rounds otherwise than the whole.
    return {**on_any, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_ATTN_SPLIT_KV": "0"} if on_cpu else on_any


def quiet_vllm(*, on_cpu: bool) -> None:
    """Set what vLLM reads in this process, unless the user has: no log lines without --verbose, one process on a CPU.

    Must be called before vLLM (or trl.generation) is imported.
    """
    values = vllm_environment(on_cpu=on_cpu)
    # At level ERROR it speaks even if nothing is wrong: it looks for a model's config beside an adapter's tokenizer. On
    # stderr such a line is put aside while the engine starts (`libraries_aside`).
    values["VLLM_LOGGING_LEVEL"] = "INFO" if LOG.isEnabledFor(logging.DEBUG) else "ERROR"
    values["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
    if on_cpu:
        values["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in values.items():
        os.environ.setdefault(name, value)
