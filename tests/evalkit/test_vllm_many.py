"""Real vLLM on a CPU, several times: model copies on Ray, and servers. Whatever is killed, the samples are those of
one process that was left alone (why: test_vllm_rounding.py)."""

from __future__ import annotations

import json
import os
import random
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

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

COMMON = ("--benchmarks", "arithmetic", "--limit", "16", "--k", "64", "--max-tokens", "32")
ALL = 16 * 64
RAY = ("--engine", "ray", "--data-parallel-size", "2")


class Running:
    """`gtpo` as a process whose parts on disk show what has come."""

    def __init__(self, environment: dict[str, str], folder: Path, *arguments: str | Path, before: str = "") -> None:
        self.run, self._log, self._printed = folder / "run", folder / "stderr", folder / "stdout"
        command = [sys.executable, "-c", before + PROGRAM, "eval", *map(str, arguments), "--out", str(self.run)]
        with self._log.open("w") as log, self._printed.open("w") as printed:
            self.process = subprocess.Popen(
                command, env=environment, stdout=printed, stderr=log, cwd=folder, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def printed(self) -> str:
        return self._printed.read_text()

    def wait_for_samples(self, parts: int) -> None:
        """Wait until that many parts are stored."""
        for _ in range(8000):
            if len(list(self.run.glob("samples/part-*.parquet"))) >= parts:
                return
            assert self.process.poll() is None, self.said
            time.sleep(0.05)
        raise AssertionError(self.said)

    def end(self, code: int = 0, seconds: float = 400.0) -> None:
        assert self.process.wait(timeout=seconds) == code, self.said
        assert "Traceback" not in self.said, self.said


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
def whole(tiny_model: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, left alone."""
    out = tmp_path_factory.mktemp("whole") / "run"
    command = [sys.executable, "-m", "gtpo", "eval", str(tiny_model), *COMMON, "--engine", "vllm", "--out", str(out)]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    assert len(samples(out)) == ALL
    return out


def assert_same(run: Path, whole: Path) -> None:
    """Every sample is there, and none is another."""
    found, expected = samples(run), samples(whole)
    assert found.keys() == expected.keys()
    differing = [key for key, row in expected.items() if found[key] != row]
    assert not differing, differing


def chosen(seed: int | None = None) -> random.Random:
    """A generator whose seed is printed, so that a failure can be repeated."""
    seed = random.randrange(10**6) if seed is None else seed
    print(f"seed {seed}")
    return random.Random(seed)


HELD = """
import pathlib, time
import gtpo.evalkit.engines.ray as engine
engine.HUNG_S = engine.FIRST_CALL_S = 30.0
def held(self, tasks, generate=engine.RayEngine.generate):
    pathlib.Path("held").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    yield from generate(self, tasks)
engine.RayEngine.generate = held
"""
"""Before the first question is dealt, `gtpo eval` waits for the file `go`. All samples take a second or two: on a fast
machine whoever waits for the first one and then looks for a copy may find that the run is over."""


def suspended_copy(run: Running, rng: random.Random) -> psutil.Process:
    """One of the copies of a held run, stopped before it is asked for anything; the run goes on."""
    while not (run.run.parent / "held").exists():
        assert run.process.poll() is None, run.said
        time.sleep(0.05)
    both = copies(run.process.pid)
    assert len(both) == 2
    victim = rng.choice(both)
    victim.suspend()
    (run.run.parent / "go").touch()
    return victim


def test_a_copy_that_is_killed(start, tiny_model: Path, whole: Path) -> None:  # type: ignore[no-untyped-def]
    """Two copies on Ray, one killed while it owes samples: started again, every row as in one process, a quiet
    terminal, and nothing left behind."""
    run = start(tiny_model, *COMMON, *RAY, before=HELD)
    victim = suspended_copy(run, chosen())
    started = psutil.Process(run.process.pid).children(recursive=True)
    run.wait_for_samples(1)  # of the other copy
    victim.kill()
    run.end()
    assert_same(run.run, whole)
    assert "died (its process is gone): started again" in run.said
    assert "; copy 2: " in run.said, "what each has done"
    assert "starting 2 copies on Ray\n" in run.said
    assert run.said.lower().count("ray") == 1, "nothing of Ray's own"
    assert "raylet" not in run.printed
    engine = json.loads((run.run / "eval.json").read_text())["engine"]
    assert (engine["name"], engine["data_parallel_size"]) == ("vllm", 2)
    assert "ray" in engine["versions"]
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []


def test_a_copy_that_hangs(start, tiny_model: Path, whole: Path) -> None:  # type: ignore[no-untyped-def]
    """A copy that is stopped answers nothing and does not die: ended and started again, here after 30 s."""
    run = start(tiny_model, *COMMON, *RAY, before=HELD)
    victim = suspended_copy(run, chosen())
    run.end()
    assert_same(run.run, whole)
    assert "died (it has given nothing for 30 s): started again" in run.said
    victim.wait(timeout=30)


def test_gtpo_itself_is_killed(start, tiny_model: Path, whole: Path) -> None:  # type: ignore[no-untyped-def]
    """kill -9 of the driver takes its cluster along; the same command in one process goes on with the same run."""
    run = start(tiny_model, *COMMON, *RAY)
    run.wait_for_samples(chosen().randint(1, 4))
    started = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    run.process.wait()
    _, alive = psutil.wait_procs(started, timeout=60)
    # Ray's own agents look for their node only now and then. They hold neither a core nor a model.
    assert [process for process in alive if not process.name().endswith("Agent")] == []
    kept = samples(run.run)
    assert 0 < len(kept) <= ALL
    run = start(tiny_model, *COMMON, "--engine", "vllm")
    run.end()
    assert_same(run.run, whole)


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
    """As a terminal sends it, to every process of the group: all is stored, and it ends soon.

    The samples would take minutes on a fast machine: a run that owes nothing any more ends well, with code 0.
    """
    run = start(tiny_model, "--benchmarks", "arithmetic", "--limit", "256", "--k", "256", "--max-tokens", "200", *RAY)
    run.wait_for_samples(2)
    pressed = time.monotonic()
    os.killpg(run.process.pid, signal.SIGINT)
    run.end(code=130, seconds=30)
    assert time.monotonic() - pressed < 15
    assert "the same command resumes" in run.said
    assert samples(run.run)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data-parallel-size", "4000"), "--data-parallel-size 4000 does not fit: each copy needs 1 CPU on one node"),
        (("--data-parallel-size", "1", "--max-tokens", "90000000"), "vLLM does not start with"),
        (("--ray-address", "127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1 ("),
        (("--ray-address", "auto"), "no Ray cluster runs on this machine"),
        (("--ray-address", "ray://head:10001"), '--ray-address is auto, or HOST:PORT of the head node'),
    ],
)  # fmt: skip
def test_what_cannot_start_is_said_in_a_sentence(gtpo_process, tiny_model: Path, tmp_path: Path, options, message):  # type: ignore[no-untyped-def]
    model = tmp_path / "long"
    model.mkdir()
    for path in tiny_model.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 10**8}))
    done = gtpo_process("eval", model, *COMMON[:4], "--engine", "ray", *options, "--quiet", code=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_ray_that_does_not_come_up(start, tiny_model: Path) -> None:  # type: ignore[no-untyped-def]
    """On a busy machine Ray raises a bare Exception: tried once more, then said in a sentence."""
    broken = "import ray\ndef init(**_): raise Exception('The node timed out.')\nray.init = init\n"
    run = start(tiny_model, *COMMON, *RAY, before=broken)
    run.end(code=2)
    assert "Ray did not start (The node timed out.): once more" in run.said
    assert "gtpo: Ray does not start on this machine (The node timed out.)" in run.said


def test_a_server_that_is_killed(start, tiny_model: Path, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Two real servers, one killed at a random moment: nothing lost, every row as in one process."""
    rng = chosen()
    with serving(tiny_model, tmp_path, 2) as servers:
        urls = ",".join(server.url for server in servers)
        run = start("m", *COMMON, "--engine", "openai", "--base-url", urls, "--concurrency", "16")
        run.wait_for_samples(rng.randint(1, 10))
        victim = rng.choice(servers)
        victim.kill()
        killed = time.monotonic()
        run.end()
    assert time.monotonic() - killed < 60
    assert_same(run.run, whole)
    assert f"{victim.url} gave no answer in 1 attempt" in run.said
    assert "left out" in run.said
