"""Servers that stream and misbehave, each a process of its own: every way ends in the rows of a healthy server with a
warning, or in one sentence."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streaming_server import FAULTS, text_of
from test_misbehaving_servers import benchmarks, rows

import gtpo.evalkit.engines.openai_dispatch as dispatch

QUESTIONS, SAMPLES = 8, 6
EVAL = (
    "eval", "m", "--engine", "openai", "--benchmarks", "arithmetic", "--k", str(SAMPLES), "--limit", str(QUESTIONS),
    "--concurrency", "8", "--retries", "3", "--timeout", "0.8", "--max-tokens", "64", "--quiet",
)  # fmt: skip


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LONGEST_PAUSE_S", 0.05)


class Process:
    """A server of one mode."""

    def __init__(self, mode: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.log, self.url = folder / f"{mode}-{port}.log", f"http://127.0.0.1:{port}/v1"
        script = Path(__file__).with_name("streaming_server.py")
        self._process = subprocess.Popen([sys.executable, "-S", str(script), str(port), mode, str(self.log)])
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.02)

    def requests(self) -> list[tuple[float, int, int, bool]]:
        """(time, seed, status, whether the answer was whole) of each request."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


Start = Callable[[str], Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def one(mode: str) -> Process:
        started.append(Process(mode, tmp_path))
        return started[-1]

    yield one
    for process in started:
        process.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """The run of a healthy server."""
    folder = tmp_path_factory.mktemp("whole")
    server = Process("healthy", folder)
    command = [sys.executable, "-m", "gtpo", *EVAL, "--base-url", server.url, "--out", str(folder / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    server.close()
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "a null: nothing is warned of"
    assert all(row["completion"] == text_of(seed) for seed, row in rows(folder / "run").items())
    assert len(rows(folder / "run")) == QUESTIONS * SAMPLES
    return folder / "run"


SAME = {
    "wrong-type": "", "comments": "", "crlf": "", "no-done": "", "gzip": "", "several-choices": "", "parts": "",
    "ignores-stream": "", "no-stream": "", "no-stream-options": "", "max-completion-tokens": "", "burst-500": "",
    "renamed": '"m-0613" answers where "m" is asked for', "refuses-seed": "takes no seed: samples cannot be repeated",
    "finish-eos": "",
}  # fmt: skip
"""What lasts and yet gives the rows of a healthy server, with a warning or without."""


@pytest.mark.parametrize("mode", [*FAULTS, *SAME])
def test_the_rows_of_a_healthy_server(gtpo, start: Start, whole: Path, tmp_path: Path, mode: str) -> None:  # type: ignore[no-untyped-def]
    server = start(mode)
    done = gtpo(*EVAL, "--base-url", server.url, "--out", "run")
    found = rows(tmp_path / "run")
    if mode == "refuses-seed":
        assert all(row["completion"] == text_of(0) for row in found.values())
    else:
        assert found == rows(whole)
        assert benchmarks(tmp_path / "run") == benchmarks(whole)
    if warning := SAME.get(mode):
        assert warning in done.stderr
    elif mode not in FAULTS:
        assert done.stderr == ""


SENTENCE = {
    "auth": "refuses a request without a key; set OPENAI_API_KEY (HTTP 401)",
    "header": "refuses every request (HTTP 400: X-Team is missing)",
    "redirect": "it redirects to http://elsewhere.example/v1; --base-url takes that address",
}


@pytest.mark.parametrize("mode", SENTENCE)
def test_one_sentence(gtpo, start: Start, monkeypatch, mode: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = start(mode)
    done = gtpo(*EVAL, "--base-url", server.url, "--out", "run", code=2)
    assert SENTENCE[mode] in done.stderr
    assert mode == "header" or done.stderr.count("\n") == 1


def test_keys_and_headers(gtpo, start: Start, whole: Path, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    gtpo(*EVAL, "--base-url", start("auth").url, "--out", "auth")
    monkeypatch.setenv("TEAM", "maths")
    gtpo(*EVAL, "--base-url", start("header").url, "--header", "X-Team: $TEAM", "--out", "header")
    assert rows(tmp_path / "auth") == rows(tmp_path / "header") == rows(whole)
    gtpo(*EVAL, "--base-url", start("header").url, "--header", "X-Team: maths", "--out", "stored")
    command = json.loads((tmp_path / "stored/eval.json").read_text())["command"]
    assert "X-Team: ***" in command
    done = gtpo(*EVAL, "--base-url", "http://127.0.0.1:1/v1", "--header", "maths", "--out", "no", code=2)
    assert "--header is 'Name: value', found 'maths'" in done.stderr


FAILED = {"finish-abort": "finish_reason abort", "finish-content_filter": "content filter withheld"}


@pytest.mark.parametrize("mode", FAILED)
def test_failures_keep_their_text(gtpo, start: Start, tmp_path: Path, mode: str) -> None:  # type: ignore[no-untyped-def]
    done = gtpo(*EVAL, "--base-url", start(mode).url, "--retries", "1", "--out", "run", code=3)
    assert FAILED[mode] in done.stderr
    assert "the same command resumes" in done.stderr
    for seed, row in rows(tmp_path / "run").items():
        assert (row["completion"], row["verdict_strict"]) == (text_of(seed), None)
        assert FAILED[mode] in row["error"]


def test_cut_off_and_thoughts(gtpo, start: Start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    gtpo(*EVAL, "--base-url", start("finish-max_tokens").url, "--out", "cut")
    assert {row["finish_reason"] for row in rows(tmp_path / "cut").values()} == {"length"}
    gtpo(*EVAL, "--base-url", start("reasoning").url, "--out", "thoughts")
    for seed, row in rows(tmp_path / "thoughts").items():
        text = text_of(seed)
        assert row["completion"] == f"<think>{text[:16]}</think>{text[16:]}"
    gtpo(*EVAL, "--base-url", start("no-usage").url, "--out", "usage")
    assert {row["tokens"] for row in rows(tmp_path / "usage").values()} == {None}
    gtpo(*EVAL, "--base-url", start("null-content").url, "--out", "null")
    assert {(r["completion"], r["verdict_lenient"]) for r in rows(tmp_path / "null").values()} == {("", "NO_ANSWER")}


def test_copies_are_noticed(gtpo, start: Start, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """One text for every seed, and another text each time; a healthy server is the null (fixture `whole`)."""
    done = gtpo(*EVAL, "--base-url", start("one-text").url, "--out", "one")
    assert "4 requests with different seeds got the same text" in done.stderr
    assert "all samples of 8 of 8 questions are the same text" in done.stderr
    assert canaries(tmp_path / "one")["seed_matters"] is False
    done = gtpo(*EVAL, "--base-url", start("ignores-seed").url, "--out", "ignored")
    assert "the same seed gave different texts: the server's samples cannot be repeated" in done.stderr
    assert canaries(tmp_path / "ignored")["repeats"] is False
    assert canaries(whole) == {**canaries(whole), "models": ["m"], "fingerprints": ["fp"], "seed_matters": True}
    assert canaries(whole)["repeats"] is True


def canaries(run: Path) -> dict[str, Any]:
    return json.loads((run / "eval.json").read_text())["engine"]["canaries"]


def test_another_model_is_refused(gtpo, start: Start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """On resume, in the middle, and beside another server."""
    healthy = start("healthy")
    gtpo(*EVAL, "--limit", "4", "--base-url", healthy.url, "--out", "run")
    before = rows(tmp_path / "run")
    done = gtpo(*EVAL, "--base-url", start("renamed").url, "--out", "run", code=2)
    assert "was sampled from another model: m-0613 answers, and m did before" in done.stderr
    done = gtpo(*EVAL, "--base-url", start("one-text").url, "--out", "run", code=2)
    assert "first texts are others than they were for the same seeds" in done.stderr
    assert rows(tmp_path / "run") == before
    gtpo(*EVAL, "--base-url", healthy.url, "--out", "run")
    done = gtpo(*EVAL, "--base-url", start("switches").url, "--retries", "0", "--out", "switched", code=3)
    assert 'another model answers: "m-0613", no longer "m"' in done.stderr
    urls = f"{healthy.url},{start('renamed').url}"
    done = gtpo(*EVAL, "--base-url", urls, "--out", "two", code=2)
    assert "the servers have different models" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bucket", "bucket-retry-after", "bucket-slow"])
def test_a_bucket_of_ten_requests_a_second(gtpo, start: Start, tmp_path: Path, mode: str) -> None:  # type: ignore[no-untyped-def]
    """Complete, and hardly a refusal once the pace is found."""
    server = start(mode)
    more = ("--limit", "20", "--k", "16", "--timeout", "10", "--concurrency", "32")
    gtpo(*EVAL, *more, "--base-url", server.url, "--out", "run")
    found = rows(tmp_path / "run")
    assert len(found) == 320
    assert all(row["completion"] == text_of(seed) for seed, row in found.items())
    log = server.requests()
    late = [status for moment, _, status, _ in log if moment > log[0][0] + 10]
    assert len(late) > 20
    assert late.count(429) <= 0.05 * len(late), (late.count(429), len(late))
    assert log[-1][0] - log[0][0] < 120, "32 s at its rate: what it gives is used, on a busy machine too"


def test_slow_completions_are_waited_for(gtpo, start: Start, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Every fourth takes twice its timeout, and never that long for a token."""
    gtpo(*EVAL, "--base-url", start("slow-long").url, "--retries", "0", "--out", "run")
    assert rows(tmp_path / "run") == rows(whole)
    assert benchmarks(tmp_path / "run") == benchmarks(whole)


def test_no_token_for_ever(gtpo, start: Start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A token now and then: the total deadline ends it, and what there is is kept."""
    done = gtpo(
        *EVAL, "--base-url", start("slow-long").url, "--retries", "0", "--total-timeout", "1", "--out", "run", code=3
    )
    assert "not finished within 1 s (--total-timeout)" in done.stderr
    partial = [row for row in rows(tmp_path / "run").values() if row["error"] is not None]
    assert partial
    assert all(0 < len(row["completion"]) < len(text_of(row["seed"])) for row in partial)


def test_an_outage(gtpo, start: Start, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    server = start("outage")
    done = gtpo(*EVAL, "--retries", "0", "--base-url", server.url, "--wait-for-server", "30", "--out", "run")
    assert rows(tmp_path / "run") == rows(whole)
    assert "wait for it, up to 30 s" in done.stderr
    begun = time.monotonic()
    done = gtpo(*EVAL, "--base-url", "http://127.0.0.1:9/v1", "--wait-for-server", "2", "--out", "none", code=2)
    assert "no server answers at http://127.0.0.1:9/v1" in done.stderr
    assert time.monotonic() - begun > 2


@pytest.mark.parametrize("mode", ["hangs", "slow-long", "bucket"])
def test_one_of_two(gtpo, start: Start, whole: Path, tmp_path: Path, monkeypatch, mode: str) -> None:  # type: ignore[no-untyped-def]
    """What one server cannot do soon is done by the other."""
    monkeypatch.setattr("gtpo.evalkit.engines.openai.CANARIES_S", 1.0)
    healthy, other = start("healthy"), start(mode)
    urls = f"{healthy.url},{other.url}"
    begun = time.monotonic()
    gtpo(*EVAL, "--timeout", "60", "--base-url", urls, "--out", "run")
    assert rows(tmp_path / "run") == rows(whole)
    assert time.monotonic() - begun < 30


def test_further_fields(gtpo, start: Start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """They are part of how samples are drawn: a run keeps them."""
    server = start("healthy")
    small = (*EVAL, "--base-url", server.url, "--out", "run")
    gtpo(*small, "--limit", "2", "--extra-body", '{"reasoning_effort": "low"}')
    done = gtpo(*small, code=2)
    assert "sampling.extra_body" in done.stderr
    done = gtpo(*small, "--extra-body", '{"seed": 1}', code=2)
    assert "--extra-body: seed is set by gtpo eval itself" in done.stderr


@pytest.mark.slow
def test_ten_kills(start: Start, whole: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """SIGKILL at ten random moments, of the evaluation with a server that fails as well: the same rows and metrics."""
    server, run, rng = start("reset"), tmp_path / "run", random.Random(0)
    command = [sys.executable, "-m", "gtpo", *EVAL, "--base-url", server.url, "--out", str(run)]
    kills = 0
    while kills < 10:
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        try:
            process.wait(timeout=rng.uniform(1.0, 4.0))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        kills += 1
    assert subprocess.run(command, env=environment).returncode == 0
    assert rows(run) == rows(whole)
    assert benchmarks(run) == benchmarks(whole)
