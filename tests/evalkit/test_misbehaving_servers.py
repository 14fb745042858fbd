"""A gallery of servers as they really are. With each: every completion that was served is stored, the run ends by
itself with the right exit code, and the same command completes it to the rows of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from servers import Reply, Server, completion, text_of

import gtpo.evalkit.engines.openai as engine
import gtpo.evalkit.engines.openai_dispatch as dispatch
from gtpo.evalkit.engines.base import sample_seed
from gtpo.rewards.data.arithmetic import arithmetic_problems

QUESTIONS, SAMPLES = 6, 4
EVAL = (
    "eval", "m", "--engine", "openai", "--benchmarks", "arithmetic", "--k", str(SAMPLES), "--limit", str(QUESTIONS),
    "--concurrency", "4", "--retries", "2", "--timeout", "0.6", "--max-tokens", "64", "--quiet",
)  # fmt: skip
FIRST = sample_seed(0, "arithmetic", arithmetic_problems("test", 1)[0].id, 0)
"""The seed of the first sample of the first question."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LONGEST_PAUSE_S", 0.02)


def rows(run: Path) -> dict[int, dict[str, Any]]:
    """Seed -> stored row; the same sample never twice."""
    found = [row for part in (run / "samples").glob("part-*.parquet") for row in pq.read_table(part).to_pylist()]
    assert len({row["seed"] for row in found}) == len(found)
    return {row["seed"]: row for row in found}


def completed(run: Path) -> set[int]:
    return {seed for seed, row in rows(run).items() if row["error"] is None}


def benchmarks(run: Path) -> dict[str, Any]:
    return json.loads((run / "eval.json").read_text())["benchmarks"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """An undisturbed run."""
    server = Server()
    out = tmp_path_factory.mktemp("whole") / "run"
    command = [sys.executable, "-m", "gtpo", *EVAL, "--base-url", server.url, "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    server.close()
    assert done.returncode == 0, done.stderr
    assert len(rows(out)) == QUESTIONS * SAMPLES
    return out


def bad(**fields: Any) -> Reply:
    """An answer of the right form but for these fields of its choice."""
    choice = {"message": {"content": "x"}, "finish_reason": "stop", **fields}
    return Reply(body={"choices": [choice], "usage": {"completion_tokens": 7}})


PASSING = {
    "429 with Retry-After in seconds": Reply(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.01"}),
    "429 with Retry-After as a date": Reply(429, {}, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    "500": Reply(500, {"error": "oops"}),
    "503 with a page": Reply(503, b"<html>busy</html>"),
    "reset before the answer": Reply(body=b"x" * 100, send=0.0),
    "reset inside the body": Reply(body={"choices": [{"message": {"content": "half"}}]}, send=0.5),
    "silence before the answer": Reply(body={}, hang_before_s=30.0),
    "silence inside the body": Reply(body={"choices": []}, send=0.5, hang_inside_s=30.0),
    "broken JSON": Reply(body=b'{"choices": ['),
    "no JSON": Reply(body=b"\xff\x00 not json"),
    "a list": Reply(body=[1, 2]),
    "no choices": Reply(body={"choices": []}),
    "choices of the wrong type": Reply(body={"choices": {"0": 1}}),
    "content as a number": bad(message={"content": 7}),
    "tokens as text": Reply(body={**completion({"seed": 1}).body, "usage": {"completion_tokens": "seven"}}),
    "a deep body": Reply(body=b'{"a":' * 5000),
}
STAYING = {
    "400": (Reply(400, {"error": {"message": "the prompt\nis refused"}}), "HTTP 400: the prompt is refused"),
    "403 by moderation": (Reply(403, {"error": {"message": "flagged"}}), "HTTP 403: flagged"),
    "422": (Reply(422, {"detail": [{"msg": "too long"}]}), "HTTP 422"),
    "413 with a page": (Reply(413, b"<html>\x1b[31mlarge</html>"), "HTTP 413: <html> [31mlarge</html>"),
    "content filter": (bad(message={"content": None}, finish_reason="content_filter"), "content filter withheld"),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_costs_nothing(gtpo, serve, whole: Path, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    fault = PASSING[name]
    server = serve(lambda payload, times: fault if times == 1 and payload["seed"] % 3 == 0 else completion(payload))
    gtpo(*EVAL, "--base-url", server.url, "--out", "run")
    assert rows(tmp_path / "run") == rows(whole)
    assert benchmarks(tmp_path / "run") == benchmarks(whole)


@pytest.mark.parametrize("name", [*(name for name in PASSING if not name.startswith("429")), *STAYING])
def test_what_stays_costs_its_own_sample(gtpo, serve, whole: Path, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    """One request of 24 fails for good: 4 %, within the default. The next call asks for it alone."""
    fault, message = STAYING.get(name, (PASSING.get(name), ""))
    server = serve(lambda payload, times: fault if payload["seed"] == FIRST else completion(payload))
    run = tmp_path / "run"
    done = gtpo(*EVAL, "--base-url", server.url, "--out", run)
    assert completed(run) == server.served - {FIRST} == set(rows(whole)) - {FIRST}
    row = rows(run)[FIRST]
    assert message in row["error"]
    assert (row["completion"], row["verdict_strict"], row["format_ok"], row["tokens"]) == ("", None, None, None)
    assert server.times[FIRST] == (1 if name in STAYING else 3)
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


FOR_GOOD = {
    "resetting": (Reply(body=b"x" * 100, send=0.0), "ClientPayloadError: Response payload is not completed"),
    "silent": (Reply(body={}, hang_before_s=30.0), "no byte within 0.6 s (--timeout)"),
    "503": (Reply(503, {"error": "loading"}), "HTTP 503"),
    "no completion in it": (Reply(body={"data": 1}), "malformed answer: choices: there are none"),
    "refusing": (Reply(400, {"error": {"message": "no such model"}}), "HTTP 400: no such model"),
}


@pytest.mark.parametrize("name", FOR_GOOD)
def test_a_server_that_stops_answering(gtpo, serve, whole: Path, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    fault, message = FOR_GOOD[name]

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        return completion(payload) if len(server.requests) <= 9 else fault

    server = serve(behaviour)
    run = tmp_path / "run"
    done = gtpo(*EVAL, "--base-url", server.url, "--out", run, code=3)
    assert message in done.stderr
    assert done.stderr.count("the same command resumes") == 1
    assert completed(run) == server.served
    assert len(server.served) == 9
    assert json.loads((run / "eval.json").read_text())["status"] == "incomplete"
    server.behaviour = lambda payload, times: completion(payload)
    gtpo(*EVAL, "--base-url", server.url, "--out", run)
    assert rows(run) == rows(whole)
    assert benchmarks(run) == benchmarks(whole)


def test_a_server_that_is_shut_down(gtpo, serve, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Not even a connection: the engine gives up after one request's attempts, not after all requests'."""

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        if len(server.requests) > 9:
            server._closing.set()
            server._server.socket.close()
            return Reply(body=b"x" * 100, send=0.0)
        return completion(payload)

    server = serve(behaviour)
    done = gtpo(*EVAL, "--base-url", server.url, "--out", "run", code=3)
    assert f"the server at {server.url} gave no answer in 3 attempts" in done.stderr
    assert completed(tmp_path / "run") == server.served
    healthy = serve()
    gtpo(*EVAL, "--base-url", healthy.url, "--out", "run")
    assert rows(tmp_path / "run") == rows(whole)


def test_settings_may_change_where_nothing_came_back(gtpo, serve, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A wrong --max-tokens that the server refuses does not bind the folder."""

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        refused = Reply(400, {"error": {"message": "max_tokens is too large"}})
        return refused if payload["max_tokens"] > 64 else completion(payload)

    server = serve(behaviour)
    done = gtpo(*EVAL, "--base-url", server.url, "--max-tokens", "9999", "--out", "run", code=2)
    assert f"{server.url} refuses every request (HTTP 400: max_tokens is too large)" in done.stderr
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
    assert "more than --fail-on-error 5% allows (first: arithmetic arithmetic/test/0 #" in done.stderr
    for _ in range(3):
        gtpo(*EVAL, "--base-url", server.url, "--out", run, code=3)
    assert completed(run) == server.served == set(rows(whole)) - lost
    done = gtpo(*EVAL, "--base-url", server.url, "--out", run, "--fail-on-error", "4")
    assert "1 questions are left out" in done.stderr
    entry = benchmarks(run)["arithmetic"]
    assert (entry["questions"], entry["samples"], entry["unscored"]) == (5, 20, 4)
    assert entry["unscored_questions"] == ["arithmetic/test/0"]
    gtpo(*EVAL, "--base-url", server.url, "--out", tmp_path / "none", "--fail-on-error", "0", code=3)


def test_what_is_a_completion_all_the_same(gtpo, serve, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Thoughts without content, an empty completion, a refusal in words, a very long one."""
    long = "word " * 400_000 + "<answer>3</answer>"
    kinds = [
        {"content": None, "reasoning_content": "so <answer>5</answer>?"},
        {"content": ""},
        {"content": None, "refusal": "I cannot."},
        {"content": long},
    ]
    server = serve(lambda payload, times: completion(payload, **kinds[(payload["seed"] - FIRST) % 4]))
    gtpo(*EVAL, "--base-url", server.url, "--limit", "1", "--out", "run")
    found = [rows(tmp_path / "run")[FIRST + i] for i in range(4)]
    assert [row["completion"] for row in found] == ["<think>so <answer>5</answer>?</think>", "", "I cannot.", long]
    assert [row["verdict_strict"] for row in found[:3]] == ["NO_ANSWER"] * 3
    assert found[3]["answer_strict"] == "3"


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
    done = gtpo(*command, "--base-url", server.url, "--out", "run", "--fail-on-error", "2")
    assert {request["authorization"] for request in server.requests} == {f"Bearer {key}"}
    assert "secret" not in done.stdout + done.stderr
    assert rows(tmp_path / "run")[FIRST + 1]["error"] == "HTTP 400: Authorization: Bearer ***"
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix == ".parquet":
            assert "secret" not in str(pq.read_table(path).to_pylist())
        elif path.is_file():
            assert b"secret" not in path.read_bytes(), path


def test_a_silent_server_is_seen(gtpo, serve, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(engine, "STALL_S", 0.3)
    server = serve(lambda payload, times: completion(payload)._replace(hang_before_s=2.0 if times == 1 else 0.0))
    command = [word for word in EVAL if word != "--quiet"]
    done = gtpo(*command, "--base-url", server.url, "--timeout", "10", "--limit", "1", "--out", "run")
    assert f"{server.url}: no byte for" in done.stderr
    assert "4 requests in flight, 4 without a first byte for up to" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c(gtpo, serve, whole: Path, tmp_path: Path, environment: dict[str, str], presses: int) -> None:  # type: ignore[no-untyped-def]
    """Ten completions served, the rest silent: the first press ends the run within two seconds, all ten stored."""
    server = serve(
        lambda payload, times: completion(payload)._replace(hang_before_s=0.0 if len(server.requests) <= 10 else 60.0)
    )
    run = tmp_path / "run"
    command = [sys.executable, "-m", "gtpo", *EVAL, "--timeout", "60", "--base-url", server.url, "--out", str(run)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    server.wait_for(lambda: len(server.served) == 10 and len(server.requests) == 14)
    time.sleep(1.0)
    pressed = time.monotonic()
    process.send_signal(signal.SIGINT)
    if presses == 2:
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    took = time.monotonic() - pressed
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert "stopping; Ctrl-C again ends at once" in stderr
    assert took < (2.0 if presses == 1 else 1.0), took
    if presses == 1:
        assert completed(run) == server.served
        assert "the same command resumes" in stderr
    server.behaviour = lambda payload, times: completion(payload)
    gtpo(*EVAL, "--timeout", "60", "--base-url", server.url, "--out", run)
    assert rows(run) == rows(whole)
    assert benchmarks(run) == benchmarks(whole)


def test_a_completion_without_its_verdict_gets_it_on_resume(gtpo, serve, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """What Ctrl-C stores unverified: rows as `cut_short` writes them."""
    import shutil

    import pyarrow as pa

    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (part,) = (run / "samples").iterdir()
    table = pq.read_table(part)
    blank = [
        {**row, **{key: None for key in row if key.startswith(("answer_", "verdict_", "format_"))}} if i % 2 else row
        for i, row in enumerate(table.to_pylist())
    ]
    pq.write_table(pa.Table.from_pylist(blank, schema=table.schema), part)
    gtpo(*EVAL, "--base-url", serve().url, "--out", run)
    assert rows(run) == rows(whole)
    assert benchmarks(run) == benchmarks(whole)


def test_texts_are_what_the_server_wrote(whole: Path) -> None:
    assert all(row["completion"] == text_of(seed) and row["tokens"] == 7 for seed, row in rows(whole).items())
    assert os.listdir(whole / "samples")
