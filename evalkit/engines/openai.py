"""The openai engine: one or many servers with OpenAI's chat completions (vLLM, SGLang, a cluster's endpoint).

One request per sample, each with the sample's seed, many in flight; a question stays on one server, which reads its
prompt once if it caches prefixes. Requests that fail in a way that may pass are sent again with growing pauses. One
that keeps failing while the server answers others costs its own sample alone, which is handed on with the error. A
server that is gone, silent, or answers nothing any more is left out: what it owes goes to the others, and it is asked
again later. Without another server the engine stops, after what is in flight has had time to arrive. The key comes
from the environment, goes into the request header and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import httpx
from gtpo.evalkit.engines.base import EngineStopped, Generation, Running, Sampling, Task, Throughput, sample_seed
from gtpo.evalkit.engines.dealing import Dealer, SampleKey
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.engines.openai_reply import RequestError, one_line
from gtpo.evalkit.engines.openai_server import (
    CONNECT_S,
    PROBE_S,
    Server,
    Unreachable,
    api_key,
    list_models,
    owner_of,
    refusal,
    sampling_extras,
    server_urls,
)

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import package_versions

LONGEST_PAUSE_S = 20.0

ALL_FAILED = 16
"""So many failures in a row (or as many as requests are in flight, if more) say that a server answers nothing."""

DRAIN_S = 30.0
"""When the engine stops by itself, requests in flight may still be answered for so long."""

STALL_S = 5.0
"""Without a byte for so long, the user is told; then after twice the time, and so on."""

MOVES = 3
"""A sample that fails for a reason that may pass is asked of so many other servers."""

SILENT_S = 15.0
"""Where there are other servers, one that has sent nothing for so long is asked whether it is there, PROBES times."""

PROBES = 3

REJOIN_S = 10.0
"""A server that was left out is asked again after so long, each time after twice as long, up to LONGEST_REJOIN_S."""

LONGEST_REJOIN_S = 300.0

GATHER_S = 0.5
"""Completions that arrive within this time are handed on together."""

_TICK_S = 0.1

_Request = tuple[Task, int]
"""A question and the index of one of its samples."""


class OpenAIEngine:
    """Samples from the servers at `base_urls` (or OPENAI_BASE_URL), e.g. http://127.0.0.1:8000/v1.

    concurrency: most requests in flight at each. timeout_s: seconds without a byte after which a request counts as
    failed. retries: attempts after the first.

    Raises UserError where no server can be reached, or one refuses the key or does not serve the model.
    """

    name = "openai"

    def __init__(
        self,
        ref: ModelRef,
        sampling: Sampling,
        *,
        base_urls: Sequence[str] = (),
        api_key_env: str = "OPENAI_API_KEY",
        concurrency: int = 64,
        timeout_s: float = 600.0,
        retries: int = 5,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.ref, self.sampling, self.concurrency, self.retries = ref, sampling, concurrency, retries
        self._template = {"chat_template_kwargs": chat_template_kwargs} if chat_template_kwargs else {}
        self._key = api_key(api_key_env)
        urls = server_urls(ref, base_urls, api_key_env)
        timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s), pool=None)
        most = concurrency * len(urls)
        self._options: dict[str, Any] = {
            "headers": self._key.headers,
            "timeout": timeout,
            "limits": httpx.Limits(max_connections=most + len(urls), max_keepalive_connections=most),
        }
        self.servers = {url: Server(url, self._key, timeout) for url in urls}
        for url, listed in list_models(urls, self._key).items():
            if isinstance(listed, Unreachable):
                self.servers[url].out = str(listed)
                LOG.warning("no server answers at %s (%s): left out, and asked again later", url, listed)
            else:
                self.servers[url].owner = owner_of(url, listed, ref)
        self._stop_at: float | None = None
        self._thread: threading.Thread | None = None
        self._results: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._fatal: Exception | None = None
        self._since: dict[SampleKey, float] = {}  # when each request in flight was sent
        self._paced = (0, 0.0)  # tokens of all replies, and the seconds that each took, summed

    def describe(self) -> dict[str, Any]:
        """Return name, the servers' addresses and what they say of themselves."""
        versions, said = package_versions("httpx"), dict[str, str]()
        for server in self._in():
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):  # only vLLM and its like say
                root = server.url.removesuffix("/v1")
                answer = httpx.get(f"{root}/version", headers=self._key.headers, timeout=PROBE_S)
                said[server.url] = one_line(str(answer.json()["version"]))
        if said:
            versions["server"] = ", ".join(sorted(set(said.values())))
        if len(set(said.values())) > 1:
            LOG.warning("the servers run different versions: %s", ", ".join(f"{u} {v}" for u, v in said.items()))
        return {"name": self.name, "versions": versions, "hardware": None, "base_urls": list(self.servers)}

    def throughput(self) -> Sequence[Throughput]:
        """Return what each of several servers has done."""
        return [server.throughput for server in self.servers.values()] if len(self.servers) > 1 else ()

    def running(self) -> Sequence[Running]:
        """Return the requests in flight; their tokens are an estimate, from their age and the pace of others."""
        pace, now = self._paced[0] / self._paced[1] if self._paced[1] else 0.0, time.monotonic()
        return [Running(key[0], int(pace * (now - since))) for key, since in list(self._since.items())]

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield completions, and samples that failed, as they arrive. Raises EngineStopped once no server is left."""
        self._stop_at, self._fatal = None, None
        for server in self.servers.values():
            server.throughput.start()
        self._thread = threading.Thread(target=self._run, args=(tasks,), name="openai", daemon=True)
        self._thread.start()
        notice_after, ended = dict.fromkeys(self.servers, STALL_S), False
        while not ended:
            lot, ended = self._gather()
            if lot:
                yield lot
            for url, server in self.servers.items():
                if server.silent_s() < STALL_S:
                    notice_after[url] = STALL_S
                elif server.silent_s() > notice_after[url]:
                    notice_after[url] *= 2
                    LOG.info(server.stalled())
        self._thread.join()
        if self._fatal is not None:
            raise self._fatal

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

    def _in(self) -> list[Server]:
        """Return the servers that get questions."""
        return [server for server in self.servers.values() if server.out is None]

    # What follows runs in the engine's own thread, under asyncio.

    def _run(self, tasks: Sequence[Task]) -> None:
        try:
            asyncio.run(self._ask_all(tasks))
        except Exception as error:  # a fault of ours: told to the caller
            self._fatal = error
        finally:
            self._results.put(None)

    async def _ask_all(self, tasks: Sequence[Task]) -> None:
        self._dealer = Dealer(tasks)
        self._open: dict[str, deque[_Request]] = {url: deque() for url in self.servers}
        self._asking: dict[str, dict[asyncio.Task[None], _Request]] = {url: {} for url in self.servers}
        self._watching: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        async with httpx.AsyncClient(**self._options) as self._client:
            for server in self.servers.values():
                if server.out is not None:
                    self._watch(self._rejoin(server))
            self._fill()
            while self._dealer.left and (self._stop_at is None or any(self._asking.values())):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _TICK_S)
                self._changed.clear()
                if self._stop_at is not None and time.monotonic() > self._stop_at:
                    break
                for server in self._in():
                    if len(self.servers) > 1 and server.silent_s() > SILENT_S and server.probe_at < time.monotonic():
                        server.probe_at = time.monotonic() + PROBES * (PROBE_S + SILENT_S)
                        self._watch(self._probe(server))
            running = [*self._watching, *(task for asking in self._asking.values() for task in asking)]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _watch(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run something beside the requests."""
        task = asyncio.create_task(coroutine)
        self._watching.add(task)
        task.add_done_callback(self._watched)

    def _watched(self, task: asyncio.Task[None]) -> None:
        self._watching.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._halt(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _fill(self) -> None:
        """Deal questions to servers that have room, and send requests up to `concurrency` for each."""
        while self._stop_at is None and (
            dealt := self._dealer.deal({server.url: self.concurrency for server in self._in()})
        ):
            self._open[dealt.worker].extend((dealt.task, index) for index in dealt.task.missing)
            self._send(dealt.worker)

    def _send(self, url: str) -> None:
        requests, asking = self._open[url], self._asking[url]
        while requests and len(asking) < self.concurrency and self._stop_at is None:
            request = requests.popleft()
            task = asyncio.create_task(self._ask(self.servers[url], *request))
            asking[task] = request
            task.add_done_callback(lambda done, url=url: self._asked(url, done))  # type: ignore[misc]

    def _asked(self, url: str, task: asyncio.Task[None]) -> None:
        if (asked := self._asking[url].pop(task, None)) is not None:
            self._since.pop((asked[0].benchmark, asked[0].question_id, asked[1]), None)
        self._watched(task)
        self._send(url)
        self._fill()
        if not self._dealer.left or self._stop_at is not None:
            self._changed.set()

    async def _ask(self, server: Server, task: Task, index: int) -> None:
        """Ask for one sample until it is there, has failed, or the server is left out."""
        seed = sample_seed(self.sampling.seed, task.benchmark, task.question_id, index)
        payload = {
            "model": self.ref.served_name,
            "messages": task.prompt.messages,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "max_tokens": self.sampling.max_tokens,
            "seed": seed,
            **sampling_extras(self.sampling, server.owner),
            **self._template,
        }
        key = task.benchmark, task.question_id, index
        for attempt in range(self.retries + 1):
            self._since[key] = time.monotonic()
            try:
                reply = await server.post(self._client, payload)
            except RequestError as error:
                last = error
                if not error.passing or attempt == self.retries:
                    break
                if error.lost and len(self._in()) > 1 and await server.models(self._client) is None:
                    break  # the other servers need not wait for this one
                pause = min(LONGEST_PAUSE_S, 0.5 * 2**attempt) * random.uniform(0.75, 1.25)
                if await self._stopped_within(max(pause, error.pause_s)):
                    return
                continue
            tokens, seconds = self._paced
            self._paced = tokens + (reply.tokens or 0), seconds + time.monotonic() - self._since[key]
            server.served += 1
            server.failed_in_a_row = 0
            self._settle(server, Generation(*key, self._key.redact(reply.text), *reply[1:], seed))
            return
        if self._stop_at is not None and last.passing:
            return
        text, reason = self._key.redact(str(last)), "error" if last.passing else "refused"
        failed = Generation(
            task.benchmark, task.question_id, index, self._key.redact(last.text), None, reason, seed, text
        )
        await self._judge(server, last, failed, attempt + 1)

    def _settle(self, server: Server, generation: Generation) -> None:
        """Hand on a sample, completed or failed."""
        if self._dealer.settle(server.url, (generation.benchmark, generation.question_id, generation.sample_index)):
            server.throughput.add([generation])
            self._results.put(generation)

    async def _stopped_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self._stop_at is None and time.monotonic() < end:
            await asyncio.sleep(min(_TICK_S, max(0.0, end - time.monotonic())))
        return self._stop_at is not None

    async def _judge(self, server: Server, error: RequestError, failed: Generation, attempts: int) -> None:
        """Decide from a request's last error: its sample has failed, belongs elsewhere, or the server is gone."""
        url, text = server.url, failed.error or ""
        if server.served == 0 and error.status in (401, 404):
            self._halt(UserError(refusal(url, self._key.variable, error.status, text)))
        elif error.status == 401:
            self._leave_out(server, EngineStopped(f"the server at {url} refuses the key now ({text})"))
        elif error.lost and await server.models(self._client) is None:
            times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
            self._leave_out(server, EngineStopped(f"the server at {url} gave no answer in {times} ({text})"))
        else:
            server.failed_in_a_row += 1
            server.refused &= error.status is not None and not error.passing
            key = (failed.benchmark, failed.question_id, failed.sample_index)
            # Another server may have better luck with it.
            if not (error.passing and len(self._in()) > 1 and self._dealer.move(url, key, MOVES)):
                self._settle(server, failed)
            if server.failed_in_a_row >= max(ALL_FAILED, self.concurrency):
                if server.served == 0 and server.refused:
                    self._halt(UserError(f"{url} refuses every request ({text})"))
                else:
                    reason = f"{server.failed_in_a_row} requests in a row failed at {url} ({text})"
                    self._leave_out(server, EngineStopped(reason))

    def _halt(self, error: Exception) -> None:
        """Stop by itself; the first reason counts."""
        if self._fatal is None:
            self._fatal = error
            self.stop(DRAIN_S)

    def _leave_out(self, server: Server, why: EngineStopped) -> None:
        """Deal what a server owes to the others and ask it again later; without others the engine stops."""
        if server.out is not None:
            return
        if len(self._in()) == 1:
            lost = [f"{other.url}: {other.out}" for other in self.servers.values() if other.out is not None]
            self._halt(EngineStopped("; ".join([str(why), *lost])))
            return
        server.out, server.throughput.state = str(why), "left out"
        server.failed_in_a_row = 0
        me = asyncio.current_task()
        for task in self._asking[server.url]:
            if task is not me:
                task.cancel()
        self._asking[server.url].clear()
        self._open[server.url].clear()
        again = self._dealer.give_back(server.url)
        LOG.warning("%s: left out, and asked again later; %d samples go to the other servers", why, again)
        self._watch(self._rejoin(server))
        self._fill()

    async def _probe(self, server: Server) -> None:
        """Leave a silent server out unless it says that it is there."""
        for _ in range(PROBES):
            if await server.models(self._client) is not None or server.silent_s() < SILENT_S:
                return
            await asyncio.sleep(_TICK_S)
        silent = server.silent_s()
        self._leave_out(server, EngineStopped(f"the server at {server.url} has sent nothing for {silent:.0f} s"))

    async def _rejoin(self, server: Server) -> None:
        """Give a server questions again once it serves the model."""
        while True:
            await asyncio.sleep(min(LONGEST_REJOIN_S, REJOIN_S * 2**server.times_out))
            server.times_out += 1
            listed = await server.models(self._client)
            with contextlib.suppress(UserError):
                if listed is not None:
                    server.owner = owner_of(server.url, listed, self.ref)
                    break
        server.out, server.throughput.state = None, ""
        LOG.info("%s answers again and gets questions", server.url)
        self._fill()

    def stop(self, grace_s: float) -> None:
        """Send nothing new; requests in flight may be answered for grace_s more seconds."""
        end = time.monotonic() + grace_s
        self._stop_at = end if self._stop_at is None else min(end, self._stop_at)

    def close(self) -> None:
        """Drop the connections."""
        self.stop(0.0)
        if self._thread is not None:
            self._thread.join(timeout=2.0)
