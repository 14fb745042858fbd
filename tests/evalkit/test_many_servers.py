"""Several servers behind the openai engine: whichever fails, and however, the samples are those of one healthy server
(real vLLM servers: test_vllm_many.py)."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from servers import Reply, Server, collect, completion, make, tasks, text_of

import gtpo.evalkit.engines.server as engine_module
from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import EngineStopped, Task, sample_seed
from gtpo.evalkit.engines.server_request import server_urls
from gtpo.runs.eval_folder import Sample

GONE = Reply(503, {"error": "down"})


def undisturbed(wanted: list[Task]) -> dict[int | None, Sample]:
    """What one healthy server gives."""
    asked = [(task.benchmark, task.question_id, index) for task in wanted for index in task.missing]
    seeds = {sample_seed(5, *key): key for key in asked}
    known: dict[str, Any] = {"tokens": 7, "finish_reason": "stop", "outcome": "complete"}
    return {seed: Sample(*key, text_of(seed), seed=seed, **known) for seed, key in seeds.items()}


def held_until(server: Server, event: threading.Event) -> None:
    """Answer nothing before the event."""
    server.behaviour = lambda payload, times: completion(payload)._replace(hold=event.wait)


FAULTS = {
    "503 and no answer at all": (GONE, GONE),
    "the key refused": (Reply(401, {"error": "no"}), None),
    "reset, then gone": (Reply(body=b"x" * 100, send=0.0), GONE),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_server_that_fails_is_left_out(serve, caplog, name: str) -> None:  # type: ignore[no-untyped-def]
    """No sample fails or goes back to where it failed, though every one that the server had is lost to it."""
    fault, models = FAULTS[name]
    wanted, failed = tasks(30, 4), threading.Event()

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        if len(broken.requests) <= 6:
            return completion(payload)
        broken.models = models or broken.models
        failed.set()
        return fault

    broken, healthy = serve(behaviour), serve()
    held_until(healthy, failed)
    with caplog.at_level("WARNING", logger="gtpo"):
        found = collect(make(broken, healthy, retries=1), wanted)
    assert found == undisturbed(wanted)
    assert "left out" in caplog.text
    assert broken.url in caplog.text


def test_a_server_that_accepts_nothing_holds_nothing_up(serve) -> None:  # type: ignore[no-untyped-def]
    """What one refuses for its rate is done by the other, before the pauses end."""
    server, other = serve(lambda payload, times: Reply(429, {}, {"Retry-After": "100"})), serve()
    wanted = tasks(8, 4)
    assert collect(make(server, other), wanted) == undisturbed(wanted)


def test_a_busy_server_that_was_waited_for(serve, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """How long it refuses counts from its first refusal, not from when the engine was made."""
    server = serve(lambda payload, times: Reply(429, {}) if times == 1 else completion(payload))
    source, wanted = make(server), tasks(4, 4)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * source.access.timeout_s)
    monkeypatch.setattr(engine_module, "time", later)
    assert collect(source, wanted) == undisturbed(wanted)


def test_a_sample_that_fails_everywhere_fails_alone(serve) -> None:  # type: ignore[no-untyped-def]
    wanted = tasks(10, 4)
    seed = next(iter(undisturbed(wanted)))

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        return Reply(500, {"error": "too odd"}) if payload["seed"] == seed else completion(payload)

    servers = [serve(behaviour), serve(behaviour), serve(behaviour)]
    found = collect(make(*servers, retries=2), wanted)
    assert {s for s, g in found.items() if g.error is not None} == {seed}
    assert sum(server.times[seed] for server in servers) == 3, "an attempt at each"


def test_the_last_server_ends_the_run(serve) -> None:  # type: ignore[no-untyped-def]
    def breaks(server: Server) -> None:
        def behaviour(payload: dict[str, Any], times: int) -> Reply:
            if len(server.requests) <= 6:
                return completion(payload)
            server.models = GONE
            return GONE

        server.behaviour = behaviour

    servers = [serve(), serve()]
    for server in servers:
        breaks(server)
    found: list[Sample] = []
    with pytest.raises(EngineStopped) as stop:
        found.extend(g for lot in make(*servers, retries=1).generate(tasks(30, 4)) for g in lot)
    assert all(server.url in str(stop.value) for server in servers)
    last, first = sorted(servers, key=lambda server: str(stop.value).index(server.url))
    assert {g.error for g in found} <= {None, "HTTP 503: down"}
    done = {g.seed for g in found if g.error is None}
    assert last.served <= done <= last.served | first.served, "what the last one serves is handed on"
    # Of a server that is left out, up to three replies in flight are dropped: the other one is to answer these.
    assert len(first.served - done) < 4


@pytest.mark.parametrize("seed", range(2))
def test_deaths_at_random_requests(serve, seed: int) -> None:  # type: ignore[no-untyped-def]
    """Two of three servers are down for some requests, dozens of times in all: the samples of one healthy server."""
    rng, wanted = random.Random(seed), tasks(40, 4)
    servers = [serve() for _ in range(3)]

    def dies(server: Server) -> None:
        healthy, down = server.models, [0]

        def behaviour(payload: dict[str, Any], times: int) -> Reply:
            down[0] = rng.randint(1, 8) if rng.random() < 0.05 else down[0] - 1
            if down[0] < 0:
                return completion(payload)
            return rng.choice([GONE, Reply(body=b"x" * 100, send=0.0), completion(payload)._replace(send=0.3)])

        def models() -> Reply:
            down[0] -= 1
            return healthy if down[0] < 0 else GONE

        server.behaviour, server.models = behaviour, models

    for server in servers[1:]:
        dies(server)
    assert collect(make(*servers, retries=8), wanted) == undisturbed(wanted)


def test_a_server_that_is_down_at_the_start_is_left_out(serve, caplog, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    down, healthy = serve(), serve()
    down.close()
    with caplog.at_level("WARNING", logger="gtpo"):
        assert len(collect(make(down, healthy), tasks(5, 4))) == 20
    assert f"no server answers at {down.url} (connection refused)" in caplog.text
    assert "left out" in caplog.text
    with pytest.raises(UserError, match=f"no server answers at {down.url}"):
        make(down)
    for name in ("http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, down.url if name == "http_proxy" else "")
    with pytest.raises(UserError, match=r"connection refused by the proxy 127\.0\.0\.1:\d+; no_proxy names"):
        make(healthy)
    monkeypatch.undo()
    make(healthy, serve(model="other"))
    assert 'does not list "m". It lists: other. It is asked all the same' in caplog.text


def test_every_way_to_name_servers(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    assert server_urls(["http://a/v1", "https://b:1/v1/,http://c/v1, http://d/v1,"], "K") == [
        "http://a/v1", "https://b:1/v1", "http://c/v1", "http://d/v1",
    ]  # fmt: skip
    monkeypatch.setenv("OPENAI_BASE_URL", "http://e/v1,http://f/v1")
    assert server_urls([], "K") == ["http://e/v1", "http://f/v1"]
