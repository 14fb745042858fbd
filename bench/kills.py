"""Ten kills at random moments: does an interrupted evaluation end with the samples of one that was left alone?

`--engine ray`: model copies as Ray actors on this machine; victims are the copies and `gtpo eval` itself, which is
then started again with the same command. `--engine openai`: vLLM's own servers; victims are the servers, each of which
is started again after a while, and `gtpo eval`; one server is always up. Every kill is SIGKILL, every moment and victim
comes from `--seed`. `longest_pause_seconds` is the longest time without a new sample on disk from the first to the
last. Expected, written down before the first run: every row the same, and no pause over 60 s. On a machine with other
work OMP_NUM_THREADS=1 spares the reference's threads a wait for each other.

    python -m bench.kills [--engine ray|openai] [--kills N] [--seed N] [--k N] [--max-tokens N] [--out FILE]

The model is small, with random weights. Needs vLLM, and Ray for `--engine ray`. The reference is
`--engine vllm`, one process.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pyarrow.parquet as pq

from bench.common import parser, save, table
from gtpo.common.provenance import package_versions

AFTER_SAMPLE_S = (0.2, 6.0)
"""Shortest and longest time from the first new sample since the last kill to the next kill."""

AFTER_KILL_S = (1.0, 15.0)
"""The same from the last kill, for the share of kills that wait for no sample: they hit what is starting."""

AT_ANY_MOMENT = 0.25
"""That share."""

EVAL = (
    "import sys, gtpo.evalkit.evaluation.pipeline as p; p.PART_ROWS = 1; "
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


def samples(run: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return (question, sample index) -> row; the same sample never twice."""
    rows = [row for part in sorted(run.glob("samples/part-*.parquet")) for row in pq.read_table(part).to_pylist()]
    found = {(row["question_id"], row["sample_index"]): row for row in rows}
    assert len(found) == len(rows), "a sample is stored twice"
    return found


def copies(pid: int) -> list[psutil.Process]:
    """Return the processes of the model copies that a `gtpo eval` has started through Ray."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                if process.cmdline()[0].startswith("ray::ModelCopy"):
                    found.append(process)
    return sorted(found, key=lambda process: process.pid)


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


def torment(
    command: list[str], run: Path, rng: random.Random, kills: int, servers: list[VLLMServer]
) -> tuple[list[dict[str, Any]], float]:
    """Run a command to its end with kills on the way; return them, and the longest time without a new sample."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", EVAL, *command], stdout=subprocess.DEVNULL, stderr=log)

    done: list[dict[str, Any]] = []
    down: dict[VLLMServer, float] = {}
    began = time.monotonic()
    longest, latest, parts = 0.0, 0.0, 0
    kill_at: float | None = None  # not before the next sample
    with (run.parent / "eval.log").open("ab") as log:
        process = start()
        while True:
            now = time.monotonic()
            found = len(list(run.glob("samples/part-*.parquet")))
            if found > parts:
                longest, latest, parts = max(longest, now - latest if latest else 0.0), now, found
                for kill in done:
                    kill.setdefault("next_sample_after_seconds", round(now - began - kill["second"], 2))
                kill_at = kill_at or now + rng.uniform(*AFTER_SAMPLE_S)
            for server, again in list(down.items()):
                if now > again:
                    server.start()
                    del down[server]
            if process.poll() is not None:
                if process.returncode == 0:
                    return done, longest
                process = start()
            elif kill_at is not None and now > kill_at and len(done) < kills:
                victims: list[Any] = [*copies(process.pid), *(server for server in servers if server not in down)]
                victim = process if not victims or rng.random() < 0.2 else rng.choice(victims)
                if isinstance(victim, VLLMServer):
                    if not any(server.answers for server in servers if server is not victim):  # one stays
                        victim = process
                    else:
                        down[victim] = now + rng.uniform(2.0, 8.0)
                what = "gtpo eval" if victim is process else "server" if servers else "copy"
                done.append({"second": round(now - began, 2), "victim": what, "samples_parts_on_disk": found})
                print(f"{now - began:7.1f} s: killing {what}", flush=True)
                victim.kill()
                kill_at = now + rng.uniform(*AFTER_KILL_S) if rng.random() < AT_ANY_MOMENT else None
            time.sleep(0.05)


def random_model(folder: Path) -> Path:
    """Write a small model with random weights: what it says is noise, at a trained model's speed."""
    from gtpo.config import BuiltModel
    from gtpo.inputs.tiny import build_tiny_model

    # vLLM on a CPU wants heads of 32 or more.
    model, tokenizer = build_tiny_model(BuiltModel(num_attention_heads=2), max_seq_length=256, seed=3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def page(reports: Sequence[dict[str, Any]]) -> str:
    """Return the table of docs/scale.md."""
    what = {"ray": "model copies on Ray", "openai": "vLLM servers"}
    rows = []
    for report in reports:
        victims = collections.Counter(kill["victim"] for kill in report["kills"])
        killed = ", ".join(f"{victim} {count} times" for victim, count in sorted(victims.items()))
        counts = (f"{report[name]:,}" for name in ("stored", "same_rows"))
        rows.append((what[report["engine"]], killed, *counts, f"{report['longest_pause_seconds']:.0f} s"))
    return table(("two of", "killed", "samples", "rows as in one process left alone", "longest pause"), rows)


def main() -> None:
    made = parser(__doc__, engine=("ray", "openai"), copies=2, kills=10, seed=0, k=256, max_tokens=48, out=Path)
    arguments = made.parse_args()
    common = ["--benchmarks", "arithmetic", "--k", str(arguments.k)]
    common += ["--max-tokens", str(arguments.max_tokens), "--quiet"]
    os.environ.update(QUIET)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        model = random_model(folder / "model")
        reference = ["eval", str(model), "--engine", "vllm", *common, "--out", str(folder / "whole")]
        subprocess.run([sys.executable, "-m", "gtpo", *reference], check=True, stdout=subprocess.DEVNULL)
        servers: list[VLLMServer] = []
        if arguments.engine == "ray":
            command = ["eval", str(model), "--engine", "ray", "--data-parallel-size", str(arguments.copies)]
        else:
            servers = stack.enter_context(serving(model, folder, arguments.copies))
            command = ["eval", "m", "--engine", "openai", "--concurrency", "16"]
            command += [word for server in servers for word in ("--base-url", server.url)]
        run = folder / "killed"
        kills, longest = torment(
            [*command, *common, "--out", str(run)], run, random.Random(arguments.seed), arguments.kills, servers
        )
        whole, killed = samples(folder / "whole"), samples(run)
        differing = [key for key, row in whole.items() if killed.get(key) != row]
        log = (folder / "eval.log").read_text()
        said = [line.replace(str(folder), "...") for line in log.split("\n") if line.startswith("gtpo: ")]
    result = {
        **{name: getattr(arguments, name) for name in ("k", "max_tokens", "engine", "copies", "seed")},
        "kills": kills,
        "samples": len(whole),
        "stored": len(killed),
        "same_rows": len(whole) - len(differing),
        "longest_pause_seconds": round(longest, 1),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "versions": package_versions("vllm-cpu", "vllm", "ray"),
        "said": said,
    }
    print(page([result]))
    save(arguments.out or Path(f"results/bench/kills_{arguments.engine}.json"), result)
    if differing or len(killed) != len(whole):
        sys.exit(f"not the same: {differing[:5]}")


if __name__ == "__main__":
    main()
