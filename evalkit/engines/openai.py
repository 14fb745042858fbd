"""The openai engine: one or many servers with OpenAI's chat completions (vLLM, SGLang, a cluster's endpoint).

One streamed request per sample, each with the sample's seed, many in flight; a question stays on one server, which
reads its prompt once if it caches prefixes. How many requests a server gets, and how often, follows what it accepts. A
request that fails in a way that may pass is sent again with growing pauses; one that is refused for the rate costs none
of its attempts. One that keeps failing while the server answers others costs its own sample alone, which is handed on
with the error. A server that has nothing left takes what waits at another, and then asks beside it for what is slow
there. A server that is gone or answers nothing any more is left out: what it owes goes to the others, and it is asked
again later. Without another server the engine waits for `wait_s`, then stops, after what is in flight has had time to
arrive. The key comes from the environment, goes into the request header and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import package_versions
from gtpo.evalkit.engines import canaries
from gtpo.evalkit.engines.base import Engine, Generation, Running, Sampling, Task, Throughput
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.engines.openai_address import Access, Unreachable, apart, list_models, owner_of
from gtpo.evalkit.engines.openai_dispatch import TICK_S, Asked, Dispatch
from gtpo.evalkit.engines.openai_reply import RequestError, one_line
from gtpo.evalkit.engines.openai_server import PROBE_S, Server, request_of

STALL_S = 5.0
"""Without a byte for so long, the user is told; then after twice the time, and so on."""

CANARIES_S = 20.0
"""A server that has not answered the first questions within this time samples without having been tried."""

GATHER_S = 0.5
"""Completions that arrive within this time are handed on together."""


class OpenAIEngine(Engine):
    """Samples from the servers at `urls`, e.g. http://127.0.0.1:8000/v1.

    concurrency: most requests in flight at each. retries: attempts after the first. wait_s: for how long no server may
    answer. body: further fields of every request. first: questions for the canaries.

    Raises UserError where no server can be reached, or one refuses the key or does not serve the model.
    """

    name = "openai"

    def __init__(
        self,
        ref: ModelRef,
        sampling: Sampling,
        urls: Sequence[str],
        access: Access,
        *,
        concurrency: int = 64,
        retries: int = 5,
        wait_s: float = 0.0,
        body: dict[str, Any] | None = None,
        first: Sequence[Task] = (),
    ) -> None:
        self.ref, self.sampling, self._first = ref, sampling, first[: canaries.QUESTIONS]
        self._asked = Asked(ref, sampling, access, concurrency, retries, wait_s, body or {})
        self.servers = {url: Server(url, access, concurrency) for url in urls}
        for url, listed in list_models(urls, access, wait_s).items():
            if isinstance(listed, Unreachable):
                self.servers[url].out = str(listed)
                LOG.warning("no server answers at %s (%s): left out, and asked again later", url, listed)
            else:
                self.servers[url].owner = owner_of(url, listed, ref)
        self._dispatch: Dispatch | None = None
        self._thread: threading.Thread | None = None
        self._results: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._gathered: list[Generation] = []
        """What has come since the last of `generate`."""
        self._fatal: Exception | None = None

    def describe(self) -> dict[str, Any]:
        """Return name, the servers' addresses, what they say of themselves, and what the canaries brought."""
        said, replies = apart(self._ask_first())
        versions = package_versions("aiohttp")
        if said:
            versions["server"] = ", ".join(sorted(set(said.values())))
        if len(set(said.values())) > 1:
            LOG.warning("the servers run different versions: %s", ", ".join(f"{u} {v}" for u, v in said.items()))
        models = {server.url: server.model for server in self.servers.values() if server.model is not None}
        if len(set(models.values())) > 1:
            names = "; ".join(f"{url} answers as {model}" for url, model in models.items())
            raise UserError(f"the servers have different models: {names}. Samples of one run must be of one")
        for model in set(models.values()) - {self.ref.served_name}:
            LOG.warning('"%s" answers where "%s" is asked for', model, self.ref.served_name)
        fingerprints = set[str]().union(*(server.fingerprints for server in self.servers.values()))
        found = canaries.judge(replies, models.values(), fingerprints)
        for concern in canaries.concerns(found, self.sampling.temperature) if replies else ():
            LOG.warning("%s", concern)
        left_out = sorted(set[str]().union(*(server.left_out for server in self.servers.values())))
        return {
            "name": self.name,
            "versions": versions,
            "hardware": None,
            "base_urls": list(self.servers),
            **({"canaries": found} if replies else {}),
            **({"parameters_left_out": left_out} if left_out else {}),
        }

    async def _ask_first(self) -> tuple[dict[str, str], list[canaries.Reply]]:
        """Return url -> version of the server, and the completions of the canaries."""
        said: dict[str, str] = {}
        replies: list[canaries.Reply] = []

        async def version(server: Server) -> None:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
                timeout = aiohttp.ClientTimeout(total=PROBE_S)
                async with session.get(f"{server.url.removesuffix('/v1')}/version", timeout=timeout) as answer:
                    said[server.url] = one_line(str(json.loads(await answer.read())["version"]))

        async def ask(server: Server, task: Task, index: int) -> None:
            request = request_of(task, index, self.sampling.seed)
            short = {"max_tokens": min(canaries.TOKENS, self.sampling.max_tokens)}
            for _ in range(2):
                try:
                    reply = await server.ask(session, self._asked.payload(server, request) | short, request)
                except RequestError as error:
                    if not error.passing:
                        return
                    await asyncio.sleep(min(1.0, error.pause_s))
                    continue
                question = f"{task.benchmark} {task.question_id}"
                replies.append(canaries.Reply(server.url, question, request.seed, reply.text))
                return

        async def try_out(server: Server, task: Task) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANARIES_S):
                    await ask(server, task, 0)
                    again = range(canaries.SEEDS) if self.sampling.temperature > 0 else (0,)
                    if any(one.server == server.url for one in replies):  # else it is not asked for more
                        await asyncio.gather(*(ask(server, task, index) for index in again))

        async with self._asked.access.session() as session:
            there = [server for server in self.servers.values() if server.out is None]
            asked = [try_out(server, task) for server in there for task in self._first]
            await asyncio.gather(*map(version, there), *asked)
        return said, replies

    def throughput(self) -> Sequence[Throughput]:
        """Return what each of several servers has done."""
        return [server.throughput for server in self.servers.values()] if len(self.servers) > 1 else ()

    def running(self) -> Sequence[Running]:
        """Return the requests in flight, with what has come of them, and those that `generate` is about to yield."""
        ended = [Running(g.benchmark, g.tokens or 0, True) for g in list(self._gathered)]
        return ended + [running for server in self.servers.values() for running in server.running()]

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield completions, and samples that failed, as they arrive. Raises EngineStopped once no server is left."""
        self._fatal = None
        self._dispatch = Dispatch(self._asked, self.servers, tasks, self._results)
        for server in self.servers.values():
            server.throughput.start()
        self._thread = threading.Thread(target=self._run, args=(self._dispatch,), name="openai", daemon=True)
        self._thread.start()
        notice_after, ended = dict.fromkeys(self.servers, STALL_S), False
        texts: dict[tuple[str, str], list[int]] = {}
        while not ended:
            lot, ended = self._gather()
            if lot:
                yield lot
                self._gathered = []
            for g in lot:
                if g.error is None:
                    texts.setdefault((g.benchmark, g.question_id), []).append(hash(g.text))
            for url, server in self.servers.items():
                if server.silent_s() < STALL_S:
                    notice_after[url] = STALL_S
                elif server.silent_s() > notice_after[url]:
                    notice_after[url] *= 2
                    LOG.info(server.stalled())
        self._thread.join()
        same, of = canaries.copies(texts)
        if 2 * same > of and self.sampling.temperature > 0:
            LOG.warning("all samples of %d of %d questions are the same text: does the server know the seed?", same, of)
        if self._fatal is not None:
            raise self._fatal

    def _gather(self) -> tuple[list[Generation], bool]:
        """Return what arrives within GATHER_S of the first arrival, and whether that was the last."""
        lot = self._gathered = []
        wait = 2 * TICK_S
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

    def _run(self, dispatch: Dispatch) -> None:
        try:
            asyncio.run(dispatch.run())
        except Exception as error:  # told to the caller
            self._fatal = error
        finally:
            self._results.put(None)

    def stop(self, grace_s: float) -> None:
        """Send nothing new; requests in flight may be answered for grace_s more seconds."""
        if self._dispatch is not None:
            self._dispatch.stop(grace_s)

    def close(self) -> None:
        """Drop the connections."""
        self.stop(0.0)
        if self._thread is not None:
            self._thread.join(timeout=2.0)
