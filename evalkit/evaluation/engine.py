"""The engine of a run, chosen by the settings and imported when it is chosen; and the prompts as it reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.packages import installed, require
from gtpo.common.provenance import text_hash
from gtpo.evalkit.engines.base import Engine, Prompt, Reading, Sampling, Task
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.evaluation.protocol import Protocol
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.rewards.data.problem import SYSTEM_INSTRUCTION, Problem
from gtpo.runs.eval_folder import QuestionKey, StoredPrompt
from gtpo.runs.eval_record import PromptRecord


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


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompts of a run as its engine reads them."""

    prompts: dict[QuestionKey, Prompt]
    record: PromptRecord  # What they were made with
    reading: Reading  # What of a completion is thought, and where it ends
    context: int | None = None  # Tokens that the model takes, None if unknown
    servers: Any = field(default=None, repr=False)  # `engines.openai_request.Servers`, if the model is behind servers

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt; an upper bound if a server tokenises."""
        if any(prompt.ids is None for prompt in self.prompts.values()):
            texts = ((p.text or "", *(m["content"] + 64 * " " for m in p.messages)) for p in self.prompts.values())
            return max(sum(len(text.encode()) for text in each) for each in texts)
        return max(len(prompt.ids or ()) for prompt in self.prompts.values())


def render_prompts(
    settings: EvalSettings,
    protocol: Protocol,
    ref: ModelRef,
    engine: str,
    asked: Mapping[QuestionKey, tuple[Problem, list[Problem]]],
) -> Rendered:
    """Render every question, each with its examples. Raises UserError for a model or template that cannot be used."""
    system = settings.prompt
    if system is None:
        system = "" if protocol.api == "completions" else SYSTEM_INSTRUCTION if ref.system is None else ref.system
    prompts = {key: protocol.conversation(*question, system) for key, question in asked.items()}
    kwargs, template_hash, servers = settings.template_kwargs(), None, None
    thoughts = tuple(protocol.thoughts)
    if engine == "openai":
        from gtpo.evalkit.engines.openai_request import Access, Servers

        access = Access(settings.api_key_env, settings.header or (), settings.timeout, settings.total_timeout)
        servers = Servers(ref, settings.base_url or (), access, settings.wait_for_server)
        context = servers.context()
        prompts = servers.rendered(prompts, kwargs)
    else:
        from gtpo.evalkit.engines import local

        config = local.load_config(ref, trust_remote_code=settings.trust_remote_code)
        local.check_adapter(ref, config)
        tokenizer = local.load_tokenizer(ref, trust_remote_code=settings.trust_remote_code)
        context = local.context_length(config)
        thoughts += local.thought_tokens(tokenizer)
        if protocol.api == "completions":
            prompts = {key: p._replace(ids=local.text_ids(tokenizer, p.text or "")) for key, p in prompts.items()}
        else:
            template = local.chat_template(tokenizer, settings.chat_template)
            prompts = {key: local.render(tokenizer, template, p.messages, kwargs) for key, p in prompts.items()}
            template_hash = text_hash(template)
    declared = {"system_role", "user", "fewshot", "api", "thoughts", "begins_in_thought"}
    record = PromptRecord(
        protocol=protocol.name,
        system=system,
        chat_template_hash=template_hash,
        chat_template_kwargs=kwargs,
        **protocol.model_dump(include=declared),
    )
    plain = PromptRecord()
    other = {key: value for key in ("user", "fewshot", "api") if (value := getattr(record, key)) != getattr(plain, key)}
    further = [json.dumps(what, sort_keys=True) for what in (kwargs, other) if what]
    record.hash = text_hash(system, template_hash, *further)
    return Rendered(prompts, record, Reading(tuple(protocol.stop), thoughts), context, servers)


def check_same(where: str, stored: Mapping[QuestionKey, StoredPrompt], now: Mapping[QuestionKey, StoredPrompt]) -> None:
    """Raise UserError if a question that has samples would now be asked in other words."""
    for key in stored.keys() & now.keys():
        before, after = Prompt(*stored[key]), Prompt(*now[key])
        one, other = before.text, after.text
        if one is None or other is None:
            one, other = json.dumps(before.messages), json.dumps(after.messages)
        if one != other:
            at = next((i for i, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1), len(one))
            shown = slice(max(0, at - 20), at + 20)
            raise UserError(
                f"{where}: the prompt of {key[0]} {key[1]} is another than it was when it was sampled: {one[shown]!r} "
                f"there, {other[shown]!r} now. Repeat the protocol, data and template, or choose another --out"
            )


def make_engine(
    settings: EvalSettings,
    ref: ModelRef,
    sampling: Sampling,
    rendered: Rendered,
    rows: int | None = None,
    first: Sequence[Task] = (),
) -> Engine:
    """Start the engine.

    rows: the batch size that the run was begun with, for the transformers engine. first: the first questions, which
    servers are asked before all else.
    """
    name = choose_engine(settings)
    if name == "openai":
        from gtpo.evalkit.engines.openai import OpenAIEngine

        return OpenAIEngine(
            rendered.servers,
            sampling,
            concurrency=settings.concurrency,
            retries=settings.retries,
            body=settings.request_body(),
            first=first,
            thoughts=rendered.reading.thoughts,
        )
    if name == "vllm":
        names = ("dtype", "tensor_parallel_size", "gpu_memory_utilization", "trust_remote_code")
        options: dict[str, Any] = {name: getattr(settings, name) for name in names}
        if settings.on_ray:
            from gtpo.evalkit.engines.ray import RayEngine

            options["address"] = settings.ray_address
            return RayEngine(settings.data_parallel_size, ref, sampling, rendered.longest, **options)
        from gtpo.evalkit.engines.vllm import VLLMEngine

        return VLLMEngine(ref, sampling, rendered.longest, **options)
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
