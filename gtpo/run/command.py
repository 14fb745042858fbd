"""`gtpo train`: one run from its config to its folder, resumable at any moment."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

# Nothing of a run is reported anywhere unless the config asks for a tracker.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from gtpo.config import TrainConfig
from gtpo.run.folder import RunFolder
from rewards.support.errors import UserError


class _Interrupt:
    """First SIGINT or SIGTERM asks for a clean stop after the step; the second one acts as usual."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not in the main thread: the caller handles signals
                break
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        print("gtpo: stopping after this step (once more to stop at once)", file=sys.stderr, flush=True)
        signal.signal(number, self._before[number])


def train(
    config: TrainConfig,
    *,
    quiet: bool = False,
    json_output: bool = False,
    check_loss: bool = False,
    results_dir: Path = Path("results"),
) -> Path:
    """Train `config` into `results_dir/train/<run_name>` and return that folder.

    The same call again resumes an interrupted run from its last whole checkpoint and leaves a finished one alone.

    Raises UserError for what the user can fix, and KeyboardInterrupt after a clean stop asked for by a signal.
    """
    if config.env.CUDA_VISIBLE_DEVICES is not None:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", config.env.CUDA_VISIBLE_DEVICES)
    from gtpo.run.session import Session

    folder = RunFolder(results_dir / "train" / config.run_name)
    folder.check_config(config)
    if folder.run().get("status") == "finished":
        if not quiet:
            print(f"{folder.root} is finished; nothing to do", file=sys.stderr)
        _report(folder, json_output)
        return folder.root

    with _Interrupt() as interrupt:
        session = Session(config, folder, results_dir, quiet=quiet, interrupt=interrupt, check_loss=check_loss)
        session.run()
    if session.main:
        _report(folder, json_output)
    if interrupt.asked:
        raise KeyboardInterrupt
    return folder.root


def _report(folder: RunFolder, json_output: bool) -> None:
    if json_output:
        run = folder.run()
        keys = ("run_name", "status", "method", "step", "steps", "best", "wall_time_s")
        print(json.dumps({"run": str(folder.root)} | {key: run.get(key) for key in keys}))


def elapsed(begin: float) -> float:
    """Return seconds since `begin` (time.monotonic), rounded."""
    return round(time.monotonic() - begin, 1)


__all__ = ["UserError", "train"]
