"""The engine of a run: chosen by the settings, imported when it is chosen."""

from __future__ import annotations

from typing import Any

from evalkit.engines.base import Engine, Sampling
from evalkit.engines.model_ref import ModelRef
from evalkit.evaluation.settings import EvalSettings
from rewards.support.errors import UserError
from rewards.support.packages import installed, require


def choose_engine(settings: EvalSettings) -> str:
    """Return the engine asked for; with `auto`, vllm where it is installed and there is a GPU, else transformers."""
    if settings.engine == "vllm":
        require("--engine vllm", "vllm", extra="vllm")
    if settings.engine in ("vllm", "openai"):
        return settings.engine
    require("gtpo eval MODEL", "torch", "transformers", extra="train")
    if settings.engine == "auto" and installed("vllm"):
        import torch

        if torch.cuda.is_available():
            return "vllm"
    return "transformers"


def check_deterministic(engine: str) -> None:
    """Raise UserError where --deterministic cannot be had from this engine."""
    if engine == "openai":
        raise UserError(
            "--deterministic is for the server to keep: start vLLM's with VLLM_BATCH_INVARIANT=1, and leave the flag "
            "out here"
        )
    if engine == "vllm":
        import torch

        if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
            found = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
            raise UserError(
                "--deterministic: vLLM's batch-invariant mode needs an NVIDIA GPU of compute capability 9.0 or more, "
                f"found {found}; --engine transformers is deterministic anywhere"
            )


def make_engine(
    settings: EvalSettings, ref: ModelRef, sampling: Sampling, longest_prompt: int, rows: int | None = None
) -> Engine:
    """Start the engine. rows: the batch size that the run was begun with, for the transformers engine."""
    name = choose_engine(settings)
    if name == "openai":
        from evalkit.engines.openai import OpenAIEngine

        return OpenAIEngine(
            ref,
            sampling,
            base_url=settings.base_url,
            api_key_env=settings.api_key_env,
            concurrency=settings.concurrency,
            timeout_s=settings.timeout,
            retries=settings.retries,
            chat_template_kwargs=settings.template_kwargs(),
        )
    if name == "vllm":
        from evalkit.engines.parallel import DataParallelEngine
        from evalkit.engines.vllm import VLLMEngine

        options: dict[str, Any] = {
            "dtype": settings.dtype,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "trust_remote_code": settings.trust_remote_code,
            "deterministic": settings.deterministic,
        }
        if settings.data_parallel_size > 1:
            return DataParallelEngine(settings.data_parallel_size, ref, sampling, longest_prompt, **options)
        return VLLMEngine(ref, sampling, longest_prompt, **options)
    from evalkit.engines.local import load_tokenizer
    from evalkit.engines.transformers import TransformersEngine

    return TransformersEngine(
        ref,
        load_tokenizer(ref, trust_remote_code=settings.trust_remote_code),
        sampling,
        rows=settings.batch_size or rows,
        dtype=settings.dtype,
        trust_remote_code=settings.trust_remote_code,
    )
