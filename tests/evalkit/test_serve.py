"""Servers that `gtpo eval` starts, by --serve-command with a small one, and what is sent to vLLM's. Whatever is killed,
nothing is lost and no process stays. (Real vLLM: test_vllm_many.py.)"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from commands import command_line
from run_folders import samples
from vllm_servers import EVAL

from gtpo.common.errors import UserError
from gtpo.evalkit.engines import serve
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.runs.eval_record import EngineRecord, EvalRecord, check_identity

SMALL = shlex.join([sys.executable, str(Path(__file__).parent / "small_server.py"), "{model}", "{port}"])
K = 16
COMMON = ("--benchmarks", "arithmetic", "--limit", "4", "--k", str(K), "--max-tokens", "24", "--serve-command", SMALL)

Gtpo = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The numbers of the server that is started, of a process below it, and of its guard."""
    monkeypatch.setenv("SMALL_PIDS", str(tmp_path / "pids"))
    return tmp_path / "pids"


def processes(pids: Path) -> list[psutil.Process]:
    """Those that are still there; one that has ended may wait for the system to take note of it."""
    found = [psutil.Process(int(pid)) for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The samples of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    command_line("eval", tiny_model, *COMMON, "--out", "whole", cwd=folder)
    return samples(folder / "whole")


def test_a_run(gtpo: Gtpo, tiny_model: Path, tmp_path: Path, pids: Path) -> None:
    """Prompts as tokens, a seed a sample, what is recorded; the server and what it started are gone after it."""
    done = gtpo("eval", tiny_model, *COMMON, "--out", "run", "--concurrency", "3")
    assert processes(pids) == []
    rows = samples(tmp_path / "run")
    assert len(rows) == 4 * K
    assert len({row["seed"] for row in rows.values()}) == 4 * K
    assert all(row["answer_strict"] == str(row["seed"] % 7) for row in rows.values())
    assert all(f"{row['prompt_tokens']} tokens" in row["completion"] for row in rows.values())
    engine = json.loads((tmp_path / "run/eval.json").read_text())["engine"]
    assert (engine["name"], engine["serve"]) == ("openai", SMALL)
    assert "base_urls" not in engine
    assert "127.0.0.1" not in done.stderr
    assert (tmp_path / "run/server.log").is_file()
    gtpo("eval", tiny_model, *COMMON, "--out", "run")
    other = gtpo("eval", tiny_model, *COMMON[:-1], f"{SMALL} --other", "--out", "run", "--k", "32", code=2)
    assert "engine.serve_settings (" in other.stderr


def test_a_server_that_does_not_start(gtpo: Gtpo, tiny_model: Path, pids: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SMALL_FAILS", "1")
    done = gtpo("eval", tiny_model, *COMMON, "--quiet", code=2)
    assert "the server does not start: it ended with exit code 1: ValueError: the weights do not fit" in done.stderr
    assert done.stderr.count("\n") == 1
    assert processes(pids) == []


def test_last_words_of_a_log_that_fits_no_memory(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        log.truncate(2**40)
        log.seek(0, 2)
        log.write(b"\nValueError: too large\n" * 3)
    assert serve.last_words(tmp_path / "log") == "ValueError: too large"


def test_a_start_that_is_interrupted(tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        if pids.is_file() and len(pids.read_text().split()) == 3:
            raise KeyboardInterrupt

    monkeypatch.setenv("SMALL_SILENT", "1")
    monkeypatch.setattr(serve, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupted))
    command = shlex.split(SMALL)
    with pytest.raises(KeyboardInterrupt):
        serve.ServerProcess(command, tmp_path / "log", {})
    assert processes(pids) == []


def test_a_server_that_is_killed(gtpo: Gtpo, tiny_model: Path, tmp_path: Path, pids: Path, whole, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """kill -9 in the middle: one sentence, exit code 3; the same command goes on, and every sample is there."""
    monkeypatch.setenv("SMALL_KILLED_AFTER", "24")
    done = gtpo("eval", tiny_model, *COMMON, "--out", "run", "--concurrency", "4", code=3)
    assert "it ended with exit code 137" in done.stderr
    assert "the same command resumes" in done.stderr
    assert processes(pids) == []
    kept = samples(tmp_path / "run")
    assert 0 < len(kept) < 4 * K
    assert all(row["error"] is None for row in kept.values())
    monkeypatch.delenv("SMALL_KILLED_AFTER")
    gtpo("eval", tiny_model, *COMMON, "--out", "run", "--concurrency", "4")
    assert samples(tmp_path / "run") == whole


@pytest.mark.skipif(sys.platform != "linux", reason="a guard that is killed takes its server along on Linux")
@pytest.mark.parametrize("guard_too", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gtpo_itself_is_killed(  # type: ignore[no-untyped-def]
    gtpo: Gtpo, environment, tiny_model: Path, tmp_path: Path, pids: Path, whole, monkeypatch, guard_too: bool
) -> None:
    """kill -9: its server ends too, with what that started; the same command goes on."""
    monkeypatch.setenv("SMALL_HOLDS_AFTER", "24")
    command = [sys.executable, "-c", EVAL, "eval", str(tiny_model), *COMMON, "--out", str(tmp_path / "run")]
    extra = {name: os.environ[name] for name in ("SMALL_PIDS", "SMALL_HOLDS_AFTER")}
    with (tmp_path / "stderr").open("w") as log:
        run = subprocess.Popen(command, env={**environment, **extra}, stdout=log, stderr=log, cwd=tmp_path)
    while not any((tmp_path / "run").glob("samples/part-*.parquet")):
        assert run.poll() is None, (tmp_path / "stderr").read_text()
        time.sleep(0.02)
    server, below, guard = processes(pids)
    if guard_too:
        guard.kill()
    run.kill()
    run.wait()
    watched = [server, guard] if guard_too else [server, below, guard]
    assert psutil.wait_procs(watched, timeout=60)[1] == []
    if guard_too:
        below.kill()
    monkeypatch.delenv("SMALL_HOLDS_AFTER")
    gtpo("eval", tiny_model, *COMMON, "--out", "run")
    assert samples(tmp_path / "run") == whole


@pytest.mark.parametrize(
    ("flags", "count"),
    [("", 1), ("-dp 3", 3), ("--data-parallel-size=4 --enforce-eager", 4), ("--data_parallel_size 2 -tp 2", 2)],
)
def test_replicas_of_a_command_line(flags: str, count: int) -> None:
    assert serve.replicas(flags) == count


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("-dp 8", "--data-parallel-size=4 --api-server-count 2", True),
        ("--data-parallel-size 8 --data-parallel-hybrid-lb -tp 2", "-tp 2", True),
        ("-tp 2", "-tp 4", False),
        ("--quantization fp8 -dp 2", "-dp 2", False),
        (None, "-dp 8", True),
        (None, "-tp 8", False),
    ],
)
def test_which_flags_a_run_keeps(before: str | None, now: str, same: bool) -> None:
    """All but the number of replicas: a run that begins in one process may go on with eight of them."""
    old, new = (EvalRecord(engine=EngineRecord(name="vllm", serve=serve)) for serve in (before, now))
    with nullcontext() if same else pytest.raises(UserError, match=r"engine\.serve_settings \("):
        check_identity(Path("run"), old, new)


def test_what_vllm_is_started_with(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides samples is as in this process; the user's flags come last; an adapter has a name of its own."""
    started: list[list[str]] = []

    def start(words: list[str], log: Path, about: dict[str, Any], environment: dict[str, str]) -> SimpleNamespace:
        started.append(words)
        log.write_text("with config: dtype=torch.float32, max_seq_len=99")
        return SimpleNamespace(about=about)

    monkeypatch.setattr(serve, "ServerProcess", start)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 12}))
    for adapter in (None, tmp_path / "adapter"):
        ref = ModelRef(str(tiny_model), "tiny", adapter=adapter)
        process = serve.serve_vllm(ref, "--seed 4", 99, tmp_path / "log", dtype="auto", trust_remote_code=False)
        assert process.about["compute_dtype"] == "float32"
        assert started[-1][-2:] == ["--seed", "4"]
    plain, lora = (dict(itertools.pairwise(words)) for words in started)
    for flags in (plain, lora):
        assert (flags["--generation-config"], flags["--max-model-len"]) == ("vllm", "99")
    assert plain["--served-model-name"] == serve.SERVED != lora["--served-model-name"]
    assert json.loads(lora["--lora-modules"]) == {"name": serve.SERVED, "path": str(tmp_path / "adapter")}
    assert lora["--max-lora-rank"] == "16"
