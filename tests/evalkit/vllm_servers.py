"""vLLM's server as a process of a test, and a `gtpo` that shows on disk what has come."""

from __future__ import annotations

import sys
from pathlib import Path

from gtpo.evalkit.engines.serve import ServerProcess

EVAL = (
    "import sys, gtpo.evalkit.evaluation.scoring as p; p.PART_ROWS = 1; "
    "from gtpo import cli; sys.argv[0] = 'gtpo'; cli.app()"
)
"""`gtpo` with a part for every lot of samples."""

QUIET = {
    "VLLM_CPU_ATTN_SPLIT_KV": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""What `quiet_vllm` sets, for servers as well."""


def vllm_server(model: Path, log: Path, *flags: str, **environment: str) -> ServerProcess:
    """Start vLLM's server with a model on a port of its own, and wait until it answers."""
    # `vllm serve` itself asks for the version of a package called vllm, which vllm-cpu is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *flags]
    command += ["--enforce-eager", "--host", "127.0.0.1", "--port", "{port}", "--dtype", "float32"]
    return ServerProcess(command, log, {}, QUIET | environment)
