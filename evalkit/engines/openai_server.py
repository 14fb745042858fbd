"""One OpenAI-compatible server: its dialect, one request and its answer.

aiohttp is the HTTP client: streamed, it takes 0.5 ms of processor time for a completion of 64 tokens, where httpx takes
5 ms and the openai package 9 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.evalkit.engines.base import Running, Sampling, Task, Throughput, sample_seed
from gtpo.evalkit.engines.dealing import SampleKey
from gtpo.evalkit.engines.openai_address import CONNECT_S, Access, Unreachable, listed_models
from gtpo.evalkit.engines.openai_pace import Pace
from gtpo.evalkit.engines.openai_reply import Answer, Reply, RequestError, one_line, refused

PROBE_S = 5.0
"""A server that answers nothing at all within this time is gone."""

JSON = {"Content-Type": "application/json"}

NEUTRAL: dict[str, Any] = {
    "seed": None, "stream": None, "stream_options": None, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0,
}  # fmt: skip
"""Parameters that are left out where a server knows them not: those without an effect on what is sampled, or with the
value that has none (None: whatever the value)."""

_UNKNOWN = re.compile(r"\bun|\bnot\b|n't|extra|invalid|only|reject|refus|disallow|forbid|illegal|deprecated")


def sampling_extras(s: Sampling, owner: str | None) -> dict[str, Any]:
    """Return the sampling parameters beyond OpenAI's own.

    vLLM and SGLang always get all of them: they otherwise fill in what the model's generation_config.json
    recommends, and the same command would sample from another distribution than in process.
    """
    extras: dict[str, Any] = {"top_k": s.top_k or -1, "min_p": s.min_p, "repetition_penalty": s.repetition_penalty}
    if owner not in ("vllm", "sglang"):
        extras = {key: value for key, value in extras.items() if value != NEUTRAL[key]}
    return extras | ({"presence_penalty": s.presence_penalty} if s.presence_penalty else {})


@dataclass(slots=True)
class Request:
    """One sample to ask for."""

    task: Task
    index: int
    key: SampleKey
    seed: int
    attempts: int = 0
    """Those that failed; a refusal for the rate is none."""
    sent: float = 0.0
    answer: Answer = field(default_factory=Answer)
    """What has come of it."""


class Server:
    """One server and what is known of it. Its methods run under asyncio."""

    def __init__(self, url: str, access: Access, concurrency: int) -> None:
        self.url, self.access = url, access
        self.pace = Pace(concurrency)
        self.owner: str | None = None
        """Who made it, as far as it says."""
        self.throughput = Throughput(url)
        self.out: str | None = None
        """Why it gets no questions now."""
        self.times_out = 0
        self.served = self.failed_in_a_row = 0
        self.refused = True
        """Whether every failure so far was a refusal of the request itself."""
        self.seconds = self.tokens = 0.0
        """Time of all replies, summed, and their tokens."""
        self.open: deque[Request] = deque()
        """Requests that wait for their turn."""
        self.paused: dict[SampleKey, Request] = {}
        """Requests that are sent again after a pause."""
        self.asking: dict[SampleKey, tuple[asyncio.Task[None], Request]] = {}
        self.left_out: set[str] = set()
        """Parameters that it does not know."""
        self.renamed = False
        """Whether it wants max_completion_tokens."""
        self.model: str | None = None
        """The model that answers, by its own name."""
        self.fingerprints: set[str] = set()
        self.last_byte = time.monotonic()

    def forget(self) -> None:
        """Drop the requests that it was to answer."""
        for requests in (self.open, self.asking, self.paused):
            requests.clear()

    def silent_s(self) -> float:
        """Return for how long requests have waited without a byte."""
        return time.monotonic() - self.last_byte if self.asking else 0.0

    def running(self) -> list[Running]:
        """Return the requests in flight with their tokens so far.

        A server that shows nothing before the end gets the pace of its finished requests.
        """
        now, asked = time.monotonic(), [request for _, request in list(self.asking.values())]
        silent = not any(request.answer.deltas for request in asked)
        pace = self.tokens / self.seconds if silent and self.seconds else 0.0
        return [Running(r.task.benchmark, r.answer.deltas or int(pace * (now - r.sent))) for r in asked]

    def stalled(self) -> str:
        """Say for how long nothing has come."""
        waiting = [request.sent for _, request in list(self.asking.values()) if not request.answer.deltas]
        text = f"{self.url}: no byte for {self.silent_s():.0f} s; {len(self.asking)} requests in flight"
        if waiting:
            text += f", {len(waiting)} without a first byte for up to {time.monotonic() - min(waiting):.0f} s"
        return text

    async def models(self, session: aiohttp.ClientSession) -> list[dict[str, Any]] | None:
        """Return what it lists; None where nothing answers at its address, or with nothing but an error."""
        with contextlib.suppress(Unreachable, UserError):
            return await listed_models(session, self.url, PROBE_S, self.access)
        return None

    def _learn(self, sent: dict[str, Any], said: str) -> bool:
        """Learn from an error which parameters the server does not know; return whether another request may do."""
        said = said.lower()
        if "max_tokens" in sent and "max_completion_tokens" in said:
            self.renamed = True
            return True
        if not _UNKNOWN.search(said):
            return False
        for name, neutral in NEUTRAL.items():
            if name in sent and re.search(rf"\b{name}\b", said) and (neutral is None or sent[name] == neutral):
                if name not in self.left_out:
                    self.left_out |= {name, "stream_options"} if name == "stream" else {name}
                    level = LOG.warning if name == "seed" else LOG.info
                    why = "samples cannot be repeated" if name == "seed" else "it is left out"
                    level("%s takes no %s: %s", self.url, name, why)
                return True
        return False

    async def ask(self, session: aiohttp.ClientSession, payload: dict[str, Any], request: Request) -> Reply:
        """Send one request and read its answer. Raises RequestError."""
        while True:
            sent = {name: value for name, value in payload.items() if name not in self.left_out}
            if self.renamed:
                sent["max_completion_tokens"] = sent.pop("max_tokens")
            request.answer, request.sent = Answer(), time.monotonic()
            self.pace.sent(request.sent)
            if not self.asking:
                self.last_byte = request.sent
            status, headers, body = await self._post(session, sent, request)
            if status == 200:
                return self._checked(request.answer)
            if status == 429:
                error = refused(status, headers, body)
                self.pace.refuse(time.monotonic(), request.sent, error.pause_s, len(self.asking) - 1)
                raise error
            if status in (401, 403) or not self._learn(sent, body[:10_000].decode("utf-8", "replace")):
                raise refused(status, headers, self.access.redact(body.decode("utf-8", "replace")).encode())

    async def _post(self, session: aiohttp.ClientSession, sent: dict[str, Any], request: Request) -> Any:
        """Return status, headers and, of an error, the body; a completion is in request.answer."""
        path = "completions" if "prompt" in sent else "chat/completions"
        loop, patience, answer = asyncio.get_running_loop(), self.access.timeout_s, request.answer
        data, body, gap = json.dumps(sent).encode(), bytearray(), None
        try:
            async with (
                asyncio.timeout(self.access.total_s) as total,
                asyncio.timeout(patience) as gap,
                session.post(f"{self.url}/{path}", data=data, headers=JSON, allow_redirects=False) as response,
            ):
                self.last_byte = time.monotonic()
                if self.last_byte - request.sent > patience / 2:
                    self.pace.strain(self.last_byte, request.sent)
                if response.status == 200:
                    self.pace.accepted(self.last_byte)
                async for part in response.content.iter_any():
                    self.last_byte = time.monotonic()
                    if response.status != 200:
                        body += part[: max(0, 100_000 - len(body))]
                    elif answer.feed(part):
                        gap.reschedule(loop.time() + patience)
                return response.status, response.headers, bytes(body)
        except TimeoutError:
            self.pace.strain(time.monotonic(), request.sent)
            if total.expired():
                what = f"not finished within {self.access.total_s:g} s (--total-timeout)"
            elif gap is not None and gap.expired():
                began = answer.deltas or self.last_byte > request.sent
                what = f"{'nothing new' if began else 'no byte'} within {patience:g} s (--timeout)"
            else:
                what = f"no connection within {min(CONNECT_S, patience):g} s"
            raise RequestError(what, passing=True, lost=not answer.deltas, text=answer.text()) from None
        except (aiohttp.ClientError, ValueError) as error:
            self.pace.strain(time.monotonic(), request.sent)
            what = one_line(f"{type(error).__name__}: {error}")
            raise RequestError(what, passing=True, lost=True, text=answer.text()) from None

    def _checked(self, answer: Answer) -> Reply:
        """Return the completion, if the model that it is of is the one that has answered so far."""
        reply = answer.reply()
        if reply.fingerprint and len(self.fingerprints) < 16:
            self.fingerprints.add(one_line(reply.fingerprint))
        model = one_line(reply.model or "")
        if model and self.model not in (None, model):
            raise RequestError(f'another model answers: "{model}", no longer "{self.model}"', passing=True)
        self.model = model or self.model
        return reply


def request_of(task: Task, index: int, run_seed: int) -> Request:
    """Return the request for one sample."""
    seed = sample_seed(run_seed, task.benchmark, task.question_id, index)
    return Request(task, index, (task.benchmark, task.question_id, index), seed)
