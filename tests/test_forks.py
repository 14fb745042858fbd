"""The forks that stand in for processes in tests: what they print, how they end, what they inherit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forks import command_line


@pytest.mark.parametrize(("words", "code"), [("--help", 0), ("eval --list", 0), ("train none.yaml", 2), ("nope", 2)])
def test_a_fork_prints_and_ends_as_a_process_of_its_own(tmp_path, words, code):
    fork = command_line(*words.split(), cwd=tmp_path, COLUMNS="90")
    command = [str(Path(sys.executable).parent / "gtpo"), *words.split()]
    env = {**os.environ, "COLUMNS": "90"}
    process = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert fork.returncode == process.returncode == code
    assert (fork.stdout, fork.stderr) == (process.stdout, process.stderr)


def test_a_fork_has_its_own_folder_and_environment(tmp_path):
    (tmp_path / "there.yaml").write_text("training: {learning_rate: 0}")
    assert "learning_rate must be" in command_line("train", "there.yaml", cwd=tmp_path).stderr
    assert "no such config file" in command_line("train", "there.yaml", cwd=tmp_path.parent).stderr
    wide, narrow = (command_line("eval", "--help", cwd=tmp_path, COLUMNS=width).stdout for width in ("150", "60"))
    assert len(narrow.splitlines()) > len(wide.splitlines())
    with pytest.raises(AssertionError, match="HF_HOME is read on import"):
        command_line("--help", cwd=tmp_path, HF_HOME="elsewhere")


def test_a_fork_that_takes_too_long_is_killed(tmp_path):
    assert command_line("view", "--port", "0", cwd=tmp_path, timeout=1).returncode == -9
    assert command_line("--help", cwd=tmp_path).returncode == 0


ENDS = {
    "pass": (0, ""),
    "sys.exit(3)": (3, ""),
    "sys.exit('said')": (1, "said\n"),
    "1 / 0": (1, "ZeroDivisionError: division by zero\n"),
    "threading.Thread(target=lambda: (time.sleep(0.2), print('thread', file=sys.stderr))).start()": (0, "thread\n"),
    "atexit.register(print, 'late', file=sys.stderr)": (0, "late\n"),
}


@pytest.mark.parametrize(("what", "code", "said"), [(what, *end) for what, end in ENDS.items()], ids=ENDS)
def test_the_end_of_a_fork_is_the_end_of_a_program(what, code, said):
    body = f"import atexit, sys, threading, time\ndef program():\n    {what}\n"
    for last in ("program()", "from forks import end\nend(program)"):
        command = [sys.executable, "-c", body + last]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        assert done.returncode == code
        assert done.stderr.endswith(said)
