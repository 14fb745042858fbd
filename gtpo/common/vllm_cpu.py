"""What vLLM on a CPU does slowly, done otherwise and with the same results; training and evaluation use it."""

from __future__ import annotations

import functools
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import torch

KV_BLOCK = 32
"""Tokens in a block of the KV cache, the unit in which samples share their prompt. vLLM's default on a CPU is 128, more
than most prompts of GSM8K have: then each sample reads its prompt anew. Its AMX kernels need a multiple of 32."""


def tune_for_cpu(engine: Any) -> None:
    """Replace what a vLLM engine in this process does slowly on a CPU: adapters and seeded noise."""
    import vllm

    runner = engine.model_executor.driver_worker.model_runner
    if vllm.__version__.startswith("0.31."):  # 0.32 has a fast sampler of its own, with other draws
        sampler = runner.sampler.topk_topp_sampler
        pool = ThreadPoolExecutor(torch.get_num_threads(), "noise")
        sampler.forward = functools.partial(draw_seeded, pool, sampler.forward)
    for wrapper in {layer.punica_wrapper for layer in runner.model.modules() if hasattr(layer, "punica_wrapper")}:
        wrapper.add_lora_linear = functools.partial(add_adapter, wrapper, wrapper.add_lora_linear)


def draw_seeded(
    pool: Executor, plain: Any, logits: torch.Tensor, generators: dict[int, torch.Generator], k: Any, p: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Draw the tokens [B] that TopKTopPSampler.forward_cpu of vLLM 0.31 draws from logits [B, V].

    Each row has a generator. vLLM draws the noise of all rows from the default generator, then again row by row, on one
    thread: over half of the time for a vocabulary of 150,000. Here each row is drawn once, the rows side by side. Other
    batches go to plain.
    """
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    if len(generators) != len(logits):
        return plain(logits, generators, k, p)
    probabilities = apply_top_k_top_p(logits, k, p).softmax(dim=-1, dtype=torch.float32)
    noise = torch.empty_like(probabilities)

    @torch.inference_mode()  # as in the thread of the engine: the mode is each thread's own
    def fill(row: int) -> None:
        noise[row].exponential_(generator=generators[row])

    list(pool.map(fill, generators))
    return probabilities.div_(noise).argmax(dim=-1), None


def add_adapter(
    wrapper: Any, plain: Any, y: Any, x: Any, downs: Any, ups: Any, scale: float, widths: Any, **options: Any
) -> None:
    """y [..., sum(widths)] += scale * x [..., d] A^T B^T, slice by slice. As PunicaWrapperCPU.add_lora_linear.

    vLLM's own way copies the adapter's weights once per token: 2.5 GB a layer for 4,096 tokens of a 0.5B model, which
    makes the reading of prompts seven times slower. It stays in use where some tokens have no adapter.
    """
    if wrapper.token_lora_indices.any():  # the only adapter is number 0; -1: none
        plain(y, x, downs, ups, scale, widths, **options)
        return
    rows, x, begin = y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1]), 0
    for down, up, width in zip(downs, ups, widths, strict=True):
        part = rows[:, begin : begin + width]
        part.addmm_((x @ down[0, 0].T).to(part.dtype), up[0, 0].T.to(part.dtype), alpha=scale)
        begin += width
