"""Where trackers put their files: into the run folder, unless the user's environment says otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDERS = {"TENSORBOARD_LOGGING_DIR": "tensorboard", "WANDB_DIR": ".", "TRACKIO_DIR": "trackio"}
"""Variable that names a tracker's folder -> folder in the run folder (wandb makes a folder wandb/ of its own)."""


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
