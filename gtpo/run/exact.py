"""A run that repeats exactly, and checkpoints that go on exactly, for any of TRL's trainers.

Nothing here touches a loss or a gradient:

    data order   the dataset's own order in the first epoch, a seeded permutation in each later one, so that the
                 position in the data follows from the step alone
    sampling     random numbers are re-seeded from (seed, step) before each round, so that a resumed run draws what
                 the uninterrupted one would have drawn
    checkpoints  written to a hidden folder and renamed; rounds of sampling in use are saved with them, and what the
                 next line of the log has gathered
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback, set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl.trainer.utils import RepeatSampler

from gtpo.common.files import write_json
from gtpo.run.checkpoint import STATE_FILE, read_state, readable, round_file, window_file
from gtpo.run.folder import PARTIAL, no_room, out_of_space
from gtpo.trainer.group_statistics import GroupStatistics
from gtpo.trainer.rollout import Rollout
from gtpo.trainer.trl_seam import part_of, seam_of


class EpochOrder(RepeatSampler):
    """Indices of a dataset: its own order in epoch 0, a permutation drawn from (seed, epoch) afterwards.

    Each chunk of `chunk` distinct indices is emitted `rounds` times, each index `repeats` times in a row; an incomplete
    last chunk is left out.
    """

    def __init__(
        self, size: int, seed: int, epoch: Callable[[], int], chunk: int = 1, repeats: int = 1, rounds: int = 1
    ) -> None:
        super().__init__(range(size), repeats, chunk, rounds, shuffle=False)
        self.first_seed, self.epoch = seed * 1_000_003, epoch

    def __iter__(self) -> Iterator[int]:
        epoch, order = self.epoch(), list(range(self.num_samples))
        if epoch:
            generator = torch.Generator().manual_seed(self.first_seed + epoch)
            order = torch.randperm(len(order), generator=generator).tolist()
        yield from (order[place] for place in super().__iter__())


class ExactCheckpoints(TrainerCallback):
    """Makes the checkpoints of a trainer whole, and a run that is resumed from one the uninterrupted run.

    trainer: a GTPOTrainer, or TRL's GRPOTrainer or SFTTrainer: `trainer.add_callback(ExactCheckpoints(trainer))`.
    extra_state: returns what else a checkpoint keeps in gtpo_state.json; `restored` holds it in a resumed run.
    Resuming raises UserError where a checkpoint is damaged.
    """

    def __init__(self, trainer: Any, extra_state: Callable[[], dict[str, Any]] = dict) -> None:
        self.trainer, self.extra_state = trainer, extra_state
        self.seam = seam_of(trainer)
        self.restored: dict[str, Any] = {}
        """gtpo_state.json of the checkpoint that the run resumes from."""
        self._staging: Path | None = None
        self._resumed_from: Path | None = None
        self.seam.around("order", self._order)
        self.seam.around("epoch", self._run_epoch)
        self.seam.around("output_folder", self._output_dir)
        self.seam.around("save", self._save)
        self.seam.around("load_weights", self._load_weights)
        self.seam.around("load_state", self._load_state)
        if self.seam.samples:
            self.seam.around("round", self._sample)

    # -- data and random numbers -------------------------------------------------------------------------------------

    def _order(self, plain: Any, dataset: Any = None) -> Sampler[int]:
        args = self.trainer.args
        sampled: dict[str, int] = {}
        if self.seam.samples:
            sampled = {
                "chunk": args.generation_batch_size // args.num_generations,
                "repeats": args.num_generations,
                "rounds": args.num_iterations * args.steps_per_generation,
            }
        return EpochOrder(len(self.trainer.train_dataset), args.seed, self._epoch, **sampled)

    def _epoch(self) -> int:
        return int((self.trainer.state.epoch or 0) + 1e-6)

    def _sample(self, plain: Any, inputs: Any) -> dict[str, Any]:
        accelerator, seed = self.trainer.accelerator, self.trainer.args.seed
        round_seed = (seed * 1_000_003 + self.seam.micro_step) % 2**31
        set_seed(round_seed * (1 + accelerator.num_processes) % 2**31 + accelerator.process_index)
        batch: dict[str, Any] = plain(inputs)
        return batch

    def _run_epoch(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Train an epoch, but not a step more where the last checkpoint was the run's last step."""
        state, control = self.trainer.state, self.trainer.control
        if state.global_step >= state.max_steps or control.should_training_stop:
            control.should_training_stop = True
            return None
        return plain(*args, **kwargs)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _output_dir(self, plain: Any, trial: Any) -> str:
        return str(self._staging or plain(trial))

    def _save(self, plain: Any, model: Any, trial: Any) -> None:
        trainer = self.trainer
        folder, accelerator = Path(trainer.args.output_dir), trainer.accelerator
        name = f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        self._staging = folder / PARTIAL
        try:
            if accelerator.is_main_process:
                shutil.rmtree(self._staging, ignore_errors=True)
            accelerator.wait_for_everyone()
            plain(model, trial)
            self._save_extra(self._staging / name)
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                for path in (self._staging / name).rglob("*"):
                    if path.is_file():
                        with path.open("rb") as handle:
                            os.fsync(handle.fileno())
                shutil.rmtree(folder / name, ignore_errors=True)
                os.replace(self._staging / name, folder / name)
                shutil.rmtree(self._staging, ignore_errors=True)
                rotate_checkpoints(str(folder), save_total_limit=trainer.args.save_total_limit)
        except Exception as error:
            # What torch and safetensors raise on a full disk does not always say so.
            full = not isinstance(error, OSError) and shutil.disk_usage(folder).free < 1 << 20
            if not (full or out_of_space(error)):
                raise
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
            raise no_room(folder, f"for {name} in {folder}") from error
        finally:
            self._staging = None

    def _save_extra(self, folder: Path) -> None:
        seam, rank = self.seam, self.trainer.accelerator.process_index
        inputs = seam.round_inputs if seam.mid_round() else None
        groups = part_of(self.trainer, GroupStatistics)
        state = {
            **self.extra_state(),
            "within_round": inputs is not None,
            "micro_step": seam.micro_step,
            "tokens_seen": seam.tokens_seen,
        }
        if self.trainer.accelerator.is_main_process:
            write_json(folder / STATE_FILE, state)
        if window := seam.open_window():
            torch.save(window, window_file(folder, rank))
        if inputs is not None:
            kept = {"inputs": inputs} | ({"round": vars(groups.rollout)} if groups and groups.rollout else {})
            torch.save(kept, round_file(folder, rank))

    # -- resuming ----------------------------------------------------------------------------------------------------

    def _load_weights(self, plain: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        with readable(resume_from_checkpoint):
            plain(resume_from_checkpoint, model)

    def _load_state(self, plain: Any, checkpoint: str | None) -> None:
        if checkpoint is None:
            plain(checkpoint)
            return
        with readable(checkpoint):
            plain(checkpoint)
        self._resumed_from = Path(checkpoint)
        self.restored = read_state(checkpoint)
        self.seam.micro_step = self.restored["micro_step"]
        self.seam.tokens_seen = self.restored["tokens_seen"]
        groups = part_of(self.trainer, GroupStatistics)
        rounds = round_file(checkpoint, self.trainer.accelerator.process_index)
        if rounds.is_file():
            saved = torch.load(rounds, map_location=self.trainer.args.device, weights_only=True)
            self.seam.round_inputs = saved["inputs"]
            if "round" in saved and groups:
                groups.rollout = Rollout(**saved["round"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take up what the line of the log that the checkpoint cut had gathered, where there was one."""
        if self._resumed_from is None:
            return
        path = window_file(self._resumed_from, self.trainer.accelerator.process_index)
        if path.is_file():
            with readable(self._resumed_from):
                self.seam.reopen_window(torch.load(path, map_location="cpu", weights_only=True))
