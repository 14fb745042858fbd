"""The three trainers as `gtpo train` runs them: the same seeds, data order, checkpoints and metrics for every method.

Nothing here touches a loss or a gradient. `RunMixin` makes a run repeatable and its checkpoints whole:

    data order   the dataset's own order in the first epoch, a seeded permutation in each later one, so that the
                 position in the data follows from the step alone
    sampling     random numbers are re-seeded from (seed, step) before each round, so that a resumed run draws what
                 the uninterrupted one would have drawn
    checkpoints  written to a hidden folder and renamed; rounds of sampling in use are saved with them, and what the
                 next line of metrics.jsonl has gathered
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl import GRPOTrainer, SFTTrainer

from gtpo.common.errors import UserError
from gtpo.common.files import write_json
from gtpo.config import TrainConfig
from gtpo.entropy import Calibration
from gtpo.rewards.loading import import_dotted
from gtpo.run.checkpoint import STATE_FILE, open_window, read_state, readable, reopen_window, round_file, window_file
from gtpo.run.folder import PARTIAL, TrainFolder, out_of_space
from gtpo.run.guarded_reward import GuardedReward
from gtpo.run.untrained_kl import UntrainedKL
from gtpo.trainer import GTPOTrainer
from gtpo.trainer.group_statistics import ObservedGRPOTrainer
from gtpo.trainer.rollout import Rollout


class EpochOrder(Sampler[int]):
    """Indices of a dataset: its own order in epoch 0, a permutation drawn from (seed, epoch) afterwards.

    Each chunk of `chunk` distinct indices is emitted `rounds` times, each index `repeats` times in a row (TRL's
    RepeatSampler); an incomplete last chunk is left out.
    """

    def __init__(
        self, size: int, seed: int, epoch: Callable[[], int], chunk: int = 1, repeats: int = 1, rounds: int = 1
    ) -> None:
        self.size, self.seed, self.epoch = size, seed, epoch
        self.chunk, self.repeats, self.rounds = chunk, repeats, rounds

    def __len__(self) -> int:
        return self.size // self.chunk * self.chunk * self.repeats * self.rounds

    def __iter__(self) -> Iterator[int]:
        epoch, order = self.epoch(), list(range(self.size))
        if epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
        for start in range(0, self.size - self.chunk + 1, self.chunk):
            for _ in range(self.rounds):
                for index in order[start : start + self.chunk]:
                    yield from (index for _ in range(self.repeats))


class RunMixin:
    """Seeds, data order and checkpoints of a run, for any of the trainers."""

    args: Any
    model: Any
    state: Any
    control: Any
    accelerator: Any
    train_dataset: Any
    rollouts: dict[str, Rollout]

    def __init__(
        self,
        *args: Any,
        run_folder: TrainFolder,
        extra_state: Callable[[], dict[str, Any]],
        untrained_kl: UntrainedKL | None = None,
        **kwargs: Any,
    ) -> None:
        self._staging: Path | None = None
        self.run_folder, self.extra_state, self.untrained_kl = run_folder, extra_state, untrained_kl
        self.restored: dict[str, Any] = {}
        """gtpo_state.json of the checkpoint that this run resumes from."""
        super().__init__(*args, **kwargs)

    def _epoch(self) -> int:
        return int((self.state.epoch or 0) + 1e-6)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the loss; before it, note how far the policy has moved, where that is due."""
        if self.untrained_kl is not None and self.model.training:
            self.untrained_kl.observe(self, model, inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def _run_epoch(self, *args: Any, **kwargs: Any) -> Any:
        """Train an epoch, but not a step more where the last checkpoint was the run's last step."""
        if self.state.global_step >= self.state.max_steps or self.control.should_training_stop:
            self.control.should_training_stop = True
            return None
        return super()._run_epoch(*args, **kwargs)  # type: ignore[misc]

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: run.json says what ran."""

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging or self.args.output_dir)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir)
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self._staging = folder / PARTIAL
        try:
            if self.accelerator.is_main_process:
                shutil.rmtree(self._staging, ignore_errors=True)
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
            self._save_extra(self._staging / name)
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                for path in (self._staging / name).rglob("*"):
                    if path.is_file():
                        with path.open("rb") as handle:
                            os.fsync(handle.fileno())
                shutil.rmtree(folder / name, ignore_errors=True)
                os.replace(self._staging / name, folder / name)
                shutil.rmtree(self._staging, ignore_errors=True)
                rotate_checkpoints(str(folder), save_total_limit=self.args.save_total_limit)
        except Exception as error:
            # What torch and safetensors raise on a full disk does not always say so.
            full = not isinstance(error, OSError) and shutil.disk_usage(folder).free < 1 << 20
            if not (full or out_of_space(error)):
                raise
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
            raise self.run_folder.no_room(f"for {name} in {folder}") from error
        finally:
            self._staging = None

    def _save_extra(self, folder: Path) -> None:
        buffered = getattr(self, "_buffered_inputs", None) if self.mid_round() else None
        state = {
            **self.extra_state(),
            "within_round": buffered is not None,
            "micro_step": getattr(self, "_step", 0),
            "tokens_seen": getattr(self, "_total_train_tokens", 0),
        }
        if self.accelerator.is_main_process:
            write_json(folder / STATE_FILE, state)
        if window := open_window(self):
            torch.save(window, window_file(folder, self.accelerator.process_index))
        if buffered is not None:
            torch.save(
                {"inputs": buffered, "round": self.rollouts["train"].state()},
                round_file(folder, self.accelerator.process_index),
            )

    def mid_round(self) -> bool:
        """Return whether a round of sampling still feeds later steps."""
        per_round = getattr(self.args, "steps_per_generation", None)
        if per_round is None:
            return False
        return bool(self._step % (per_round * self.args.num_iterations))

    def forget_round(self) -> None:
        """Sample anew before the next step, also within a round: TRL does where nothing is buffered."""
        if getattr(self, "_buffered_inputs", None) is not None:
            self._buffered_inputs = None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with readable(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
            return
        with readable(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        self.restored = read_state(checkpoint)
        self._step = self.restored["micro_step"]
        self._total_train_tokens = self.restored["tokens_seen"]
        rollouts = round_file(checkpoint, self.accelerator.process_index)
        if rollouts.is_file():
            saved = torch.load(rollouts, map_location=self.args.device, weights_only=True)
            self._buffered_inputs, self.rollouts["train"] = saved["inputs"], Rollout.from_state(saved["round"])

    def reopen_metrics(self, checkpoint: Path) -> None:
        """Take up what the line of metrics.jsonl that the checkpoint cut had gathered, where there was one."""
        path = window_file(checkpoint, self.accelerator.process_index)
        if not path.is_file():
            return
        with readable(checkpoint):
            reopen_window(self, torch.load(path, map_location="cpu", weights_only=True))


class SampledRunMixin(RunMixin):
    """RunMixin for the methods that sample completions."""

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return EpochOrder(
            len(self.train_dataset),
            self.args.seed,
            self._epoch,
            chunk=self.args.generation_batch_size // self.args.num_generations,
            repeats=self.args.num_generations,
            rounds=self.args.num_iterations * self.args.steps_per_generation,
        )

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        round_seed = (self.args.seed * 1_000_003 + self._step) % 2**31
        set_seed(round_seed * (1 + self.accelerator.num_processes) % 2**31 + self.accelerator.process_index)
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        return batch

    def _mark_unscored(self, rewards: torch.Tensor) -> torch.Tensor:
        """Make a completion unscored where any of its rewards could not be computed; stop at more than half.

        Raises UserError there, and where a reward is beyond float32.
        """
        infinite = rewards.isinf().any(dim=0).tolist()
        if any(infinite):  # what the function returned was finite: it was checked
            names = [name for name, found in zip(self.reward_func_names, infinite, strict=True) if found]  # type: ignore[attr-defined]
            raise UserError(
                f"reward {', '.join(names)} is infinite in float32 for a completion of step "
                f"{self.state.global_step + 1}: return numbers below 3e38, or None to leave the completion unscored"
            )
        unscored = rewards.isnan().any(dim=1)
        if unscored.float().mean() > 0.5:
            guarded = [f for f in self.reward_funcs if isinstance(f, GuardedReward)]  # type: ignore[attr-defined]
            trace = next((g.first_traceback for g in guarded if g.first_traceback), None)
            raise UserError(
                f"{int(unscored.sum())} of {len(unscored)} completions at step {self.state.global_step + 1} could not "
                f"be scored by {', '.join(str(g.__name__) for g in guarded)}; the run stops. "
                + (f"The first traceback:\n{trace}" if trace else "The functions returned None.")
            )
        return rewards.masked_fill(unscored[:, None], torch.nan)


class GTPORun(SampledRunMixin, GTPOTrainer):
    """GTPO, as a run: H_ini is kept in run.json."""

    @property
    def calibration_file(self) -> Path:
        """run.json."""
        return self.run_folder.run_json

    def load_calibration(self) -> Calibration | None:
        """Return what run.json holds: the folder is one run's, also where it stopped before its first checkpoint."""
        stored = self.run_folder.run().get("initial_entropy")
        return None if stored is None else Calibration.from_record(stored)

    def store_calibration(self, calibration: Calibration) -> None:
        """Put H_ini into run.json."""
        self.run_folder.update_run(initial_entropy=calibration.record())

    def ensure_calibrated(self) -> None:
        """Calibrate, and note the gate's decision in run.json."""
        super().ensure_calibrated()
        if self.accelerator.is_main_process:
            self.run_folder.update_run(
                gate={
                    "filter": self.objective.filter,
                    "active": self.gate_active(),
                    "scope": self.objective.filter_scope,
                }
            )


class GRPORun(SampledRunMixin, ObservedGRPOTrainer):
    """TRL's GRPO, as a run."""


class SFTRun(RunMixin, SFTTrainer):
    """TRL's SFT, as a run."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return EpochOrder(len(self.train_dataset), self.args.seed, self._epoch)


_METHODS: dict[str, tuple[type, type]] = {
    "gtpo": (GTPORun, GTPOTrainer),
    "grpo": (GRPORun, GRPOTrainer),
    "sft": (SFTRun, SFTTrainer),
}
"""method -> (the class as a run, what a class of the user's must be)."""


def trainer_class(config: TrainConfig) -> Any:
    """Return the class to train with; a class at `trainer.class_path` gets the run's seeds, checkpoints and metrics.

    Raises UserError where the path does not import, or the class is no trainer of the config's method.
    """
    ours, base = _METHODS[config.method]
    path = config.trainer.class_path
    if path is None:
        return ours
    theirs = import_dotted(path, "trainer.class_path")
    if not isinstance(theirs, type):
        raise UserError(f'trainer.class_path "{path}": {type(theirs).__name__}, not a class')
    method = next((m for m in ("gtpo", "grpo", "sft") if issubclass(theirs, _METHODS[m][1])), None)
    if method is None:
        raise UserError(
            f'trainer.class_path "{path}": must be a subclass of gtpo.GTPOTrainer, trl.GRPOTrainer or trl.SFTTrainer'
        )
    if method != config.method:
        raise UserError(
            f'trainer.class_path "{path}" is a subclass of {_METHODS[method][1].__name__}: set method: {method} '
            f"(it is {config.method}), or derive it from {base.__name__}"
        )
    keywords = [*_KEYWORDS, *(() if method == "sft" else ("reward_funcs",))]
    try:
        inspect.signature(vars(_owner_of_init(theirs))["__init__"]).bind(None, **dict.fromkeys(keywords))
    except TypeError as error:
        raise UserError(
            f'trainer.class_path "{path}": {_init_of(theirs)}: {error}. It is called with the keywords '
            f"{', '.join(keywords)}: take **kwargs, and hand them on to super().__init__"
        ) from None
    return type(theirs.__name__, (ours, theirs), {"__doc__": theirs.__doc__})


_KEYWORDS = ("model", "args", "train_dataset", "processing_class", "peft_config")
"""What a run hands to the trainer of any method, besides what `RunMixin` keeps to itself."""


def _owner_of_init(theirs: type) -> type:
    return next(base for base in theirs.__mro__ if "__init__" in vars(base))


def _init_of(theirs: type) -> str:
    """Return the name of the __init__ that a class has, with its file and line."""
    owner = _owner_of_init(theirs)
    name = f"{owner.__name__}.__init__"
    try:
        return f"{name} ({inspect.getsourcefile(owner)}:{inspect.getsourcelines(vars(owner)['__init__'])[1]})"
    except (OSError, TypeError):  # a class without a source file
        return name


def build_trainer(kind: Any, path: str | None, arguments: Mapping[str, Any]) -> Any:
    """Return `kind(**arguments)`; `path` is the class of the user's in it (`trainer.class_path`), None without one.

    Raises UserError where that class's own __init__ does not build a trainer.
    """
    if path is None:
        return kind(**arguments)
    theirs = kind.__mro__[kind.__mro__.index(RunMixin) + 1]
    try:
        trainer = kind(**arguments)
    except TypeError as error:
        raise UserError(f'trainer.class_path "{path}": {_init_of(theirs)} raised TypeError: {error}') from error
    if not hasattr(trainer, "callback_handler"):
        raise UserError(f'trainer.class_path "{path}": {_init_of(theirs)} does not call super().__init__(**kwargs)')
    return trainer
