"""What surrounds a run: what libraries are told, where trackers write, when it is to stop, and how its processes end.

A signal reaches the processes of a run at different moments, or one of them alone; a launcher kills them some time
after it passed the signal on (`torchrun`, `accelerate`: 30 s). A stop file has no such limit, and needs no process id.
Either way all processes stop after the same step: one that continued alone would wait for the others forever.

Free of torch: CUDA_VISIBLE_DEVICES is set before it is imported.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from gtpo.common.log import LOG

if TYPE_CHECKING:
    from accelerate import Accelerator

# Variable that names a tracker's folder -> folder in the run folder (wandb makes a folder wandb/ of its own).
FOLDERS = {"TENSORBOARD_LOGGING_DIR": "tensorboard", "WANDB_DIR": ".", "TRACKIO_DIR": "trackio"}

_LIBRARIES = ("accelerate", "trl", "datasets", "torch.distributed", "bitsandbytes", "kernels", "vllm")


def quiet_libraries() -> None:
    """Keep the libraries' own messages off the terminal, except with --verbose. Their errors still raise."""
    import datasets
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    if LOG.isEnabledFor(logging.DEBUG):
        return
    transformers_logging.set_verbosity_error()
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(transformers|trl|accelerate|peft|torch|vllm|triton|bitsandbytes)(\.|$)")


@contextmanager
def trackers_write_to(root: Path) -> Iterator[None]:
    """Let trackers that start inside write below `root`; a variable that is set already is left alone.

    trackio reads its variable when it is imported, which trl does: it keeps the folder of a process's first run.
    """
    ours = {name: str((root / folder).resolve()) for name, folder in FOLDERS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


# Environment variable: a file whose existence stops the run, besides `stop` in the run folder.
STOP_FILE = "GTPO_STOP_FILE"


class Stop:
    """Whether a run stops after its step. As a context manager it takes SIGINT and SIGTERM: the first one asks for a
    clean stop, the second one acts as usual.
    """

    def __init__(self, run_folder: Path) -> None:
        # Whether a stop was requested: of this process; after `agree`, of any.
        self.requested = False
        self.agreed = False
        self.in_folder = run_folder / "stop"
        named = os.environ.get(STOP_FILE)
        self.files = [self.in_folder, *([Path(named)] if named else [])]
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._on_signal)
            except ValueError:
                # Not in the main thread: the caller handles signals.
                break
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        LOG.warning("stopping after this step (press again to stop at once)")
        signal.signal(number, self._before[number])

    def forget(self) -> None:
        """Remove the run folder's stop file: the next start must not meet it. The main process calls it."""
        self.in_folder.unlink(missing_ok=True)

    def agree(self, accelerator: Accelerator) -> bool:
        """Return whether any process was asked to stop, the same on all. All processes call it after each step."""
        requested = self.requested
        if accelerator.is_main_process and (files := [path for path in self.files if path.exists()]):
            if not requested:
                LOG.warning(f"stopping after this step ({files[0]})")
            requested = True
        if accelerator.num_processes > 1:
            import torch  # not before CUDA_VISIBLE_DEVICES is set

            requested = bool(accelerator.gather(torch.tensor([requested], device=accelerator.device).int()).max())
        self.requested = self.agreed = requested
        return requested


def end_process(code: int = 0) -> NoReturn:
    """End this process with an exit code: exit handlers and buffers as usual, but no teardown of the interpreter.

    gloo's threads outlive `destroy_process_group`. One that frees a tensor while Python ends aborts the process (exit
    code -6, "terminate called without an active exception"), and the launcher reports a finished run as failed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
