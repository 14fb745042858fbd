"""The trainer class of a run: the method's own, or a subclass of the user's by dotted path."""

from __future__ import annotations

from typing import Any

from trl import GRPOTrainer, SFTTrainer

from gtpo.config import TrainConfig
from gtpo.run.trainers import GRPORun, GTPORun, SFTRun
from gtpo.trainer import GTPOTrainer
from rewards.loading import import_dotted
from rewards.support.errors import UserError

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
    return type(theirs.__name__, (ours, theirs), {"__doc__": theirs.__doc__})
