"""What a checkpoint must hold for a run to resume exactly, and the run's weights: best/, final/ and base/.

Each of them is whole or absent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerState
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME

from gtpo.common.errors import DISK_FULL, UserError
from gtpo.common.files import read_json, write_json
from gtpo.common.log import LOG
from gtpo.inputs.model import LoadedModel
from gtpo.runs.train_run import PARTIAL, TrainFolder, checkpoint_step, every_checkpoint, last_checkpoint
from gtpo.trainer import trl_seam

STATE_FILE = "gtpo_state.json"

# Its keys that every version has written.
_STATE_KEYS = ("micro_step", "tokens_seen", "within_round")


def damaged(checkpoint: str | Path, why: str) -> UserError:
    """Return the error of a checkpoint that cannot be resumed, with what to do."""
    return UserError(
        f"{checkpoint} {why}. Move it away: the same command then resumes from the checkpoint before it, or starts "
        "from the beginning where there is none"
    )


@contextmanager
def readable(checkpoint: str | Path) -> Iterator[None]:
    """Turn what a damaged checkpoint raises into a UserError that says what to do."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        why = f"cannot be read ({type(error).__name__}: {str(error)[:160]})"
        raise damaged(checkpoint, why) from error


def window_file(checkpoint: str | Path, rank: int) -> Path:
    """Return the file of what a process has gathered for the next line of metrics.jsonl."""
    return Path(checkpoint) / f"metrics_{rank}.pt"


def read_state(checkpoint: str | Path) -> dict[str, Any]:
    """Return gtpo_state.json. Raises UserError if it is missing or lacks what a run resumes from."""
    path = Path(checkpoint) / STATE_FILE
    if not path.is_file():
        raise damaged(checkpoint, f"has no {STATE_FILE}")
    try:
        state = read_json(path)
    except UserError as error:
        raise damaged(checkpoint, f"cannot be read ({error})") from None
    missing = [key for key in _STATE_KEYS if not isinstance(state, dict) or key not in state]
    if missing:
        raise damaged(checkpoint, f"lacks {', '.join(missing)} in {STATE_FILE}")
    return dict(state)


def refuse_within_round(checkpoint: Path, state: dict[str, Any]) -> None:
    """Raise UserError, with what works, if a checkpoint was written within a round of sampling, as 0.2 did."""
    if not state["within_round"]:
        return
    works = "starts from the beginning: no checkpoint before it works"
    for earlier in every_checkpoint(checkpoint.parent, before=checkpoint_step(checkpoint)):
        with suppress(UserError):
            check_checkpoint(earlier)
            works = f"resumes from {earlier.name}, the newest that works"
            break
    raise UserError(
        f"{checkpoint} was written within a round of sampling, and a run resumes only at the end of one. Move it away: "
        f"the same command then {works}"
    )


def check_checkpoint(checkpoint: Path) -> None:
    """Raise UserError if a checkpoint lacks a part that the trainer would silently do without, or cannot go on."""
    state = read_state(checkpoint)
    for name, size in state.get("bytes", {}).items():
        if (path := checkpoint / name).is_file() and path.stat().st_size != size:
            raise damaged(checkpoint, f"holds {path.stat().st_size:,} bytes of {name}, which had {size:,}")
    if not (checkpoint / TRAINER_STATE_NAME).is_file():
        raise damaged(checkpoint, f"has no {TRAINER_STATE_NAME}")
    with readable(checkpoint):
        trained = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        step = trained.global_step
    if checkpoint.name.startswith("checkpoint-") and checkpoint.name != f"checkpoint-{step}":
        raise damaged(checkpoint, f"is of step {step} by its {TRAINER_STATE_NAME}")
    if step < trained.max_steps:
        refuse_within_round(checkpoint, state)
    names = [path.name for path in checkpoint.iterdir()]
    if any(name.startswith("global_step") for name in names):
        # DeepSpeed keeps both in there, and checks for them itself.
        return
    # optimizer.pt; FSDP: optimizer.bin or optimizer_0/.
    if not any(name.startswith("optimizer") for name in names):
        raise damaged(checkpoint, "has no optimizer state (optimizer.pt)")
    if SCHEDULER_NAME not in names:
        raise damaged(checkpoint, f"has no {SCHEDULER_NAME}")


def out_of_space(error: BaseException) -> bool:
    """Return whether an error says that the disk is full: the system's own, or that of safetensors or torch."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return True
    text = str(error).lower()
    return any(
        words in text
        for words in (
            *("no space left", "disk quota", "file too large", "failed writing", "writing file"),
            *(f"os error {number}" for number in DISK_FULL),
        )
    )


def no_room(checkpoints: Path, what: str) -> UserError:
    """Return the error of a full disk, with what the run resumes from."""
    kept = last_checkpoint(checkpoints)
    return UserError(
        f"no room on disk {what}. "
        + (f"{kept.name} is whole: " if kept else "There is no checkpoint yet: ")
        + "free some space (or raise ulimit -f, if it is set); the same command resumes the run"
    )


# -- weights -----------------------------------------------------------------------------------------------------------


def save_weights(trainer: Any, target: Path, about: dict[str, Any] | None = None) -> None:
    """Write weights and tokenizer to `target`, and `about` as best.json. All processes must call it."""
    accelerator = trainer.accelerator
    partial = target.with_name(f"{PARTIAL}-{target.name}")
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
    accelerator.wait_for_everyone()
    trainer.save_model(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (partial / "training_args.bin").unlink(missing_ok=True)  # a pickle that is never read
        if about is not None:
            write_json(partial / "best.json", about)
        replace_folder(partial, target)
        LOG.debug("step %d: wrote %s", trainer.state.global_step, target)


def provide_base(loaded: LoadedModel, folder: TrainFolder, processes: Any) -> None:
    """Write weights that are in no folder yet (built, or merged from an adapter) to base/. All processes must call it.

    A LoRA adapter names its base, and TRL reads the reference of its KL term from where the model came.
    """
    if processes.is_main_process and not folder.base.exists():
        partial = folder.base.with_name(f"{PARTIAL}-base")
        loaded.model.save_pretrained(partial)
        loaded.tokenizer.save_pretrained(partial)
        replace_folder(partial, folder.base)
    processes.wait_for_everyone()
    loaded.model.config._name_or_path = loaded.model.name_or_path = str(folder.base)


def restore_best(trainer: Any, best: Path) -> None:
    """Put the best weights back, clear the optimizer's moments and halve the learning rate.

    What is left of the round of sampling in use goes: the policy that is taken back wrote it.
    """
    trl_seam.load_weights(trainer, str(best))
    getattr(trainer.optimizer, "optimizer", trainer.optimizer).state.clear()
    trainer.lr_scheduler.base_lrs = [rate / 2 for rate in trainer.lr_scheduler.base_lrs]
    trainer.lr_scheduler._last_lr = [rate / 2 for rate in trainer.lr_scheduler._last_lr]
    for group in trainer.optimizer.param_groups:
        group["lr"] /= 2


def replace_folder(source: Path, target: Path) -> None:
    """Put the folder `source` in the place of `target`, which may exist; both on one file system."""
    old = target.with_name(f"{PARTIAL}-old-{target.name}")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(source, target)
    shutil.rmtree(old, ignore_errors=True)
