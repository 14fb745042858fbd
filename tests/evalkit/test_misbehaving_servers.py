"""`gtpo eval` against servers that misbehave: every completion that was served is stored, the run ends by itself with
the right exit code, and the same command completes it to the rows of an undisturbed run (what each answer comes to:
test_server_engine.py)."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import command_line
from run_folders import samples
from servers import Reply, Server, completion, text_of

from gtpo.evalkit.engines.base import sample_seed
from gtpo.rewards.data.arithmetic import arithmetic_problems
from gtpo.runs.eval_record import read_record

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
    assert (row["completion"], row["verdict_strict"], row["format_ok"], row["tokens"]) == ("", None, None, None)
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
    gtpo(*EVAL, "--base-url", server.url, "--header", "X-Team: maths", "--out", "stored")
    assert "X-Team: ***" in json.loads((tmp_path / "stored/eval.json").read_text())["command"]


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
