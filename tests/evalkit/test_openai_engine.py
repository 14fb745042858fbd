"""What the openai engine sends and reads (servers that misbehave: test_misbehaving_servers.py; real vLLM:
test_vllm_engine.py)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from servers import Reply, Server, completion, text_of

import gtpo.evalkit.engines.openai_dispatch as dispatch
import gtpo.evalkit.engines.openai_reply as reply_module
import gtpo.evalkit.engines.openai_server as server_module
from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import EngineStopped, Generation, Prompt, Sampling, Task, sample_seed
from gtpo.evalkit.engines.model_ref import resolve_model
from gtpo.evalkit.engines.openai import OpenAIEngine
from gtpo.evalkit.engines.openai_address import access, server_urls
from gtpo.evalkit.engines.openai_reply import Answer, refused
from gtpo.evalkit.results.record import read_record


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def tasks(questions: int, samples: int) -> list[Task]:
    return [
        Task("b", f"q{i}", Prompt([{"role": "user", "content": f"question {i}"}]), tuple(range(samples)))
        for i in range(questions)
    ]


def engine(url: str, *, sampling: dict[str, Any] | None = None, **options: Any) -> OpenAIEngine:
    settings = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 33, "n": 4, "seed": 5, **(sampling or {})}
    ref = resolve_model("m", served=True)
    urls = server_urls(ref, [url], "OPENAI_API_KEY")
    return OpenAIEngine(ref, Sampling(**settings), urls, access("OPENAI_API_KEY", ()), **{"concurrency": 4, **options})


def collect(source: OpenAIEngine, wanted: list[Task]) -> list[Generation]:
    return [g for lot in source.generate(wanted) for g in lot]


def test_one_request_per_sample_with_its_seed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    found = collect(engine(server.url), tasks(3, 4))
    assert len(found) == 12
    for g in found:
        assert g.seed == sample_seed(5, "b", g.question_id, g.sample_index)
        assert (g.text, g.tokens, g.finish_reason, g.error) == (text_of(g.seed or 0), 7, "stop", None)
    assert {request["authorization"] for request in server.requests} == {"Bearer sk-test"}
    for request in server.requests:
        sent = {key: request[key] for key in ("model", "temperature", "top_p", "max_tokens")}
        assert sent == {"model": "m", "temperature": 0.7, "top_p": 0.9, "max_tokens": 33}
        # A vLLM server would otherwise fill in top_k and penalties from the model's generation_config.
        assert (request["top_k"], request["min_p"], request["repetition_penalty"]) == (-1, 0.0, 1.0)
        assert "presence_penalty" not in request
        assert "chat_template_kwargs" not in request
    assert "sk-test" not in json.dumps(engine(server.url).describe())


@pytest.mark.parametrize("owner", ["vllm", "someone"])
def test_sampling_options(server: Server, owner: str) -> None:
    """A server that is not vLLM gets what was asked for, and no parameter that it may not know without need."""
    server.models = Reply(body={"data": [{"id": "m", "owned_by": owner}]})
    options = {"top_k": 20, "presence_penalty": 1.5}
    collect(engine(server.url, sampling=options, body={"chat_template_kwargs": {"enable_thinking": True}}), tasks(1, 1))
    (request,) = server.requests
    expected = {**options, "chat_template_kwargs": {"enable_thinking": True}}
    if owner == "vllm":
        expected |= {"min_p": 0.0, "repetition_penalty": 1.0}
    beyond = {"model", "messages", "temperature", "top_p", "max_tokens", "seed", "authorization"}
    beyond |= {"stream", "stream_options"}
    assert {key: value for key, value in request.items() if key not in beyond} == expected


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(401, {"error": "bad key"}), r"refuses a request without a key; set OPENAI_API_KEY \(HTTP 401"),
        (Reply(404, {"message": "nothing here"}), r"chat/completions is not there \(HTTP 404: nothing here"),
    ],
)
def test_what_no_request_can_mend_is_told_at_once(server: Server, monkeypatch, reply: Reply, message: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server.behaviour = lambda payload, times: reply
    with pytest.raises(UserError, match=message):
        collect(engine(server.url), tasks(50, 4))
    assert len(server.requests) <= 8, "the rest is not asked for"


def test_many_failures_in_a_row_stop_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was completed is handed on first, and so are the failures."""
    monkeypatch.setattr(dispatch, "LONGEST_PAUSE_S", 0.01)
    server.behaviour = lambda payload, times: (
        completion(payload) if len(server.requests) <= 10 else Reply(500, {"error": "broken"})
    )
    found: list[Generation] = []
    with pytest.raises(EngineStopped, match=rf"16 requests in a row failed at {server.url} \(HTTP 500: broken\)"):
        found.extend(g for lot in engine(server.url, retries=1).generate(tasks(50, 4)) for g in lot)
    assert sum(g.error is None for g in found) == 10
    assert 16 <= sum(g.error is not None for g in found) <= 19


def test_an_answer_that_is_too_long(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_module, "LONGEST_BODY", 1000)
    server.behaviour = lambda payload, times: completion(payload, content="x" * (2000 if times else 0))
    (found,) = collect(engine(server.url), tasks(1, 1))
    assert found.error is not None
    assert found.error.startswith("an answer of more than")
    assert len(server.requests) == 1


def test_thoughts_are_kept_apart() -> None:
    message = {"content": "<answer>4</answer>", "reasoning_content": "is it <answer>5</answer>?"}
    body = json.dumps({"choices": [{"message": message, "finish_reason": "length"}]}).encode()
    answer = Answer()
    answer.feed(body)
    assert answer.reply()[:3] == ("<think>is it <answer>5</answer>?</think><answer>4</answer>", None, "length")


@pytest.mark.parametrize(("header", "expected"), [("7", 7.0), ("1e9", 120.0), ("-3", 0.0), ("soon", 0.0), ("", 0.0)])
def test_retry_after(header: str, expected: float) -> None:
    error = refused(429, {"retry-after": header}, b"")
    assert (error.pause_s, error.passing) == (expected, True)


def test_addresses_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, message in (
        ("http://user:secret@127.0.0.1:1/v1", "must hold no credentials"),
        ("127.0.0.1:8000", "must start with http"),
        ("http://127.0.0.1:1/v1", "no server answers at"),
    ):
        with pytest.raises(UserError, match=message) as error:
            engine(url)
        assert "secret" not in str(error.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\u00e9")
    with pytest.raises(UserError, match="the key in OPENAI_API_KEY has characters") as error:
        engine("http://127.0.0.1:1/v1")
    assert "secret" not in str(error.value)


def test_a_train_run_by_its_own_name(gtpo, tiny_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The server is asked for the run's name; where it does not have it, the command that serves it is printed."""
    import shutil

    run = tmp_path / "results/train/my-run"
    shutil.copytree(tiny_model, run / "best")
    (run / "run.json").write_text(json.dumps({"schema_version": 1, "method": "gtpo", "status": "finished"}))
    (run / "config.yaml").write_text("dataset: {system_instruction: Solve.}\ntraining: {max_completion_length: 24}\n")
    command = ("eval", "my-run", "--engine", "openai", "--benchmarks", "arithmetic", "--limit", "2")
    start = "vllm serve results/train/my-run/best --served-model-name my-run"
    assert start in gtpo(*command, code=2).stderr
    other, server = Server(), Server(model="my-run")
    try:
        done = gtpo(*command, "--base-url", other.url, code=2)
        assert f'does not serve "my-run". It serves: m. For this run start it with: {start}' in done.stderr
        gtpo(*command, "--base-url", server.url)
    finally:
        other.close()
        server.close()
    assert {(r["model"], r["max_tokens"], r["messages"][0]["content"]) for r in server.requests} == {
        ("my-run", 24, "Solve.")
    }
    record = json.loads((tmp_path / "results/eval/my-run/eval.json").read_text())
    assert record["model"]["train_run"] == "my-run"
    assert record["model"]["fingerprint"]
    adapter = tmp_path / "results/train/lora/best"
    adapter.mkdir(parents=True)
    (adapter.parent / "run.json").write_text(json.dumps({"schema_version": 1, "status": "finished"}))
    (adapter / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 20, "base_model_name_or_path": str(tiny_model)})
    )
    expected = f"vllm serve {tiny_model} --enable-lora --lora-modules lora=results/train/lora/best --max-lora-rank 32"
    assert expected in gtpo("eval", "lora", *command[2:], code=2).stderr


def test_tokens_of_a_server_that_shows_nothing_before_the_end() -> None:
    """What is in flight gets the pace of what is done, until a token is seen."""
    server = server_module.Server("http://s.example/v1", access("OPENAI_API_KEY", ()), 4)
    first, second = (server_module.request_of(task, 0, 0) for task in tasks(2, 1))
    for request in (first, second):
        request.sent = time.monotonic() - 3
        server.asking[request.key] = None, request  # type: ignore[assignment]
    assert [r.tokens for r in server.running()] == [0, 0]
    server.seconds, server.tokens = 20.0, 205.0
    assert [r.tokens for r in server.running()] == [30, 30]
    first.answer.deltas = 7
    assert [r.tokens for r in server.running()] == [7, 0]


@pytest.mark.parametrize(
    ("reason", "stored", "tokens"),
    [
        ("stop", "stop", 7),
        ("eos", "stop", 7),
        ("max_tokens", "length", 7),
        ("abort", "error", None),
        ("error", "error", None),
        (None, "error", None),
        ("whatever", "error", None),
        ("content_filter", "refused", None),
    ],
)
def test_how_a_completion_ended(
    gtpo, serve, tmp_path: Path, reason: str | None, stored: str, tokens: int | None
) -> None:  # type: ignore[no-untyped-def]
    """What is no end and no limit is a failure: tried again, kept with its text, unscored."""

    def behave(payload: dict[str, Any], times: int) -> Reply:
        reply = completion(payload)
        if payload["messages"][-1]["content"].startswith(first):
            reply.body["choices"][0]["finish_reason"] = reason
        return reply

    from gtpo.rewards.data.arithmetic import arithmetic_problems

    first = arithmetic_problems("test")[0].problem
    server = serve(behave)
    arguments = ("--benchmarks", "arithmetic", "--limit", "2", "--max-tokens", "64", "--fail-on-error", "1")
    gtpo("eval", "m", *arguments, "--retries", "1", "--engine", "openai", "--base-url", server.url, "--out", "run")
    rows = {row["question_id"]: row for row in pq.read_table(tmp_path / "run/samples").to_pylist()}
    row = rows["arithmetic/test/0"]
    assert (row["finish_reason"], row["tokens"], row["error"] is None) == (stored, tokens, tokens is not None)
    assert row["completion"] == text_of(row["seed"])
    assert (row["verdict_lenient"] is None) == (tokens is None)
    assert len(server.requests) == (3 if stored == "error" else 2)


def test_the_reported_time_is_that_of_a_slow_server(gtpo, server: Server, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """From the first request to the last reply; the time before the first reply is a fifth of it here."""
    begun: list[float] = []
    ended: list[float] = []

    def slow(payload: dict[str, Any], times: int) -> Reply:
        begun.append(time.monotonic())
        seconds = 0.7 + payload["seed"] % 5 / 10
        ended.append(begun[-1] + seconds)
        return completion(payload)._replace(hang_before_s=seconds)

    server.behaviour = slow
    gtpo(
        "eval", "m", "--engine", "openai", "--base-url", server.url, "--benchmarks", "arithmetic,arithmetic_hard",
        "--limit", "5", "--k", "4", "--concurrency", "8", "--max-tokens", "64", "--out", "run",
    )  # fmt: skip
    reported = read_record(tmp_path / "run").benchmark_seconds
    assert len(begun) == 40
    assert sum(reported.values()) == pytest.approx(max(ended) - min(begun), rel=0.05)
    assert reported["arithmetic"] == pytest.approx(reported["arithmetic_hard"], rel=0.01)
