"""What surrounds a run: what libraries are told, where trackers write, and how its processes end.

Free of torch: CUDA_VISIBLE_DEVICES is set before it is imported.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from gtpo.common.log import LOG

FOLDERS = {"TENSORBOARD_LOGGING_DIR": "tensorboard", "WANDB_DIR": ".", "TRACKIO_DIR": "trackio"}
"""Variable that names a tracker's folder -> folder in the run folder (wandb makes a folder wandb/ of its own)."""

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


def run_on_cpu() -> None:
    """Tell accelerate and DeepSpeed, before they look, that this machine has no accelerator."""
    # Process 1 would have the device cpu:1, onto which torch.load puts no checkpoint.
    os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it warns on stdout that it found none


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


def end_process(code: int = 0) -> NoReturn:
    """End this process with an exit code: exit handlers and buffers as usual, but no teardown of the interpreter.

    gloo's threads outlive `destroy_process_group`. One that frees a tensor while Python ends aborts the process (exit
    code -6, "terminate called without an active exception"), and the launcher reports a finished run as failed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
