"""What the openai engine sends, and what it makes of every answer (whole commands: test_servers.py; real
vLLM: test_vllm_engine.py)."""

from __future__ import annotations

import asyncio
import json
import random
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from servers import DONE, USAGE, Clock, Reply, Server, collect, completion, delta, event, make, stream, tasks, text_of

import gtpo.evalkit.engines.server as engine_module
from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import EngineStopped, Prompt, Reading, Sampling, Task, sample_seed
from gtpo.evalkit.engines.model_ref import resolve_model
from gtpo.evalkit.engines.server import Answer, RequestError, ServerEngine, refusal
from gtpo.evalkit.engines.server_request import Access
from gtpo.evalkit.engines.server_request import Server as AskedServer
from gtpo.runs.eval_record import read_record

Serve = Callable[..., Server]
SEED = sample_seed(5, "b", "q0", 0)
"""Of the only sample of `tasks(1, 1)`."""
TEXT = text_of(SEED)
ASKED = {"seed": SEED}


# -- what is sent ----------------------------------------------------------------------------------------------------


SAMPLED = {
    "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "presence_penalty": 1.5, "repetition_penalty": 1.1,
}  # fmt: skip
OWNERS = ("vllm", "llamacpp", "library", "organization_owner", None, ("a", "list"))


@pytest.mark.parametrize(("owner", "given"), [*((owner, SAMPLED) for owner in OWNERS), ("vllm", {}), ("library", {})])
def test_what_is_recorded_is_what_was_sent(gtpo, serve: Serve, tmp_path: Path, owner: Any, given: dict) -> None:  # type: ignore[no-untyped-def]
    """Every field of the record's sampling, read back from the requests; null is what the server does by itself."""
    server = serve()
    server.models = Reply(body={"data": [{"id": "m", "owned_by": owner}]})
    flags = [word for name, value in given.items() for word in ("--" + name.replace("_", "-"), value)]
    command = ("eval", "m", "--benchmarks", "arithmetic", "--limit", "2", "--k", "2", "--seed", "3", *flags)
    (tmp_path / "p.yaml").write_text("stop: ['Q:']\n")
    done = gtpo(*command, "--max-tokens", "77", "--protocol", "p.yaml", "--base-url", server.url, "--out", "run")
    record = read_record(tmp_path / "run").sampling
    not_taken = {"library": {"top_k", "min_p", "repetition_penalty"}, "organization_owner": {"min_p"}}
    untaken = not_taken.get(owner or "", set())
    for request in server.requests:
        sent = {name: request.get(name) for name in (*SAMPLED, "max_tokens", "stop")}
        sent["top_k"] = sent["top_k"] and max(0, sent["top_k"])
        assert {name: getattr(record, name) for name in sent} == sent
    seeds = [
        sample_seed(record.seed or 0, "arithmetic", f"arithmetic/test/{q}", i)
        for q in range(2)
        for i in range(record.n)
    ]
    assert sorted(request["seed"] for request in server.requests) == sorted(seeds)
    assert {name for name in SAMPLED if getattr(record, name) is None} == untaken
    assert ("its own default holds" in done.stderr) == bool(untaken)


def asked(url: str = "http://a/v1", model: str = "m") -> AskedServer:
    """A server that nothing has been sent to."""
    return AskedServer(url, resolve_model(model, served=True), Access("OPENAI_API_KEY", ()))


def test_openai_itself_gets_no_parameters_of_others() -> None:
    sent = [
        asked(url).payload(Prompt([], "x"), Sampling(1.0, 1.0, 9, 1, 0), 5, (), {})
        for url in ("https://api.openai.com/v1", "http://127.0.0.1:8000/v1")
    ]
    assert sent[1].keys() - sent[0].keys() == {
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "skip_special_tokens",
    }  # fmt: skip


@pytest.mark.parametrize("at_first", [True, False])
def test_a_refused_parameter_is_null_in_the_record(gtpo, serve: Serve, tmp_path: Path, at_first: bool) -> None:  # type: ignore[no-untyped-def]
    """Also if the first requests are refused for the rate. One that was asked for is never left out."""
    said = "top_k: Extra inputs are not permitted"

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        return Reply(422, {"detail": said}) if "top_k" in payload else completion(payload)

    server = serve(behaviour)
    server.canary = behaviour if at_first else lambda payload, times: Reply(429, {"error": "busy"})
    command = ("eval", "m", "--benchmarks", "arithmetic", "--limit", "2", "--base-url", server.url)
    done = gtpo(*command, "--out", "run")
    assert "takes no top_k: its own default holds, eval.json has null for it" in done.stderr
    record = read_record(tmp_path / "run")
    assert record.sampling.top_k is None
    assert "top_k" in record.engine.parameters_left_out
    for k in (2, 2, 3):  # resumed, complete, raised: no other setting
        gtpo(*command, "--k", k, "--out", "run")
        assert read_record(tmp_path / "run").sampling.top_k is None
    assert "HTTP 422" in gtpo(*command, "--top-k", "20", "--out", "asked", code=3).stderr


UNKNOWN = {
    "seed": "Unrecognized request argument supplied: seed",
    "stream": "Unsupported parameter: 'stream'",
    "stream_options": "stream_options: Extra inputs are not permitted",
    "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_parameter_that_the_server_does_not_know(serve: Serve, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Four requests are on their way before the first is refused: each is sent once more."""
    on_their_way = threading.Barrier(4)

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        if name in payload:
            return Reply(400, {"error": {"message": UNKNOWN[name]}}, hold=on_their_way.wait)
        return completion({**ASKED, **payload})

    server = serve(behaviour)
    found = [g for lot in make(server, retries=0).generate(tasks(4, 1)) for g in lot]
    assert [g.error for g in found] == [None] * 4
    assert len(server.requests) == 8
    assert caplog.text.count("samples cannot be repeated") == (name == "seed")
    assert {g.seed is None for g in found} == {name == "seed"}
    if name == "max_tokens":
        assert server.requests[-1]["max_completion_tokens"] == 33


# -- what comes back -------------------------------------------------------------------------------------------------


def answer(message: Any = None, finish: Any = "stop", **beside: Any) -> Reply:
    """A whole body with one choice."""
    choice = {"message": {"content": TEXT} if message is None else message, "finish_reason": finish}
    return Reply(body={"choices": [choice], "usage": {"completion_tokens": 7}, **beside})


def events(*pieces: bytes) -> Reply:
    return Reply(pieces=pieces)


WHOLE = stream(ASKED)
THOUGHT = f"<think>is it 5?</think>{TEXT}"
COMPLETIONS: dict[str, tuple[Reply, str, int | None, str | None]] = {
    "a body": (answer(), TEXT, 7, "stop"),
    "a stream": (events(*WHOLE), TEXT, 7, "stop"),
    "a stream in odd pieces": (events(*(bytes([byte]) for byte in b"".join(WHOLE))), TEXT, 7, "stop"),
    "CR": (events(*(piece.replace(b"\n", b"\r") for piece in WHOLE)), TEXT, 7, "stop"),
    "a BOM": (events(b"\xef\xbb\xbf", *WHOLE), TEXT, 7, "stop"),
    "an event over several lines": (
        events(*(b"data: " + json.dumps(json.loads(p[6:]), indent=1).encode().replace(b"\n", b"\ndata: ") + b"\n\n"
                 for p in WHOLE[:-1]), DONE),
        TEXT, 7, "stop",
    ),
    "no blank lines": (events(*(piece[:-1] for piece in WHOLE)), TEXT, 7, "stop"),
    "half a character in each event": (events(delta("5 \ud83d"), delta("\ude00", "stop"), DONE), "5 😀", None, "stop"),
    "comments": (events(*[b": PROCESSING\n\n"] * 3, *WHOLE), TEXT, 7, "stop"),
    "CRLF": (events(*(piece.replace(b"\n", b"\r\n") for piece in WHOLE)), TEXT, 7, "stop"),
    "no [DONE]": (events(*WHOLE[:-1]), TEXT, 7, "stop"),
    "content in parts": (events(delta([{"type": "text", "text": TEXT}], "stop"), DONE), TEXT, None, "stop"),
    "thoughts": (answer({"content": TEXT, "reasoning_content": "is it 5?"}), THOUGHT, 7, "stop"),
    "thoughts, streamed": (
        events(event({"choices": [{"delta": {"reasoning_content": "is it 5?"}}]}), *WHOLE), THOUGHT, 7, "stop",
    ),
    "thoughts as an object": (
        answer({"content": ["so ", "42"], "reasoning": {"content": "5?"}}), "<think>5?</think>so 42", 7, "stop",
    ),
    "thoughts among the parts": (
        answer({"content": [{"type": "reasoning", "text": "5?"}, {"type": "text", "text": TEXT}]}),
        f"<think>5?</think>{TEXT}", 7, "stop",
    ),
    "thoughts under Ollama's name": (answer({"content": TEXT, "thinking": "is it 5?"}), THOUGHT, 7, "stop"),
    "no reason, and [DONE]": (events(delta(TEXT), DONE), TEXT, None, None),
    "the whole message beside an empty delta": (
        events(
            delta(TEXT), event({"choices": [{"delta": {}, "message": {"content": TEXT}, "finish_reason": "eos"}]}), DONE
        ),
        TEXT, None, "stop",
    ),
    "a delta of null beside the message": (
        Reply(body={"choices": [{"delta": None, "message": {"content": TEXT}, "finish_reason": "stop"}]}),
        TEXT, None, "stop",
    ),
    "SGLang's reason, input and output tokens": (
        answer(finish={"type": "length"}, usage={"input_tokens": 3, "output_tokens": 9}), TEXT, 9, "length",
    ),
    "thoughts alone": (answer({"content": None, "reasoning": "5?"}), "<think>5?</think>", 7, "stop"),
    "no usage": (events(*(piece for piece in WHOLE if piece != USAGE)), TEXT, None, "stop"),
    "thoughts in details": (
        answer({"content": TEXT, "reasoning_details": [{"type": "reasoning.text", "text": "is it 5?"}]}), THOUGHT, 7,
        "stop",
    ),
    "a tool that nobody offered": (answer({"content": TEXT, "tool_calls": [{}]}), TEXT, 7, "tool_calls"),
    "stop beside a limit": (events(delta(TEXT, "length"), delta("", "stop"), DONE), TEXT, None, "length"),
    "stop beside the provider's own word for a limit": (
        answer(choices=[{"text": TEXT, "finish_reason": "stop", "native_finish_reason": "MAX_TOKENS"}]), TEXT, 7,
        "length",
    ),
    "two choices without a number": (
        answer(choices=[{"text": text, "finish_reason": "stop"} for text in (TEXT, "6")]), TEXT, 7, "stop",
    ),
    "stop at the end of the context": (
        answer(usage={"completion_tokens": 32, "prompt_tokens": 4064}), TEXT, 32, "length",
    ),
}  # fmt: skip


def received(reply: Reply) -> tuple[Answer, RequestError | None]:
    """The answer of a reply, and what is wrong with it."""
    found = Answer()
    body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    if reply.status != 200:
        return found, refusal(reply.status, reply.headers, body.decode())
    try:
        for piece in reply.pieces or [body]:
            found.feed(piece)
        found.end(33, 4096)
    except RequestError as error:
        return found, error
    return found, None


@pytest.mark.parametrize("name", COMPLETIONS)
def test_what_is_a_completion(name: str) -> None:
    reply, *expected = COMPLETIONS[name]
    found, error = received(reply)
    assert error is None
    assert [found.text(), found.tokens.completion, found.ending.finish_reason] == expected


CARDS = [
    ({"max_model_len": 9}, 9), ({"context_length": 9.0}, 9), ({"num_ctx": "9.0"}, 9),
    ({"max_context_length": 9}, 9), ({"context_window": 9}, 9), ({"meta": {"n_ctx": 9}}, 9),
    ({"capabilities": {"limits": {"max_context_window_tokens": "9"}}}, 9),
    ({"top_provider": {"context_length": 9}}, 9), ({"inputTokenLimit": 9}, 9),
    ({"max_model_len": None, "parent": "base"}, 5), ({"max_model_len": None, "parent": "?"}, None), ({}, None),
]  # fmt: skip


@pytest.mark.parametrize(("card", "expected"), CARDS)
def test_context_length(card: dict[str, Any], expected: int | None) -> None:
    server = asked(model="lora")
    server.cards = [{"id": "base", "max_model_len": 5}, {"id": "lora", **card}]
    assert server.context() == expected


HALF = "".join(TEXT[:16])
PASSING: dict[str, tuple[Reply, str]] = {
    "500": (Reply(500, {"error": "oops"}), "HTTP 500: oops"),
    "503 with a page": (Reply(503, b"<html>busy</html>"), "HTTP 503: <html>busy</html>"),
    "broken JSON": (Reply(body=b'{"choices": ['), "malformed answer"),
    "no JSON": (Reply(body=b"\xff\x00 not json"), "malformed answer"),
    "a page": (Reply(body=b"<html>a proxy's page</html>"), "malformed answer"),
    "no choices": (Reply(body={"choices": []}), "malformed answer: no choices"),
    "an error with 200": (Reply(body={"object": "error", "message": "busy", "code": 1}), "the server broke off: busy"),
    "content as a number": (answer({"content": 7}), "malformed answer: TypeError: content is int"),
    "a deep body": (Reply(body=b'{"a":' * 5000), "malformed answer"),
    "a broken event": (events(*WHOLE[:2], b'data: {"choices": [\n\n'), "malformed answer"),
    "an error as an event": (
        events(*WHOLE[:2], event({"error": {"message": "out of memory"}})), "the server broke off: out of memory",
    ),
    "no end": (events(*WHOLE[:2]), "the completion was not finished (finish_reason None)"),
    "abort": (answer({"content": HALF}, "abort"), "the completion was not finished (finish_reason abort)"),
    "no content": (answer({"content": None}), "the reply is empty (finish_reason stop, 7 tokens, no text)"),
    "an error beside the text": (
        events(*WHOLE[:2], event({"choices": [{"delta": {"content": ""}, "error": {"message": "upstream is gone"}}]})),
        "the server broke off: upstream is gone",
    ),
    "content filter": (answer({"content": HALF}, "content_filter"), "the completion (finish_reason content_filter)"),
    "a filter's flag": (
        Reply(body={"choices": [{"message": {"content": HALF}, "finish_reason": "stop",
                                 "content_filter_results": {"violence": {"filtered": True}}}]}),
        "withheld the completion (finish_reason stop)",
    ),
    "a refusal in words": (answer({"content": None, "refusal": HALF}), "withheld the completion"),
}  # fmt: skip
BLOCKED = {"content filter", "a filter's flag", "a refusal in words"}

STAYING: dict[str, tuple[Reply, str]] = {
    "400": (Reply(400, {"error": {"message": "the prompt\nis refused"}}), "HTTP 400: the prompt is refused"),
    "403 by moderation": (Reply(403, {"error": {"message": "flagged"}}), "HTTP 403: flagged"),
    "422": (Reply(422, {"detail": [{"msg": "too long"}]}), "HTTP 422"),
    "413 with a page": (Reply(413, b"<html>\x1b[31mlarge</html>"), "HTTP 413: <html> [31mlarge</html>"),
    "a prompt that a filter refuses": (
        Reply(400, {"error": {"code": "content_filter", "message": "no"}}),
        "HTTP 400: no",
    ),
}
PARTIAL = {"a broken event", "an error as an event", "an error beside the text", "no end", "abort", *BLOCKED}
"""Of these there is a text, which is kept."""


@pytest.mark.parametrize("name", [*PASSING, *STAYING])
def test_what_is_none(name: str) -> None:
    reply, message = (PASSING | STAYING)[name]
    found, error = received(reply)
    assert error is not None
    assert message in str(error)
    assert error.passing == (name in PASSING)
    assert (error.ending.outcome == "blocked") == (name in BLOCKED or "filter" in name)
    assert (error.ending.outcome == "empty") == ("is empty" in message)
    assert found.text() == (HALF if name in PARTIAL else "")


RESET = {"reset before the answer": (Reply(body=b"x" * 100, send=0.0), "ClientPayloadError")}


@pytest.mark.parametrize(
    "name", ["500", *RESET, "no content", "abort", "a refusal in words", "400", "a prompt that a filter refuses"]
)
def test_what_it_costs(serve: Serve, name: str) -> None:
    """Its own sample; what may pass is asked once more, the rest is not."""
    reply, message = (PASSING | STAYING | RESET)[name]
    passes = name not in STAYING
    server = serve(lambda payload, times: reply if times == 1 else completion(payload))
    (found,) = collect(make(server, retries=0), tasks(1, 1)).values()
    assert message in str(found.error)
    counted = 7 if isinstance(reply.body, dict) and "usage" in reply.body else None
    assert (found.tokens, found.finish_reason) == (counted, "error" if passes and name not in BLOCKED else "refused")
    assert (found.outcome == "blocked") == (name in BLOCKED or "filter" in name)
    assert (found.outcome == "empty") == ("is empty" in message)
    assert found.completion == (HALF if name in PARTIAL else "")
    server.times.clear()
    (found,) = collect(make(server, retries=1), tasks(1, 1)).values()
    assert (found.error is None, server.times[SEED]) == ((True, 2) if passes else (False, 1))


def test_tokens_of_what_failed_are_counted(serve: Serve) -> None:
    usage = {"completion_tokens": 60, "prompt_tokens": 40}
    source = make(serve(lambda *_: answer(finish="content_filter", usage=usage)), retries=3)
    (found,) = collect(source, tasks(1, 1)).values()
    assert (source.wasted, found.tokens, found.prompt_tokens) == (300, 60, 40)


def test_vllms_own_server_is_believed(serve: Serve) -> None:
    """As the engine in this process: nothing may be what the model wrote, and its end its last token."""
    for name, reading in (("vllm", Reading()), ("vllm", Reading(("Q:",))), ("openai", Reading())):
        server = serve(lambda payload, times: answer({"content": ""}))
        (found,) = collect(make(server, name=name, retries=0, sampling={"reading": reading}), tasks(1, 1)).values()
        assert (found.finish_reason, found.outcome) == ("stop" if name == "vllm" else "error", "empty")
        assert server.times[SEED] == 1 + len(reading.stop), "a stop text may have left nothing"
        server = serve(lambda payload, times: answer(usage={"completion_tokens": 33}))
        (found,) = collect(make(server, name=name), tasks(1, 1)).values()
        assert (found.tokens, found.finish_reason) == (33, "stop" if name == "vllm" else "length")


@pytest.mark.parametrize("after", ["0.01", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_refusal_for_the_rate_costs_no_attempt(serve: Serve, after: str) -> None:
    server = serve(lambda payload, times: Reply(429, {}, {"Retry-After": after}) if times < 3 else completion(payload))
    (found,) = collect(make(server, retries=0), tasks(1, 1)).values()
    assert (found.completion, server.times[SEED]) == (TEXT, 3)


@pytest.mark.parametrize(("header", "expected"), [("7", 7.0), ("1e9", 120.0), ("-3", 0.0), ("soon", 0.0), ("", 0.0)])
def test_retry_after(header: str, expected: float) -> None:
    error = refusal(429, {"retry-after": header}, "")
    assert (error.pause_s, error.passing) == (expected, True)


def test_a_stop_text_inside_a_thought_ends_nothing(serve: Serve) -> None:
    """The sample is asked for again without stop texts, which are applied here: wherever the thought comes."""
    whole = {"content": "5", "reasoning_content": "Q: restated"}
    in_text = {"content": "<think>Q: restated</think>5"}
    for cut, rest in (
        ({"content": "<think>"}, in_text), ({"content": None, "reasoning_content": "so "}, whole),
        ({"content": "/think>", "reasoning_content": "so "}, whole), ({"content": ""}, whole),
    ):  # fmt: skip
        server = serve(lambda payload, times, cut=cut, rest=rest: completion(
            payload, **(cut if "stop" in payload else rest)))  # fmt: skip
        found = collect(make(server, retries=0, sampling={"reading": Reading(("Q:",))}), tasks(4, 4))
        assert {g.completion for g in found.values()} == {"<think>Q: restated</think>5"}


# -- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
def test_silence(serve: Serve, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """More than an hour without anything new, before or inside the answer."""
    clock = Clock(monkeypatch)

    def silence() -> None:
        while not server.closing.wait(0.01):  # the engine may begin to wait only now
            clock.skip(3601)

    def pieces() -> Iterator[bytes]:
        yield WHOLE[0]
        while not source.running()[1]:
            time.sleep(0.001)
        silence()

    server = serve(lambda payload, times: Reply(pieces=pieces()) if begun else Reply(hold=silence))
    source = make(server, retries=0)
    (found,) = collect(source, tasks(1, 1)).values()
    assert found.error == "nothing new within 3600 s (--timeout)"
    assert found.completion == (TEXT[:8] if begun else "")


@pytest.mark.parametrize("total_s", [1e6, 7200.0])
def test_slow_completions_are_waited_for(serve: Serve, monkeypatch: pytest.MonkeyPatch, total_s: float) -> None:
    """Nearly an hour for each token, with and without a limit of two hours for all of them."""
    clock = Clock(monkeypatch)

    def pieces() -> Iterator[bytes]:
        for number, piece in enumerate(WHOLE):
            if 0 < number < len(WHOLE) - 3:
                while source.running()[1] < number:
                    time.sleep(0.001)
                clock.skip(3500)
            yield piece

    source = make(serve(lambda payload, times: Reply(pieces=pieces())), retries=0, total_s=total_s)
    (found,) = collect(source, tasks(1, 1)).values()
    if total_s > 7200:
        assert (found.completion, found.error) == (TEXT, None)
    else:
        assert found.error == "not finished within 7200 s (60 times --timeout)"
        assert 0 < len(found.completion) < len(TEXT)
        assert TEXT.startswith(found.completion)


# -- what ends the run -----------------------------------------------------------------------------------------------

AT_ONCE = [
    (Reply(401, {"error": "bad key"}), r"refuses a request without a key; set OPENAI_API_KEY \(HTTP 401"),
    (Reply(404, {"message": "nothing here"}), r"chat/completions is not there \(HTTP 404: nothing here\)$"),
    (
        Reply(308, {}, {"Location": "http://elsewhere.example/v1"}),
        "it redirects to http://elsewhere.example/v1; --base-url takes that address",
    ),
    (Reply(400, {"error": "X-Team is missing"}), r"refuses every request \(HTTP 400: X-Team is missing\)"),
]


@pytest.mark.parametrize(("reply", "message"), AT_ONCE)
def test_what_no_request_can_mend_is_told_at_once(serve: Serve, monkeypatch, reply: Reply, message: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = serve(lambda payload, times: reply)
    with pytest.raises(UserError, match=message):
        collect(make(server), tasks(50, 1))
    assert len(server.requests) <= (8 if reply.status != 400 else 16 + 4), "the rest is not asked for"


def test_the_address_that_is_not_there_is_named(serve: Serve) -> None:
    with pytest.raises(UserError, match="/v1/completions is not there"):
        collect(make(serve(lambda *_: Reply(404, {}))), [Task("b", "q", Prompt([], "x"), (0,))])


def test_a_refused_question_ends_nothing(serve: Serve) -> None:
    """More of its samples are refused in a row than say that a server answers nothing, and before all others."""
    refused = {sample_seed(5, "b", "q0", index) for index in range(64)}
    server = serve(
        lambda payload, times: Reply(400, {"error": "too long"}) if payload["seed"] in refused else completion(payload)
    )
    found = collect(make(server), tasks(3, 64))
    assert {seed for seed, g in found.items() if g.error == "HTTP 400: too long"} == refused
    assert len(server.served) == 2 * 64


def test_another_model_in_the_middle(serve: Serve) -> None:
    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        number = len(server.requests)
        return answer(model=("m" if number % 2 else "Provider/M-2026-01-31") if number <= 20 else "m-mini")

    server = serve(behaviour)
    with pytest.raises(EngineStopped, match='another model answers: "m-mini", no longer "Provider/M-2026-01-31"'):
        collect(make(server, retries=0), tasks(20, 4))


@pytest.mark.parametrize("retries", [0, 3])
def test_a_started_server_that_is_not_seen_to_have_ended_yet_fails_no_sample(serve: Serve, retries: int) -> None:
    server = serve(lambda payload, times: Reply(send=0.0))
    engine = make(server, retries=retries, concurrency=1)
    ended = SimpleNamespace(exit_report=lambda patience=0.0: "it ended" if patience else "", about={})
    engine._process = ended  # type: ignore[assignment]
    with pytest.raises(EngineStopped, match="it ended"):
        assert not collect(engine, tasks(3, 4))


def test_a_key_that_fits_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\u00e9")
    with pytest.raises(UserError, match="the key in OPENAI_API_KEY has characters") as error:
        Access("OPENAI_API_KEY", ())
    assert "secret" not in str(error.value)


# -- load, by a clock that no one waits for --------------------------------------------------------------------------

ROUND_S = 0.5


class Rounds:
    """A server that answers each request after a round, and a share of them with a failure; time jumps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float, error: Callable[[], RequestError]) -> None:
        self.now, self.share, self.error, self.rng = 0.0, share, error, random.Random(7)
        self.in_flight, self.seen, outer = 0, list[int](), self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                outer.now += max(0.0, timeout or 0.0)
                return super().select(0)

        class Loop(asyncio.SelectorEventLoop):
            def __init__(self) -> None:
                super().__init__(Selector())

            def time(self) -> float:
                return outer.now

        monkeypatch.setattr(asyncio.events, "new_event_loop", Loop)
        monkeypatch.setattr(engine_module, "LONGEST_PAUSE_S", 0.01)
        monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: outer.now))

    async def ask(self, server: Any, request: Any, sampling: Sampling) -> Answer:
        self.in_flight += 1
        self.seen.append(self.in_flight)
        request.answer, request.seed = Answer(), len(self.seen)
        await asyncio.sleep(ROUND_S)
        self.in_flight -= 1
        if self.rng.random() < self.share:
            raise self.error()
        request.answer.feed(b"".join(WHOLE))
        request.answer.end()
        answered: Answer = request.answer
        return answered

    def rounds(self, samples: int) -> float:
        source = ServerEngine([asked()], Sampling(1.0, 1.0, 64, samples, 0), concurrency=64)
        source._ask = self.ask  # type: ignore[method-assign]
        found = [sample for lot in source.generate(tasks(1, samples)) for sample in lot]
        assert [sample.error for sample in found] == [None] * samples
        assert len(self.seen) == samples + source.retried
        return self.now / ROUND_S


@pytest.mark.parametrize(("share", "most"), [(0.0, 1.1), (0.01, 1.2), (0.03, 1.3), (0.1, 1.7)])
def test_random_failures_cost_little(monkeypatch: pytest.MonkeyPatch, share: float, most: float) -> None:
    """640 samples, 64 at a time: ten rounds without failures. Of 1 % one fails again in the eleventh round."""
    server = Rounds(monkeypatch, share, lambda: refusal(502, {}, "bad gateway"))
    assert server.rounds(640) <= most * 10
    assert max(server.seen) == 64


@pytest.mark.parametrize(("status", "lowers"), [(429, True), (503, True), (529, True), (500, False), (502, False)])
def test_only_overload_lowers_the_number_in_flight(monkeypatch, status: int, lowers: bool) -> None:  # type: ignore[no-untyped-def]
    server = Rounds(monkeypatch, 0.2, lambda: refusal(status, {}, ""))
    server.rounds(320)
    middle = server.seen[128:320]
    assert (sum(middle) / len(middle) < 32) == lowers
