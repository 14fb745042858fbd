"""How a run of several processes is asked to stop: real processes, one of them signalled, or a stop file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from test_train_run import config_of, metrics

pytestmark = pytest.mark.timeout(300)

STEPS = 100_000
"""More than can be made before it is stopped."""


@contextmanager
def two_processes(folder: Path, root: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start the run of `folder` under torchrun, and end what is left of it."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    flags = ["--training.per_device_train_batch_size", "4", "--training.max_steps", str(STEPS)]
    process = subprocess.Popen(
        [*launcher, str(root / "cli.py"), "train", "run.yaml", *flags],
        cwd=folder, env={**os.environ, **environment},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    workers = psutil.Process(process.pid)
    try:
        yield process
    finally:
        for left in [*(workers.children(recursive=True) if process.poll() is None else []), process]:
            left.kill()
        process.wait()


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not what():
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.05)


def lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return len(metrics(folder)) if path.exists() and path.read_text().endswith("\n") else 0


@pytest.mark.slow
def test_a_signal_to_one_process_or_a_stop_file_stops_all_after_the_same_step(tmp_path: Path, root: Path) -> None:
    config_of(tmp_path)
    folder = tmp_path / "results/train/run"
    before = 0
    for asked in ("signal", "file"):
        named = tmp_path / "please"
        with two_processes(tmp_path, root, GTPO_STOP_FILE=str(named)) as process:
            wait_for(lambda done=before: lines(folder) > done, process)
            if asked == "signal":
                (second,) = (
                    child for child in psutil.Process(process.pid).children() if child.environ().get("RANK") == "1"
                )
                second.send_signal(signal.SIGTERM)
            else:
                named.touch()
            said = process.communicate(timeout=240)[1]
        about = json.loads((folder / "run.json").read_text())
        assert about["status"] == "interrupted", (asked, said[-3000:])
        assert f"stopped at step {about['step']} of {STEPS}; the same command resumes the run" in said
        assert (folder / f"checkpoints/checkpoint-{about['step']}/gtpo_state.json").is_file()
        assert about["step"] == lines(folder) > before
        before = about["step"]


ENDING = """
import atexit, sys, threading, time
from gtpo.train.environment import end_process
threading.Thread(target=time.sleep, args=(600,)).start()  # Python's own end would wait for it
atexit.register(print, "closed")
print("said")
end_process()
"""


def test_exit_handlers_run_and_nothing_is_waited_for(root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "said\nclosed\n", "")
