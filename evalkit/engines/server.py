"""The openai engine: one or many servers with OpenAI's chat completions (vLLM, SGLang, a cluster's endpoint).

One streamed request per sample, each with the sample's seed; all servers take from one queue, at most `concurrency` at
a time each. A request that fails in a way that may pass, or brings no text, is sent again, after a growing pause if few
are answered, to another server if there is one. An overloaded server (429, 503, 529, timeouts) gets half as many at a
time. A sample that keeps failing is handed on with its error. A server that answers nothing is left out; without
another the engine stops. The key comes from the environment, goes into the request header and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

# aiohttp is the client: a streamed completion of 64 tokens takes it 1.0 ms of processor time, httpx 2.9 ms, and the
# openai package 12.5 ms, which makes an object of every event.
import aiohttp
from pydantic import TypeAdapter

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import package_versions, text_hash
from gtpo.evalkit.engines.base import Engine, EngineStopped, Sampling, Task, one_line, same_model, sample_seed
from gtpo.evalkit.engines.serve import ServerProcess
from gtpo.evalkit.engines.server_request import SECRET_IN_TEXT, Server, apart, names_max_tokens
from gtpo.runs.eval_folder import Sample
from gtpo.runs.outcomes import Ending, Reply, Tokens, check_reply, finish_word, read_usage, says_something, whole_number

# Between two looks at the queue.
TICK_S = 0.1

# Before another attempt, of an overloaded server or after more than so many failures in a row; it doubles with each.
FIRST_PAUSE_S, LONGEST_PAUSE_S, FEW_FAILED = 0.5, 20.0, 8

# What an HTTP status says of load: too many requests, or none answered in time.
OVERLOAD = frozenset((408, 429, 503, 504, 524, 529))

# Most that a Retry-After header is followed.
LONGEST_WAIT_S = 120.0

# So many failures in a row (or as many as requests are in flight, if more) say that a server answers nothing. Samples
# of one question that are refused for good count once.
ALL_FAILED = 16

# Requests that are sent before all others, of so many tokens, and how long they may take.
CANARIES, CANARY_TOKENS, CANARIES_S = 2, 48, 20.0

# How long a server that was started for the run may take to end once it answers nothing more.
ENDING_S = 5.0

_SURROGATE = re.compile("[\ud800-\udfff]")

# Fields of a message that hold its thoughts; the first that holds any counts.
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_text", "reasoning_details")

# Half of the time of json.loads, which was a third of a streamed completion's.
_JSON = TypeAdapter(Any)


def _parse(data: bytes) -> Any:
    try:
        return _JSON.validate_json(data)
    # Half a character, which servers send in two events, is no JSON to pydantic.
    except ValueError:
        return json.loads(data)


@dataclass(eq=False)
class RequestError(Exception):
    """A request without a completion.

    passing: another attempt may help. pause_s: what the server asks to wait. status: the HTTP status, if there was an
    answer; 408 if none came in time. ending: of a reply that has no text to score.
    """

    message: str
    _: KW_ONLY
    passing: bool = False
    pause_s: float = 0.0
    status: int | None = None
    ending: Ending = field(default_factory=Ending)


class Answer:
    """A completion that is being received. `feed` it what comes and `end` it; both raise RequestError."""

    def __init__(self) -> None:
        self.deltas = 0  # Events that brought something: about as many as tokens
        self.model: str | None = None  # The model that answered, as the server names it
        self.usage: dict[str, Any] = {}  # As the server says it
        self.ending = Ending()
        self._word = ""  # For how it ended, as the server says it
        self._tool_call = self._withheld = False
        self._rest = self._data = b""  # The line that has begun, and the data of the event that has begun
        self._whole: list[bytes] = []  # Lines that belong to no event: a whole body, whatever its content type says
        self._streamed = self._done = False
        self._texts: list[str] = []
        self._thoughts: list[str] = []

    def feed(self, part: bytes) -> None:
        """Take bytes of the body."""
        *lines, self._rest = (self._rest + part).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        """Take one line of a stream. An event may have its JSON on several; servers may leave out the blank one."""
        line = line.removeprefix(b"\xef\xbb\xbf")
        if line.startswith(b"data:"):
            self._streamed = True
            self._data = (self._data + b"\n" + line[5:]).strip()
            if self._data == b"[DONE]":
                self._done, self._data = True, b""
            # An event may go on in the next line.
            with contextlib.suppress(ValueError, RecursionError):
                event, self._data = _parse(self._data), b""
                if event is not None:
                    self._add(event)
        elif line.strip():
            self._whole.append(line)
        elif self._data:
            raise _malformed(f"no JSON: {self._data[:60].decode('utf-8', 'replace')}")

    def _add(self, event: Any) -> None:
        """Take one event, or a whole body."""
        try:
            error = event.get("error")
            if error is None and not event.get("choices") and not event.get("usage"):
                error = next((event[name] for name in ("detail", "message", "msg") if event.get(name)), None)
            if error is not None:
                raise RequestError(f"the server broke off: {_message(error)}", passing=True)
            self.model = event.get("model") or self.model
            self._count(event)
            for place, choice in enumerate(event.get("choices") or ()):
                # Only one was asked for.
                if str(place if choice.get("index") is None else choice["index"]) == "0":
                    self._count(choice)
                    said = choice.get("finish_reason") or choice.get("finishReason")
                    for reason in filter(None, (choice.get("native_finish_reason"), said)):
                        word = one_line(reason.get("type") if isinstance(reason, dict) else reason)
                        # A limit that is named is not taken back.
                        if word != "null" and (finish_word(word), finish_word(self._word)) != ("stop", "length"):
                            self._word = word
                    # The last event of some gateways has the whole message beside an empty delta.
                    repeated = "delta" in choice and self.deltas
                    part = choice.get("delta") or (None if repeated else choice.get("message"))
                    part = part or {"content": choice.get("text")}
                    if error := choice.get("error") or part.get("error"):
                        raise RequestError(f"the server broke off: {_message(error)}", passing=True)
                    if filters := choice.get("content_filter_results"):
                        found = filters.values() if isinstance(filters, dict) else ()
                        self._withheld |= any(isinstance(one, dict) and bool(one.get("filtered")) for one in found)
                    self._take(part)
        except (AttributeError, TypeError, ValueError) as error:
            raise _malformed(f"{type(error).__name__}: {error}") from None

    def _count(self, block: dict[str, Any]) -> None:
        if usage := block.get("usage"):
            self.usage |= {name: value for name, value in usage.items() if value is not None}

    def _take(self, message: dict[str, Any]) -> None:
        refusal = message.get("refusal")
        content, thought = _parts(message.get("content") or refusal or "")
        self._withheld |= bool(refusal)
        self._tool_call |= bool(message.get("tool_calls") or message.get("function_call"))
        if name := next(filter(message.get, _THOUGHTS), None):
            thought = "".join(_parts(message[name])) or thought
        self.deltas += bool(content or thought)
        self._texts.append(content)
        self._thoughts.append(thought)

    @property
    def tokens(self) -> Tokens:
        """What it counts, so far."""
        return read_usage(self.usage)

    def text(self) -> str:
        """Return what there is of the completion, thoughts in their tags."""
        text, thoughts = "".join(self._texts), "".join(self._thoughts)
        if thoughts:
            ended = says_something(text) or self.ending.finish_reason == "stop"
            text = f"<think>{thoughts}</think>{text}" if ended else f"<think>{thoughts}"
        # A character may come as two events with half of it each.
        if _SURROGATE.search(text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def end(self, max_tokens: int | None = None, context: int | None = None, *, own: bool = False) -> None:
        """Take the end of the body, and settle whether this is a completion (`check_reply`).

        own: of vLLM's server that was started for the run: no text is what the model wrote.
        """
        self._line(self._rest)
        self._line(b"")
        if not self._streamed:
            try:
                self._add(_parse(b"\n".join(self._whole) or b"{}"))
            except (ValueError, RecursionError) as error:
                raise _malformed(error) from None
            if not (self._texts or self._word):
                raise _malformed("no choices")
        # Some servers never say how a completion ended: one whose stream ended as agreed is whole, or cut off.
        elif not (self._word or self._done):
            raise RequestError("the completion was not finished (finish_reason None)", passing=True)
        text, thought = "".join(self._texts), "".join(self._thoughts)
        reply = Reply(text, thought, self._word, self._tool_call, self._withheld, self.tokens)
        self.ending = check_reply(reply, max_tokens, context)
        if self.ending.why and not (own and self.ending.outcome == "empty"):
            raise RequestError(self.ending.why, passing=True, ending=self.ending)


def _malformed(why: object) -> RequestError:
    return RequestError(f"malformed answer: {one_line(why)}", passing=True)


def _message(error: Any) -> str:
    return one_line(error.get("message", error) if isinstance(error, dict) else error)


def _parts(content: Any) -> tuple[str, str]:
    """Return (text, thoughts) of a message's content: text, or parts, some of them thoughts with parts of their own."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, dict | list):
        raise TypeError(f"content is {type(content).__name__}")
    texts = ["", ""]
    for part in [content] if isinstance(content, dict) else content:
        part = {"text": part} if isinstance(part, str) else part
        inner = (part.get(name) or "" for name in ("text", "content", "thinking", "summary"))
        thought = "thinking" in part or part.get("type") in ("thinking", "reasoning")
        texts[thought] += "".join("".join(_parts(text)) for text in inner)
    return texts[0], texts[1]


def refusal(status: int, headers: Any, body: str) -> RequestError:
    """Return the error in an HTTP answer whose status is not 200."""
    if 300 <= status < 400:
        where = one_line(headers.get("location", "?"))
        return RequestError(f"HTTP {status}: it redirects to {where}; --base-url takes that address", status=status)
    text = one_line(body)
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        found = json.loads(body)
        text = _message(found.get("error", found))
    blocked = re.search(r"(?i)content[_ ]filter|content management policy|responsibleai", body) is not None
    return RequestError(
        f"HTTP {status}: {text}",
        # Other client errors stay, and a used-up quota, which is a 429 too.
        passing=(status >= 500 or status in (408, 409, 425, 429)) and "insufficient_quota" not in body,
        pause_s=_retry_after(headers.get("retry-after", "")),
        status=status,
        ending=Ending("blocked" if blocked else None, None),
    )


def _retry_after(value: str) -> float:
    """Seconds of a Retry-After header: a number or a date; 0 if it says nothing that can be read."""
    with contextlib.suppress(ValueError):
        return min(LONGEST_WAIT_S, max(0.0, float(value)))
    with contextlib.suppress(ValueError, TypeError):
        return min(LONGEST_WAIT_S, max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time()))
    return 0.0


@dataclass(eq=False, slots=True)
class _Request:
    """One sample to ask for."""

    task: Task
    index: int
    seed: int | None = None  # As it was sent last; None if the server takes none
    attempts: int = 0  # Those that failed; a refusal for the rate is none
    failed_at: str = ""  # Where it failed last
    stop: tuple[str, ...] = ()  # The stop texts that are sent
    unstopped: bool = False  # Whether it is sent none: they may have cut all that it wrote
    answer: Answer = field(default_factory=Answer)


class ServerEngine(Engine):
    """Samples from servers, e.g. at http://127.0.0.1:8000/v1.

    concurrency: most requests in flight at each. retries: attempts after the first. body: further fields of every
    request. first: questions for the canaries. process: the only server's, if it was started for the run.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        sampling: Sampling,
        *,
        concurrency: int = 64,
        retries: int = 5,
        body: dict[str, Any] | None = None,
        first: Sequence[Task] = (),
        name: str = "openai",
        process: ServerProcess | None = None,
    ) -> None:
        self.name, self._process = name, process
        # vLLM's server, started for the run and sent tokens, is believed as the engine in this process.
        self._own = name == "vllm"
        self.servers, self.sampling, self.access, self._first = servers, sampling, servers[0].access, first[:1]
        self._concurrency, self._retries, self._body = concurrency, retries, body or {}
        self._stop = sampling.reading.stop  # What servers are sent of it
        self._contexts = {server.url: server.context() for server in servers}
        for server in self.servers:
            server.limit = server.most = concurrency
        self._come = deque[Sample]()  # What is not handed on yet
        self._in_flight: set[_Request] = set()
        self._thread: threading.Thread | None = None
        self._fatal: Exception | None = None
        self._completed = 0

    # -- before sampling -----------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return the servers' addresses, what they say of themselves, and what the canaries brought.

        Raises UserError if a server refuses them in a way that no sample can mend, or if another one has another model.
        """
        texts = apart(self._ask_first())
        models = {server.url: server.model for server in self.servers if server.model is not None}
        if not all(same_model(one, other) for one in models.values() for other in models.values()):
            names = "; ".join(f"{url} answers as {model}" for url, model in models.items())
            raise UserError(f"the servers have different models: {names}. Samples of one run must be of one")
        asked = self.servers[0].ref.served_name
        for model in set(models.values()) - {asked}:
            LOG.warning('"%s" answers, and "%s" was asked for', model, asked)
        draws = self.sampling.temperature > 0
        copies = any(len(found) > 1 == len(set(found)) for found in texts.values())
        if draws and copies:
            LOG.warning(
                "%d requests with different seeds got the same text: the samples of a question may be copies of one (a "
                "cache, or a seed that the server sets itself)", CANARIES,
            )  # fmt: skip
        if not draws and any(len(set(found)) > 1 for found in texts.values()):
            LOG.warning("the same request got different texts: the server's samples cannot be repeated")
        found = {
            "models": sorted(set(models.values())),
            "seed_matters": not copies if draws else None,
            "texts": {url: [text_hash(text) for text in of_server] for url, of_server in texts.items()},
        }
        addresses = {"base_urls": [server.url for server in self.servers]}
        about: dict[str, Any] = self._process.about if self._process is not None else addresses
        versions = about.get("versions", {}) | package_versions("aiohttp")
        if served := sorted({server.version for server in self.servers if server.version is not None}):
            versions["server"] = ", ".join(served)
        return {"hardware": None, **about, "versions": versions, **({"canaries": found} if texts else {})}

    @property
    def left_out(self) -> Set[str]:
        """Sampling parameters that a server does not take."""
        return set[str]().union(*(server.left_out for server in self.servers))

    async def _ask_first(self) -> dict[str, list[str]]:
        """Return url -> the texts of the canaries, by seed."""
        texts: dict[str, list[str]] = {}
        short = replace(self.sampling, max_tokens=min(CANARY_TOKENS, self.sampling.max_tokens))

        async def try_out(server: Server, task: Task) -> None:
            found = []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANARIES_S):
                    for index in range(CANARIES) if self.sampling.temperature > 0 else [0] * CANARIES:
                        try:
                            found.append((await self._ask(server, _Request(task, index), short)).text())
                        except RequestError as error:
                            if mistake := server.mistake(error.status, self.access.redact(str(error))):
                                raise UserError(mistake) from None
                            if not error.passing:
                                break
            # A model whose thoughts are not shown has no text here, which says nothing of its seeds.
            if any(map(str.strip, found)):
                texts[server.url] = found

        async with self._connect() as self._session:
            await asyncio.gather(*(try_out(server, task) for server in self._in() for task in self._first))
        return texts

    def prompt_tokens(self, task: Task) -> int | None:
        """Return how many tokens a server counts in a prompt; None if it does not say, or says what cannot be."""

        async def ask() -> int | None:
            async with self._connect() as self._session:
                return (await self._ask(self._in()[0], _Request(task, 0), self.sampling)).tokens.prompt

        with contextlib.suppress(RequestError):
            return apart(ask())
        return None

    # -- sampling ------------------------------------------------------------------------------------------------------

    def running(self) -> tuple[int, int]:
        """Return how many requests are in flight, and the tokens that have come of them."""
        requests = list(self._in_flight)
        # A usage may come with every event.
        counts = (whole_number(request.answer.usage.get("completion_tokens")) for request in requests)
        return len(requests), sum(n or request.answer.deltas for n, request in zip(counts, requests, strict=True))

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Sample]]:
        """Yield completions, and samples that failed, as they arrive. Raises EngineStopped once no server is left."""
        self._fatal, self._stop_at = None, None
        self._come.clear()
        # A daemon: a server that never answers does not keep the process from its end.
        self._thread = threading.Thread(target=self._run, args=(tasks,), name="openai", daemon=True)
        self._thread.start()
        while self._thread.is_alive():
            self._thread.join(TICK_S)
            # Until one has come, failures may be one mistake of the command's.
            yield [self._come.popleft() for _ in range(len(self._come) if self._completed else 0)]
        rest = [self._come.popleft() for _ in range(len(self._come))]
        errors, first = [sample.error or "" for sample in rest], all(task.missing for task in tasks)
        # Of a few questions too it is one mistake of the command's, if no sample of the run is there.
        if first and not self._completed and errors and all(map(names_max_tokens, errors)):
            self._fatal = self._fatal or self.servers[0].refuses_all(errors[0])
        yield rest
        if self._fatal is not None:
            raise self._fatal

    def close(self) -> None:
        """Drop the connections."""
        self.stop(0.0)
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _run(self, tasks: Sequence[Task]) -> None:
        try:
            asyncio.run(self._sample(tasks))
        except Exception as error:
            # Told to the caller.
            self._fatal = error

    # -- below, all of it under asyncio in one thread ------------------------------------------------------------------

    def _connect(self) -> aiohttp.ClientSession:
        connections = self._concurrency * len(self.servers) + 8
        return self.access.session(self.access.timeout_s, self.access.total_s, connections)

    def _in(self) -> list[Server]:
        """Return the servers that get requests."""
        return [server for server in self.servers if server.out is None]

    async def _sample(self, tasks: Sequence[Task]) -> None:
        """Ask until every sample is there or has failed, or the run is stopped."""
        self._waiting = deque(_Request(task, index) for task in tasks for index in task.missing)
        self._left = len(self._waiting)
        self._in_flight.clear()
        async with self._connect() as self._session:
            places = [(server, place) for server in self._in() for place in range(self._concurrency)]
            self._workers = asyncio.gather(*(self._work(server, place) for server, place in places))
            while not self._workers.done() and (self._stop_at is None or time.monotonic() < self._stop_at):
                await asyncio.wait([self._workers], timeout=TICK_S)
            self._workers.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._workers

    async def _work(self, server: Server, place: int) -> None:
        """Ask a server for one sample after another; while its limit is `place` or less, for none."""
        while self._left and self._stop_at is None and server.out is None:
            if place + 1 > server.limit or time.monotonic() < server.pause_until or not (request := self._next(server)):
                await asyncio.sleep(TICK_S)
                continue
            self._in_flight.add(request)
            await self._settle(server, request)
            self._in_flight.discard(request)

    def _next(self, server: Server) -> _Request | None:
        """Return what waits longest and did not fail at this server last, unless there is no other server."""
        alone = len(self._in()) == 1
        found = next((request for request in self._waiting if alone or request.failed_at != server.url), None)
        if found is not None:
            self._waiting.remove(found)
        return found

    async def _settle(self, server: Server, request: _Request) -> None:
        """Ask for one sample once: it is there, has failed, waits again, or the server is left out."""
        sent, reading = time.monotonic(), self.sampling.reading
        try:
            answer = await self._ask(server, request, self.sampling)
        except RequestError as error:
            if error.ending.outcome == "empty" and request.stop:
                # A stop text may have ended it before its first word, or in a thought that is not shown.
                request.unstopped = True
                self._waiting.appendleft(request)
                return
            # Once for all requests that were on their way.
            if error.status in OVERLOAD and error.passing and sent >= server.halved_at:
                server.limit, server.halved_at = max(1.0, server.limit / 2), time.monotonic()
            self._settle_failure(server, request, error)
            return
        server.limit, server.served = min(server.most, server.limit + 1 / server.limit), True
        server.failures.clear()
        if answer.ending.finish_reason == "stop" and request.stop:
            only_thought = answer.ending.outcome == "empty"
            if only_thought or reading.ends_in_thought(answer.text(), request.task.prompt.text):
                # A stop text ended it in its thought: from now on they are applied here only.
                self._stop = ()
                self._waiting.appendleft(request)
                return
        self._completed += 1
        self._hand_on(request)

    def _hand_on(self, request: _Request, error: RequestError | None = None) -> None:
        """Hand on a sample, completed or failed."""
        answer, task = request.answer, request.task
        text = self.access.redact(answer.text(), SECRET_IN_TEXT)
        sample = Sample(task.benchmark, task.question_id, request.index, text, seed=request.seed)
        sample.tokens, sample.prompt_tokens = answer.tokens.completion or None, answer.tokens.prompt
        if error is None:
            sample.settle(answer.ending, own=self._own)
        else:
            sample.settle(error.ending._replace(why=self.access.redact(str(error))))
            sample.finish_reason = sample.finish_reason if error.passing else "refused"
        self._come.append(sample)
        self._left -= 1
        if not self._left:
            self._workers.cancel()

    def _settle_failure(self, server: Server, request: _Request, error: RequestError) -> None:
        """Decide from an error: the sample is asked for again, or has failed, or the server is left out."""
        text, status, now = self.access.redact(str(error)), error.status, time.monotonic()
        # A refusal for the rate: the sample has not failed.
        if status == 429 and error.passing:
            self.retried += 1
            self._waiting.appendleft(request)
            server.pause_until = max(server.pause_until, now + max(error.pause_s, min(FIRST_PAUSE_S, LONGEST_PAUSE_S)))
            server.full_since = server.full_since or now
            if now - server.full_since > self.access.timeout_s:
                self._leave_out(server, f"it has accepted no request for {now - server.full_since:.0f} s (HTTP 429)")
            return
        # This says nothing of the sample: another server may answer it.
        # Connections to a started one break before it has ended.
        patience = ENDING_S if status is None and request.attempts >= self._retries else 0.0
        ended = self._process is not None and self._process.exit_report(patience)
        if ended or server.out is not None or (server.served and status in (401, 429)):
            self._waiting.appendleft(request)
            self._leave_out(server, f"it refuses further requests ({text})")
            return
        request.attempts += 1
        task = request.task
        of_question = not error.passing or error.ending.outcome == "blocked"
        server.failures.add((task.benchmark, task.question_id) if of_question else (request, request.attempts))
        if not server.served and (mistake := server.mistake(status, text)):
            self._halt(UserError(mistake))
        if error.passing and request.attempts <= self._retries:
            request.failed_at = server.url
            pause = error.pause_s
            # A server that answers others fails by chance, or in one of its replicas.
            if status in OVERLOAD or len(server.failures) > FEW_FAILED:
                pause = max(pause, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (request.attempts - 1)))
            self.retried += 1
            if pause:
                asyncio.get_running_loop().call_later(pause, self._waiting.appendleft, request)
            else:
                # At once: a worker that has nothing to ask for looks again only after a tick.
                self._waiting.appendleft(request)
        elif self._stop_at is None or not error.passing:
            self._hand_on(request, error)
        if len(server.failures) >= max(ALL_FAILED, self._concurrency):
            if not server.served and not error.passing:
                self._halt(server.refuses_all(text))
            else:
                self._leave_out(server, f"{len(server.failures)} requests in a row failed ({text})")

    def _halt(self, error: Exception) -> None:
        """Stop by itself; the first reason counts."""
        if self._fatal is None:
            self._fatal = error
            self.stop()

    def _leave_out(self, server: Server, why: str) -> None:
        """Give a server no more requests; what is in flight there may still be answered."""
        if server.out is not None:
            return
        # Its connections break before it has ended.
        ended = self._process.exit_report(ENDING_S) if self._process is not None else ""
        server.out = why = ended or why
        LOG.warning("%s is left out: %s", server.url, why)
        if not self._in():
            reasons = "; ".join(f"{other.url}: {other.out}" for other in self.servers)
            self._halt(EngineStopped(f"no server is left: {reasons}"))

    # -- one request ---------------------------------------------------------------------------------------------------

    async def _ask(self, server: Server, request: _Request, s: Sampling) -> Answer:
        """Send one request, without the parameters that the server does not take, and read it. Raises RequestError."""
        task = request.task
        seed = sample_seed(s.seed, task.benchmark, task.question_id, request.index)
        while True:
            self.wasted += sum(filter(None, request.answer.tokens[:2]))
            answer = request.answer = Answer()
            request.stop = () if request.unstopped else self._stop
            sent = server.payload(task.prompt, s, seed, request.stop, self._body)
            request.seed = sent.get("seed")
            server.path = "completions" if "prompt" in sent else "chat/completions"
            url = f"{server.url}/{server.path}"
            try:
                async with self._session.post(url, json=sent, allow_redirects=False) as response:
                    status, headers = response.status, response.headers
                    if status == 200:
                        server.full_since = None
                        async for part in response.content.iter_any():
                            answer.feed(part)
                        break
                    text = self.access.redact((await response.read())[:100_000].decode("utf-8", "replace"))
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                why = f"{type(error).__name__}: {error}"
                if isinstance(error, aiohttp.ServerTimeoutError):
                    why = f"nothing new within {self.access.timeout_s:g} s (--timeout)"
                elif isinstance(error, TimeoutError):
                    why = f"not finished within {self.access.total_s:g} s (60 times --timeout)"
                late = 408 if isinstance(error, TimeoutError) else None
                raise RequestError(one_line(why), passing=True, status=late) from None
            if status in (401, 403, 404, 429) or not server.learn(sent, text):
                raise refusal(status, headers, text)
        if self._own:
            # A stop text may have left nothing: without one it is asked again.
            answer.end(own=not request.stop)
        else:
            answer.end(s.max_tokens, self._contexts[server.url])
        model = one_line(answer.model or "")
        if model and server.model is not None and not same_model(model, server.model):
            raise RequestError(f'another model answers: "{model}", no longer "{server.model}"', passing=True)
        # The longer name says more: a date.
        server.model = max(model, server.model or "", key=len) or None
        return answer
