"""What surrounds a run: its folder, what libraries are told, where trackers write, when it stops, how processes end.

A signal reaches the processes of a run at different moments, or one of them alone; a launcher kills them some time
after it passed the signal on (`torchrun`, `accelerate`: 30 s). A stop file has no such limit, and needs no process id.
Either way all processes stop after the same step: one that continued alone would wait for the others forever.

Free of torch: CUDA_VISIBLE_DEVICES is set before it is imported.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from gtpo.common.errors import UserError
from gtpo.common.files import LOCK_FILES, flatten, write_text
from gtpo.common.log import LOG
from gtpo.config import TrainConfig
from gtpo.config.load import layers, merged, to_config
from gtpo.runs.train_run import PROBLEMS, TrainFolder

if TYPE_CHECKING:
    from accelerate import Accelerator

# -- the folder --------------------------------------------------------------------------------------------------------

# Keys that may differ between a run and its continuation: they change no number.
FREE_KEYS = frozenset(
    {
        "env.CUDA_VISIBLE_DEVICES",
        "model.gpu_memory_utilization",
        "dataset.data_dir",
        "training.save_steps",
        "training.save_total_limit",
        "training.push_to_hub",
        "training.report_to",
        "training.log_completions_steps",
        "rollout.server_host",
        "rollout.server_port",
        "rollout.logp_difference_alarm",
    }
)


def _difference(folder: TrainFolder, config: TrainConfig, more: dict[str, Any]) -> str | None:
    """Return the first key that separates a config from the run's, with both values; None if nothing does.

    A key that is unset and has lost its default takes the run's value. Raises UserError if the run's config is of a
    version whose keys are not those of this one; a key that an earlier version did not have takes its default.
    """
    run = folder.run()
    try:
        before = flatten(to_config(merged(layers(folder.config_yaml), folder.root.name)).as_dict())
    except (UserError, ValueError) as error:  # ValueError: of an objective that is refused now
        first = str(error).splitlines()[0]
        raise UserError(
            f"{folder.root} holds a run that this version of gtpo cannot resume ({first}). Choose another run_name "
            "(--run-name), or resume it with the version that run.json names; nothing was overwritten"
        ) from None
    # Its default was false before it followed from the objective: unset, a run goes on as it began.
    if config.rollout.importance_sampling_correction is None:
        config.rollout.importance_sampling_correction = before.get("rollout.importance_sampling_correction")
    # An objective is compared field by field: a preset may have been changed since.
    after = flatten(config.as_dict()) | more
    before |= {key: run.get(key, value) for key, value in more.items()}
    changed = (key for key in {**before, **after} if key not in FREE_KEYS and before.get(key) != after.get(key))
    return next((f"{key} = {before.get(key)!r}, now {after.get(key)!r}" for key in changed), None)


def check_config(folder: TrainFolder, config: TrainConfig, **more: Any) -> str | None:
    """Refuse to resume with another config. Raises UserError naming the first key that differs.

    A start that failed before its first step binds nothing: why it is to be replaced is returned. more: what else the
    run's numbers follow from, as run.json has it: `TrainingRun.identity`.
    """
    try:
        names = {path.name for path in folder.root.iterdir()} if folder.root.exists() else set[str]()
    except OSError as error:
        raise UserError(f"{folder.root} cannot be a run folder ({error.strerror}); choose another run_name") from None
    if folder.config_yaml.name not in names:
        if names - LOCK_FILES:
            raise UserError(f"{folder.root} exists and is no train run (no config.yaml); choose another run_name")
        return None
    begun = folder.has_begun()
    try:
        difference = _difference(folder, config, more)
    except UserError:
        if begun:
            raise
        return "its config is of another version"
    if difference and begun:
        raise UserError(
            f"{folder.root} holds a run with {difference}. Choose another run_name (--run-name), restore the key, or "
            "move the folder away; nothing was overwritten"
        )
    return difference


def begin(folder: TrainFolder, config: TrainConfig, **more: Any) -> None:
    """Write the config; remove what an interrupted write left behind, and what depends on a replaced start's config."""
    # Again, under the lock: another process may have been quicker.
    changed = check_config(folder, config, **more)
    folder.remove_partial()
    if changed:
        LOG.warning(f"{folder.root}: replacing a start that made no step ({changed})")
        # Weights of the other model, and what it wrote; H_ini of the other policy; the other problems.
        for path in (folder.base, folder.best, folder.final, folder.completions):
            shutil.rmtree(path, ignore_errors=True)
        for path in (folder.run_json, folder.root / PROBLEMS):
            path.unlink(missing_ok=True)
    write_text(folder.config_yaml, config.to_yaml())


# -- libraries and trackers --------------------------------------------------------------------------------------------

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
        named = os.environ.get(STOP_FILE)
        self.files = [run_folder / "stop", *([Path(named)] if named else [])]
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
        self.files[0].unlink(missing_ok=True)

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
        self.requested = requested
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
