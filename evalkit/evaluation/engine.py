"""The engine of a run: chosen by the settings, imported when it is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gtpo.common.packages import installed, require
from gtpo.evalkit.engines.base import Engine, Sampling, Task
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.evaluation.settings import EvalSettings

if TYPE_CHECKING:
    from gtpo.evalkit.engines.openai_request import Access


def choose_engine(settings: EvalSettings) -> str:
    """Return what samples; with `auto`, vllm if it is installed (on a CPU too), else transformers.

    `ray` is vllm in several processes: its samples are of one kind with those of one process.
    """
    if settings.on_ray:
        require("--engine ray" if settings.engine == "ray" else "--data-parallel-size", "ray", extra="ray")
    if settings.engine in ("vllm", "ray"):
        require(f"--engine {settings.engine}", "vllm", extra="vllm")
        return "vllm"
    if settings.engine == "openai":
        return settings.engine
    require("gtpo eval MODEL", "torch", "transformers", extra="train")
    return "vllm" if settings.engine == "auto" and installed("vllm") else "transformers"


def servers(settings: EvalSettings, ref: ModelRef) -> tuple[list[str], Access]:
    """Return the addresses of the servers, and how they are asked. UserError if they are not given, or wrong."""
    from gtpo.evalkit.engines.openai_request import access, server_urls

    urls = server_urls(ref, settings.base_url or (), settings.api_key_env)
    return urls, access(settings.api_key_env, settings.header or (), settings.timeout, settings.total_timeout)


def make_engine(
    settings: EvalSettings,
    ref: ModelRef,
    sampling: Sampling,
    longest_prompt: int,
    rows: int | None = None,
    first: Sequence[Task] = (),
    thoughts: tuple[tuple[str, str], ...] = (),
) -> Engine:
    """Start the engine.

    rows: the batch size that the run was begun with, for the transformers engine. first: the first questions, which
    servers are asked before all else. thoughts: delimiters of thoughts beside those in use.
    """
    name = choose_engine(settings)
    if name == "openai":
        from gtpo.evalkit.engines.openai import OpenAIEngine

        urls, access = servers(settings, ref)
        return OpenAIEngine(
            ref,
            sampling,
            urls,
            access,
            concurrency=settings.concurrency,
            retries=settings.retries,
            wait_s=settings.wait_for_server,
            body=settings.request_body(),
            first=first,
            thoughts=thoughts,
        )
    if name == "vllm":
        names = ("dtype", "tensor_parallel_size", "gpu_memory_utilization", "trust_remote_code")
        options: dict[str, Any] = {name: getattr(settings, name) for name in names}
        if settings.on_ray:
            from gtpo.evalkit.engines.ray import RayEngine

            return RayEngine(
                settings.data_parallel_size, ref, sampling, longest_prompt, address=settings.ray_address, **options
            )
        from gtpo.evalkit.engines.vllm import VLLMEngine

        return VLLMEngine(ref, sampling, longest_prompt, **options)
    from gtpo.evalkit.engines.local import load_tokenizer
    from gtpo.evalkit.engines.transformers import TransformersEngine

    return TransformersEngine(
        ref,
        load_tokenizer(ref, trust_remote_code=settings.trust_remote_code),
        sampling,
        rows=settings.batch_size or rows,
        dtype=settings.dtype,
        trust_remote_code=settings.trust_remote_code,
    )
