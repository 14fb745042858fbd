"""When a run is asked to stop after its step, by a signal or by a stop file, and how its processes agree on it.

A signal reaches the processes of a run at different moments, or one of them alone; a launcher kills them some time
after it passed the signal on (`torchrun`, `accelerate`: 30 s). A stop file has no such limit, and needs no process id.
Either way all processes stop after the same step: one that continued alone would wait for the others forever.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from gtpo.common.log import LOG
from gtpo.config.resolve import launched_processes

if TYPE_CHECKING:
    from accelerate import Accelerator

STOP_FILE = "GTPO_STOP_FILE"
"""Environment variable: a file whose existence stops the run, besides `stop` in the run folder."""


class StoppedBeforeTraining(Exception):
    """The run was asked to stop while the untrained policy was measured."""


class Stop:
    """Whether a run stops after its step. As a context manager it takes SIGINT and SIGTERM: the first one asks for a
    clean stop, the second one acts as usual.

    hint: what else to say when asked.
    """

    def __init__(self, run_folder: Path, hint: str = "") -> None:
        self.asked = False
        """On this process; after `agree`, on any."""
        self.agreed = False
        self.immediate = False
        """Whether a signal stops at once: nothing has been trained that a step would lose."""
        self.hint, self.in_folder = hint, run_folder / "stop"
        named = os.environ.get(STOP_FILE)
        self.files = [self.in_folder, *([Path(named)] if named else [])]
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
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
        if self.immediate:
            raise StoppedBeforeTraining
        LOG.warning(f"stopping after this step (press again to stop at once){self.hint}")
        signal.signal(number, self._before[number])

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal stop the run at once in here, by StoppedBeforeTraining. Of one process: others would wait."""
        self.immediate = launched_processes() == 1
        try:
            yield
        finally:
            self.immediate = False

    def forget(self) -> None:
        """Remove the run folder's stop file: the next start must not meet it. The main process calls it."""
        self.in_folder.unlink(missing_ok=True)

    def agree(self, accelerator: Accelerator) -> bool:
        """Return whether any process was asked to stop, the same on all. All processes call it after each step."""
        asked = self.asked
        if accelerator.is_main_process and (found := [path for path in self.files if path.exists()]):
            if not asked:
                LOG.warning(f"stopping after this step ({found[0]})")
            asked = True
        if accelerator.num_processes > 1:
            import torch  # not before CUDA_VISIBLE_DEVICES is set

            asked = bool(accelerator.gather(torch.tensor([asked], device=accelerator.device).int()).max())
        self.asked = self.agreed = asked
        return asked
