"""What vLLM reads from the environment as it is imported; training and evaluation set it alike."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from gtpo.common.log import LOG

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM reserves memory for; it takes none above the last."""


def lora_rank_slot(rank: int) -> int:
    """Return the value of vLLM's max_lora_rank that holds adapters of this rank."""
    return next((slot for slot in LORA_RANKS if slot >= rank), rank)


def quiet_vllm(*, on_cpu: bool) -> None:
    """Set what vLLM reads, unless the user has: no usage reports, no log lines without --verbose; on a CPU one process,
    1 GiB of cache, and no attention whose rounding depends on what shares a batch.

    With several threads vLLM's CPU attention cuts the sequences that lie where one thread's share ends and the next
    one's begins; which those are depends on the batch, and the sum of the pieces rounds otherwise than the whole.

    Must be called before vLLM (or trl.generation) is imported.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO" if LOG.isEnabledFor(logging.DEBUG) else "ERROR")
    if on_cpu:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_CPU_ATTN_SPLIT_KV", "0")


def multiply_adapters_densely(engine: Any) -> None:
    """Let a vLLM engine in this process, on a CPU, apply its only adapter by two matrix products for all tokens.

    vLLM's own way on a CPU copies the adapter's weights once per token: 2.5 GB a layer for 4,096 tokens of a 0.5B
    model, which makes the reading of prompts seven times slower. It stays in use where some tokens have no adapter.
    """
    model = engine.model_executor.driver_worker.model_runner.model
    for wrapper in {layer.punica_wrapper for layer in model.modules() if hasattr(layer, "punica_wrapper")}:
        wrapper.add_lora_linear = functools.partial(add_adapter, wrapper, wrapper.add_lora_linear)


def add_adapter(
    wrapper: Any, plain: Any, y: Any, x: Any, downs: Any, ups: Any, scale: float, widths: Any, **options: Any
) -> None:
    """y [..., sum(widths)] += scale * x [..., d] A^T B^T, slice by slice. As PunicaWrapperCPU.add_lora_linear."""
    if wrapper.token_lora_indices.any():  # the only adapter is number 0; -1: none
        plain(y, x, downs, ups, scale, widths, **options)
        return
    rows, x, begin = y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1]), 0
    for down, up, width in zip(downs, ups, widths, strict=True):
        part = rows[:, begin : begin + width]
        part.addmm_((x @ down[0, 0].T).to(part.dtype), up[0, 0].T.to(part.dtype), alpha=scale)
        begin += width
