"""Real vLLM on a CPU, several times: model copies on Ray, and servers. Whatever is killed, the samples are those of
one process that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from vllm_servers import EVAL as PROGRAM
from vllm_servers import copies, samples, serving

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

COMMON = ("--benchmarks", "arithmetic", "--limit", "32", "--k", "64", "--max-tokens", "32")
RAY = ("--engine", "ray", "--data-parallel-size", "2")
LEFT_OUT = "import gtpo.evalkit.engines.vllm as engine; engine.RESTARTS = 0\n"
"""A copy that dies is not started again."""


class Running:
    """`gtpo eval` as a process. before: Python that it runs first."""

    def __init__(self, environment: dict[str, str], folder: Path, *arguments: str | Path, before: str = "") -> None:
        self.run, self._log = folder / "run", folder / "stderr"
        command = [sys.executable, "-c", before + PROGRAM, "eval", *map(str, arguments), "--out", str(self.run)]
        with self._log.open("w") as log, (folder / "stdout").open("w") as printed:
            self.process = subprocess.Popen(
                command, env=environment, stdout=printed, stderr=log, cwd=folder, start_new_session=True
            )

    @property
    def stderr(self) -> str:
        return self._log.read_text()

    def wait_for_a_part(self) -> list[psutil.Process]:
        """Wait until the first samples are stored; return the processes below this one."""
        while not any(self.run.glob("samples/part-*.parquet")):
            assert self.process.poll() is None, self.stderr
            time.sleep(0.02)
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self, code: int = 0, seconds: float = 400.0) -> None:
        assert self.process.wait(timeout=seconds) == code, self.stderr
        assert "Traceback" not in self.stderr, self.stderr


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator:  # type: ignore[type-arg]
    running: list[Running] = []

    def begin(*arguments: str | Path, before: str = "") -> Running:
        running.append(Running(environment, tmp_path, *arguments, before=before))
        return running[-1]

    yield begin
    for one in running:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


@pytest.fixture(scope="module")
def whole(tiny_model: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict:  # type: ignore[type-arg]
    """The samples of one process that is left alone."""
    run = Running(environment, tmp_path_factory.mktemp("whole"), tiny_model, *COMMON, "--engine", "vllm")
    run.end()
    assert len(samples(run.run)) == 32 * 64
    return samples(run.run)


@pytest.mark.parametrize("before", ["", LEFT_OUT], ids=["started again", "left out"])
def test_a_copy_that_is_killed(start, tiny_model: Path, whole, before: str) -> None:  # type: ignore[no-untyped-def]
    """While it owes most of its questions. Ray starts it again, or the other copy gets them: every row as in one
    process, a quiet terminal, and nothing left behind."""
    run = start(tiny_model, *COMMON, *RAY, before=before)
    started = run.wait_for_a_part()
    copies(run.process.pid)[0].kill()
    run.end()
    assert samples(run.run) == whole
    assert run.stderr.count("Ray") == 1, "nothing of Ray's own"
    assert "raylet" not in (run.run.parent / "stdout").read_text()
    engine = json.loads((run.run / "eval.json").read_text())["engine"]
    assert (engine["name"], engine["data_parallel_size"]) == ("vllm", 2)
    assert "ray" in engine["versions"]
    assert psutil.wait_procs(started, timeout=120)[1] == []


def test_no_copy_is_left(start, tiny_model: Path, whole) -> None:  # type: ignore[no-untyped-def]
    """One sentence and exit code 3; the same command in one process goes on with what is stored."""
    longer = (*COMMON[:3], "64", *COMMON[4:])  # so that questions are left when they are killed
    run = start(tiny_model, *longer, *RAY, before=LEFT_OUT)
    run.wait_for_a_part()
    for copy in copies(run.process.pid):
        copy.kill()
    run.end(code=3)
    assert "incomplete: no model copy is left on Ray (" in run.stderr
    assert 0 < len(samples(run.run)) < 64 * 64
    run = start(tiny_model, *longer, "--engine", "vllm")
    run.end()
    found = samples(run.run)
    assert len(found) == 64 * 64
    assert {key: found[key] for key in whole} == whole


def test_gtpo_itself_is_killed(start, tiny_model: Path) -> None:  # type: ignore[no-untyped-def]
    """kill -9 of the driver takes its cluster along."""
    run = start(tiny_model, *COMMON, *RAY)
    started = run.wait_for_a_part()
    run.process.kill()
    run.process.wait()
    _, alive = psutil.wait_procs(started, timeout=120)
    # Ray's own agents look for their node only now and then. They hold neither a core nor a model.
    assert [process for process in alive if not process.name().endswith("Agent")] == []


def test_a_model_over_two_ranks(start, tiny_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Tensor parallelism on a CPU: two ranks below one process, and the same two below a Ray actor."""
    found = []
    for engine in ("vllm", "ray"):
        options = ("--benchmarks", "arithmetic", "--limit", "4", "--k", "16", "--max-tokens", "16")
        run = start(tiny_model, *options, "--engine", engine, "--tensor-parallel-size", "2")
        run.end()
        found.append(samples(run.run))
        run.run.rename(tmp_path / engine)
    assert len(found[0]) == 64
    assert found[0] == found[1]


def test_ctrl_c(start, tiny_model: Path) -> None:  # type: ignore[no-untyped-def]
    """As a terminal sends it, to every process of the group: what came is stored, and it ends soon."""
    run = start(tiny_model, "--benchmarks", "arithmetic", "--limit", "256", "--k", "256", "--max-tokens", "200", *RAY)
    run.wait_for_a_part()
    os.killpg(run.process.pid, signal.SIGINT)
    run.end(code=130, seconds=30)
    assert "the same command resumes" in run.stderr
    assert samples(run.run)


NO_NODE = "import ray\ndef init(**_): raise Exception('The node timed out.')\nray.init = init\n"
"""What Ray raises on a busy machine."""


@pytest.mark.parametrize(
    ("options", "before", "message"),
    [
        (("--data-parallel-size", "4000"), "", "--data-parallel-size 4000 does not fit: each copy needs 1 CPU on one"),
        (("--data-parallel-size", "1", "--max-tokens", "90000000"), "", "vLLM does not start with"),
        (("--ray-address", "127.0.0.1:1"), "", "no Ray cluster answers at 127.0.0.1:1 ("),
        (("--ray-address", "auto"), "", "no Ray cluster answers at auto ("),
        (("--ray-address", "ray://head:10001"), "", '--ray-address is auto on a node of the cluster, or HOST:PORT'),
        ((), NO_NODE, "Ray does not start on this machine (The node timed out.)"),
    ],
)  # fmt: skip
def test_what_cannot_start_is_said_in_a_sentence(start, tiny_model: Path, tmp_path: Path, options, before, message):  # type: ignore[no-untyped-def]
    model = tmp_path / "long"
    model.mkdir()
    for path in tiny_model.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 10**8}))
    run = start(model, *COMMON[:4], "--engine", "ray", *options, "--quiet", before=before)
    run.end(code=2)
    assert message in run.stderr
    assert run.stderr.count("\n") == 1, run.stderr


def test_a_server_that_is_killed(start, tiny_model: Path, whole, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Two real servers, one killed: nothing lost, every row as in one process."""
    with serving(tiny_model, tmp_path, 2) as servers:
        urls = ",".join(server.url for server in servers)
        run = start("m", *COMMON, "--engine", "openai", "--base-url", urls, "--concurrency", "16")
        run.wait_for_a_part()
        servers[0].kill()
        run.end()
    assert samples(run.run) == whole
    assert f"{servers[0].url} is left out: " in run.stderr
