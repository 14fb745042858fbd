"""OpenAI-compatible servers: addresses, headers, what they list of their models, and what a request holds."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.log import LOG
from gtpo.evalkit.engines.base import Prompt, Sampling, one_line
from gtpo.evalkit.engines.model_ref import ModelRef, serve_command

CONNECT_S = 10.0

# While no server answers at the start, they are asked so often.
POLL_S = 1.0

# A shorter key is not taken out of what a server echoes: it may be part of any word.
SHORTEST_KEY = 4

# What a proxy says of a server that is not there.
GONE = (502, 503, 504)

# Requests for rendered prompts, and how long a server has to answer one.
AT_ONCE, ANSWER_S = 16, 5.0

_T = TypeVar("_T")
_Key = TypeVar("_Key", bound=Hashable)


class Access:
    """What every request carries beside its question. The key comes from the environment and is stored nowhere.

    variable: the environment variable of the key. headers: further ones as `Name: value`, where `$NAME` is an
    environment variable. A request fails after timeout_s without anything new, and after total_s in any case. UserError
    if a value fits no HTTP header.
    """

    def __init__(
        self, variable: str, headers: Sequence[str], timeout_s: float = 600.0, total_s: float | None = None
    ) -> None:
        self.variable, self.key = variable, os.environ.get(variable, "").strip()
        self.timeout_s, self.total_s = timeout_s, total_s or 60 * timeout_s
        self.headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        for header in headers:
            name, colon, value = header.partition(":")
            if not colon or not re.fullmatch(r"[\w-]+", name.strip()):
                raise UserError(f"--header is 'Name: value', found {name!r}")
            self.headers[name.strip()] = os.path.expandvars(value.strip())
        for value in self.headers.values():
            if not (value.isascii() and value.isprintable()):
                where = variable if value.startswith("Bearer ") else "--header"
                raise UserError(f"the key in {where} has characters that no HTTP header can carry")

    def redact(self, text: str) -> str:
        """Take the key, and the values of further headers, out of what a server echoes."""
        for secret in (self.key, *self.headers.values()):
            text = text.replace(secret, "***") if len(secret) >= SHORTEST_KEY else text
        return text

    def session(self, connections: int = 100) -> aiohttp.ClientSession:
        """Return a client, to be closed."""
        connect = min(CONNECT_S, self.timeout_s)
        timeout = aiohttp.ClientTimeout(self.total_s, sock_connect=connect, sock_read=self.timeout_s)
        connector = aiohttp.TCPConnector(limit=connections)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self.headers, trust_env=True)


def apart(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end; the caller may itself be in an event loop (a notebook)."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def server_urls(ref: ModelRef, given: Sequence[str], key_name: str) -> list[str]:
    """Return the servers' base URLs, checked; given: the values of --base-url, else OPENAI_BASE_URL counts.

    Each value is a URL, several with commas between them, or a file with one on each line (`#` begins a comment).
    UserError says what is wrong with which.
    """
    urls: list[str] = []
    for value in given or [os.environ.get("OPENAI_BASE_URL", "")]:
        text = value
        if "://" not in value and Path(value).is_file():
            try:
                text = Path(value).read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"--base-url {value}: not a readable list of servers ({error})") from None
        parts = (part.strip() for line in text.split("\n") for part in line.partition("#")[0].split(","))
        urls += [_checked(part, key_name) for part in parts if part]
    if not urls:
        command = serve_command(ref)
        start = f". The server for this run: {command}" if command else ""
        raise UserError(f"--engine openai needs --base-url (or OPENAI_BASE_URL), e.g. http://127.0.0.1:8000/v1{start}")
    return list(dict.fromkeys(urls))


def _checked(url: str, key_name: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"--base-url: {one_line(url)} is no URL ({error})") from None
    if parts.username or parts.password or parts.query:
        raise UserError(f"--base-url must hold no credentials: put the key in the environment variable {key_name}")
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() for c in url):
        hint = "" if "://" in url else ", and there is no file of that name"
        # The part before an @ may be a password.
        found = "" if "@" in url else f"; found {one_line(url)}{hint}"
        raise UserError(f"--base-url is http:// or https:// and a host, e.g. http://127.0.0.1:8000/v1{found}")
    return url.rstrip("/")


class Servers:
    """The servers of a run: their addresses, how they are asked, and what each lists of its models.

    given: the values of --base-url. Waits up to wait_s for a server that answers. Raises UserError if none does, or one
    refuses the key.
    """

    def __init__(self, ref: ModelRef, given: Sequence[str], access: Access, wait_s: float = 0.0) -> None:
        self.ref, self.access = ref, access
        self.urls = server_urls(ref, given, access.variable)
        # URL -> what it lists, or why it cannot be reached.
        self.listed: dict[str, list[dict[str, Any]] | str] = apart(self._ask_all(wait_s))

    async def _ask_all(self, wait_s: float) -> dict[str, list[dict[str, Any]] | str]:
        end, told = time.monotonic() + wait_s, False
        async with self.access.session() as session:
            while True:
                answers = await asyncio.gather(*(self._ask(session, url) for url in self.urls))
                found = dict(zip(self.urls, answers, strict=True))
                if not all(isinstance(answer, str) for answer in answers):
                    return found
                if time.monotonic() > end:
                    raise UserError("; ".join(f"no server answers at {url} ({why})" for url, why in found.items()))
                if not told:
                    LOG.warning("no server answers yet: waiting for up to %.0f s (--wait-for-server)", wait_s)
                told = True
                await asyncio.sleep(POLL_S)

    async def _ask(self, session: aiohttp.ClientSession, url: str) -> list[dict[str, Any]] | str:
        """Return what a server lists under /models, nothing if it has no such list, or why it is not there."""
        try:
            timeout = aiohttp.ClientTimeout(total=30.0, sock_connect=CONNECT_S)
            async with session.get(f"{url}/models", timeout=timeout) as response:
                status, body = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return self.access.redact(f"{type(error).__name__}: {one_line(error)}")
        if status in GONE:
            return f"HTTP {status}"
        if status in (401, 403):
            raise UserError(refusal(url, self.access, status, ""))
        try:
            listed = json.loads(body)["data"] if status == 200 else []
            return [entry for entry in listed if isinstance(entry, dict) and "id" in entry]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []

    def card(self, url: str) -> dict[str, Any]:
        """Return what a server lists of the model; empty if it does not list it (aliases, deployments, wildcards)."""
        listed = self.listed[url]
        return {} if isinstance(listed, str) else card_of(listed, self.ref.served_name)

    def not_listed(self, url: str) -> str:
        """Return what to tell if a server does not list the model; empty if it lists it, or nothing at all."""
        served = [str(entry["id"]) for entry in self.listed[url] if isinstance(entry, dict)]
        if not served or self.card(url):
            return ""
        command = serve_command(self.ref)
        start = f". For this run start it with: {command}" if command else ""
        name = self.ref.served_name
        return (
            f'{url} does not list "{name}".{did_you_mean(name, served)} '
            f"It lists: {', '.join(map(one_line, served[:8]))}{start}"
        )

    def context(self) -> int | None:
        """Return the tokens that the model takes on every server, as they list it; None if no server says."""
        cards = [(self.card(url), listed) for url, listed in self.listed.items() if not isinstance(listed, str)]
        return min((length for card, listed in cards if (length := card_context(card, listed))), default=None)

    def rendered(self, prompts: Mapping[_Key, Prompt], kwargs: dict[str, Any] | None) -> dict[_Key, Prompt]:
        """Return the prompts with text and tokens as the first server renders them, else as they are."""
        root = self.urls[0].removesuffix("/v1")
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)

        async def ask_all() -> dict[_Key, Prompt]:
            gate = asyncio.Semaphore(AT_ONCE)

            async def post(path: str, **said: Any) -> dict[str, Any]:
                body = {"model": self.ref.served_name, **said}
                async with session.post(f"{root}/{path}", json=body, timeout=timeout, allow_redirects=False) as answer:
                    answer.raise_for_status()
                    found: dict[str, Any] = await answer.json(content_type=None)
                    return found

            async def ask(prompt: Prompt) -> Prompt:
                said: dict[str, Any] = {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.text}
                async with gate:
                    found = await post("tokenize", **said, **({"chat_template_kwargs": kwargs} if kwargs else {}))
                    ids = [int(token) for token in found["tokens"]]
                    text = prompt.text if prompt.text is not None else (await post("detokenize", tokens=ids))["prompt"]
                    return prompt._replace(text=str(text), ids=ids)

            first, *rest = prompts
            async with self.access.session(AT_ONCE) as session:
                try:
                    # The others only if this one is answered: most servers have no such endpoint.
                    known = {first: await ask(prompts[first])}
                    answers = await asyncio.gather(*(ask(prompts[key]) for key in rest))
                except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
                    return dict(prompts)
                return known | dict(zip(rest, answers, strict=True))

        return apart(ask_all())


def card_of(listed: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return what is listed of a model; empty if nothing is."""
    return next((card for card in listed if card["id"] in (name, f"models/{name}", f"{name}:latest")), {})


# Fields in which servers say how many tokens a model takes, in its card or one level below.
_CONTEXT = (
    "max_model_len", "context_length", "loaded_context_length", "max_context_length", "context_window", "n_ctx",
    "max_context_window", "max_seq_len", "context_size", "inputTokenLimit", "max_input_tokens",
)  # fmt: skip


def card_context(card: Mapping[str, Any], listed: Sequence[dict[str, Any]] = ()) -> int | None:
    """Return the tokens that a model takes by its card, a LoRA by its parent's; None if neither says."""
    inner = [card, *(value for value in card.values() if isinstance(value, dict))]
    found = (block.get(name) for name in _CONTEXT for block in inner)
    own = next((int(n) for n in found if isinstance(n, int | float) and not isinstance(n, bool) and n > 0), None)
    if own is not None or not listed:
        return own
    above = [name for name in (card.get("parent"), card.get("root"), card.get("base_model")) if name]
    cards = [card_of(listed, str(name)) for name in above]
    return next((length for other in cards if other is not card and (length := card_context(other))), None)


# -- what a request holds ----------------------------------------------------------------------------------------------

# Parameters that are left out for a server that does not take them: those without an effect on what is sampled, or with
# the value that has none (None: whatever the value).
_NEUTRAL: dict[str, Any] = {
    "seed": None, "stream": None, "stream_options": None, "skip_special_tokens": None, "temperature": 1.0, "top_p": 1.0,
    "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
}  # fmt: skip

# Beyond those that every server takes.
_EXTRAS = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "skip_special_tokens")

# owned_by -> what a server takes without a word and does not do: Ollama's /v1 has no such parameters.
_DEFAULTS_STAY = {"library": ("top_k", "min_p", "repetition_penalty")}


class Dialect:
    """Which parameters a server takes: all, until it refuses one by its name. api.openai.com gets OpenAI's only."""

    def __init__(self, url: str) -> None:
        self.url, self.owner = url, ""
        self.left_out: set[str] = set()
        self._own_only = urlsplit(url).hostname == "api.openai.com"
        self._renamed = False  # Whether it wants max_completion_tokens

    @property
    def by_default(self) -> set[str]:
        """Parameters whose values are the server's own defaults, whatever was asked for."""
        return self.left_out | set(_DEFAULTS_STAY.get(self.owner, ()))

    def payload(self, model: str, prompt: Prompt, s: Sampling, seed: int, stop: bool, body: Mapping[str, Any]) -> Any:
        """Return what is sent for a sample. stop: whether the stop texts are."""
        question: dict[str, Any] = {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.text}
        sent: dict[str, Any] = {
            "model": model, **question, "temperature": s.temperature, "top_p": s.top_p, "max_tokens": s.max_tokens,
            "seed": seed, "stream": True, "stream_options": {"include_usage": True}, "top_k": s.top_k or -1,
            "min_p": s.min_p, "repetition_penalty": s.repetition_penalty, "presence_penalty": s.presence_penalty,
            "skip_special_tokens": False,
        }  # fmt: skip
        if stop and s.stop:
            sent["stop"] = list(s.stop)
        if self._own_only:
            sent = {name: v for name, v in sent.items() if name not in _EXTRAS or (_NEUTRAL[name] not in (None, v))}
        sent = {name: value for name, value in sent.items() if name not in self.left_out}
        if self._renamed:  # the reasoning models of OpenAI know no max_tokens
            sent["max_completion_tokens"] = sent.pop("max_tokens")
        if self.owner == "llamacpp" and "repetition_penalty" in sent:
            sent["repeat_penalty"] = s.repetition_penalty
        return {**sent, **body}

    def learn(self, sent: Mapping[str, Any], said: str) -> bool:
        """Learn from an error which parameters the server does not take; return whether another request may do."""
        if "max_tokens" in sent and "max_completion_tokens" in said:
            self._renamed = True
            return True
        named = {name for name in _NEUTRAL if name in sent and re.search(rf"\b{name}\b", said)}
        idle = {name for name in named if _NEUTRAL[name] in (None, sent[name])}
        if named != idle:  # one that was asked for: without it, samples would be of another kind
            return False
        if "stream" in idle:
            idle.add("stream_options")
        new = idle - self.left_out
        self.left_out |= new
        for name in sorted(new - {"stream", "stream_options", "skip_special_tokens"}):
            why = "samples cannot be repeated" if name == "seed" else "its own default holds, eval.json has null for it"
            LOG.warning("%s takes no %s: %s", self.url, name, why)
        return bool(new)


def refusal(url: str, access: Access, status: int | None, text: str) -> str:
    """Return what to tell of a server that refuses the key or has no chat completions."""
    if status in (401, 403):
        state = f"the key in {access.variable}" if access.key else f"a request without a key; set {access.variable}"
        return f"{url} refuses {state} (HTTP {status})"
    return f"{url}/chat/completions is not there ({text})"
