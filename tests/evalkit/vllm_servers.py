"""`gtpo eval` and vLLM's servers as processes that tests kill, and what `gtpo eval` has stored."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

EVAL = (
    "import sys, gtpo.evalkit.evaluation.scoring as p; p.PART_ROWS = 1; "
    "from gtpo import cli; sys.argv[0] = 'gtpo'; cli.app()"
)
"""`gtpo` with a part for every lot of samples, so that what is on disk shows what has come."""

QUIET = {
    "VLLM_CPU_ATTN_SPLIT_KV": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""What `quiet_vllm` sets, for servers as well."""


class VLLMServer:
    """vLLM's server with a model on a port of its own; it may be killed and started again."""

    def __init__(self, arguments: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        # `vllm serve` itself asks for the version of a package called vllm, which vllm-cpu is not.
        self._command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments, "--enforce-eager"]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"]
        self._log, self._environment = log, {**(environment or os.environ), **QUIET}
        self.start()

    def start(self) -> None:
        """Start it, without waiting."""
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self, seconds: float = 240.0) -> None:
        """Wait until it answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self._log.read_text()[-3000:]
            if self.answers:
                return
            time.sleep(0.2)
        raise TimeoutError(self._log.read_text()[-3000:])

    @property
    def answers(self) -> bool:
        """Return whether it is up."""
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1.0) as answer:
            return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        """End all of its processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def serving(model: Path, folder: Path, count: int) -> Iterator[list[VLLMServer]]:
    """Start servers beside each other; each name is `m`."""
    arguments = ["--model", str(model), "--served-model-name", "m", "--no-enable-chunked-prefill"]
    servers = [VLLMServer(arguments, folder / f"server{number}.log") for number in range(count)]
    try:
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()
