"""A disk, a quota or a limit on the size of files that is used up: one sentence wherever it happens."""

from __future__ import annotations

import errno
import functools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from commands import python

from gtpo.common.errors import DISK_FULL, explained
from gtpo.common.files import lock_folder

KINDS = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]
ROW = {"id": "1", "problem": "1 + 1?", "gold": "2", "completions": ["<answer>2</answer>", "<answer>3</answer>"]}


def limited(*words: str, cwd: Path, code: int, size: int = 1024) -> subprocess.CompletedProcess[str]:
    """Run a module of gtpo in a process whose files may have `size` bytes, as after `ulimit -f`."""
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    # -B: a compiled module that was cut off at the limit would stay for all later processes.
    return python("-B", "-m", *words, cwd=cwd, code=code, timeout=120, preexec_fn=limit)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.jsonl").write_text(json.dumps(ROW) + "\n")
    return tmp_path


def test_a_limit_on_the_size_of_files_is_told_in_a_sentence(mine: Path) -> None:
    command = ("gtpo", "eval", "--completions", "mine.jsonl", "--k", "2", "--out", "run")
    done = limited(*command, cwd=mine, code=3)
    assert done.stderr.count("\n") == 1, done.stderr
    assert "ulimit -f" in done.stderr
    limited(*command, cwd=mine, code=0, size=10**8)
    page = limited("gtpo", "compare", "run", "--html", "page.html", cwd=mine, code=2)
    assert page.stderr.count("\n") == 1, page.stderr
    assert "page.html" in page.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output(mine: Path) -> None:
    (mine / "pairs.jsonl").write_text('{"prediction": "1", "gold": "1"}\n')
    for command in (("gtpo.rewards", "pairs.jsonl"), ("gtpo", "configs")):
        with open("/dev/full", "w") as full:
            done = subprocess.run([sys.executable, "-m", *command], cwd=mine, stdout=full, stderr=subprocess.PIPE,
                                  text=True, timeout=120)  # fmt: skip
        assert done.returncode != 0, command
        assert "the disk is full" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr, command


@pytest.mark.parametrize("number", KINDS)
def test_each_kind_is_known_to_commands_and_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    from gtpo.train.resume import out_of_space

    assert number in DISK_FULL
    error = OSError(number, os.strerror(number), "results/run/file")
    assert out_of_space(error)
    # As a library tells it that keeps the text only.
    assert out_of_space(RuntimeError(f"I/O error: {os.strerror(number)} (os error {number})"))
    with pytest.raises(SystemExit) as end, explained():
        raise error
    told = capsys.readouterr().err
    assert (end.value.code, told.count("\n")) == (2, 1)
    assert "results/run/file" in told
    with pytest.raises(PermissionError), explained():  # of the system, but no full disk
        raise PermissionError(errno.EACCES, "no")


def test_a_lock_does_not_say_of_a_full_disk_that_the_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        lock_folder(tmp_path / "run")
