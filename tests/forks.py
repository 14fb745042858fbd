"""`gtpo ...` in forks of one process that has imported what the commands import: importing TRL takes five seconds.

    python tests/forks.py < requests > answers        the process that forks: a JSON object a line, in and out
    command_line("eval", ..., cwd=folder)             what tests call

A fork has its own working directory, environment, files for stdout and stderr, and ends as a program does: with its
exit code, its traceback, and what is registered for the end. What differs from `python -m gtpo`: modules are imported
already, so a variable that is read on import is refused, and signals, kills and start-up are for real processes.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

WARM = (
    "gtpo.cli",
    "gtpo.doctor",
    "gtpo.evalkit.engines.transformers",
    "gtpo.evalkit.evaluation.command",
    "gtpo.evalkit.report.command",
    "gtpo.plan.dry_run",
    "gtpo.run.command",
    "gtpo.run.session",
    "gtpo.trainer",
    "datasets",
    "gtpo.rewards.verify",
    "peft",
    "pyarrow.parquet",
    "scipy.stats",
    "tensorboard",
    "torch.utils.tensorboard",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "trl",
)
READ_ON_IMPORT = ("ACCELERATE_", "CUDA_", "HF_", "OMP_", "PYTHON", "TRANSFORMERS_", "TRITON_", "TRL_", "VLLM_")


def make_once() -> None:
    """Make what no test changes once a process: the embedded problems, and the packages' metadata, which accelerate
    parses again for every model that it unwraps. A training run of the tests takes a third less for it."""
    from gtpo.rewards.data import problems

    for name, make in problems.GENERATED.items():
        problems.GENERATED[name] = functools.partial(lambda made: list(made()), functools.cache(make))
    importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)


def serve() -> None:
    """Fork once a request; the parent waits for it and answers, the fork returns to be the command."""
    for module in WARM:
        importlib.import_module(module)
    import torch

    make_once()

    torch.set_num_threads(1)
    # A fork has the calling thread alone: a lock that another one holds would never be released in it. jemalloc, which
    # pyarrow brings, prepares its own thread for forks.
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert [name for name in names if name != "jemalloc_bg_thd"] == names[:1], names
    gc.freeze()  # the collector would copy every page of this process into each fork
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    print(json.dumps({"ready": os.getpid()}), file=answers)
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            become(request)
            return
        print(json.dumps({"pid": child}), file=answers)
        print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}), file=answers)
    os._exit(0)


def become(request: Mapping[str, Any]) -> None:
    """Take over what the request says a process of its own would have had."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for name, descriptor in (("/dev/null", 0), (request["stdout"], 1), (request["stderr"], 2)):
        opened = os.open(name, os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.argv = ["gtpo", *request["words"]]
    sys.path[0] = request["cwd"]  # as with python -m


def end(program: Callable[[], object]) -> NoReturn:
    """Run a program and end this process as Python would, but for taking down a thousand modules."""
    code: object = 0
    try:
        program()
    except SystemExit as stop:
        code = stop.code
        if not (code is None or isinstance(code, int)):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0) & 0xFF)  # type: ignore[call-overload]


class CommandLines:
    """The client of one forking process, which starts on first use and ends when its requests do."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def run(
        self, *words: object, cwd: Path, timeout: float = 240, **environment: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Run `gtpo WORDS` in a folder; `environment`: what differs from this process's, None where it is unset."""
        early = [name for name in environment if name.startswith(READ_ON_IMPORT)]
        assert not early, f"{early[0]} is read on import: start a process of its own"
        merged = {name: value for name, value in (os.environ | environment).items() if value is not None}
        with tempfile.TemporaryDirectory() as folder:
            outputs = {name: Path(folder) / name for name in ("stdout", "stderr")}
            for path in outputs.values():
                path.touch()
            files = {name: str(path) for name, path in outputs.items()}
            pid = self._ask({"words": [str(word) for word in words], "cwd": str(cwd), "env": merged, **files})["pid"]
            killer = threading.Timer(timeout, os.kill, (pid, signal.SIGKILL))
            killer.start()
            code = self._answer()["code"]
            killer.cancel()
            out, err = (path.read_text(encoding="utf-8") for path in outputs.values())
        return subprocess.CompletedProcess(list(words), code, out, err)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.process is None:
            command = [sys.executable, __file__]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            atexit.register(self.process.communicate)
            assert "ready" in self._answer()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the forking process has ended: see its stderr"
        answer: dict[str, Any] = json.loads(line)
        return answer


command_line = CommandLines().run
"""command_line("eval", ..., cwd=folder): the forking process of this one, which ends with it."""


if __name__ == "__main__":
    serve()
    from gtpo.cli import app

    end(app)
