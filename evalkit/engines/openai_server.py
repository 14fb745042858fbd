"""OpenAI-compatible servers: the list of addresses, what a server says of itself, one request and its answer."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from gtpo.evalkit.engines.base import Sampling, Throughput
from gtpo.evalkit.engines.model_ref import ModelRef, serve_command
from gtpo.evalkit.engines.openai_reply import Reply, RequestError, one_line, read_reply

from gtpo.common.errors import UserError, did_you_mean

CONNECT_S = 10.0
PROBE_S = 5.0
"""A server that answers nothing at all within this time is gone."""

LONGEST_BODY = 64 * 2**20
"""Bytes of one answer."""

SHORTEST_KEY = 4
"""Characters of a key that is taken out of what a server echoes."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key from the environment: it goes into the request header and nowhere else."""

    variable: str
    value: str

    @property
    def headers(self) -> dict[str, str]:
        """The request header; none without a key."""
        return {"Authorization": f"Bearer {self.value}"} if self.value else {}

    def redact(self, text: str) -> str:
        """Take the key out of what a server echoes."""
        return text.replace(self.value, "***") if len(self.value) >= SHORTEST_KEY else text

    def redact_bytes(self, body: bytes) -> bytes:
        """Take the key out of what a server sends."""
        return body.replace(self.value.encode(), b"***") if len(self.value) >= SHORTEST_KEY else body


def api_key(variable: str) -> ApiKey:
    """Return the API key in an environment variable, empty without one. UserError where it fits no HTTP header."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the key in {variable} has characters that no HTTP header can carry")
    return ApiKey(variable, key)


def server_urls(ref: ModelRef, given: Sequence[str], key_name: str) -> list[str]:
    """Return the servers' base URLs, checked; given: the values of --base-url, else OPENAI_BASE_URL counts.

    Each value is a URL, several with commas between them, or a file with one on each line (`#` begins a comment).
    UserError says what is wrong with which.
    """
    values = list(given) or [os.environ.get("OPENAI_BASE_URL", "")]
    entries = [entry for value in values for entry in _entries(value.strip())]
    if not entries:
        command = serve_command(ref)
        start = f". The server for this run: {command}" if command else ""
        raise UserError(f"--engine openai needs --base-url (or OPENAI_BASE_URL), e.g. http://127.0.0.1:8000/v1{start}")
    urls: dict[str, str] = {}
    for place, entry in entries:
        url = _checked(place, entry, key_name)
        if url in urls:
            raise UserError(f"{place}: {url} is given twice (before: {urls[url]})")
        urls[url] = place
    return list(urls)


def _entries(value: str) -> list[tuple[str, str]]:
    """Return (where it stands, URL) for each server in one value of --base-url."""
    if "://" in value or not Path(value).is_file():
        return [("--base-url", part.strip()) for part in value.split(",") if part.strip()]
    try:
        lines = Path(value).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--base-url {value}: not a readable list of servers ({error})") from None
    stripped = [(f"{value}:{number}", line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    if not any(line for _, line in stripped):
        raise UserError(f"--base-url {value}: the file lists no server; write one URL on each line")
    return [(place, line) for place, line in stripped if line]


def _checked(place: str, url: str, key_name: str) -> str:
    form = "must start with http:// or https://, e.g. http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"{place}: {one_line(url)} is no URL ({error})") from None
    if parts.username or parts.password or parts.query:
        raise UserError(f"{place} must hold no credentials: put the key in the environment variable {key_name}")
    if parts.scheme not in ("http", "https") or not host:
        hint = "" if "://" in url else ", and there is no file of that name"
        found = "" if "@" in url else f"; found {one_line(url)}{hint}"  # what stands before an @ may be a password
        raise UserError(f"{place} {form}{found}")
    if any(c.isspace() for c in url):
        raise UserError(f"{place}: one URL on a line, or commas between them; found {one_line(url)}")
    return url.rstrip("/")


def sampling_extras(s: Sampling, owner: str | None) -> dict[str, Any]:
    """Return the sampling parameters beyond OpenAI's own.

    vLLM and SGLang always get all of them: they otherwise fill in what the model's generation_config.json
    recommends, and the same command would sample from another distribution than in process.
    """
    extras: dict[str, Any] = {"top_k": s.top_k or -1, "min_p": s.min_p, "repetition_penalty": s.repetition_penalty}
    if owner not in ("vllm", "sglang"):
        neutral = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        extras = {key: value for key, value in extras.items() if value != neutral[key]}
    return extras | ({"presence_penalty": s.presence_penalty} if s.presence_penalty else {})


class Unreachable(Exception):
    """Nothing answers at a server's address."""


def _models(response: httpx.Response) -> list[dict[str, Any]]:
    """Return what a server lists under /models; empty where it does not list its models."""
    try:
        listed = response.json()["data"] if response.status_code == 200 else []
        return [entry for entry in listed if isinstance(entry, dict) and "id" in entry]
    except (ValueError, KeyError, TypeError):
        return []


def _listed(url: str, key: ApiKey) -> list[dict[str, Any]]:
    """Return what a server lists under /models. Raises Unreachable; UserError where it refuses the key."""
    try:
        response = httpx.get(f"{url}/models", headers=key.headers, timeout=httpx.Timeout(30.0, connect=CONNECT_S))
    except httpx.HTTPError as error:
        raise Unreachable(f"{type(error).__name__}: {one_line(str(error))}") from None
    if response.status_code in (401, 403):
        raise UserError(refusal(url, key.variable, response.status_code, ""))
    return _models(response)


def list_models(urls: Sequence[str], key: ApiKey) -> dict[str, list[dict[str, Any]] | Unreachable]:
    """Return URL -> what the server lists, or why it cannot be reached. UserError where none can be, or one refuses
    the key.
    """

    def ask(url: str) -> list[dict[str, Any]] | Unreachable:
        try:
            return _listed(url, key)
        except Unreachable as error:
            return error

    with ThreadPoolExecutor(min(32, len(urls))) as pool:
        found = dict(zip(urls, pool.map(ask, urls), strict=True))
    if all(isinstance(answer, Unreachable) for answer in found.values()):
        raise UserError("; ".join(f"no server answers at {url} ({why})" for url, why in found.items()))
    return found


def owner_of(url: str, listed: Sequence[dict[str, Any]], ref: ModelRef) -> str | None:
    """Return who made the server (`vllm`, ...), if it says so. UserError where it does not serve the model."""
    served = [str(entry["id"]) for entry in listed]
    if served and ref.served_name not in served:
        command = serve_command(ref)
        start = f". For this run start it with: {command}" if command else ""
        raise UserError(
            f'{url} does not serve "{ref.served_name}".{did_you_mean(ref.served_name, served)} '
            f"It serves: {', '.join(map(one_line, served[:8]))}{start}"
        )
    owners = [str(entry.get("owned_by")) for entry in listed if entry["id"] == ref.served_name]
    return owners[0] if owners else None


def served_context(ref: ModelRef, base_urls: Sequence[str], key_name: str) -> int | None:
    """Return the tokens that the model takes on every server, as vLLM lists it; None where no server says."""
    found = list_models(server_urls(ref, base_urls, key_name), api_key(key_name)).values()
    lengths = [
        entry["max_model_len"]
        for listed in found
        if not isinstance(listed, Unreachable)
        for entry in listed
        if entry["id"] == ref.served_name and isinstance(entry.get("max_model_len"), int)
    ]
    return min(lengths, default=None)


def refusal(url: str, key_name: str, status: int, text: str) -> str:
    """Return what to tell of a server that refuses the key or has no chat completions."""
    if status in (401, 403):
        state = "the key in" if os.environ.get(key_name) else "a request without a key; set"
        return f"{url} refuses {state} {key_name} (HTTP {status})"
    return f"{url}/chat/completions is not there ({text})"


class Server:
    """One server and what is known of it. Its methods run under asyncio.

    timeout: of a request.
    """

    def __init__(self, url: str, key: ApiKey, timeout: httpx.Timeout) -> None:
        self.url, self._key, self._timeout = url, key, timeout
        self.owner: str | None = None
        """Who made it, as far as it says."""
        self.throughput = Throughput(url)
        self.out: str | None = None
        """Why it gets no questions now."""
        self.times_out = 0
        self.served = self.failed_in_a_row = 0
        self.refused = True
        """Whether every failure so far was a refusal of the request itself."""
        self.in_flight: dict[int, list[float | None]] = {}
        """Request number -> [when it was sent, when its first byte came]."""
        self._numbers = itertools.count()
        self.last_byte = time.monotonic()
        self.probe_at = 0.0
        """It is not asked again before then whether it is there."""

    def silent_s(self) -> float:
        """Return for how long requests have waited without a byte."""
        return time.monotonic() - self.last_byte if self.in_flight else 0.0

    def stalled(self) -> str:
        """Say for how long nothing has come."""
        flight = list(self.in_flight.values())
        waiting = [sent for sent, first in flight if first is None and sent is not None]
        text = f"{self.url}: no byte for {self.silent_s():.0f} s; {len(flight)} requests in flight"
        if waiting:
            text += f", {len(waiting)} without a first byte for up to {time.monotonic() - min(waiting):.0f} s"
        return text

    async def models(self, client: httpx.AsyncClient) -> list[dict[str, Any]] | None:
        """Return what it lists; None where nothing answers at its address, or with nothing but an error."""
        try:
            response = await client.get(f"{self.url}/models", timeout=PROBE_S)
        except httpx.HTTPError:
            return None
        return _models(response) if response.status_code < 500 else None

    async def post(self, client: httpx.AsyncClient, payload: dict[str, Any]) -> Reply:
        """Send one request and read its answer. Raises RequestError."""
        number = next(self._numbers)
        flight: list[float | None] = [time.monotonic(), None]
        if not self.in_flight:
            self.last_byte = time.monotonic()
        self.in_flight[number] = flight
        try:
            async with client.stream("POST", f"{self.url}/chat/completions", json=payload) as response:
                body = bytearray()
                async for part in response.aiter_bytes():
                    self.last_byte = time.monotonic()
                    flight[1] = flight[1] or self.last_byte
                    body += part
                    if len(body) > LONGEST_BODY:
                        raise RequestError(f"an answer of more than {LONGEST_BODY >> 20} MiB")
            self.last_byte = time.monotonic()
            return read_reply(response.status_code, response.headers, self._key.redact_bytes(bytes(body)))
        except httpx.TimeoutException as error:
            what = "no connection" if isinstance(error, httpx.ConnectTimeout) else "no byte"
            seconds = self._timeout.connect if what == "no connection" else self._timeout.read
            raise RequestError(f"{what} within {seconds:g} s (--timeout)", passing=True, lost=True) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            text = one_line(f"{type(error).__name__}: {error}")
            raise RequestError(text, passing=True, lost=True) from None
        finally:
            del self.in_flight[number]
