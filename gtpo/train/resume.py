"""Checkpoints that a run resumes from exactly, and the weights that it leaves behind: each whole or absent.

ExactCheckpoints touches no loss and no gradient:

    data order   a seeded permutation in each epoch, so that the position in the data follows from the step only; the
                 dataset's own order if the arguments do not shuffle
    sampling     random numbers are re-seeded from (seed, step) before each round, so that a resumed run draws what
                 the uninterrupted one would have drawn
    checkpoints  written at the end of a round of sampling, to a hidden folder that is renamed when it is complete
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerState, set_seed
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl.trainer.utils import RepeatSampler

from gtpo.common.errors import DISK_FULL, UserError
from gtpo.common.files import write_json
from gtpo.common.log import LOG
from gtpo.inputs.model import LoadedModel, not_finite
from gtpo.runs.train_run import PARTIAL, TrainFolder
from gtpo.trainer import RunPart, SampledTrainer, trl_seam
from gtpo.trainer.gtpo_trainer import require_trainer

# -- what a checkpoint must hold ---------------------------------------------------------------------------------------

STATE_FILE = "gtpo_state.json"


def damage_error(checkpoint: str | Path, why: str) -> UserError:
    """Return the error of a checkpoint that cannot be resumed, with what to do."""
    return UserError(
        f"{checkpoint} {why}. Move it away: the same command then resumes from the checkpoint before it, or starts "
        "from the beginning where there is none"
    )


@contextmanager
def explain_damage(checkpoint: str | Path) -> Iterator[None]:
    """Turn what a damaged checkpoint raises into a UserError that says what to do."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        words = str(error).replace(f"{checkpoint}/", "")
        why = f"cannot be read ({type(error).__name__}: {words[:160]})"
        raise damage_error(checkpoint, why) from error


def read_state(checkpoint: str | Path) -> dict[str, Any]:
    """Return gtpo_state.json. Raises UserError if it is missing or lacks what a run resumes from."""
    with explain_damage(checkpoint):
        state: dict[str, Any] = json.loads((Path(checkpoint) / STATE_FILE).read_text(encoding="utf-8"))
        every_version_wrote = ("micro_step", "tokens_seen", "within_round")
        return state | {key: state[key] for key in every_version_wrote}


def refuse_within_round(checkpoint: Path, state: dict[str, Any]) -> None:
    """Raise UserError if a checkpoint was written within a round of sampling, as 0.2 did."""
    if state["within_round"]:
        raise damage_error(checkpoint, "was written within a round of sampling, and a run resumes at the end of one")


def check_checkpoint(checkpoint: Path) -> None:
    """Raise UserError if a checkpoint lacks a part that the trainer would silently do without, or cannot go on."""
    state = read_state(checkpoint)
    for name, size in state.get("bytes", {}).items():
        if (path := checkpoint / name).is_file() and path.stat().st_size != size:
            raise damage_error(checkpoint, f"holds {path.stat().st_size:,} bytes of {name}, which had {size:,}")
    with explain_damage(checkpoint):
        trained = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        step = trained.global_step
    if checkpoint.name.startswith("checkpoint-") and checkpoint.name != f"checkpoint-{step}":
        raise damage_error(checkpoint, f"is of step {step} by its {TRAINER_STATE_NAME}")
    if step < trained.max_steps:
        refuse_within_round(checkpoint, state)
    names = [path.name for path in checkpoint.iterdir()]
    if any(name.startswith("global_step") for name in names):
        # DeepSpeed keeps both in there, and checks for them itself.
        return
    # optimizer.pt; FSDP: optimizer.bin or optimizer_0/.
    if not any(name.startswith("optimizer") for name in names):
        raise damage_error(checkpoint, "has no optimizer state (optimizer.pt)")
    if SCHEDULER_NAME not in names:
        raise damage_error(checkpoint, f"has no {SCHEDULER_NAME}")


def out_of_space(error: BaseException) -> bool:
    """Return whether an error says that the disk is full: the system's own, or that of safetensors or torch."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return True
    said = ["no space left", "disk quota", "file too large", "failed writing", "writing file", "unexpected pos"]
    said += [f"os error {number}" for number in DISK_FULL]
    return any(words in str(error).lower() for words in said)


# -- exact checkpoints -------------------------------------------------------------------------------------------------

# Files of a checkpoint whose sizes are kept with it: a copy that was cut off differs.
WEIGHED = (".safetensors", ".pt", ".pth", ".bin")


class EpochOrder(RepeatSampler):
    """Indices of a dataset: a permutation drawn from (seed, epoch), before epoch `shuffled_from` its own order.

    If the trainer samples, its prompts come in chunks of those of a round, as often as TRL asks for them; an incomplete
    last chunk is left out.
    """

    def __init__(self, trainer: Any, shuffled_from: float) -> None:
        args, sampled = trainer.args, (1, 1, 1)
        # TRL's GRPO has a switch of its own; transformers' trainers shuffle unless their sampler is sequential.
        shuffled = getattr(args, "train_sampling_strategy", "random") != "sequential"
        if isinstance(trainer, SampledTrainer):
            shuffled, prompts = args.shuffle_dataset, args.generation_batch_size // args.num_generations
            sampled = args.num_generations, prompts, args.num_iterations * args.steps_per_generation
        super().__init__(range(len(trainer.train_dataset)), *sampled, shuffle=False)
        self.trainer, self.shuffled_from = trainer, 0 if shuffled else shuffled_from
        self.first_seed = (args.seed if args.data_seed is None else args.data_seed) * 1_000_003

    def __iter__(self) -> Iterator[int]:
        epoch = int((self.trainer.state.epoch or 0) + 1e-6)
        self.shuffle = epoch >= self.shuffled_from
        self.generator = torch.Generator().manual_seed(self.first_seed + epoch)
        yield from super().__iter__()


class ExactCheckpoints(RunPart):
    """Makes the checkpoints of a trainer whole, and a run that is resumed from one the uninterrupted run.

    trainer: a GTPOTrainer, GRPOBaseline or SFTBaseline: `trainer.add_callback(ExactCheckpoints(trainer))`.
    What other parts of the run have to keep (`RunPart.checkpoint_state`) is kept in gtpo_state.json.
    Resuming raises UserError if a checkpoint is damaged. shuffled_from: the first epoch that is shuffled if the
    arguments do not shuffle; 1 if the rows are shuffled already.
    """

    keeps_checkpoints = True

    def __init__(self, trainer: Any, *, shuffled_from: float = math.inf) -> None:
        self.trainer, self.shuffled_from = require_trainer(self, trainer), shuffled_from
        for name, why in (
            ("save_only_model", "leaves out the optimizer, so nothing can resume"),
            ("ignore_data_skip", "lets a resumed run train on other rows than the uninterrupted one"),
            ("push_to_hub", "uploads a folder that is renamed meanwhile: trainer.push_to_hub() after the training"),
        ):
            if getattr(trainer.args, name):
                raise ValueError(f"ExactCheckpoints: {name}=True {why}")
        # Where the checkpoint that is being written lies.
        self.staging: Path | None = None
        # Whether a checkpoint is to be written at the end of the round.
        self._put_off = False

    # -- data and random numbers -------------------------------------------------------------------------------------

    def order(self) -> EpochOrder:
        """Return the order of the training data."""
        return EpochOrder(self.trainer, self.shuffled_from)

    def on_round_begin(self) -> None:
        """Seed all random numbers by the seed and the step, before a round of sampling."""
        accelerator, seed = self.trainer.accelerator, self.trainer.args.seed
        round_seed = (seed * 1_000_003 + trl_seam.counters(self.trainer)["micro_step"]) % 2**31
        set_seed(round_seed * (1 + accelerator.num_processes) % 2**31 + accelerator.process_index)

    # -- writing -----------------------------------------------------------------------------------------------------

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put a checkpoint that is due off to the end of its round of sampling."""
        if control.should_save or self._put_off:
            control.should_save = not self.puts_off()
        # So that no line of the log spans a checkpoint: what it has gathered would be lost.
        control.should_log |= control.should_save

    on_epoch_end = on_step_end  # save_strategy: epoch

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
            state = {name: value for part in trainer.parts for name, value in part.checkpoint_state().items()}
            # Only the last step of a run may lie within a round.
            state |= {"within_round": trl_seam.round_in_use(trainer) is not None, **trl_seam.counters(trainer)}
            if str(trainer.state.best_model_checkpoint) == str(self.staging / name):  # its name after the renaming
                trainer.state.best_model_checkpoint = str(folder / name)
                if accelerator.is_main_process:
                    trainer.state.save_to_json(str(self.staging / name / TRAINER_STATE_NAME))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                written = [path for path in (self.staging / name).iterdir() if path.suffix in WEIGHED]
                state["bytes"] = {path.name: path.stat().st_size for path in written}
                write_json(self.staging / name / STATE_FILE, state)
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
        finally:
            self.staging = None

    # -- resuming ----------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self, checkpoint: str) -> Iterator[None]:
        """Raise UserError if a checkpoint lacks what the trainer would silently do without, or is damaged."""
        folder = Path(checkpoint)
        # best/, for a rollback, is weights only; a copy of a checkpoint may have any name.
        whole = folder.name.startswith(PREFIX_CHECKPOINT_DIR) or (folder / STATE_FILE).exists()
        if whole:
            check_checkpoint(folder)
        with explain_damage(checkpoint):
            yield

    def restore(self, checkpoint: str) -> None:
        """Take up what a checkpoint of TRL's own would not hold."""
        trainer = self.trainer
        if name := not_finite(trainer.model):
            raise damage_error(checkpoint, f"holds NaN or infinity in the weight {name}")
        restored = read_state(checkpoint)
        # Of a run that ended there, and is to make more steps now.
        if trainer.state.global_step < trainer.state.max_steps:
            refuse_within_round(Path(checkpoint), restored)
        trl_seam.restore(trainer, restored)
        for part in trainer.parts:
            part.on_resume(restored)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say if checkpoints are put off."""
        steps = trl_seam.round_steps(args)
        if state.is_world_process_zero and args.save_strategy == "steps" and state.save_steps % steps:
            LOG.info(
                f"save_steps {state.save_steps}: a round of sampling feeds {steps} steps, and a checkpoint is written "
                "at the end of the round"
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


def replace_folder(source: Path, target: Path) -> None:
    """Put the folder `source` in the place of `target`, which may exist; both on one file system."""
    old = target.with_name(f"{PARTIAL}-old-{target.name}")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(source, target)
    shutil.rmtree(old, ignore_errors=True)
