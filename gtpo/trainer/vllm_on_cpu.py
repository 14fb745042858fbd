"""vLLM beside the trainer on a CPU, and what it raises.

vLLM's CPU backend packs the linear layers' weights as it loads them, so TRL's way of writing into them fails
(`'Parameter' object has no attribute 'weight_loader'`). vLLM's own layer-wise reload puts the unpacked parameters
back, takes the new weights and packs them again. It passes over an lm_head that is tied to the embedding, whose packed
copy would stay that of the start (seen where oneDNN packs bfloat16, on an AVX-512 machine): it is packed again here.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gtpo.common.errors import UserError


@contextmanager
def reloaded_by_layers(engine: Any) -> Iterator[None]:
    """Let all weights that are written inside into a vLLM engine in this process go through its layer-wise reload."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

    runner = engine.llm_engine.model_executor.driver_worker.model_runner
    initialize_layerwise_reload(runner.model)
    yield
    finalize_layerwise_reload(runner.model, runner.model_config)
    for layer in runner.model.modules():
        if hasattr(layer, "cpu_linear") and layer.weight.numel():  # linear layers keep the packed copy alone
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)


@contextmanager
def vllm_failures_explained(model: Any) -> Iterator[None]:
    """Turn what vLLM raises inside, as it starts or samples, into one UserError. Other errors pass."""
    try:
        yield
    except Exception as error:
        inside_vllm = any("/vllm/" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
        if not inside_vllm or isinstance(error, torch.OutOfMemoryError):
            raise
        raise UserError(
            f"rollout.engine vllm: vLLM fails with {model.name_or_path}: "
            f"{' '.join(str(error).split())[:400]}. Set rollout.engine: transformers, which "
            "samples with the trainer's own model"
        ) from error
