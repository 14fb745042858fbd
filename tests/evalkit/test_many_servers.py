"""Several servers behind the openai engine: whichever fails, and however, the samples are those of one healthy server
(real vLLM servers: test_vllm_many.py)."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import Behaviour, Reply, Server, completion
from test_misbehaving_servers import EVAL, QUESTIONS, SAMPLES, rows

import gtpo.evalkit.engines.openai_dispatch as dispatch
from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import EngineStopped, Generation, Prompt, Sampling, Task
from gtpo.evalkit.engines.model_ref import resolve_model
from gtpo.evalkit.engines.openai import OpenAIEngine
from gtpo.evalkit.engines.openai_address import access, server_urls

GONE = Reply(503, {"error": "down"})


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(dispatch, "REJOIN_S", 0.2)
    monkeypatch.setattr(dispatch, "LONGEST_REJOIN_S", 0.4)


def slow(seconds: float = 0.01) -> Behaviour:
    return lambda payload, times: completion(payload)._replace(hang_before_s=seconds)


def tasks(questions: int, samples: int) -> list[Task]:
    return [
        Task("b", f"q{i}", Prompt([{"role": "user", "content": f"question {i}"}]), tuple(range(samples)))
        for i in range(questions)
    ]


def make(*servers: Server, **options: Any) -> OpenAIEngine:
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=8, n=4, seed=0)
    urls = [server.url for server in servers]
    asked = access("OPENAI_API_KEY", (), options.pop("timeout_s", 600.0))
    return OpenAIEngine(resolve_model("m", served=True), sampling, urls, asked, **{"concurrency": 4, **options})


def collect(source: OpenAIEngine, wanted: list[Task]) -> dict[int | None, Generation]:
    found = [g for lot in source.generate(wanted) for g in lot]
    assert len({g.seed for g in found}) == len(found), "no sample comes twice"
    return {g.seed: g for g in found}


def undisturbed(serve: Callable[..., Server], wanted: list[Task]) -> dict[int | None, Generation]:
    return collect(make(serve()), wanted)


def asked(server: Server) -> dict[str, int]:
    """Question -> requests that this server got."""
    found: dict[str, int] = defaultdict(int)
    for request in server.requests:
        found[request["messages"][0]["content"]] += 1
    return dict(found)


def test_questions_are_dealt_and_stay_on_a_server(serve) -> None:  # type: ignore[no-untyped-def]
    servers = [serve(slow()) for _ in range(3)]
    source, wanted = make(*servers), tasks(30, 5)
    assert collect(source, wanted) == undisturbed(serve, wanted)
    questions = [set(asked(server)) for server in servers]
    assert all(questions), "each server gets some"
    assert 30 <= sum(map(len, questions)) <= 36, "and questions are split at the end alone"
    assert sum(len(server.requests) for server in servers) == 150, "no sample is asked for twice"
    shown = source.throughput()
    assert [t.name for t in shown] == [server.url for server in servers]
    assert [t.samples for t in shown] == [len(server.requests) for server in servers]
    assert all(t.tokens == 7 * t.samples for t in shown)


def test_a_faster_server_gets_more(serve) -> None:  # type: ignore[no-untyped-def]
    quick, lame = serve(), serve(slow(0.2))
    collect(make(quick, lame), tasks(40, 4))
    assert len(quick.requests) > 2 * len(lame.requests)


FAULTS = {
    "503 and no answer at all": (GONE, GONE),
    "500 for completions alone": (Reply(500, {"error": "CUDA error"}), None),
    "malformed completions": (Reply(body={"choices": []}), None),
    "the key refused": (Reply(401, {"error": "no"}), None),
    "reset, then gone": (Reply(body=b"x" * 100, send=0.0), GONE),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_server_that_fails_is_left_out(serve, caplog, name: str) -> None:  # type: ignore[no-untyped-def]
    """No sample fails, though every one that the server had is lost to it."""
    fault, models = FAULTS[name]
    wanted = tasks(30, 4)

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        if len(broken.requests) <= 6:
            return completion(payload)
        broken.models = models or broken.models
        return fault

    broken, healthy = serve(behaviour), serve(slow())
    with caplog.at_level("WARNING", logger="gtpo"):
        found = collect(make(broken, healthy, retries=1), wanted)
    assert found == undisturbed(serve, wanted)
    assert "left out, and asked again later" in caplog.text
    assert broken.url in caplog.text


def test_a_sample_does_not_go_back_to_where_it_failed(serve) -> None:  # type: ignore[no-untyped-def]
    """However idle the server that failed, and however busy the other."""
    wanted = tasks(30, 4)

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        return completion(payload) if len(bad.requests) <= 6 else FAULTS["malformed completions"][0]

    bad, busy = serve(behaviour), serve(slow(0.05))
    found = collect(make(bad, busy, retries=1), wanted)
    assert not [g for g in found.values() if g.error is not None]
    assert len(found) == 120


def test_a_server_that_comes_back_is_used_again(serve) -> None:  # type: ignore[no-untyped-def]
    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        if 6 < len(first.requests) <= 20:
            first.models = GONE
            threading.Timer(0.5, lambda: setattr(first, "models", healthy)).start()
            return GONE
        return completion(payload)

    first, second = serve(behaviour), serve(slow(0.1))
    healthy, wanted = first.models, tasks(40, 4)
    assert collect(make(first, second, retries=1), wanted) == undisturbed(serve, wanted)
    assert len(first.requests) > 30


@pytest.mark.parametrize("lists", [True, False])
def test_a_server_that_hangs_is_not_waited_for(serve, lists: bool) -> None:  # type: ignore[no-untyped-def]
    """Silent to completions, or to everything: what it has is asked of the other, long before its timeout."""

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        if len(hung.requests) <= 6:
            return completion(payload)
        if not lists:
            hung.models = hung.models._replace(hang_before_s=60.0)
        return completion(payload)._replace(hang_before_s=60.0)

    hung, healthy = serve(behaviour), serve(slow())
    wanted, began = tasks(20, 4), time.monotonic()
    assert collect(make(hung, healthy, timeout_s=60.0), wanted) == undisturbed(serve, wanted)
    assert time.monotonic() - began < 20


def test_slow_servers_are_kept(serve) -> None:  # type: ignore[no-untyped-def]
    patient, other = serve(slow(1.0)), serve(slow(1.0))
    collect(make(patient, other), tasks(4, 4))
    assert len(patient.requests) + len(other.requests) == 16, "nothing was asked twice"
    assert min(len(patient.requests), len(other.requests)) >= 4


def test_a_sample_that_fails_everywhere_fails_alone(serve) -> None:  # type: ignore[no-untyped-def]
    wanted = tasks(10, 4)
    seed = next(iter(undisturbed(serve, wanted)))

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        return Reply(500, {"error": "too odd"}) if payload["seed"] == seed else completion(payload)

    servers = [serve(behaviour), serve(behaviour), serve(behaviour)]
    found = collect(make(*servers, retries=2), wanted)
    assert {s for s, g in found.items() if g.error is not None} == {seed}
    assert sum(server.times[seed] for server in servers) == 12, "three attempts, and three with each move"


def test_the_last_server_ends_the_run(serve) -> None:  # type: ignore[no-untyped-def]
    def behaviour(server: Server) -> Behaviour:
        def reply(payload: dict[str, Any], times: int) -> Reply:
            if len(server.requests) <= 6:
                return completion(payload)
            server.models = GONE
            return GONE

        return reply

    servers = [serve(), serve()]
    for server in servers:
        server.behaviour = behaviour(server)
    found: list[Generation] = []
    with pytest.raises(EngineStopped) as stop:
        found.extend(g for lot in make(*servers, retries=1).generate(tasks(30, 4)) for g in lot)
    assert all(server.url in str(stop.value) for server in servers)
    last, first = sorted(servers, key=lambda server: str(stop.value).index(server.url))
    assert all(g.error is None for g in found)
    assert last.served <= {g.seed for g in found} <= last.served | first.served, "what the last one serves is handed on"
    # Of a server that is left out, up to three replies in flight are dropped: the other one is to answer these.
    assert len(first.served - {g.seed for g in found}) < 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_deaths_at_random_moments(serve, seed: int) -> None:  # type: ignore[no-untyped-def]
    """Two of three servers are down now and then, dozens of times in all: the samples of one healthy server."""
    rng, wanted = random.Random(seed), tasks(60, 4)
    servers = [serve(slow(0.02)) for _ in range(3)]
    healthy, stop = servers[0].models, threading.Event()

    def torment() -> None:
        while not stop.wait(rng.uniform(0.02, 0.2)):
            victim = rng.choice(servers[1:])
            victim.models, before = GONE, victim.behaviour
            victim.behaviour = lambda payload, times: rng.choice(
                [GONE, Reply(body=b"x" * 100, send=0.0), completion(payload)._replace(send=0.3)]
            )
            stop.wait(rng.uniform(0.05, 0.3))
            victim.models, victim.behaviour = healthy, before

    thread = threading.Thread(target=torment)
    thread.start()
    try:
        assert collect(make(*servers, retries=8), wanted) == undisturbed(serve, wanted)
    finally:
        stop.set()
        thread.join()


def test_a_server_that_is_down_at_the_start_is_left_out(serve, caplog) -> None:  # type: ignore[no-untyped-def]
    down, healthy = serve(), serve()
    down.close()
    with caplog.at_level("WARNING", logger="gtpo"):
        assert len(collect(make(down, healthy), tasks(5, 4))) == 20
    assert f"no server answers at {down.url} (ClientConnectorError" in caplog.text
    assert "left out, and asked again later" in caplog.text
    with pytest.raises(UserError, match=f"no server answers at {down.url}"):
        make(down)
    with pytest.raises(UserError, match='does not serve "m"'):
        make(healthy, serve(model="other"))


MISTAKES = [
    ("http://a/v1,htp://b/v1", "--base-url must start with http:// or https://.*; found htp://b/v1$"),
    ("servers.txt", "found servers.txt, and there is no file of that name"),
    ("http://a/v1,http://a/v1/", r"--base-url: http://a/v1 is given twice \(before: --base-url\)"),
    ("http://a:80x0/v1", "is no URL"),
    ("http://u:secret@a/v1", "must hold no credentials"),
    ("u:secret@a:80/v1", "must start with http"),
    ("list.txt", r"list.txt:3 must start with http:// .*; found gpu2:8000/v1"),
    ("empty.txt", "the file lists no server"),
]


@pytest.mark.parametrize(("value", "message"), MISTAKES)
def test_a_list_with_a_mistake(tmp_path: Path, monkeypatch, value: str, message: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text("# ours\nhttp://gpu1:8000/v1  # the first\ngpu2:8000/v1\n")
    (tmp_path / "empty.txt").write_text("# none\n\n")
    with pytest.raises(UserError, match=message) as error:
        server_urls(resolve_model("m", served=True), [value], "KEY")
    assert "secret" not in str(error.value)


def test_every_way_to_name_servers(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    ref = resolve_model("m", served=True)
    (tmp_path / "list.txt").write_text("\n# two\nhttp://a/v1\nhttps://b:1/v1/  # b\n")
    assert server_urls(ref, ["list.txt", "http://c/v1, http://d/v1"], "K") == [
        "http://a/v1", "https://b:1/v1", "http://c/v1", "http://d/v1",
    ]  # fmt: skip
    monkeypatch.setenv("OPENAI_BASE_URL", "http://e/v1,http://f/v1")
    assert server_urls(ref, [], "K") == ["http://e/v1", "http://f/v1"]


def test_a_run_over_two_servers(serve, tmp_path: Path, environment: dict[str, str]) -> None:  # type: ignore[no-untyped-def]
    """The command line: the same rows as one server gives, what each did, and resumption with another list."""
    healthy, broken = serve(slow()), serve()
    broken.behaviour = lambda payload, times: completion(payload) if len(broken.requests) <= 4 else GONE

    def run(out: str, *urls: str) -> str:
        words = [word for url in urls for word in ("--base-url", url)]
        command = [sys.executable, "-m", "gtpo", *(w for w in EVAL if w != "--quiet"), *words, "--out", out]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stderr

    run("one", healthy.url)
    said = run("two", healthy.url, broken.url)
    assert rows(tmp_path / "two") == rows(tmp_path / "one")
    assert len(rows(tmp_path / "one")) == QUESTIONS * SAMPLES
    assert f"{healthy.url}: " in said
    assert f"; {broken.url}: 4 samples, " in said
