"""A run that repeats exactly, and checkpoints that go on exactly, for any of TRL's trainers.

Nothing here touches a loss or a gradient:

    data order   a seeded permutation in each epoch, so that the position in the data follows from the step only; the
                 dataset's own order if the arguments do not shuffle
    sampling     random numbers are re-seeded from (seed, step) before each round, so that a resumed run draws what
                 the uninterrupted one would have drawn
    checkpoints  written at the end of a round of sampling, with what the next line of the log has gathered, to a hidden
                 folder that is renamed when it is complete
"""

from __future__ import annotations

import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, set_seed
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl.trainer.utils import RepeatSampler

from gtpo.common.files import write_json
from gtpo.common.log import LOG
from gtpo.inputs.model import not_finite
from gtpo.run.checkpoint import (
    STATE_FILE,
    check_checkpoint,
    damaged,
    no_room,
    out_of_space,
    read_state,
    readable,
    refuse_within_round,
    window_file,
)
from gtpo.run.trainers import require_trainer
from gtpo.runs.train_run import PARTIAL
from gtpo.trainer import SampledTrainer, trl_seam

# Files of a checkpoint whose sizes are kept with it: a copy that was cut off differs.
WEIGHED = (".safetensors", ".pt", ".pth", ".bin")

# Arguments that decide what the rest of a run computes.
FOLLOWS_FROM = (
    *("seed", "data_seed", "shuffle_dataset", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("steps_per_generation", "num_generations", "num_iterations", "temperature", "max_completion_length"),
    *("max_steps", "num_train_epochs", "learning_rate", "weight_decay", "max_grad_norm", "beta", "initial_entropy"),
)


class EpochOrder(RepeatSampler):
    """Indices of a dataset: a permutation drawn from (seed, epoch), before epoch `shuffled_from` its own order.

    Each chunk of `chunk` distinct indices is emitted `rounds` times, each index `repeats` times in a row; an incomplete
    last chunk is left out.
    """

    def __init__(
        self,
        size: int,
        seed: int,
        epoch: Callable[[], int],
        shuffled_from: float = 0,
        chunk: int = 1,
        repeats: int = 1,
        rounds: int = 1,
    ) -> None:
        super().__init__(range(size), repeats, chunk, rounds, shuffle=False)
        self.first_seed, self.epoch, self.shuffled_from = seed * 1_000_003, epoch, shuffled_from

    def __iter__(self) -> Iterator[int]:
        epoch, order = self.epoch(), list(range(self.num_samples))
        if epoch >= self.shuffled_from:
            generator = torch.Generator().manual_seed(self.first_seed + epoch)
            order = torch.randperm(len(order), generator=generator).tolist()
        yield from (order[place] for place in super().__iter__())


class ExactCheckpoints(TrainerCallback):
    """Makes the checkpoints of a trainer whole, and a run that is resumed from one the uninterrupted run.

    A checkpoint that is due within a round of sampling is written at the end of the round, so that it holds none.

    trainer: a GTPOTrainer, GRPOBaseline or SFTBaseline: `trainer.add_callback(ExactCheckpoints(trainer))`.
    extra_state: returns what else a checkpoint keeps in gtpo_state.json; `restored` holds it in a resumed run.
    Resuming raises UserError if a checkpoint is damaged.
    """

    def __init__(self, trainer: Any, extra_state: Callable[[], dict[str, Any]] = dict) -> None:
        self.trainer, self.extra_state = require_trainer(self, trainer), extra_state
        if trainer.args.save_only_model:
            raise ValueError("ExactCheckpoints: save_only_model=True leaves out the optimizer, so nothing can resume")
        # The first epoch that is shuffled if the arguments do not shuffle: 1 if the rows are shuffled already.
        self.shuffled_from = math.inf
        # A checkpoint that was checked before the weights were loaded.
        self.checked: Path | None = None
        # gtpo_state.json of the checkpoint that the run resumes from.
        self.restored: dict[str, Any] = {}
        # Where the checkpoint that is being written lies.
        self.staging: Path | None = None
        self._resumed_from: Path | None = None
        # Whether a checkpoint is to be written at the end of the round.
        self._put_off = False
        self.trainer.exact = self

    # -- data and random numbers -------------------------------------------------------------------------------------

    def order(self) -> EpochOrder:
        """Return the order of the training data."""
        args = self.trainer.args
        sampled: dict[str, int] = {}
        # TRL's GRPO has a switch of its own; transformers' trainers shuffle unless their sampler is sequential.
        shuffled = getattr(args, "train_sampling_strategy", "random") != "sequential"
        if isinstance(self.trainer, SampledTrainer):
            shuffled = args.shuffle_dataset
            sampled = {
                "chunk": args.generation_batch_size // args.num_generations,
                "repeats": args.num_generations,
                "rounds": args.num_iterations * args.steps_per_generation,
            }
        first, seed = 0 if shuffled else self.shuffled_from, args.seed if args.data_seed is None else args.data_seed
        return EpochOrder(len(self.trainer.train_dataset), seed, self._epoch, first, **sampled)

    def _epoch(self) -> int:
        return int((self.trainer.state.epoch or 0) + 1e-6)

    def seed_round(self) -> None:
        """Seed all random numbers by the seed and the step, before a round of sampling."""
        accelerator, seed = self.trainer.accelerator, self.trainer.args.seed
        round_seed = (seed * 1_000_003 + trl_seam.counters(self.trainer)["micro_step"]) % 2**31
        set_seed(round_seed * (1 + accelerator.num_processes) % 2**31 + accelerator.process_index)

    def is_over(self) -> bool:
        """Return whether the last checkpoint was the run's last step; then let the training stop."""
        state, control = self.trainer.state, self.trainer.control
        control.should_training_stop = control.should_training_stop or state.global_step >= state.max_steps
        return bool(control.should_training_stop)

    # -- writing -----------------------------------------------------------------------------------------------------

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put a checkpoint that is due off to the end of its round of sampling."""
        if control.should_save or self._put_off:
            control.should_save = not self.puts_off()

    def puts_off(self) -> bool:
        """Return whether a checkpoint that is due waits for the end of the round of sampling in use."""
        state = self.trainer.state
        # After the last step nothing of the round is left to train on.
        self._put_off = state.global_step < state.max_steps and trl_seam.round_in_use(self.trainer) is not None
        return self._put_off

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Put the checkpoint that is written inside, and what else it needs, in its place once it is whole."""
        trainer = self.trainer
        folder, accelerator = Path(trainer.args.output_dir), trainer.accelerator
        name = f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        self.staging = folder / PARTIAL
        try:
            if accelerator.is_main_process:
                shutil.rmtree(self.staging, ignore_errors=True)
            accelerator.wait_for_everyone()
            yield
            kept = self._save_extra(self.staging / name)
            if str(trainer.state.best_model_checkpoint) == str(self.staging / name):  # its name after the renaming
                trainer.state.best_model_checkpoint = str(folder / name)
                if accelerator.is_main_process:
                    trainer.state.save_to_json(str(self.staging / name / TRAINER_STATE_NAME))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                written = [path for path in (self.staging / name).iterdir() if path.suffix in WEIGHED]
                kept["bytes"] = {path.name: path.stat().st_size for path in written}
                write_json(self.staging / name / STATE_FILE, kept)
                for path in (self.staging / name).rglob("*"):
                    if path.is_file():
                        with path.open("rb") as handle:
                            os.fsync(handle.fileno())
                shutil.rmtree(folder / name, ignore_errors=True)
                os.replace(self.staging / name, folder / name)
                shutil.rmtree(self.staging, ignore_errors=True)
                best = trainer.state.best_model_checkpoint
                rotate_checkpoints(
                    str(folder), save_total_limit=trainer.args.save_total_limit, best_model_checkpoint=best
                )
        except Exception as error:
            # What torch and safetensors raise on a full disk does not always say so.
            full = not isinstance(error, OSError) and shutil.disk_usage(folder).free < 1 << 20
            if not (full or out_of_space(error)):
                raise
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
            raise no_room(folder, f"for {name} in {folder}") from error
        finally:
            self.staging = None

    def _save_extra(self, folder: Path) -> dict[str, Any]:
        """Write what a process adds to a checkpoint; return what gtpo_state.json is to hold."""
        trainer, rank = self.trainer, self.trainer.accelerator.process_index
        if window := trl_seam.open_window(trainer):
            torch.save(window, window_file(folder, rank))
        # Only the last step of a run may lie within one.
        counted = {"within_round": trl_seam.round_in_use(trainer) is not None, **trl_seam.counters(trainer)}
        return {**self.extra_state(), **counted, "follows_from": self._follows_from()}

    def _follows_from(self) -> dict[str, Any]:
        """Return what the rest of a run follows from: settings, and a checksum of a few rows in their order."""
        trainer, rows = self.trainer, self.trainer.train_dataset
        found = {name: getattr(trainer.args, name) for name in FOLLOWS_FROM if hasattr(trainer.args, name)}
        found |= {"optim": str(trainer.args.optim), "processes": trainer.accelerator.num_processes}
        if hasattr(rows, "__len__") and len(rows):
            some = [rows[len(rows) * part // 8] for part in range(8)]
            plain = [[each for each in row.values() if isinstance(each, str | int | float | list)] for row in some]
            found |= {"rows of train_dataset": len(rows), "its checksum": zlib.crc32(repr(plain).encode())}
        return found

    # -- resuming ----------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self, checkpoint: str) -> Iterator[None]:
        """Raise UserError if a checkpoint lacks what the trainer would silently do without, or is damaged."""
        folder = Path(checkpoint)
        # best/, for a rollback, is weights only; a copy of a checkpoint may have any name.
        whole = folder.name.startswith(PREFIX_CHECKPOINT_DIR) or (folder / STATE_FILE).exists()
        if whole and folder != self.checked:
            check_checkpoint(folder)
        with readable(checkpoint):
            yield

    def restore(self, checkpoint: str) -> None:
        """Take up what a checkpoint of TRL's own would not hold."""
        trainer = self.trainer
        if name := not_finite(trainer.model):
            raise damaged(checkpoint, f"holds NaN or infinity in the weight {name}")
        self._resumed_from = Path(checkpoint)
        self.restored, now = read_state(checkpoint), self._follows_from()
        before = self.restored.get("follows_from", {})
        changed = [f"{name} {was!r}, now {now.get(name)!r}" for name, was in before.items() if now.get(name) != was]
        if changed:
            LOG.warning(
                f"{checkpoint} was written with other settings, so what follows is not what its run would have done: "
                f"{', '.join(changed)}"
            )
        trl_seam.restore(trainer, self.restored)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the metrics gathered since the last line of the log; say if checkpoints are put off."""
        steps = trl_seam.round_steps(self.trainer)
        if state.is_world_process_zero and args.save_strategy == "steps" and state.save_steps % steps:
            LOG.info(
                f"save_steps {state.save_steps}: a round of sampling feeds {steps} steps, and a checkpoint is written "
                "at the end of the round"
            )
        if self._resumed_from is None:
            return
        if state.global_step < state.max_steps:
            refuse_within_round(self._resumed_from, self.restored)
        path = window_file(self._resumed_from, self.trainer.accelerator.process_index)
        if path.is_file():
            with readable(self._resumed_from):
                trl_seam.reopen_window(self.trainer, torch.load(path, map_location="cpu", weights_only=True))
