"""The openai engine against a server that misbehaves on purpose (a healthy one is real vLLM: test_vllm_engine.py)."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import evalkit.engines.openai as module
from evalkit.engines.base import EngineStopped, Generation, Prompt, Sampling, Task, sample_seed
from evalkit.engines.model_ref import resolve_model
from evalkit.engines.openai import OpenAIEngine
from rewards.support.errors import UserError

Reply = tuple[int, dict[str, str], Any]
Behaviour = Callable[[dict[str, Any], int], Reply]


def completion(payload: dict[str, Any]) -> Reply:
    choice = {"message": {"content": f"seed {payload['seed']}"}, "finish_reason": "stop"}
    return 200, {}, {"choices": [choice], "usage": {"completion_tokens": 7}}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Behaviour], tuple[str, list[dict[str, Any]]]]]:
    """Start a server: serve(behaviour) -> (URL, requests). behaviour(payload, times this seed was asked) -> reply."""
    servers: list[ThreadingHTTPServer] = []
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.05)

    def start(behaviour: Behaviour) -> tuple[str, list[dict[str, Any]]]:
        seen: list[dict[str, Any]] = []
        times: Counter[int] = Counter()
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def _send(self, reply: Reply) -> None:
                status, headers, body = reply
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    self._send((200, {}, {"data": [{"id": "m", "owned_by": "vllm"}]}))
                else:
                    self._send((404, {}, {}))

            def do_POST(self) -> None:
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    seen.append({**payload, "authorization": self.headers.get("Authorization")})
                    times[payload["seed"]] += 1
                reply = behaviour(payload, times[payload["seed"]])
                if reply[0] == 0:  # cut the connection
                    self.connection.close()
                    return
                self._send(reply)

            def log_message(self, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/v1", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def tasks(questions: int, samples: int) -> list[Task]:
    return [
        Task("b", f"q{i}", Prompt([{"role": "user", "content": f"question {i}"}]), tuple(range(samples)))
        for i in range(questions)
    ]


def engine(url: str, **options: Any) -> OpenAIEngine:
    sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=33, n=4, seed=5)
    return OpenAIEngine(resolve_model("m", served=True), sampling, base_url=url, concurrency=4, **options)


def collect(source: OpenAIEngine, wanted: list[Task]) -> list[Generation]:
    return [g for lot in source.generate(wanted) for g in lot]


def test_one_request_a_sample_with_its_seed(serve, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    url, seen = serve(lambda payload, _: completion(payload))
    found = collect(engine(url), tasks(3, 4))
    assert len(found) == 12
    for g in found:
        assert g.seed == sample_seed(5, "b", g.question_id, g.sample_index)
        assert (g.text, g.tokens, g.finish_reason) == (f"seed {g.seed}", 7, "stop")
    assert {request["authorization"] for request in seen} == {"Bearer sk-test"}
    for request in seen:
        sent = {key: request[key] for key in ("model", "temperature", "top_p", "max_tokens")}
        assert sent == {"model": "m", "temperature": 0.7, "top_p": 0.9, "max_tokens": 33}
        # A vLLM server would otherwise fill in top_k and penalties from the model's generation_config.
        assert (request["top_k"], request["min_p"], request["repetition_penalty"]) == (-1, 0.0, 1.0)
    assert "sk-test" not in json.dumps(engine(url).describe())


@pytest.mark.parametrize(
    "fault",
    [
        (429, {"Retry-After": "0.01"}, {"error": {"message": "slow down"}}),
        (503, {}, b"<html>busy</html>"),
        (500, {}, {"error": "oops"}),
        (0, {}, b""),
        (200, {}, b"not json"),
        (200, {}, {"choices": []}),
    ],
)
def test_faults_that_pass_are_tried_again(serve, fault: Reply) -> None:  # type: ignore[no-untyped-def]
    url, seen = serve(lambda payload, times: fault if times < 3 else completion(payload))
    found = collect(engine(url), tasks(2, 2))
    assert len({(g.question_id, g.sample_index) for g in found}) == len(found) == 4
    assert len(seen) == 12


def test_a_server_that_goes_away(serve) -> None:  # type: ignore[no-untyped-def]
    """What came before is handed on first; then one sentence."""
    lock, answered = threading.Lock(), [0]

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        with lock:
            answered[0] += 1
            return completion(payload) if answered[0] <= 10 else (0, {}, b"")

    url, _ = serve(behaviour)
    found: list[Generation] = []
    with pytest.raises(EngineStopped, match=r"gave no answer in 6 attempts \(\w+"):
        found.extend(g for lot in engine(url).generate(tasks(10, 4)) for g in lot)
    assert len(found) == 10


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            (401, {}, {"error": {"message": "bad key"}}),
            r"refuses a request without a key; set OPENAI_API_KEY \(HTTP 401",
        ),
        ((400, {}, {"error": {"message": "context is 100 tokens"}}), r"HTTP 400\): context is 100 tokens"),
        ((404, {}, {"message": "nothing here"}), r"chat/completions is not there \(HTTP 404\): nothing here"),
    ],
)
def test_faults_that_stay_are_told_at_once(serve, monkeypatch, reply: Reply, message: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    url, seen = serve(lambda payload, times: reply)
    with pytest.raises(UserError, match=message):
        collect(engine(url), tasks(50, 4))
    assert len(seen) <= 12, "the rest is not asked for"


def test_thoughts_are_kept_apart(serve) -> None:  # type: ignore[no-untyped-def]
    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        message = {"content": "<answer>4</answer>", "reasoning_content": "is it <answer>5</answer>?"}
        return 200, {}, {"choices": [{"message": message, "finish_reason": "length"}]}

    (found,) = collect(engine(serve(behaviour)[0]), tasks(1, 1))
    assert found.text == "<think>is it <answer>5</answer>?</think><answer>4</answer>"
    assert (found.tokens, found.finish_reason) == (None, "length")


def test_addresses() -> None:
    for url, message in (
        ("http://user:secret@127.0.0.1:1/v1", "must hold no credentials"),
        ("127.0.0.1:8000", "must start with http"),
        ("http://127.0.0.1:1/v1", "no server answers at"),
    ):
        with pytest.raises(UserError, match=message) as fault:
            engine(url)
        assert "secret" not in str(fault.value)
