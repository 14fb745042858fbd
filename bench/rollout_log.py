"""What a run's vLLM sampled, kept so that the run can go on where its checkpoints are lost.

A checkpoint of the plan's LoRA with Adam's moments has over 200 MB, the tokens of a step a few kilobytes. A start that
finds a log takes its completions in their order, as long as it is asked for the same prompts: gradients are computed
anew, nothing is sampled. Behind the log's end it samples, and appends. `python -m bench.rollout_log train CONFIG` is
`gtpo train` with the log that the variable ROLLOUT_LOG names.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from gtpo.common.errors import UserError

VARIABLE = "ROLLOUT_LOG"


class RolloutLog:
    """Calls of the sampler: one line of JSON each, in a gzip member of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[dict[str, Any]] = []
        if path.is_file():
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                self.calls = [json.loads(line) for line in lines]
        self.at = 0

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
        raise UserError(f"{self.path}: none of the calls from the {self.at + 1}th on has this run's prompts")

    def append(self, call: dict[str, Any]) -> None:
        """Write a call behind the others, at once."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as out:
            out.write(gzip.compress(json.dumps(call, separators=(",", ":")).encode() + b"\n"))
        self.calls.append(call)
        self.at = len(self.calls)


def keep_rollouts() -> None:
    """Let TRL's vLLM of this process take its completions from the log of VARIABLE and write to it, where it is set."""
    if not (path := os.environ.get(VARIABLE)):
        return
    from trl.generation.vllm_generation import VLLMGeneration

    log, plain = RolloutLog(Path(path)), VLLMGeneration.generate

    def generate(self: Any, prompts: Any, images: Any, num_generations: int, profiler: Any = None) -> Any:
        if (call := log.find(prompts)) is None:
            _, ids, logps, _ = plain(self, prompts, images, num_generations, profiler)
            of_sampled = [[round(token[0], 4) for token in row] for row in logps]
            log.append({"prompts": prompts, "completions": ids, "logps": of_sampled})
            return prompts, ids, logps, None
        torch.manual_seed(log.at)  # what is sampled behind the log has noise of its own
        return prompts, call["completions"], [[[token] for token in row] for row in call["logps"]], None

    VLLMGeneration.generate = generate


def main() -> None:
    """Run gtpo with the arguments of this command."""
    keep_rollouts()
    from gtpo.cli import app

    app(sys.argv[1:])


if __name__ == "__main__":
    main()
