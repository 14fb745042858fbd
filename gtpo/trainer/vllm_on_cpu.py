"""vLLM beside the trainer on a CPU: two things that TRL does as a GPU wants them.

Weights. vLLM's CPU backend packs the linear layers' weights as it loads them, so TRL's way of writing into them fails
(`'Parameter' object has no attribute 'weight_loader'`). vLLM's own layer-wise reload puts the unpacked parameters
back, takes the new weights and packs them again. It passes over an lm_head that is tied to the embedding, whose packed
copy would stay that of the start (seen where oneDNN packs bfloat16, on an AVX-512 machine): it is packed again here.

Compilation. vLLM compiles the model for a minute at each start; TRL has no switch for it, and on a CPU it gains nothing
that a run of this kind would notice.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from trl.generation import vllm_generation

from gtpo.common.errors import UserError


@contextmanager
def without_compilation() -> Iterator[None]:
    """Let the vLLM engines that are built inside start without compiling."""
    plain: Any = vllm_generation.LLM
    vllm_generation.LLM = functools.partial(plain, enforce_eager=True)
    try:
        yield
    finally:
        vllm_generation.LLM = plain


def reload_by_layers(generation: Any) -> None:
    """Let the weight sync of a VLLMGeneration in colocate mode go through vLLM's layer-wise reload."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

    sync_weights = generation.sync_weights

    def sync() -> None:
        runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
        initialize_layerwise_reload(runner.model)
        sync_weights()
        finalize_layerwise_reload(runner.model, runner.model_config)
        for layer in runner.model.modules():
            if hasattr(layer, "cpu_linear") and layer.weight.numel():  # linear layers keep the packed copy alone
                dispatch_cpu_unquantized_gemm(layer, remove_weight=False)

    generation.sync_weights = sync


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
