"""Several servers behind the openai engine, and `gtpo eval` against servers that misbehave: every completion that was
served is stored, the run ends by itself with the right exit code, and the same command completes it to the rows of an
undisturbed run (what each answer comes to: test_server_engine.py; real vLLM servers: test_vllm_many.py)."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import command_line
from run_folders import samples
from servers import Reply, Server, collect, completion, make, tasks, text_of

import gtpo.evalkit.engines.server as engine_module
from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import EngineStopped, Task, sample_seed
from gtpo.evalkit.engines.server_request import server_urls
from gtpo.rewards.data.arithmetic import arithmetic_problems
from gtpo.runs.eval_folder import Sample
from gtpo.runs.eval_record import read_record

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


QUESTIONS, SAMPLES = 6, 4
EVAL = (
    "eval", "m", "--engine", "openai", "--benchmarks", "arithmetic", "--k", str(SAMPLES), "--limit", str(QUESTIONS),
    "--concurrency", "4", "--retries", "2", "--max-tokens", "64", "--quiet",
)  # fmt: skip
FIRST = sample_seed(0, "arithmetic", arithmetic_problems("test", 1)[0].id, 0)
"""The seed of the first sample of the first question."""
DOWN = Reply(503, {"error": "loading"})


def rows(run: Path) -> dict[int, dict[str, Any]]:
    """Seed -> stored row."""
    return {row["seed"]: row for row in samples(run).values()}


def completed(run: Path) -> set[int]:
    return {seed for seed, row in rows(run).items() if row["error"] is None}


def benchmarks(run: Path) -> dict[str, Any]:
    return json.loads((run / "eval.json").read_text())["benchmarks"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    server = Server(named)
    server.canary = named
    out = tmp_path_factory.mktemp("whole") / "run"
    done = command_line(*EVAL, "--base-url", server.url, "--out", out, cwd=out.parent)
    server.close()
    assert (done.returncode, done.stderr) == (0, ""), "a null: nothing is warned of"
    assert len(rows(out)) == QUESTIONS * SAMPLES
    assert all(row["completion"] == text_of(seed) and row["tokens"] == 7 for seed, row in rows(out).items())
    return out


def named(payload: dict[str, Any], times: int) -> Reply:
    reply = completion(payload)
    reply.body["model"] = "m"
    return reply


def test_what_stays_costs_its_own_sample(gtpo, serve, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """One request of 24 fails for good: 4 %, within the default. The next call asks for it alone."""
    empty = completion({"seed": 1}, content=None)
    server = serve(lambda payload, times: empty if payload["seed"] == FIRST else completion(payload))
    run = tmp_path / "run"
    done = gtpo(*EVAL, "--base-url", server.url, "--out", run)
    assert completed(run) == server.served - {FIRST} == set(rows(whole)) - {FIRST}
    row = rows(run)[FIRST]
    told = "the reply is empty (finish_reason stop, 7 tokens, no text)"
    assert (row["error"], row["outcome"]) == (told, "empty")
    assert (row["completion"], row["verdict_strict"], row["format_ok"], row["tokens"]) == ("", None, None, 7)
    assert server.times[FIRST] == 3
    assert f"#0 failed: {row['error']}" in done.stderr
    assert "arithmetic: 1 samples have no completion and are unscored" in done.stderr
    entry = benchmarks(run)["arithmetic"]
    assert (entry["samples"], entry["unscored"], entry["unscored_reasons"]) == (23, 1, {row["error"]: 1})
    assert list(entry["pass@k"]) == ["1", "2", "3", "4"]
    assert entry["lacking"] == {arithmetic_problems("test", 1)[0].id: 3}, "the question has three scored samples"
    questions = [entry["pass@k"][k].get("questions", 6) for k in ("1", "2", "3", "4")]
    assert questions == [6, 6, 6, 5], "pass@4 is of the questions that have four"
    server.behaviour = lambda payload, times: completion(payload)
    before = len(server.requests)
    gtpo(*EVAL, "--base-url", server.url, "--out", run)
    assert len(server.requests) == before + 1
    assert rows(run) == rows(whole)
    assert benchmarks(run) == benchmarks(whole)


def test_settings_may_change_where_nothing_came_back(gtpo, serve, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A wrong --max-tokens that the server refuses does not bind the folder."""

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        refused = Reply(400, {"error": {"message": "max_tokens is too large"}})
        return refused if payload["max_tokens"] > 64 else completion(payload)

    server = serve(behaviour)
    done = gtpo(*EVAL, "--base-url", server.url, "--max-tokens", "9999", "--out", "run", code=2)
    assert "refuses every request (HTTP 400: max_tokens is too large). Choose a smaller --max-tokens" in done.stderr
    server.behaviour = lambda payload, times: Reply(500, {})
    gtpo(*EVAL, "--base-url", server.url, "--out", "run", "--prompt", "In other words.", "--retries", "0", code=3)
    server.behaviour = behaviour
    gtpo(*EVAL, "--base-url", server.url, "--out", "run")
    assert rows(tmp_path / "run") == rows(whole)


def test_one_question_refused_never_blocks_the_rest(gtpo, serve, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """4 of 24 are more than 5 %: the run stops, goes on with the rest, and completes if the user allows it."""
    lost = set(range(FIRST, FIRST + SAMPLES))
    server = serve(
        lambda payload, times: Reply(400, {"error": "refused"}) if payload["seed"] in lost else completion(payload)
    )
    run = tmp_path / "run"
    done = gtpo(*EVAL, "--base-url", server.url, "--out", run, code=3)
    assert "more than --fail-on-error 0.05 allows (first: arithmetic arithmetic/test/0 #" in done.stderr
    for _ in range(2):
        gtpo(*EVAL, "--base-url", server.url, "--out", run, code=3)
    assert completed(run) == server.served == set(rows(whole)) - lost
    done = gtpo(*EVAL, "--base-url", server.url, "--out", run, "--fail-on-error", "0.2")
    assert "1 questions are left out" in done.stderr
    entry = benchmarks(run)["arithmetic"]
    assert (entry["questions"], entry["samples"], entry["unscored"]) == (5, 20, 4)
    assert entry["unscored_questions"] == ["arithmetic/test/0"]


def test_keys_and_headers(gtpo, serve, whole: Path, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        sent = server.headers[-1]
        right = (sent.get("Authorization"), sent.get("X-Team")) == ("Bearer sesame", "maths")
        return completion(payload) if right else Reply(401, {"error": "who are you?"})

    server = serve(behaviour)
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    monkeypatch.setenv("TEAM", "maths")
    gtpo(*EVAL, "--base-url", server.url, "--header", "X-Team: $TEAM", "--out", "run")
    assert rows(tmp_path / "run") == rows(whole)
    assert "X-Team: $TEAM" in (read_record(tmp_path / "run").command or "")
    # What could stand in any command, or any completion.
    hidden = ("--header=X-Team: maths", "--header", "X-Other: m", "--header", "Authorization: Bearer it's secret")
    monkeypatch.setenv("OPENAI_API_KEY", "reasoning")
    server.behaviour = lambda payload, times: completion(payload)
    gtpo(*EVAL, "--base-url", server.url, *hidden, "--out", "stored")
    told = shlex.split(read_record(tmp_path / "stored").command or "")[-7:]
    assert told == [hidden[0][:17] + "***", "--header", "X-Other: ***", "--header", "Authorization: ***", *told[-2:]]
    assert rows(tmp_path / "stored") == rows(whole)
    unset = gtpo(*EVAL, "--base-url", server.url, "--header", "X-Team: $NOT_SET", code=2)
    assert "--header X-Team: there is no environment variable $NOT_SET" in unset.stderr


def test_a_key_that_the_server_echoes_is_nowhere(gtpo, serve, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    key = "sk-very-secret-7"
    monkeypatch.setenv("OPENAI_API_KEY", key)

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        if payload["seed"] == FIRST:
            return Reply(400, {"error": {"message": "x" * 290 + f"your key is {key}"}})
        if payload["seed"] == FIRST + 1:
            return Reply(400, f"Authorization: Bearer {key}".encode())
        return completion(payload, content=f"<answer>{key}</answer>")

    server = serve(behaviour)
    command = [word if word != "--quiet" else "--verbose" for word in EVAL]
    done = gtpo(*command, "--base-url", server.url, "--out", "run", "--fail-on-error", "0.1")
    assert {request["authorization"] for request in server.requests} == {f"Bearer {key}"}
    assert "secret" not in done.stdout + done.stderr
    assert rows(tmp_path / "run")[FIRST + 1]["error"] == "HTTP 400: Authorization: Bearer ***"
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix == ".parquet":
            assert "secret" not in str(pq.read_table(path).to_pylist())
        elif path.is_file():
            assert b"secret" not in path.read_bytes(), path


def test_copies_are_noticed(gtpo, serve, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """One text for every seed."""
    server = serve(lambda payload, times: completion({"seed": 7}))
    server.canary = server.behaviour
    done = gtpo(*EVAL, "--base-url", server.url, "--out", "one")
    assert "2 requests with different seeds got the same text" in done.stderr
    one, known = (read_record(run).engine.canaries for run in (tmp_path / "one", whole))
    assert one["seed_matters"] is False
    assert (known["models"], known["seed_matters"]) == (["m"], True)


def test_another_model_is_refused(gtpo, serve, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """On resume, and beside another server; of one run, a name that is not the asked one is a warning."""

    def renamed(payload: dict[str, Any], times: int) -> Reply:
        reply = completion(payload)
        reply.body["model"] = "m-mini"
        return reply

    other, same = serve(renamed), serve(named)
    other.canary, same.canary = renamed, named
    shutil.copytree(whole, tmp_path / "run")
    more = (*EVAL, "--k", str(SAMPLES + 1))
    done = gtpo(*more, "--base-url", other.url, "--out", "run", code=2)
    assert "was sampled from another model: m-mini answers, and m did" in done.stderr
    assert rows(tmp_path / "run") == rows(whole)
    done = gtpo(*EVAL, "--base-url", f"{same.url},{other.url}", "--out", "two", code=2)
    assert "the servers have different models" in done.stderr
    done = gtpo(*EVAL, "--base-url", other.url, "--out", "renamed")
    assert '"m-mini" answers, and "m" was asked for' in done.stderr


def test_further_fields(gtpo, serve, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """They are part of how samples are drawn: a run keeps them."""
    small = (*EVAL, "--base-url", serve().url, "--out", "run")
    gtpo(*small, "--limit", "2", "--extra-body", '{"reasoning_effort": "low"}')
    done = gtpo(*small, code=2)
    assert "sampling.extra_body" in done.stderr


PATIENT = """
import sys
from gtpo.evalkit.evaluation import evaluate
from gtpo import cli
evaluate.INTERRUPT_S = 3600.0
sys.argv = ["gtpo", *sys.argv[1:]]
cli.app()
"""
"""What is in flight may still come for an hour: only a second press ends it sooner."""


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c(gtpo, serve, whole: Path, tmp_path: Path, environment: dict[str, str], presses: int) -> None:  # type: ignore[no-untyped-def]
    """Ten completions served, the rest silent: the first press ends the run with all ten stored."""

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        if len(server.requests) == 14:  # so that its four are silent, all that were served have been read
            silent.set()
        reply = completion(payload)
        return reply._replace(hold=server.closing.wait) if len(server.requests) > 10 else reply

    silent, server = threading.Event(), serve()
    server.behaviour = behaviour
    run = tmp_path / "run"
    start = ("-m", "gtpo") if presses == 1 else ("-c", PATIENT)
    command = [sys.executable, *start, *EVAL, "--base-url", server.url, "--out", str(run)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert silent.wait(240)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = process.stderr.readline() + process.stderr.readline()
    assert "stopping; Ctrl-C again ends at once" in said
    if presses == 2:
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in stderr
    if presses == 1:
        assert completed(run) == server.served
        assert "the same command resumes" in stderr
    healthy = serve()
    gtpo(*EVAL, "--base-url", healthy.url, "--out", run)
    assert rows(run) == rows(whole)
    assert benchmarks(run) == benchmarks(whole)
