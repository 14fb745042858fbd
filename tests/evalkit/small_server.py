"""A server with OpenAI's completions, as `gtpo eval --serve-command` starts it: `small_server.py MODEL PORT`.

The environment says how it behaves: SMALL_FAILS (prints an error and ends), SMALL_SILENT (never listens),
SMALL_KILLED_AFTER and SMALL_HOLDS_AFTER (completions until it kills itself, or answers no more). It writes its own
number, that of a process that it leaves behind, and that of its guard to SMALL_PIDS.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

served: list[dict[str, Any]] = []


def behaves(name: str) -> bool:
    """Return whether so many completions were served that the behaviour begins."""
    return len(served) > int(os.environ.get(name, sys.maxsize))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer as a server that has one model."""
        self.answer(json.dumps({"data": [{"id": "small"}]} if self.path == "/v1/models" else {}))

    def do_POST(self) -> None:
        """Complete a prompt of tokens, by the seed and by nothing else."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        served.append(asked)
        if behaves("SMALL_KILLED_AFTER"):
            os.kill(os.getpid(), signal.SIGKILL)
        if behaves("SMALL_HOLDS_AFTER"):
            threading.Event().wait()
        assert (self.path, asked["model"]) == ("/v1/completions", "small"), asked
        assert all(isinstance(token, int) for token in asked["prompt"]), asked
        text = f"<reasoning>{len(asked['prompt'])} tokens</reasoning>\n<answer>{asked['seed'] % 7}</answer>"
        choice, usage = {"text": text, "finish_reason": "stop"}, {"completion_tokens": 9}
        self.answer(f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\ndata: [DONE]\n\n")

    def answer(self, body: str) -> None:
        """Send a body."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    left_behind = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if "SMALL_PIDS" in os.environ:
        Path(os.environ["SMALL_PIDS"]).write_text(f"{os.getpid()} {left_behind.pid} {os.getppid()}")
    if "SMALL_FAILS" in os.environ:
        raise ValueError("the weights do not fit")
    if "SMALL_SILENT" in os.environ:
        threading.Event().wait()
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
