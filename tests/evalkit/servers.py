"""A real HTTP server with OpenAI's chat completions that misbehaves as a test asks it to."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

from gtpo.evalkit.engines import canaries


class Reply(NamedTuple):
    """What the server sends, and how badly."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = MappingProxyType({})
    hang_before_s: float = 0.0
    """Silence before the first byte."""
    send: float = 1.0
    """Share of the body that is sent before the connection is reset, or before `hang_inside_s`."""
    hang_inside_s: float = 0.0


Behaviour = Callable[[dict[str, Any], int], Reply]
"""(the request, how often this seed was asked for) -> reply"""


def text_of(seed: int) -> str:
    return f"<reasoning>seed {seed}</reasoning>\n<answer>{seed % 50}</answer>"


def completion(payload: dict[str, Any], **message: Any) -> Reply:
    choice = {"message": {"content": text_of(payload["seed"]), **message}, "finish_reason": "stop"}
    return Reply(body={"choices": [choice], "usage": {"completion_tokens": 7}})


class Server:
    """`behaviour` decides the replies; `requests` and `served` (seeds whose whole answer was sent) are its log."""

    def __init__(self, behaviour: Behaviour | None = None, model: str = "m") -> None:
        self.behaviour: Behaviour = behaviour or (lambda payload, times: completion(payload))
        self.canary: Behaviour = lambda payload, times: completion(payload)
        """Replies to what is asked before a session; it is not in the log."""
        self.requests: list[dict[str, Any]] = []
        self.served: set[int] = set()
        self.times: Counter[int] = Counter()
        self.models: Reply = Reply(body={"data": [{"id": model, "owned_by": "vllm", "max_model_len": 4096}]})
        self.rendered: str | None = None
        """What vLLM's /tokenize and /detokenize say of every prompt; None: they are not there."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(outer.models if self.path == "/v1/models" else Reply(404, {}))

            def do_POST(self) -> None:
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path.endswith("tokenize"):
                    body = {"tokens": [1, 2, 3], "prompt": outer.rendered}
                    self._answer(Reply(404, {}) if outer.rendered is None else Reply(body=body))
                    return
                if payload.get("max_tokens", payload.get("max_completion_tokens")) == canaries.TOKENS:
                    self._answer(outer.canary(payload, 1))
                    return
                with outer._lock:
                    outer.requests.append({**payload, "authorization": self.headers.get("Authorization")})
                    outer.times[payload["seed"]] += 1
                    times = outer.times[payload["seed"]]
                    reply = outer.behaviour(payload, times)
                whole = isinstance(reply.body, dict) and bool(reply.body.get("choices")) and reply.status == 200
                if self._answer(reply) and whole:
                    with outer._lock:
                        outer.served.add(payload["seed"])

            def _answer(self, reply: Reply) -> bool:
                body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                if outer._closing.wait(reply.hang_before_s):
                    return False
                try:
                    self.send_response(reply.status)
                    for name, value in {**reply.headers, "Content-Length": str(len(body))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body[: int(len(body) * reply.send)])
                    self.wfile.flush()
                    if reply.send < 1:
                        outer._closing.wait(reply.hang_inside_s)
                        self.close_connection = True
                        return False
                except OSError:
                    self.close_connection = True
                    return False
                return True

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        """Answer nobody any more."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until something is true of the log."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (len(self.requests), len(self.served))
            time.sleep(0.02)
