"""What a server's model reads of each question, where the server says it: vLLM's /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import aiohttp

from gtpo.evalkit.engines.base import Prompt
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.engines.openai_address import CONNECT_S, Access, apart

AT_ONCE = 16
ANSWER_S = 5.0

_Key = TypeVar("_Key", bound=Hashable)


def served_prompts(
    ref: ModelRef, url: str, access: Access, prompts: Mapping[_Key, Prompt], kwargs: dict[str, Any] | None
) -> dict[_Key, Prompt]:
    """Return the prompts with text and tokens as the server at `url` renders them, else as they are."""
    return apart(_ask_all(ref.served_name, url.removesuffix("/v1"), access, dict(prompts), kwargs))


async def _ask_all(
    model: str, root: str, access: Access, prompts: dict[_Key, Prompt], kwargs: dict[str, Any] | None
) -> dict[_Key, Prompt]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(session: aiohttp.ClientSession, prompt: Prompt) -> Prompt:
        said: dict[str, Any] = {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.text}
        if kwargs:
            said["chat_template_kwargs"] = kwargs
        async with gate:
            found = await _post(session, f"{root}/tokenize", {"model": model, **said})
            ids = [int(token) for token in found["tokens"]]
            if prompt.text is not None:
                return prompt._replace(ids=ids)
            text = (await _post(session, f"{root}/detokenize", {"model": model, "tokens": ids}))["prompt"]
            return prompt._replace(text=str(text), ids=ids)

    first, *rest = prompts
    async with access.session(AT_ONCE) as session:
        try:
            known = {first: await ask(session, prompts[first])}  # the others only where this one is answered
            answers = await asyncio.gather(*(ask(session, prompts[key]) for key in rest))
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
            return prompts
        return known | dict(zip(rest, answers, strict=True))


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
    async with session.post(url, json=body, timeout=timeout, allow_redirects=False) as response:
        response.raise_for_status()
        found: dict[str, Any] = await response.json(content_type=None)
        return found
