"""`gtpo ...` in this process, which has imported torch and TRL already: that saves five seconds a command.

What needs a process of its own starts one: kills, signals, start-up, and variables that are read on import.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest


def command_line(
    *words: object, cwd: Path, code: int | None = None, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Run `gtpo WORDS` in a folder, which must end with `code` if there is one.

    environment: what differs from this process's, None if it is unset.
    """
    from gtpo import cli

    real, variables = {1: os.dup(1), 2: os.dup(2)}, dict(os.environ)
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(cwd)
        for name, value in environment.items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        patch.setattr(sys, "argv", ["gtpo", *map(str, words)])
        for number, name, file in ((1, "stdout", out), (2, "stderr", err)):
            os.dup2(file.fileno(), number)  # a worker process writes there
            patch.setattr(sys, name, file)
        try:
            cli.app()
            ended = 0
        except SystemExit as end:
            ended = int(str(end.code or 0))
        finally:
            for number, descriptor in real.items():
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.environ.clear()
            os.environ.update(variables)
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(list(words), ended, out.read(), err.read())
    assert code in (None, ended), done.stdout + done.stderr
    return done


def process(*words: object, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, which must end with `code`; options are those of subprocess.run."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def python(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` so."""
    return process(sys.executable, *words, **options)


def copy_packages(root: Path, target: Path) -> None:
    """Copy the packages into a folder that can stand on PYTHONPATH, as an installation holds them: all inside gtpo/."""
    for source, name in (("gtpo", "gtpo"), ("rewards", "gtpo/rewards"), ("evalkit", "gtpo/evalkit")):
        shutil.copytree(root / source, target / name, ignore=shutil.ignore_patterns("__pycache__"))


def make_once() -> None:
    """Make what no test changes once a process: the embedded problems, the judge's workers of all commands, and the
    packages' metadata, which accelerate parses again for every model that it unwraps."""
    from gtpo.evalkit.evaluation import command, evaluate
    from gtpo.rewards.data import problems
    from gtpo.rewards.verify import Verifier

    class Kept(Verifier):
        def __exit__(self, *exception: object) -> None:
            """Leave the workers to the next command."""

    kept = functools.cache(Kept)
    for module in (command, evaluate):
        module.Verifier = kept  # type: ignore[attr-defined]
    for name, make in problems.GENERATED.items():
        problems.GENERATED[name] = functools.partial(lambda made: list(made()), functools.cache(make))
    importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)
