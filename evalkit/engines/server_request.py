"""OpenAI-compatible servers: addresses, headers, what they list of their models, and what a request holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiohttp

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.log import LOG
from gtpo.evalkit.engines.base import Prompt, Sampling, one_line
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.engines.serve import SERVED, ServerProcess

CONNECT_S = 10.0

# How long a server has to list its models, to say its version, or to render a prompt; how many prompts at a time.
ANSWER_S, AT_ONCE = 10.0, 16

# Scheme, host (an IPv6 address in brackets), port, path.
_URL = re.compile(r"(?i)https?://(?:\[[\da-f:.]+\]|[^\s/:\[\]]+)(?::0*[1-9]\d{0,4})?(?:/\S*)?")

# A shorter secret is not taken out of an error that a server sends, or out of a completion: it may be a word, or an
# answer.
SECRET_IN_ERROR, SECRET_IN_TEXT = 8, 16
_SECRET_NAME = re.compile(r"(?i)auth|cookie|key|pass|secret|token")

_T = TypeVar("_T")
_Key = TypeVar("_Key", bound=Hashable)


class Access:
    """What every request carries beside its question. The key comes from the environment and is stored nowhere.

    variable: the environment variable of the key. headers: further ones as `Name: value`, where `$NAME` is an
    environment variable. A request fails after timeout_s without anything new, and after total_s in any case. direct:
    never through a proxy. UserError if a value fits no HTTP header.
    """

    def __init__(
        self, variable: str = "", headers: Sequence[str] = (), timeout_s: float = 600.0, *, direct: bool = False
    ) -> None:
        self.variable, self.key = variable, os.environ.get(variable, "").strip() if variable else ""
        self.timeout_s, self.total_s, self.direct = timeout_s, 60 * timeout_s, direct
        self.headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self._secrets = {self.key}
        for header in headers:
            name, colon, value = header.partition(":")
            if not colon or not re.fullmatch(r"[\w-]+", name.strip()):
                raise UserError(f"--header is 'Name: value', found {name!r}")
            self.headers[name.strip()] = sent = os.path.expandvars(value.strip())
            if unset := re.search(r"\$(?:\w+|\{\w+\})", sent):
                raise UserError(f"--header {name.strip()}: there is no environment variable {unset.group()}")
            if "$" in value or _SECRET_NAME.search(name):
                self._secrets |= {sent, sent.rpartition(" ")[2]}
        for value in self.headers.values():
            if not (value.isascii() and value.isprintable()):
                where = variable if value.startswith("Bearer ") else "--header"
                raise UserError(f"the key in {where} has characters that no HTTP header can carry")

    def redact(self, text: str, shortest: int = SECRET_IN_ERROR) -> str:
        """Take the key, and headers that hold a secret, out of what a server echoes."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            if len(secret) >= shortest:
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
        return text

    def session(
        self, silence_s: float = ANSWER_S, total_s: float | None = None, connections: int = AT_ONCE
    ) -> aiohttp.ClientSession:
        """Return a client, to be closed; silence_s: the longest without a byte."""
        timeout = aiohttp.ClientTimeout(total_s, sock_connect=min(CONNECT_S, silence_s), sock_read=silence_s)
        connector = aiohttp.TCPConnector(limit=connections)
        # Only for a proxy: aiohttp looks for one, and for a .netrc, with every request (0.2 ms).
        proxies = not self.direct and bool(getproxies())
        return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self.headers, trust_env=proxies)


def apart(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end; the caller may itself be in an event loop (a notebook)."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def server_urls(given: Sequence[str], key_name: str) -> list[str]:
    """Return the servers' base URLs, checked; given: the values of --base-url, else OPENAI_BASE_URL counts.

    Each value is a URL, or several with commas between them. UserError says what is wrong with which.
    """
    values = ",".join(given or [os.environ.get("OPENAI_BASE_URL", "")]).split(",")
    urls = list(dict.fromkeys(value.strip().rstrip("/") for value in values if value.strip()))
    if not urls:
        raise UserError("--engine openai needs --base-url (or OPENAI_BASE_URL), e.g. http://127.0.0.1:8000/v1")
    for url in urls:
        if "@" in url or "?" in url:
            raise UserError(f"--base-url must hold no credentials: put the key in the environment variable {key_name}")
        if not _URL.fullmatch(url):
            raise UserError(
                f"--base-url is http:// or https:// and a host, e.g. http://127.0.0.1:8000/v1; found {one_line(url)}"
            )
    return urls


# Fields in which servers say how many tokens a model takes, in its card or below: their letters.
_CONTEXT = (
    "maxmodellen", "contextlength", "loadedcontextlength", "maxcontextlength", "contextwindow", "nctx",
    "maxcontextwindow", "maxcontextwindowtokens", "maxcontexttokens", "maxseqlen", "maxsequencelength", "contextsize",
    "numctx", "maxtotaltokens", "inputtokenlimit", "maxinputtokens",
)  # fmt: skip


def _context(card: Mapping[str, Any]) -> int | None:
    blocks: list[Mapping[str, Any]] = [card]
    for block in blocks:
        blocks += [value for value in block.values() if isinstance(value, dict)]
    named = [{"".join(filter(str.isalpha, name)).lower(): n for name, n in block.items()} for block in blocks]
    found = (block.get(name) for name in _CONTEXT for block in named)
    texts = (str(n).removesuffix(".0") for n in found)
    return next((int(text) for text in texts if text.isdecimal() and int(text) > 0), None)


_LIMITS = re.compile(r"(?i)max_?(?:new_|completion_|output_)?tokens|context[ _](?:length|window|size)")


def names_max_tokens(text: str) -> bool:
    """Return whether a refusal is for --max-tokens, or what it leaves of the context."""
    return _LIMITS.search(text) is not None


# Parameters that are left out for a server that does not take them: those without an effect on what is sampled, or with
# the value that has none (None: whatever the value).
_NEUTRAL: dict[str, Any] = {
    "seed": None, "stream": None, "stream_options": None, "skip_special_tokens": False, "temperature": 1.0,
    "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
}  # fmt: skip

# owned_by -> what a server takes without a word and does not do: Ollama's /v1 has no such parameters, LM Studio's no
# min_p.
_NOT_TAKEN = {"library": {"top_k", "min_p", "repetition_penalty"}, "organization_owner": {"min_p"}}


class Server:
    """One server: what it lists, which parameters it takes, and how it does.

    It is sent all parameters until it refuses one by its name; api.openai.com gets OpenAI's only. As many requests are
    in flight as `limit` says, which overload halves and each round trip of answers raises by one, up to `most`.
    """

    def __init__(self, url: str, ref: ModelRef, access: Access) -> None:
        self.url, self.ref, self.access = url, ref, access
        self.takes_tokens = False  # Whether it is sent prompts as tokens, rendered here
        self.out: str | None = None  # Why it gets no requests
        self.cards: list[dict[str, Any]] = []  # One for each model that it lists
        self.version: str | None = None  # Of its program, if that is vLLM
        self.path = ""  # Where it was asked last
        self.model: str | None = None  # The model that answers, as it says itself
        self.left_out: set[str] = set()
        self._own_only = urlsplit(url).hostname == "api.openai.com"
        self._renamed = False  # Whether it wants max_completion_tokens
        self.most = self.limit = 1.0
        self.served = False
        self.failures: set[tuple[Any, ...]] = set()  # Those in a row
        self.pause_until = self.halved_at = 0.0
        self.full_since: float | None = None  # Since when it refuses for the rate (429) and sends nothing

    def card(self, name: str | None = None) -> dict[str, Any]:
        """Return what it lists of a model; empty if it does not list it (aliases, deployments, wildcards)."""
        names = [pattern.format(name or self.ref.served_name) for pattern in ("{}", "models/{}", "{}:latest")]
        return next((card for card in self.cards if card["id"] in names), {})

    @property
    def unlisted(self) -> str:
        """What to tell if it does not list the model; empty if it lists it, or nothing at all."""
        name, served = self.ref.served_name, [str(card["id"]) for card in self.cards]
        if not served or self.card():
            return ""
        listed = ", ".join(map(one_line, served[:8]))
        return f'{self.url} does not list "{name}".{did_you_mean(name, served)} It lists: {listed}'

    def mistake(self, status: int | None, text: str) -> str:
        """Return what to tell of an HTTP status that no other request can change; empty if another may."""
        if status in (400, 404) and (told := self.unlisted):
            return told
        if status == 401:
            name = self.access.variable
            state = f"the key in {name}" if self.access.key else f"a request without a key; set {name}"
            return f"{self.url} refuses {state} (HTTP {status})"
        if status in (404, 405):
            usual = "" if re.search(r"/v\d", self.url) else f"; most addresses end in /v1: --base-url {self.url}/v1"
            return f"{self.url}/{self.path} is not there ({text}){usual}"
        return f"{self.url}: {text}" if status is not None and 300 <= status < 400 else ""

    def refuses_all(self, text: str) -> UserError:
        """Return what to tell if it refuses every request."""
        remedy = ". Choose a smaller --max-tokens" if names_max_tokens(text) else ""
        return UserError(f"{self.url} refuses every request ({text}){remedy}")

    def context(self) -> int | None:
        """Return the tokens that the model takes by its card, a LoRA by its parent's; None if neither says."""
        card = self.card()
        above = (card.get(field) for field in ("parent", "root", "base_model"))
        parents = (self.card(str(name)) for name in above if name)
        return next((length for one in (card, *parents) if (length := _context(one))), None)

    def payload(
        self, prompt: Prompt, s: Sampling, seed: int, stop: Sequence[str], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what is sent for a sample."""
        question: dict[str, Any] = {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.text}
        usage = {"include_usage": True}
        if self.takes_tokens:
            # An event has several tokens.
            question, usage = {"prompt": prompt.ids}, usage | {"continuous_usage_stats": True}
        sent: dict[str, Any] = {
            "model": self.ref.served_name, **question, "seed": seed, "stream": True,
            "stream_options": usage, **s.parameters(), "top_k": s.top_k or -1,
            "skip_special_tokens": False,
        }  # fmt: skip
        if stop:
            sent["stop"] = list(stop)
        idle = self.left_out
        if self._own_only:
            idle = idle | {name for name, value in sent.items() if value == _NEUTRAL.get(name)}
        sent = {name: value for name, value in sent.items() if name not in idle}
        # The reasoning models of OpenAI know no max_tokens.
        if self._renamed:
            sent["max_completion_tokens"] = sent.pop("max_tokens")
        if self.card().get("owned_by") in ("llamacpp", "organization_owner") and "repetition_penalty" in sent:
            sent["repeat_penalty"] = s.repetition_penalty
        return {**sent, **body}

    def learn(self, sent: Mapping[str, Any], said: str) -> bool:
        """Learn from an error which parameters the server does not take; return whether another request may do."""
        if "max_tokens" in sent and "max_completion_tokens" in said:
            self._renamed = True
            return True
        named = {name for name in _NEUTRAL if name in sent and re.search(rf"(?i)\b{name}(?:ing)?\b", said)}
        idle = {name for name in named if _NEUTRAL[name] in (None, sent[name])}
        # One that was asked for: without it, samples would be of another kind.
        if named != idle:
            return False
        self.leave_out(idle | {"stream_options"} if "stream" in idle else idle)
        # Also if an earlier answer has taught it: this request was on its way then.
        return bool(idle)

    def leave_out(self, names: set[str]) -> None:
        """Send these parameters no more."""
        for name in sorted(names - self.left_out - {"stream", "stream_options", "skip_special_tokens"}):
            why = "samples cannot be repeated" if name == "seed" else "its own default holds, eval.json has null for it"
            LOG.warning("%s takes no %s: %s", self.url, name, why)
        self.left_out |= names

    async def ask(self, session: aiohttp.ClientSession) -> None:
        """Note what it lists under /models, if it has such a list, or why it is not there."""
        try:
            async with session.get(f"{self.url}/models") as response:
                status, body = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            code = (error.os_error.errno or 0) if isinstance(error, aiohttp.ClientConnectorError) else 0
            why = os.strerror(code).lower() if code > 0 else f"{type(error).__name__}: {one_line(error)}"
            if isinstance(error, aiohttp.ClientProxyConnectionError):
                why += f" by the proxy {error.host}:{error.port}; no_proxy names hosts to ask without one"
            self.out = self.access.redact(why)
            return
        # What a proxy says of a server that is not there.
        if status in (502, 503, 504):
            self.out = f"HTTP {status}"
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            listed = json.loads(body) if status == 200 else []
            if isinstance(listed, dict):
                listed = listed["data"] if "data" in listed else listed["models"]
            cards = [{"id": card} if isinstance(card, str) else dict(card) for card in listed]
            names = ("id", "name", "model")
            self.cards = [
                c | {"id": next(c[n] for n in names if n in c)} for c in cards if not c.keys().isdisjoint(names)
            ]
        self.leave_out(_NOT_TAKEN.get(str(self.card().get("owned_by")), set()))
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
            async with session.get(f"{self.url.removesuffix('/v1')}/version") as response:
                self.version = one_line((await response.json(content_type=None))["version"])

    def render(self, prompts: Mapping[_Key, Prompt], kwargs: dict[str, Any] | None) -> dict[_Key, Prompt]:
        """Return the prompts with text and tokens as it renders them (vLLM can), else as they are."""
        template = {"chat_template_kwargs": kwargs} if kwargs else {}

        async def post(path: str, **said: Any) -> Any:
            body, url = {"model": self.ref.served_name, **said}, f"{self.url.removesuffix('/v1')}/{path}"
            async with self._session.post(url, json=body, allow_redirects=False) as answer:
                answer.raise_for_status()
                return await answer.json(content_type=None)

        async def ask(prompt: Prompt) -> Prompt:
            said: dict[str, Any] = {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.text}
            ids = [int(token) for token in (await post("tokenize", **said, **template))["tokens"]]
            # llama.cpp has this address too, and other fields.
            if not ids:
                raise ValueError
            text = prompt.text if prompt.text is not None else (await post("detokenize", tokens=ids))["prompt"]
            return prompt._replace(text=str(text), ids=ids)

        async def ask_all() -> dict[_Key, Prompt]:
            first, *rest = prompts
            async with self.access.session() as self._session:
                try:
                    # The others only if this one is answered: most servers have no such endpoint.
                    known = {first: await ask(prompts[first])}
                    answers = await asyncio.gather(*(ask(prompts[key]) for key in rest))
                except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
                    return dict(prompts)
            return known | dict(zip(rest, answers, strict=True))

        return apart(ask_all())


def find_servers(ref: ModelRef, given: Sequence[str], access: Access) -> list[Server]:
    """Return the servers of a run, each with what it lists of its models. given: the values of --base-url.

    Raises UserError if no server answers. One may show its list to no one, and answer all the same.
    """
    servers = [Server(url, ref, access) for url in server_urls(given, access.variable)]

    async def ask_all() -> None:
        async with access.session() as session:
            await asyncio.gather(*(server.ask(session) for server in servers))

    apart(ask_all())
    if all(server.out is not None for server in servers):
        raise UserError("; ".join(f"no server answers at {s.url} ({s.out})" for s in servers))
    # One that was started for the run has its own name for the model.
    for server in servers if not access.direct else ():
        if server.out is not None:
            LOG.warning("no server answers at %s (%s): left out", server.url, server.out)
        elif server.unlisted:
            LOG.warning("%s. It is asked all the same", server.unlisted)
    return servers


def find_own_server(process: ServerProcess, ref: ModelRef, timeout_s: float) -> Server:
    """Return a server that was started for the run. It is sent tokens, and the only model that it lists answers."""
    access = Access(timeout_s=timeout_s, direct=True)
    (server,) = find_servers(ref, [process.url], access)
    names = [str(card["id"]) for card in server.cards]
    server.ref = replace(ref, source=names[0] if len(names) == 1 else SERVED, train_run=None)
    server.takes_tokens = True
    return server
