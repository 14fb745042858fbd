"""The openai engine: any server with OpenAI's chat completions (vLLM, SGLang, a cluster's endpoint).

One request per sample, each with the sample's seed, many in flight; a server that caches prefixes reads a prompt once.
Requests that fail in a way that may pass are sent again with growing pauses. One that keeps failing while the server
answers others costs its own sample alone, which is handed on with the error; a server that is gone, or that answers
nothing any more, stops the engine, after what is in flight has had time to arrive. The key comes from the environment,
goes into the request header and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from evalkit.engines.base import EngineStopped, Generation, Sampling, Task, sample_seed
from evalkit.engines.model_ref import ModelRef, serve_command
from evalkit.engines.openai_reply import Reply, RequestError, one_line, read_reply
from rewards.support.errors import UserError, did_you_mean
from rewards.support.log import LOG
from rewards.support.provenance import package_versions

LONGEST_PAUSE_S = 20.0
CONNECT_S = 10.0
PROBE_S = 5.0
"""A server that answers nothing at all within this time is gone."""

ALL_FAILED = 16
"""So many failures in a row (or as many as requests are in flight, if more) stop the engine."""

DRAIN_S = 30.0
"""When the engine stops by itself, requests in flight may still be answered for so long."""

STALL_S = 5.0
"""Without a byte for so long, the user is told; then after twice the time, and so on."""

LONGEST_BODY = 64 * 2**20
"""Bytes of one answer."""

SHORTEST_KEY = 4
"""Characters of a key that is taken out of what a server echoes."""

GATHER_S = 0.5
"""Completions that arrive within this time are handed on together."""

_TICK_S = 0.1


class OpenAIEngine:
    """Samples from a server at `base_url` (or OPENAI_BASE_URL), e.g. http://127.0.0.1:8000/v1.

    timeout_s: seconds without a byte after which a request counts as failed. retries: attempts after the first.

    Raises UserError where the server cannot be reached, refuses the key, or does not serve the model.
    """

    name = "openai"

    def __init__(
        self,
        ref: ModelRef,
        sampling: Sampling,
        *,
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        concurrency: int = 64,
        timeout_s: float = 600.0,
        retries: int = 5,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.url, self.ref, self.sampling = server_url(ref, base_url, api_key_env), ref, sampling
        self.concurrency, self.retries, self.key_name = concurrency, retries, api_key_env
        self._template = {"chat_template_kwargs": chat_template_kwargs} if chat_template_kwargs else {}
        self._key = api_key(api_key_env)
        self._options: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {self._key}"} if self._key else {},
            "timeout": httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s), pool=None),
            "limits": httpx.Limits(max_connections=concurrency + 1, max_keepalive_connections=concurrency),
        }
        self._extra = self._sampling_extras(check_server(self.url, ref, self._key, api_key_env))
        self._stop_at: float | None = None
        self._thread: threading.Thread | None = None
        self._results: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._fatal: Exception | None = None
        self._served = self._failed_in_a_row = 0
        self._refused = True
        """Whether every failure so far was a refusal of the request itself."""
        self._in_flight: dict[int, list[float | None]] = {}
        """Request number -> [when it was sent, when its first byte came]."""
        self._numbers = itertools.count()
        self._last_byte = time.monotonic()

    def _sampling_extras(self, owner: str | None) -> dict[str, Any]:
        """Return the sampling parameters beyond OpenAI's own.

        vLLM and SGLang always get all of them: they otherwise fill in what the model's generation_config.json
        recommends, and the same command would sample from another distribution than in process.
        """
        s = self.sampling
        extras: dict[str, Any] = {
            "top_k": s.top_k or -1, "min_p": s.min_p, "repetition_penalty": s.repetition_penalty
        }  # fmt: skip
        if owner not in ("vllm", "sglang"):
            neutral = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
            extras = {key: value for key, value in extras.items() if value != neutral[key]}
        return extras | ({"presence_penalty": s.presence_penalty} if s.presence_penalty else {})

    def describe(self) -> dict[str, Any]:
        """Return name, the server's address and what it says of itself."""
        versions = package_versions("httpx")
        root = self.url.removesuffix("/v1")
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):  # only vLLM and its like say
            answer = httpx.get(f"{root}/version", headers=self._options["headers"], timeout=PROBE_S)
            versions["server"] = one_line(str(answer.json()["version"]))
        return {"name": self.name, "versions": versions, "hardware": None, "base_url": self.url}

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield completions, and samples that failed, as they arrive. Raises EngineStopped once the server is gone."""
        wanted = [(task, index) for task in tasks for index in task.missing]
        self._stop_at, self._fatal, self._last_byte = None, None, time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(wanted,), name="openai", daemon=True)
        self._thread.start()
        notice_after, ended = STALL_S, False
        while not ended:
            lot, ended = self._gather()
            if lot:
                yield lot
            idle = time.monotonic() - self._last_byte
            if idle < STALL_S:
                notice_after = STALL_S
            elif idle > notice_after and self._in_flight:
                notice_after *= 2
                LOG.info(self._stalled(idle))
        self._thread.join()
        if self._fatal is not None:
            raise self._fatal

    def _stalled(self, idle: float) -> str:
        flight = list(self._in_flight.values())
        waiting = [sent for sent, first in flight if first is None and sent is not None]
        text = f"{self.url}: no byte for {idle:.0f} s; {len(flight)} requests in flight"
        if waiting:
            text += f", {len(waiting)} without a first byte for up to {time.monotonic() - min(waiting):.0f} s"
        return text

    def _gather(self) -> tuple[list[Generation], bool]:
        """Return what arrives within GATHER_S of the first arrival, and whether that was the last."""
        lot: list[Generation] = []
        wait = 2 * _TICK_S
        end = None
        while True:
            try:
                arrived = self._results.get(timeout=max(0.0, wait))
            except queue.Empty:
                return lot, False
            if arrived is None:
                return lot, True
            lot.append(arrived)
            end = end or time.monotonic() + GATHER_S
            wait = end - time.monotonic()

    # What follows runs in the engine's own thread, under asyncio.

    def _run(self, wanted: list[tuple[Task, int]]) -> None:
        try:
            asyncio.run(self._ask_all(wanted))
        except Exception as error:  # a fault of ours: told to the caller
            self._fatal = error
        finally:
            self._results.put(None)

    async def _ask_all(self, wanted: list[tuple[Task, int]]) -> None:
        waiting = iter(wanted)
        async with httpx.AsyncClient(**self._options) as client:
            workers = [
                asyncio.create_task(self._ask_in_turn(client, waiting))
                for _ in range(min(self.concurrency, len(wanted)))
            ]
            pending: set[asyncio.Task[None]] = set(workers)
            while pending:
                done, pending = await asyncio.wait(pending, timeout=_TICK_S)
                for worker in done:
                    if not worker.cancelled() and (error := worker.exception()) is not None:
                        self._halt(error if isinstance(error, Exception) else RuntimeError(repr(error)))
                if self._stop_at is not None and time.monotonic() > self._stop_at:
                    for worker in pending:
                        worker.cancel()

    async def _ask_in_turn(self, client: httpx.AsyncClient, waiting: Iterator[tuple[Task, int]]) -> None:
        for task, index in waiting:
            if self._stop_at is not None:
                return
            generation = await self._complete(client, task, index)
            if generation is not None:
                self._results.put(generation)

    def _halt(self, error: Exception) -> None:
        """Stop by itself; the first reason counts."""
        if self._fatal is None:
            self._fatal = error
            self.stop(DRAIN_S)

    async def _complete(self, client: httpx.AsyncClient, task: Task, index: int) -> Generation | None:
        """Return one sample, completed or failed; None where the engine stops before either is known."""
        seed = sample_seed(self.sampling.seed, task.benchmark, task.question_id, index)
        payload = {
            "model": self.ref.served_name,
            "messages": task.prompt.messages,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "max_tokens": self.sampling.max_tokens,
            "seed": seed,
            **self._extra,
            **self._template,
        }
        for attempt in range(self.retries + 1):
            try:
                reply = await self._post(client, payload)
            except RequestError as error:
                last = error
                if not error.passing or attempt == self.retries:
                    break
                pause = min(LONGEST_PAUSE_S, 0.5 * 2**attempt) * random.uniform(0.75, 1.25)
                if await self._stopped_within(max(pause, error.pause_s)):
                    return None
                continue
            self._served += 1
            self._failed_in_a_row = 0
            text = self._redact(reply.text)
            return Generation(task.benchmark, task.question_id, index, text, reply.tokens, reply.finish_reason, seed)
        if self._stop_at is not None and last.passing:
            return None
        if await self._judge(client, last):
            return None
        return Generation(task.benchmark, task.question_id, index, "", None, None, seed, self._redact(str(last)))

    async def _stopped_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self._stop_at is None and time.monotonic() < end:
            await asyncio.sleep(min(_TICK_S, max(0.0, end - time.monotonic())))
        return self._stop_at is not None

    async def _judge(self, client: httpx.AsyncClient, error: RequestError) -> bool:
        """Return whether a request's last error says that the server is gone; then the engine stops."""
        text = self._redact(str(error))
        if self._served == 0 and error.status in (401, 404):
            self._halt(UserError(_refusal(self.url, self.key_name, error.status, text)))
            return True
        attempts = f"gave no answer in {self.retries + 1} attempts"
        if error.status == 401:
            self._halt(EngineStopped(f"the server at {self.url} refuses the key now ({text})"))
            return True
        if error.lost and not await self._alive(client):
            self._halt(EngineStopped(f"the server at {self.url} {attempts} ({text})"))
            return True
        self._failed_in_a_row += 1
        self._refused &= error.status is not None and not error.passing
        if self._failed_in_a_row >= max(ALL_FAILED, self.concurrency):
            if self._served == 0 and self._refused:
                self._halt(UserError(f"{self.url} refuses every request ({text})"))
            else:
                self._halt(EngineStopped(f"{self._failed_in_a_row} requests in a row failed at {self.url} ({text})"))
        return False

    async def _alive(self, client: httpx.AsyncClient) -> bool:
        """Whether anything answers at the server's address."""
        try:
            return (await client.get(f"{self.url}/models", timeout=PROBE_S)).status_code < 500
        except httpx.HTTPError:
            return False

    async def _post(self, client: httpx.AsyncClient, payload: dict[str, Any]) -> Reply:
        """Send one request and read its answer. Raises RequestError."""
        number = next(self._numbers)
        flight: list[float | None] = [time.monotonic(), None]
        self._in_flight[number] = flight
        try:
            async with client.stream("POST", f"{self.url}/chat/completions", json=payload) as response:
                body = bytearray()
                async for part in response.aiter_bytes():
                    self._last_byte = time.monotonic()
                    flight[1] = flight[1] or self._last_byte
                    body += part
                    if len(body) > LONGEST_BODY:
                        raise RequestError(f"an answer of more than {LONGEST_BODY >> 20} MiB")
            self._last_byte = time.monotonic()
            return read_reply(response.status_code, response.headers, self._redacted(bytes(body)))
        except httpx.TimeoutException as error:
            what = "no connection" if isinstance(error, httpx.ConnectTimeout) else "no byte"
            seconds = self._options["timeout"].connect if what == "no connection" else self._options["timeout"].read
            raise RequestError(f"{what} within {seconds:g} s (--timeout)", passing=True, lost=True) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            text = one_line(f"{type(error).__name__}: {error}")
            raise RequestError(text, passing=True, lost=True) from None
        finally:
            del self._in_flight[number]

    def _redact(self, text: str) -> str:
        """Take the key out of what a server echoes."""
        return text.replace(self._key, "***") if len(self._key) >= SHORTEST_KEY else text

    def _redacted(self, body: bytes) -> bytes:
        return body.replace(self._key.encode(), b"***") if len(self._key) >= SHORTEST_KEY else body

    def stop(self, grace_s: float) -> None:
        """Send nothing new; requests in flight may be answered for grace_s more seconds."""
        end = time.monotonic() + grace_s
        self._stop_at = end if self._stop_at is None else min(end, self._stop_at)

    def close(self) -> None:
        """Drop the connections."""
        self.stop(0.0)
        if self._thread is not None:
            self._thread.join(timeout=2.0)


def api_key(variable: str) -> str:
    """Return the API key in an environment variable, empty without one. UserError where it fits no HTTP header."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the key in {variable} has characters that no HTTP header can carry")
    return key


def server_url(ref: ModelRef, given: str | None, key_name: str) -> str:
    """Return the server's base URL, checked. UserError says what is wrong with it."""
    url = given or os.environ.get("OPENAI_BASE_URL")
    if not url:
        command = serve_command(ref)
        start = f". The server for this run: {command}" if command else ""
        raise UserError(f"--engine openai needs --base-url (or OPENAI_BASE_URL), e.g. http://127.0.0.1:8000/v1{start}")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError("--base-url must start with http:// or https://, e.g. http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query:
        raise UserError(f"--base-url must hold no credentials: put the key in the environment variable {key_name}")
    return url.rstrip("/")


def _listed(url: str, key: str, key_name: str) -> list[dict[str, Any]]:
    """Return what the server lists under /models; empty where it does not. UserError where it cannot be reached."""
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        response = httpx.get(f"{url}/models", headers=headers, timeout=httpx.Timeout(30.0, connect=CONNECT_S))
    except httpx.HTTPError as error:
        raise UserError(f"no server answers at {url} ({type(error).__name__}: {one_line(str(error))})") from None
    if response.status_code in (401, 403):
        raise UserError(_refusal(url, key_name, response.status_code, ""))
    try:
        listed = response.json()["data"] if response.status_code == 200 else []
        return [entry for entry in listed if isinstance(entry, dict) and "id" in entry]
    except (ValueError, KeyError, TypeError):
        return []  # not every server lists its models


def check_server(url: str, ref: ModelRef, key: str, key_name: str) -> str | None:
    """Return who made the server (`vllm`, ...), if it says so. UserError where it does not serve the model."""
    listed = _listed(url, key, key_name)
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


def served_context(ref: ModelRef, base_url: str | None, key_name: str) -> int | None:
    """Return the tokens that the served model takes, as vLLM lists it; None where the server does not say."""
    url = server_url(ref, base_url, key_name)
    for entry in _listed(url, api_key(key_name), key_name):
        if entry["id"] == ref.served_name and isinstance(entry.get("max_model_len"), int):
            return int(entry["max_model_len"])
    return None


def _refusal(url: str, key_name: str, status: int, text: str) -> str:
    if status in (401, 403):
        state = "the key in" if os.environ.get(key_name) else "a request without a key; set"
        return f"{url} refuses {state} {key_name} (HTTP {status})"
    return f"{url}/chat/completions is not there ({text})"
