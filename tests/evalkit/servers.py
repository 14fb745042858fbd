"""A real HTTP server with OpenAI's chat completions, in this process, that misbehaves as a test asks it to.

Nothing here waits for a clock: a reply is held until the server closes, or a test's own code runs between its pieces.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from gtpo.evalkit.engines.base import Prompt, Sampling, Task
from gtpo.evalkit.engines.model_ref import resolve_model
from gtpo.evalkit.engines.server import CANARY_TOKENS, ServerEngine
from gtpo.evalkit.engines.server_request import Access, find_servers
from gtpo.runs.eval_folder import Sample


class Reply(NamedTuple):
    """What the server sends, and how badly."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = MappingProxyType({})
    send: float = 1.0
    """Share of the body that is sent before the connection is reset."""
    pieces: Iterable[bytes] | None = None
    """Sent one by one in place of the body, without a length: the connection ends with them."""
    hold: Callable[[], object] = lambda: None
    """Called before the first byte; it may block."""


Behaviour = Callable[[dict[str, Any], int], Reply]
"""(the request, how often this seed was asked for) -> reply"""


def text_of(seed: int) -> str:
    return f"<reasoning>seed {seed}</reasoning>\n<answer>{seed % 50}</answer>"


def completion(payload: dict[str, Any], **message: Any) -> Reply:
    choice = {"message": {"content": text_of(payload["seed"]), **message}, "finish_reason": "stop"}
    return Reply(body={"choices": [choice], "usage": {"completion_tokens": 7}})


def event(document: Any) -> bytes:
    """An event of a stream."""
    return f"data: {json.dumps(document)}\n\n".encode()


def delta(content: Any, finish: str | None = None, **beside: Any) -> bytes:
    """The event of one piece of a completion."""
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return event({"choices": [choice], **beside})


DONE = b"data: [DONE]\n\n"
USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 7}})


def stream(payload: dict[str, Any], *, finish: str | None = "stop", **beside: Any) -> list[bytes]:
    """The events of a whole completion, eight characters each."""
    text = text_of(payload["seed"])
    pieces = [delta(text[i : i + 8], **beside) for i in range(0, len(text), 8)]
    return [*pieces, delta("", finish, **beside), USAGE, DONE]


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that has what it wants may reset its connection; this process's stderr is the command's in tests.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Server:
    """`behaviour` decides the replies; `requests` and `served` (seeds whose whole answer was sent) are its log."""

    def __init__(self, behaviour: Behaviour | None = None, model: str = "m") -> None:
        self.behaviour: Behaviour = behaviour or (lambda payload, times: completion(payload))
        self.canary: Behaviour = lambda payload, times: completion(payload)
        """Replies to what is asked before a session; it is not in the log."""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.served: set[int] = set()
        self.times: Counter[int] = Counter()
        self.models: Reply | Callable[[], Reply] = Reply(
            body={"data": [{"id": model, "owned_by": "vllm", "max_model_len": 4096}]}
        )
        self.rendered: str | None = None
        """What vLLM's /tokenize and /detokenize say of every prompt; None: they are not there."""
        self.closing = threading.Event()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                models = outer.models() if callable(outer.models) else outer.models
                self._answer(models if self.path == "/v1/models" else Reply(404, {}))

            def do_POST(self) -> None:
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path.endswith("tokenize"):
                    body = {"tokens": [1, 2, 3], "prompt": outer.rendered}
                    self._answer(Reply(404, {}) if outer.rendered is None else Reply(body=body))
                    return
                if payload.get("max_tokens", payload.get("max_completion_tokens")) == CANARY_TOKENS:
                    self._answer(outer.canary(payload, 1))
                    return
                seed = payload.get("seed")
                with outer._lock:
                    outer.requests.append({**payload, "authorization": self.headers.get("Authorization")})
                    outer.headers.append(dict(self.headers))
                    outer.times[seed] += 1
                    times = outer.times[seed]
                    reply = outer.behaviour(payload, times)
                whole = isinstance(reply.body, dict) and bool(reply.body.get("choices")) and reply.status == 200
                if self._answer(reply) and whole:
                    with outer._lock:
                        outer.served.add(seed)

            def _answer(self, reply: Reply) -> bool:
                reply.hold()
                if outer.closing.is_set():
                    self.close_connection = True
                    return False
                body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                framing = {"Content-Length": str(len(body))} if reply.pieces is None else {"Connection": "close"}
                self.close_connection = reply.send < 1 or reply.pieces is not None
                try:
                    self.send_response(reply.status)
                    for name, value in {**reply.headers, **framing}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    for piece in reply.pieces or [body[: int(len(body) * reply.send)]]:
                        self.wfile.write(piece)
                        self.wfile.flush()
                except OSError:
                    self.close_connection = True
                    return False
                return reply.send == 1

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = _Listener(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        """Answer nobody any more."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


class Clock:
    """Time for asyncio's timeouts that a test lets pass, beside that which goes by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.skipped = 0.0

        class Loop(asyncio.SelectorEventLoop):
            def time(loop) -> float:
                return super().time() + self.skipped

        monkeypatch.setattr(asyncio.events, "new_event_loop", Loop)

    def skip(self, seconds: float) -> None:
        self.skipped += seconds


def tasks(questions: int, samples: int) -> list[Task]:
    return [
        Task("b", f"q{i}", Prompt([{"role": "user", "content": f"question {i}"}]), tuple(range(samples)))
        for i in range(questions)
    ]


def make(*servers: Server, sampling: dict[str, Any] | None = None, **options: Any) -> ServerEngine:
    """The engine that asks these servers, an hour for anything new; `total_s`: in any case."""
    settings = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 33, "n": 4, "seed": 5, **(sampling or {})}
    asked = Access("OPENAI_API_KEY", (), 3600.0)
    asked.total_s = options.pop("total_s", asked.total_s)
    found = find_servers(resolve_model("m", served=True), [server.url for server in servers], asked)
    return ServerEngine(found, Sampling(**settings), **{"concurrency": 4, **options})


def collect(source: ServerEngine, wanted: list[Task]) -> dict[int | None, Sample]:
    """Seed -> what came of it."""
    found = [g for lot in source.generate(wanted) for g in lot]
    assert len({g.seed for g in found}) == len(found), "no sample comes twice"
    return {g.seed: g for g in found}
