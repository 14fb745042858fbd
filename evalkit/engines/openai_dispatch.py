"""Which server is asked for what, and when: the openai engine's work, under asyncio.

A server takes what waits as its limits allow; one that has nothing left takes what waits at another, and then asks
beside it for what is slow there. Whoever answers first settles a sample.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import random
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.evalkit.engines.base import EngineStopped, Generation, Sampling, Task
from gtpo.evalkit.engines.dealing import Dealer
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.engines.openai_address import Access, owner_of, refusal
from gtpo.evalkit.engines.openai_reply import Reply, RequestError
from gtpo.evalkit.engines.openai_server import Request, Server, request_of, sampling_extras

LONGEST_PAUSE_S = 20.0

ALL_FAILED = 16
"""So many failures in a row (or as many as requests are in flight, if more) say that a server answers nothing."""

REFUSED_S = (60.0, 600.0)
"""A server that accepts nothing (429) for as long as the timeout of a request, within these limits, is left out."""

DRAIN_S = 30.0
"""When the engine stops by itself, requests in flight may still be answered for so long."""

MOVES = 3
"""A sample that fails for a reason that may pass is asked of so many other servers."""

SLOW_S, SLOW = 1.0, 3.0
"""A server that has nothing left asks for a sample of another that is so much older, and so many times slower, than its
own are."""

REJOIN_S = 2.0
"""A server that was left out is asked again after so long, each time after twice as long, up to LONGEST_REJOIN_S."""

LONGEST_REJOIN_S = 60.0

TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Asked:
    """What every sample of a run has in common."""

    ref: ModelRef
    sampling: Sampling
    access: Access
    concurrency: int
    """Most requests in flight at a server."""
    retries: int
    """Attempts after the first."""
    wait_s: float
    """For how long no server may answer."""
    body: dict[str, Any]
    """Further fields of every request."""

    def payload(self, server: Server, request: Request) -> dict[str, Any]:
        """Return what is sent for a sample, before a server's dialect."""
        prompt, sampling = request.task.prompt, self.sampling
        question: dict[str, Any] = {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.text}
        return {
            "model": self.ref.served_name,
            **question,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed,
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling_extras(sampling, server.owner),
            **self.body,
        }


class Dispatch:
    """One pass over tasks. `results` gets every sample, completed or failed.

    `run` raises EngineStopped once no server is left, and UserError where none does what is asked.
    """

    def __init__(
        self,
        asked: Asked,
        servers: Mapping[str, Server],
        tasks: Sequence[Task],
        results: queue.SimpleQueue[Generation | None],
    ) -> None:
        self._asked, self.servers, self._results = asked, servers, results
        self._access = asked.access
        self._stop_at: float | None = None
        self._fatal: Exception | None = None
        self._dealer = Dealer(tasks)
        self._watching: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        # When the last server was lost; None again once a completion arrives.
        self._away_since: float | None = None
        for server in servers.values():
            server.forget()

    def stop(self, grace_s: float) -> None:
        """Send nothing new; requests in flight may be answered for grace_s more seconds."""
        end = time.monotonic() + grace_s
        self._stop_at = end if self._stop_at is None else min(end, self._stop_at)

    def _in(self) -> list[Server]:
        """Return the servers that get questions."""
        return [server for server in self.servers.values() if server.out is None]

    async def run(self) -> None:
        """Ask until every sample is there or has failed, or the run is stopped."""
        async with self._access.session(self._asked.concurrency * len(self.servers) + 8) as self._session:
            for server in self.servers.values():
                if server.out is not None:
                    self._watch(self._rejoin(server))
            while self._dealer.left and (self._stop_at is None or any(s.asking for s in self.servers.values())):
                for server in self._in():
                    self._pump(server)
                    self._check_refusals(server)
                self._check_wait()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), TICK_S)
                self._changed.clear()
                if self._stop_at is not None and time.monotonic() > self._stop_at:
                    break
            running = [*self._watching, *(task for s in self.servers.values() for task, _ in s.asking.values())]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if self._fatal is not None:
            raise self._fatal

    def _watch(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something; an error in it ends the run."""
        task = asyncio.create_task(coroutine)
        self._watching.add(task)
        task.add_done_callback(self._watched)
        return task

    def _watched(self, task: asyncio.Task[None]) -> None:
        self._watching.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._halt(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _pump(self, server: Server) -> None:
        """Send as many requests as a server takes now."""
        loop = asyncio.get_running_loop()
        while server.out is None and self._stop_at is None:
            wait = server.pace.wait_s(time.monotonic(), len(server.asking))
            if wait > 0:
                if wait < TICK_S:
                    loop.call_later(wait, self._changed.set)
                return
            request = self._next(server)
            if request is None:
                return
            request.sent = time.monotonic()
            server.asking[request.key] = self._watch(self._ask(server, request)), request

    def _next(self, server: Server) -> Request | None:
        """Return what a server asks for next; None where nothing waits for it."""
        loop = asyncio.get_running_loop()
        while not server.open:
            now = time.monotonic()
            free = (s for s in self._in() if s is server or not (s.open or s.pace.wait_s(now, len(s.asking))))
            limits = {s.url: int(s.pace.window) for s in free}
            dealt = self._dealer.deal(limits, [s.url for s in self._in() if s.url not in limits])
            if dealt is None:
                return self._taken_back(server)
            task, worker = dealt.task, self.servers[dealt.worker]
            worker.open.extend(request_of(task, index, self._asked.sampling.seed) for index in task.missing)
            if worker is not server:
                loop.call_soon(self._pump, worker)
        return server.open.popleft()

    def _taken_back(self, server: Server) -> Request | None:
        """Return a request that waits at another server, or that is slow there, for one that has nothing left."""
        others = [other for other in self._in() if other is not server]
        victim = max(others, key=lambda other: len(other.open), default=None)
        if victim is None:
            return None
        now = time.monotonic()
        if victim.open and victim.pace.wait_s(now, len(victim.asking)) > 0:
            half = math.ceil(len(victim.open) / 2)
            last = [r for r in reversed(victim.open) if not self._dealer.has_failed(server.url, r.key)][:half]
            for request in last:
                victim.open.remove(request)
                self._dealer.share(victim.url, server.url, request.key, keep=False)
                server.open.appendleft(request)
            if last:
                return server.open.popleft()
        if not server.served:
            return None
        usual, pace = server.seconds / server.served, server.tokens / max(1e-6, server.seconds)
        for other in others:
            for key, (_, request) in other.asking.items():
                age = now - request.sent
                slow = age > SLOW_S + SLOW * usual and request.answer.deltas < age * pace / SLOW
                known = self._dealer.is_shared(key) or self._dealer.has_failed(server.url, key)
                if slow and not known and key not in server.asking:
                    self._dealer.share(other.url, server.url, key, keep=True)
                    other.pace.strain(now, request.sent)
                    return request_of(request.task, request.index, self._asked.sampling.seed)
        return None

    async def _ask(self, server: Server, request: Request) -> None:
        """Ask for one sample once: it is there, has failed, is asked again, or the server is left out."""
        error: RequestError | None = None
        try:
            reply = await server.ask(self._session, self._asked.payload(server, request), request)
        except RequestError as failed:
            error = failed
        finally:
            flight = server.asking.get(request.key)
            if flight is not None and flight[0] is asyncio.current_task():
                del server.asking[request.key]
        if error is None:
            self._arrived(server, request, reply)
        elif error.status == 429 and error.passing:
            server.paused[request.key] = request
            self._again(server, request)
        else:
            request.attempts += 1
            await self._failed(server, request, error)
        self._pump(server)
        if not self._dealer.left or self._stop_at is not None:
            self._changed.set()

    def _arrived(self, server: Server, request: Request, reply: Reply) -> None:
        server.served += 1
        server.failed_in_a_row, server.times_out, self._away_since = 0, 0, None
        server.seconds += time.monotonic() - request.sent
        server.tokens += request.answer.deltas or reply.tokens or 0
        text, read = self._access.redact(reply.text), reply.prompt_tokens
        done = Generation(*request.key, text, reply.tokens, reply.finish_reason, request.seed, None, read)
        self._settle(server, done)

    async def _failed(self, server: Server, request: Request, error: RequestError) -> None:
        """Decide from an error: the request is sent again, its sample has failed or belongs elsewhere, or the server is
        gone."""
        last = not error.passing or request.attempts > self._asked.retries
        # Where the server is gone the others need not wait for it.
        gone = error.lost and (last or len(self._in()) > 1) and await server.models(self._session) is None
        if not self._dealer.owes(server.url, request.key):  # it was left out meanwhile, or another answered
            return
        if not (last or gone):
            pause = min(LONGEST_PAUSE_S, 0.5 * 2 ** (request.attempts - 1)) * random.uniform(0.75, 1.25)
            server.paused[request.key] = request
            asyncio.get_running_loop().call_later(max(pause, error.pause_s), self._again, server, request)
            return
        if self._stop_at is not None and error.passing:
            return
        url, text = server.url, self._access.redact(str(error))
        if server.served == 0 and error.status in (401, 404):
            self._halt(UserError(refusal(url, self._access, error.status, text)))
        elif server.served == 0 and error.status is not None and 300 <= error.status < 400:
            self._halt(UserError(f"{url}: {text}"))
        elif error.status in (401, 429):
            what = "the key" if error.status == 401 else "further requests"
            self._leave_out(server, EngineStopped(f"the server at {url} refuses {what} now ({text})"))
        elif gone:
            times = "1 attempt" if request.attempts == 1 else f"{request.attempts} attempts"
            self._leave_out(server, EngineStopped(f"the server at {url} gave no answer in {times} ({text})"))
        else:
            server.failed_in_a_row += 1
            server.refused &= error.status is not None and not error.passing
            # Another server may have better luck with it.
            if not (error.passing and len(self._in()) > 1 and self._dealer.move(url, request.key, MOVES)):
                partial, reason = self._access.redact(error.text), "error" if error.passing else "refused"
                self._settle(server, Generation(*request.key, partial, None, reason, request.seed, text))
            if server.failed_in_a_row >= max(ALL_FAILED, self._asked.concurrency):
                if server.served == 0 and server.refused:
                    self._halt(UserError(f"{url} refuses every request ({text})"))
                else:
                    reason = f"{server.failed_in_a_row} requests in a row failed at {url} ({text})"
                    self._leave_out(server, EngineStopped(reason))

    def _again(self, server: Server, request: Request) -> None:
        """Send a request again after its pause, if the server still owes it and was not left out meanwhile."""
        if server.paused.get(request.key) is request:
            del server.paused[request.key]
            if self._dealer.owes(server.url, request.key):
                server.open.appendleft(request)
                self._pump(server)

    def _settle(self, server: Server, generation: Generation) -> None:
        """Hand on a sample, completed or failed; nobody else needs to ask for it."""
        key = generation.key
        shared = self._dealer.is_shared(key)
        if self._dealer.settle(server.url, key):
            server.throughput.add([generation])
            server.throughput.state = str(server.pace)
            self._results.put(generation)
            for other in self.servers.values() if shared else ():
                if (flight := other.asking.pop(key, None)) is not None:
                    flight[0].cancel()

    def _halt(self, error: Exception) -> None:
        """Stop by itself; the first reason counts."""
        if self._fatal is None:
            self._fatal = error
            self.stop(DRAIN_S)

    def _check_refusals(self, server: Server) -> None:
        """Leave a server out that has accepted nothing for long."""
        since, now = server.pace.refused_since, time.monotonic()
        least, most = REFUSED_S
        patience = max(self._asked.wait_s, min(most, max(least, self._access.timeout_s)))
        if since is not None and now - since > patience and now > server.pace.retry_at:
            reason = f"{server.url} has accepted no request for {now - since:.0f} s (HTTP 429)"
            self._leave_out(server, EngineStopped(reason))

    def _check_wait(self) -> None:
        """Stop where no server has answered for as long as the user waits."""
        if self._away_since is None or time.monotonic() - self._away_since <= self._asked.wait_s:
            return
        reasons = "; ".join(f"{server.url}: {server.out}" for server in self.servers.values() if server.out)
        if reasons:
            self._halt(EngineStopped(f"no server for {self._asked.wait_s:.0f} s (--wait-for-server): {reasons}"))

    def _leave_out(self, server: Server, why: EngineStopped) -> None:
        """Deal what a server owes to the others and ask it again later; without others the engine waits or stops."""
        if server.out is not None:
            return
        if len(self._in()) == 1:
            if not self._asked.wait_s:
                lost = [f"{other.url}: {other.out}" for other in self.servers.values() if other.out is not None]
                self._halt(EngineStopped("; ".join([str(why), *lost])))
                return
            self._away_since = self._away_since or time.monotonic()
        server.out, server.throughput.state = str(why), "left out"
        server.failed_in_a_row = 0
        me = asyncio.current_task()
        for task, _ in server.asking.values():
            if task is not me:
                task.cancel()
        server.forget()
        again = self._dealer.give_back(server.url)
        where = "go to the other servers" if self._in() else f"wait for it, up to {self._asked.wait_s:.0f} s"
        LOG.warning("%s: left out, and asked again later; %d samples %s", why, again, where)
        self._watch(self._rejoin(server))
        for other in self._in():
            self._pump(other)

    async def _rejoin(self, server: Server) -> None:
        """Give a server questions again once it serves the model."""
        while True:
            await asyncio.sleep(min(LONGEST_REJOIN_S, REJOIN_S * 2**server.times_out))
            # Where no other server is left, it is asked as often as at first.
            server.times_out += bool(self._in())
            listed = await server.models(self._session)
            with contextlib.suppress(UserError):
                if listed is not None:
                    server.owner = owner_of(server.url, listed, self._asked.ref)
                    break
        server.out, server.throughput.state = None, ""
        LOG.info("%s answers again and gets questions", server.url)
        self._pump(server)
