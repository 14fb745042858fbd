"""A run's weights on disk: best/, final/ and base/, each whole or absent, and the way back to the best ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from gtpo.common.files import write_json
from gtpo.common.log import LOG
from gtpo.inputs.model import LoadedModel
from gtpo.run.folder import PARTIAL, TrainFolder, replace_folder
from gtpo.trainer.trl_seam import seam_of


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
        (partial / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
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
    seam = seam_of(trainer)
    seam.load_weights(str(best))
    seam.forget_round()
    getattr(trainer.optimizer, "optimizer", trainer.optimizer).state.clear()
    trainer.lr_scheduler.base_lrs = [rate / 2 for rate in trainer.lr_scheduler.base_lrs]
    for group in trainer.optimizer.param_groups:
        group["lr"] /= 2
