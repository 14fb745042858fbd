"""What a run's vLLM sampled, kept so that the run can go on where its checkpoints are lost.

A checkpoint of the plan's LoRA with Adam's moments has over 200 MB, the tokens of a step a few kilobytes. A start that
finds a log takes its completions in their order, as long as it is asked for the same prompts: gradients are computed
anew, nothing is sampled. Behind the log's end it samples, and appends. On one machine the run is then the uninterrupted
one. `python -m bench.rollout_log train CONFIG` is
`gtpo train` with the log that the variable ROLLOUT_LOG names.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import torch

from bench.vllm_cpu import use_dense_adapters
from gtpo.common.errors import UserError
from gtpo.common.files import write_bytes

VARIABLE = "ROLLOUT_LOG"


class RolloutLog:
    """Calls of the sampler: one line of JSON each, in a gzip member of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[dict[str, Any]] = []
        self.at = 0
        if not path.is_file():
            return
        try:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    self.calls.append(json.loads(line))
        except (EOFError, ValueError):  # killed while it wrote the last call
            write_bytes(path, b"".join(map(_member, self.calls)))

    def __len__(self) -> int:
        return len(self.calls)

    def find(self, prompts: list[list[int]]) -> dict[str, Any] | None:
        """Return the next call for these prompts, and go on behind it; None behind the last one.

        A start from a checkpoint passes over the calls that led to it. Raises UserError where no call that is left has
        these prompts.
        """
        if self.at == len(self.calls):
            return None
        for place in range(self.at, len(self.calls)):
            if self.calls[place]["prompts"] == prompts:
                self.at = place + 1
                return self.calls[place]
        left = len(self.calls) - self.at
        raise UserError(f"{self.path}: none of its last {left} calls has this run's prompts")

    def append(self, call: dict[str, Any]) -> None:
        """Write a call behind the others, at once."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as out:
            out.write(_member(call))
        self.calls.append(call)
        self.at = len(self.calls)


def _member(call: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps(call, separators=(",", ":")).encode() + b"\n", mtime=0)


def keep_rollouts() -> None:
    """Let TRL's vLLM of this process take its completions from the log of VARIABLE and write to it, where it is set."""
    if not (path := os.environ.get(VARIABLE)):
        return
    from trl.generation.vllm_generation import VLLMGeneration

    log, plain = RolloutLog(Path(path)), VLLMGeneration.generate

    def generate(self: Any, prompts: Any, images: Any, num_generations: int, profiler: Any = None) -> Any:
        # vLLM on a CPU draws from torch's generator, as TRL does: what comes after a call is the same after its replay.
        seed = zlib.crc32(json.dumps(prompts).encode())
        if (call := log.find(prompts)) is None:
            torch.manual_seed(seed + 2 * len(log))
            _, ids, logps, _ = plain(self, prompts, images, num_generations, profiler)
            call = {"prompts": prompts, "completions": ids, "logps": [[round(t[0], 4) for t in row] for row in logps]}
            log.append(call)
        torch.manual_seed(seed + 2 * log.at - 1)
        return prompts, call["completions"], [[[token] for token in row] for row in call["logps"]], None

    VLLMGeneration.generate = generate


def main() -> None:
    """Run gtpo with the arguments of this command."""
    use_dense_adapters()
    keep_rollouts()
    from gtpo.cli import app

    app(sys.argv[1:])


if __name__ == "__main__":
    main()
