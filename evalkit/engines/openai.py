"""The openai engine: one or many servers with OpenAI's chat completions (vLLM, SGLang, a cluster's endpoint).

One streamed request per sample, each with the sample's seed; all servers take from one queue, at most `concurrency` at
a time each. A request that fails in a way that may pass is sent again with growing pauses, to another server if there
is one; refused for the rate (429), the server has a pause and half as many. A sample that keeps failing is handed on
with its error. A server that is gone or answers nothing is left out and asked again later; without another the engine
waits for `wait_s`, then stops, after what is in flight has had time to arrive. The key comes from the environment, goes
into the request header and nowhere else.

aiohttp is the client: streamed, it takes 0.5 ms of processor time for a completion of 64 tokens, where httpx takes 5 ms
and the openai package 9 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import queue
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import package_versions
from gtpo.evalkit.engines.base import (
    Engine,
    EngineStopped,
    Generation,
    Reading,
    Running,
    Sampling,
    Task,
    Throughput,
    sample_seed,
)
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.engines.openai_reply import Answer, Reply, RequestError, one_line, refused
from gtpo.evalkit.engines.openai_request import (
    CONNECT_S,
    Access,
    Dialect,
    Unreachable,
    apart,
    card_of,
    list_models,
    listed_models,
    not_listed,
    refusal,
)
from gtpo.rewards.thoughts import unfinished

TICK_S, GATHER_S, STALL_S, PROBE_S = 0.1, 0.5, 5.0, 5.0
"""Between two looks at the queue; for how long completions are gathered; after how long without a byte the user is
told; within what time a server must list its models."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 20.0
"""Before another attempt; it doubles with each."""

ALL_FAILED = 16
"""So many failures in a row (or as many as requests are in flight, if more) say that a server answers nothing."""

REFUSED_S = (60.0, 600.0)
"""A server that accepts nothing (429) for as long as the timeout of a request, within these limits, is left out."""

DRAIN_S = 30.0
"""When the engine stops by itself, requests in flight may still be answered for so long."""

REJOIN_S, LONGEST_REJOIN_S = 2.0, 60.0
"""A server that was left out is asked again after so long, each time after twice as long."""

CANARIES, CANARY_TOKENS, CANARIES_S = 2, 48, 20.0
"""Requests that are sent before all others, of so many tokens, and how long an answer may take."""

SOME = 0.05
"""Share of the completions from which on something is worth a warning."""

_JSON = {"Content-Type": "application/json"}


@dataclass(eq=False, slots=True)
class _Request:
    """One sample to ask for."""

    task: Task
    index: int
    seed: int
    attempts: int = 0
    """Those that failed; a refusal for the rate is none."""
    failed_at: set[str] = field(default_factory=set)
    stop: bool = True
    """Whether the stop texts are sent."""
    sent: float = 0.0
    answer: Answer = field(default_factory=Answer)


class _Server:
    """One server and what is known of it."""

    def __init__(self, url: str, most: int) -> None:
        self.url, self.most, self.limit = url, most, float(most)
        """`limit`: requests in flight now; halved by refusals and timeouts, and back by one a round trip."""
        self.dialect, self.throughput = Dialect(url), Throughput(url)
        self.out: str | None = None
        """Why it gets no requests now."""
        self.unlisted = ""
        """What to say if it does not know the model after all: it does not list it."""
        self.asking: dict[asyncio.Task[None], _Request] = {}
        self.pause_until = self.cut = self.last_byte = 0.0
        self.refused_since: float | None = None
        self.served = self.failed_in_a_row = self.refusals = self.times_out = 0
        self.only_refusals = True
        """Whether every failure so far was a refusal of the request itself."""
        self.model: str | None = None
        self.fingerprints: set[str] = set()

    def takes(self, now: float) -> bool:
        return self.out is None and len(self.asking) < int(self.limit) and now >= self.pause_until

    def halve(self, sent: float) -> None:
        """Halve the limit, once for all requests that were on their way."""
        if sent >= self.cut:
            self.limit, self.cut = max(1.0, self.limit / 2), time.monotonic()

    def accepted(self) -> None:
        """Note an answer."""
        self.limit = min(self.most, self.limit + 1 / self.limit)
        self.refusals, self.refused_since = 0, None


class OpenAIEngine(Engine):
    """Samples from the servers at `urls`, e.g. http://127.0.0.1:8000/v1.

    concurrency: most requests in flight at each. retries: attempts after the first. wait_s: for how long no server may
    answer. body: further fields of every request. first: questions for the canaries.

    Raises UserError if no server can be reached, or one refuses the key.
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
        thoughts: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.ref, self.sampling, self.access, self._first = ref, sampling, access, first[:1]
        self._concurrency, self._retries, self._wait_s, self._body = concurrency, retries, wait_s, body or {}
        self._reading = Reading(sampling.stop, thoughts)
        self._sends_stop = True
        self.servers = {url: _Server(url, concurrency) for url in urls}
        for url, listed in list_models(urls, access, wait_s).items():
            if isinstance(listed, Unreachable):
                self.servers[url].out = str(listed)
                LOG.warning("no server answers at %s (%s): left out, and asked again later", url, listed)
            else:
                self._meet(self.servers[url], listed)
        self._results: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._gathered: list[Generation] = []
        """What has come since the last of `generate`."""
        self._thread: threading.Thread | None = None
        self._fatal: Exception | None = None
        self._own_limits: Counter[int] = Counter()
        """Tokens of prompt and completion -> completions that the server cut off there, before --max-tokens."""
        self._only_thought = 0

    def _meet(self, server: _Server, listed: list[dict[str, Any]]) -> None:
        """Take note of what a server lists."""
        server.dialect.owner = str(card_of(listed, self.ref.served_name).get("owned_by", ""))
        if (said := not_listed(server.url, listed, self.ref)) and said != server.unlisted:
            LOG.warning("%s. It is asked all the same", said)
        server.unlisted = said

    # -- before sampling -----------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return name, the servers' addresses, what they say of themselves, and what the canaries brought."""
        said, texts = apart(self._ask_first())
        servers = self.servers.values()
        if (fatal := self._fatal) is not None:
            raise fatal
        versions = package_versions("aiohttp")
        if said:
            versions["server"] = ", ".join(sorted(set(said.values())))
        if len(set(said.values())) > 1:
            LOG.warning("the servers run different versions: %s", ", ".join(f"{u} {v}" for u, v in said.items()))
        models = {server.url: server.model for server in servers if server.model is not None}
        if len(set(models.values())) > 1:
            names = "; ".join(f"{url} answers as {model}" for url, model in models.items())
            raise UserError(f"the servers have different models: {names}. Samples of one run must be of one")
        for model in set(models.values()) - {self.ref.served_name}:
            LOG.warning('"%s" answers where "%s" is asked for', model, self.ref.served_name)
        by_default = sorted(set[str]().union(*(server.dialect.by_default for server in servers)))
        stay = sorted(set(by_default).difference(*(server.dialect.left_out for server in servers)))
        if stay:
            LOG.warning("the server does not take %s from a request: its own defaults hold", ", ".join(stay))
        same = {key: len(found) > 1 and len(set(found)) == 1 for key, found in texts.items()}
        if self.sampling.temperature > 0 and any(same.values()):
            LOG.warning(
                "%d requests with different seeds got the same text: the samples of a question may be copies of one (a "
                "cache, or a seed that the server sets itself)", CANARIES,
            )  # fmt: skip
        if self.sampling.temperature == 0 and any(len(set(found)) > 1 for found in texts.values()):
            LOG.warning("the same request got different texts: the server's samples cannot be repeated")
        found = {
            "models": sorted(set(models.values())),
            "fingerprints": sorted(set[str]().union(*(server.fingerprints for server in servers))),
            "seed_matters": not any(same.values()) if self.sampling.temperature > 0 else None,
            "texts": {url: [_digest(text) for text in of_server] for url, of_server in texts.items()},
        }
        return {
            "name": self.name,
            "versions": versions,
            "hardware": None,
            "base_urls": list(self.servers),
            **({"canaries": found} if texts else {}),
            **({"parameters_left_out": by_default} if by_default else {}),
        }

    async def _ask_first(self) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Return url -> version of the server, and url -> the texts of the canaries, by seed."""
        said: dict[str, str] = {}
        texts: dict[str, list[str]] = {}

        async def version(server: _Server) -> None:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
                timeout = aiohttp.ClientTimeout(total=PROBE_S)
                async with session.get(f"{server.url.removesuffix('/v1')}/version", timeout=timeout) as answer:
                    said[server.url] = one_line(str(json.loads(await answer.read())["version"]))

        async def try_out(server: _Server, task: Task) -> None:
            found = []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANARIES_S):
                    for index in range(CANARIES) if self.sampling.temperature > 0 else [0] * CANARIES:
                        try:
                            found.append((await self._ask(session, server, self._request(task, index), True)).text)
                        except RequestError as error:
                            if server.unlisted and error.status in (400, 404):
                                self._fatal = UserError(server.unlisted)
                            if not error.passing:
                                break
            if any(map(str.strip, found)):  # thoughts that are not shown say nothing
                texts[server.url] = found

        async with self.access.session() as session:
            there = [server for server in self.servers.values() if server.out is None]
            asked = [try_out(server, task) for server in there for task in self._first]
            await asyncio.gather(*map(version, there), *asked)
        return said, texts

    # -- sampling ------------------------------------------------------------------------------------------------------

    def throughput(self) -> Sequence[Throughput]:
        """Return what each of several servers has done."""
        return [server.throughput for server in self.servers.values()] if len(self.servers) > 1 else ()

    def running(self) -> Sequence[Running]:
        """Return the requests in flight, with what has come of them, and those that `generate` is about to yield."""
        ended = [Running(g.benchmark, g.tokens or 0, True) for g in list(self._gathered)]
        asked = [request for server in self.servers.values() for request in list(server.asking.values())]
        return ended + [Running(request.task.benchmark, request.answer.deltas) for request in asked]

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield completions, and samples that failed, as they arrive. Raises EngineStopped once no server is left."""
        self._fatal, self._stop_at = None, None
        for server in self.servers.values():
            server.throughput.start()
        self._thread = threading.Thread(target=self._run, args=(tasks,), name="openai", daemon=True)
        self._thread.start()
        notice_after, ended, texts = dict.fromkeys(self.servers, STALL_S), False, dict[tuple[str, str], list[int]]()
        while not ended:
            lot, ended = self._gather()
            if lot:
                yield lot
                self._gathered = []
            for g in lot:
                if g.error is None:
                    texts.setdefault((g.benchmark, g.question_id), []).append(hash(g.text))
            for url, server in self.servers.items():
                silent = time.monotonic() - server.last_byte if server.asking else 0.0
                if silent < STALL_S:
                    notice_after[url] = STALL_S
                elif silent > notice_after[url]:
                    notice_after[url] *= 2
                    LOG.info("%s: no byte for %.0f s; %d requests in flight", url, silent, len(server.asking))
        self._thread.join()
        self._warn(texts)
        if self._fatal is not None:
            raise self._fatal

    def _warn(self, texts: Mapping[tuple[str, str], Sequence[int]]) -> None:
        """Say what is odd about the completions that came. texts: question -> a hash of each."""
        several = [found for found in texts.values() if len(found) >= 4]
        copies, count = sum(len(set(found)) == 1 for found in several), sum(map(len, texts.values()))
        if 2 * copies > len(several) and self.sampling.temperature > 0:
            LOG.warning(
                "all samples of %d of %d questions are the same text: does the server know the seed?",
                copies, len(several),
            )  # fmt: skip
        if self._only_thought > SOME * count:
            LOG.warning(
                "%d of %d replies are thoughts only (reasoning_content) though they ended by themselves: the server's "
                "reasoning parser takes answers for thoughts. Start it without one (vLLM: --reasoning-parser), or with "
                "thinking on (--chat-template-kwargs '{\"enable_thinking\": true}')", self._only_thought, count,
            )  # fmt: skip
        if (cut := self._own_limits.total()) > SOME * count:
            total, times = self._own_limits.most_common(1)[0]
            LOG.warning(
                "%d of %d completions were cut off by the server's own limit, not by --max-tokens %d: %s. Raise the "
                "server's context (vLLM: --max-model-len, Ollama: OLLAMA_CONTEXT_LENGTH, llama.cpp: -c)",
                cut, count, self.sampling.max_tokens,
                f"{times} where prompt and completion have {total} tokens together" if total else "early",
            )  # fmt: skip

    def _gather(self) -> tuple[list[Generation], bool]:
        """Return what arrives within GATHER_S of the first arrival, and whether that was the last."""
        lot = self._gathered = []
        wait, end = 2 * TICK_S, 0.0
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

    def stop(self, grace_s: float) -> None:
        """Send nothing new; requests in flight may be answered for grace_s more seconds."""
        super().stop(grace_s)

    def close(self) -> None:
        """Drop the connections."""
        self.stop(0.0)
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _run(self, tasks: Sequence[Task]) -> None:
        try:
            asyncio.run(self._sample(tasks))
        except Exception as error:  # told to the caller
            self._fatal = error
        finally:
            self._results.put(None)

    # -- below, all of it under asyncio in one thread ------------------------------------------------------------------

    def _request(self, task: Task, index: int) -> _Request:
        return _Request(task, index, sample_seed(self.sampling.seed, task.benchmark, task.question_id, index))

    def _in(self) -> list[_Server]:
        """Return the servers that get requests."""
        return [server for server in self.servers.values() if server.out is None]

    async def _sample(self, tasks: Sequence[Task]) -> None:
        """Ask until every sample is there or has failed, or the run is stopped."""
        self._waiting = deque(self._request(task, index) for task in tasks for index in task.missing)
        self._left, self._changed = len(self._waiting), asyncio.Event()
        self._away_since: float | None = None
        self._background: set[asyncio.Task[None]] = set()
        servers = self.servers.values()
        async with self.access.session(self._concurrency * len(servers) + 8) as self._session:
            for server in servers:
                server.asking.clear()
                if server.out is not None:
                    self._start(self._rejoin(server))
            while self._left and (self._stop_at is None or any(server.asking for server in servers)):
                now = time.monotonic()
                if self._stop_at is not None and now > self._stop_at:
                    break
                for server in self._in():
                    while self._stop_at is None and server.takes(now) and (request := self._next(server)) is not None:
                        task = self._start(self._settle(server, request))
                        server.asking[task] = request
                    self._check_refusals(server, now)
                if self._away_since is not None and now - self._away_since > self._wait_s:
                    reasons = "; ".join(f"{server.url}: {server.out}" for server in servers if server.out)
                    self._halt(EngineStopped(f"no server for {self._wait_s:.0f} s (--wait-for-server): {reasons}"))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), TICK_S)
                self._changed.clear()
            running = list(self._background)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _start(self, coroutine: Any) -> asyncio.Task[None]:
        """Run something; an error in it ends the run."""
        task: asyncio.Task[None] = asyncio.create_task(coroutine)
        self._background.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._background.discard(task)
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                self._halt(error)
            self._changed.set()

        task.add_done_callback(ended)
        return task

    def _next(self, server: _Server) -> _Request | None:
        """Return what waits longest and has not failed at this server, unless it failed at all of them."""
        everywhere = {other.url for other in self._in()}
        for _ in range(len(self._waiting)):
            request = self._waiting.popleft()
            if server.url not in request.failed_at or everywhere <= request.failed_at:
                return request
            self._waiting.append(request)
        return None

    async def _settle(self, server: _Server, request: _Request) -> None:
        """Ask for one sample once: it is there, has failed, waits again, or the server is left out."""
        try:
            reply = await self._ask(self._session, server, request)
        except RequestError as error:
            server.asking.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            if error.status == 429 and error.passing:
                self._pause(server, request, error)
            else:
                await self._failed(server, request, error)
            return
        server.asking.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
        server.served += 1
        server.failed_in_a_row, server.times_out, self._away_since = 0, 0, None
        if request.stop and reply.finish_reason == "stop" and self._reading.stop:
            text = self._reading.plain(reply.text, request.task.prompt.text)
            if unfinished(text):  # a stop text ended it in its thought: from now on they are applied here only
                self._sends_stop = False
                self._waiting.appendleft(request)
                return
        self._only_thought += reply.only_thought
        if reply.finish_reason == "length" and (reply.tokens or self.sampling.max_tokens) < self.sampling.max_tokens:
            self._own_limits[(reply.prompt_tokens or 0) and (reply.tokens or 0) + (reply.prompt_tokens or 0)] += 1
        self._hand_on(server, request, reply.text, reply.finish_reason, reply.tokens, None, reply.prompt_tokens)

    def _hand_on(
        self, server: _Server, request: _Request, text: str, reason: str, tokens: int | None, error: str | None,
        read: int | None = None,
    ) -> None:  # fmt: skip
        """Hand on a sample, completed or failed."""
        key = request.task.benchmark, request.task.question_id, request.index
        g = Generation(*key, self.access.redact(text), tokens, reason, request.seed, error, read)
        self._left -= 1
        server.throughput.add([g])
        self._results.put(g)

    def _pause(self, server: _Server, request: _Request, error: RequestError) -> None:
        """Give a server that refuses for the rate a pause; the request has not failed."""
        now = time.monotonic()
        self._waiting.appendleft(request)
        if request.sent >= server.cut:
            server.refusals += 1
            server.pause_until = now + max(error.pause_s, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**server.refusals / 4))
        server.pause_until = max(server.pause_until, now + error.pause_s)
        server.halve(request.sent)
        server.refused_since = server.refused_since or now

    async def _failed(self, server: _Server, request: _Request, error: RequestError) -> None:
        """Decide from an error: the sample is asked for again, or has failed, or the server is gone."""
        url, text = server.url, self.access.redact(str(error))
        request.attempts += 1
        last, others = not error.passing or request.attempts > self._retries, len(self._in()) > 1
        gone = error.lost and (last or others) and await self._models(server) is None
        if server.out is not None:  # meanwhile
            request.failed_at.add(url)  # it may come back, and not to this sample first
            self._again(request, 0.0)
            return
        if self._stop_at is not None and error.passing and last:
            return
        if server.served == 0 and error.status in (401, 404):
            self._halt(UserError(server.unlisted or refusal(url, self.access, error.status, text)))
        elif server.served == 0 and error.status is not None and 300 <= error.status < 400:
            self._halt(UserError(f"{url}: {text}"))
        elif error.status in (401, 429) or gone:
            times = "1 attempt" if request.attempts == 1 else f"{request.attempts} attempts"
            what = "the key" if error.status == 401 else "further requests"
            why = f"gave no answer in {times} ({text})" if gone else f"refuses {what} now ({text})"
            request.attempts -= others
            self._again(request, 0.0)
            self._leave_out(server, EngineStopped(f"the server at {url} {why}"))
            return
        else:
            server.failed_in_a_row += 1
            server.only_refusals &= error.status is not None and not error.passing
        if not last:
            request.failed_at.add(url)
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (request.attempts - 1)) * random.uniform(0.75, 1.25)
            self._again(request, max(0.0 if others else pause, error.pause_s))
        else:
            reason = "error" if error.passing else "refused"
            self._hand_on(server, request, error.text, reason, None, text)
        if server.failed_in_a_row >= max(ALL_FAILED, self._concurrency):
            if server.served == 0 and server.only_refusals:
                self._halt(UserError(f"{url} refuses every request ({text})"))
            else:
                reason = f"{server.failed_in_a_row} requests in a row failed at {url} ({text})"
                self._leave_out(server, EngineStopped(reason))

    def _again(self, request: _Request, pause_s: float) -> None:
        asyncio.get_running_loop().call_later(pause_s, self._waiting.appendleft, request)

    def _halt(self, error: Exception) -> None:
        """Stop by itself; the first reason counts."""
        if self._fatal is None:
            self._fatal = error
            self.stop(DRAIN_S)

    def _check_refusals(self, server: _Server, now: float) -> None:
        """Leave a server out that has accepted nothing for long."""
        patience = max(self._wait_s, min(REFUSED_S[1], max(REFUSED_S[0], self.access.timeout_s)))
        if server.refused_since is not None and now - server.refused_since > patience and now > server.pause_until:
            reason = f"{server.url} has accepted no request for {now - server.refused_since:.0f} s (HTTP 429)"
            self._leave_out(server, EngineStopped(reason))

    def _leave_out(self, server: _Server, why: EngineStopped) -> None:
        """Leave what a server owes to the others and ask it again later; without others the engine waits or stops."""
        if server.out is not None:
            return
        if len(self._in()) == 1:
            if not self._wait_s:
                lost = [f"{other.url}: {other.out}" for other in self.servers.values() if other.out is not None]
                self._halt(EngineStopped("; ".join([str(why), *lost])))
                return
            self._away_since = self._away_since or time.monotonic()
        server.out, server.throughput.state, server.failed_in_a_row = str(why), "left out", 0
        count, me = len(server.asking), asyncio.current_task()
        for task, request in server.asking.items():
            if task is not me:
                task.cancel()
                self._waiting.appendleft(request)  # here: a task that has not begun runs none of its own code
        server.asking.clear()
        where = "go to the other servers" if self._in() else f"wait for it, up to {self._wait_s:.0f} s"
        LOG.warning("%s: left out, and asked again later; %d samples %s", why, count, where)
        self._start(self._rejoin(server))

    async def _rejoin(self, server: _Server) -> None:
        """Give a server requests again once it lists its models."""
        listed = None
        while listed is None:
            await asyncio.sleep(min(LONGEST_REJOIN_S, REJOIN_S * 2**server.times_out))
            server.times_out += bool(self._in())  # without another server, it is asked as often as at first
            listed = await self._models(server)
        self._meet(server, listed)
        server.out, server.throughput.state, server.refused_since = None, "", None
        LOG.info("%s answers again and gets requests", server.url)

    async def _models(self, server: _Server) -> list[dict[str, Any]] | None:
        """Return what a server lists; None if nothing answers at its address, or with nothing but an error."""
        with contextlib.suppress(Unreachable, UserError):
            return await listed_models(self._session, server.url, PROBE_S, self.access)
        return None

    # -- one request ---------------------------------------------------------------------------------------------------

    async def _ask(
        self, session: aiohttp.ClientSession, server: _Server, request: _Request, canary: bool = False
    ) -> Reply:
        """Send one request, without the parameters that the server does not take, and read it. Raises RequestError."""
        while True:
            prompt, dialect, request.stop = request.task.prompt, server.dialect, self._sends_stop
            sent = dialect.payload(self.ref.served_name, prompt, self.sampling, request.seed, request.stop, self._body)
            if canary:
                name = "max_tokens" if "max_tokens" in sent else "max_completion_tokens"
                sent[name] = min(CANARY_TOKENS, sent[name])
            request.answer, request.sent = Answer(), time.monotonic()
            if len(server.asking) <= 1:
                server.last_byte = request.sent
            status, headers, body = await self._post(session, server, sent, request)
            if status == 200:
                server.accepted()
                return self._checked(server, request.answer)
            if status not in (401, 403, 404, 429) and dialect.learn(sent, body.decode("utf-8", "replace")):
                continue
            raise refused(status, headers, self.access.redact(body.decode("utf-8", "replace")).encode())

    async def _post(self, session: aiohttp.ClientSession, server: _Server, sent: Any, request: _Request) -> Any:
        """Return status, headers and, of an error, the body; a completion is in request.answer."""
        path = "completions" if "prompt" in sent else "chat/completions"
        loop, patience, answer = asyncio.get_running_loop(), self.access.timeout_s, request.answer
        data, body, gap = json.dumps(sent).encode(), bytearray(), None
        try:
            async with (
                asyncio.timeout(self.access.total_s) as total,
                asyncio.timeout(patience) as gap,
                session.post(f"{server.url}/{path}", data=data, headers=_JSON, allow_redirects=False) as response,
            ):
                server.last_byte = time.monotonic()
                async for part in response.content.iter_any():
                    server.last_byte = time.monotonic()
                    if response.status != 200:
                        body += part[: max(0, 100_000 - len(body))]
                    elif answer.feed(part):
                        gap.reschedule(loop.time() + patience)
                return response.status, response.headers, bytes(body)
        except TimeoutError:
            server.halve(request.sent)
            if total.expired():
                what = f"not finished within {self.access.total_s:g} s (--total-timeout)"
            elif gap is not None and gap.expired():
                began = answer.deltas or server.last_byte > request.sent
                what = f"{'nothing new' if began else 'no byte'} within {patience:g} s (--timeout)"
            else:
                what = f"no connection within {min(CONNECT_S, patience):g} s"
            raise RequestError(what, passing=True, lost=not answer.deltas, text=answer.text()) from None
        except (aiohttp.ClientError, ValueError) as error:
            what = one_line(f"{type(error).__name__}: {error}")
            raise RequestError(what, passing=True, lost=True, text=answer.text()) from None

    def _checked(self, server: _Server, answer: Answer) -> Reply:
        """Return the completion, if the model that it is of is the one that has answered so far."""
        reply = answer.reply()
        if reply.fingerprint and len(server.fingerprints) < 16:
            server.fingerprints.add(one_line(str(reply.fingerprint)))
        model = one_line(str(reply.model or ""))
        if model and server.model not in (None, model):
            raise RequestError(f'another model answers: "{model}", no longer "{server.model}"', passing=True)
        server.model = model or server.model
        return reply


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def change(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """Return why a session must not go on with another one's samples, if it must not, and what else has changed.

    before, now: what `describe` said of the canaries.
    """
    if before["models"] and now["models"] and set(before["models"]) != set(now["models"]):
        return f"{', '.join(now['models'])} answers, and {', '.join(before['models'])} did before", []
    named = []
    if before["fingerprints"] != now["fingerprints"] and before["fingerprints"]:
        named.append(
            f"system_fingerprint was {', '.join(before['fingerprints'])} and is "
            f"{', '.join(now['fingerprints']) or 'not given'}"
        )
    texts = [{tuple(found) for found in session["texts"].values()} for session in (before, now)]
    if all(texts) and not texts[0] & texts[1]:
        named.append("the first texts are others than they were for the same seeds")
    return None, named
