"""Which class of trainer a config means, and how a run builds it; a class of the user's may stand at its place.

The run's own concerns are parts beside the trainer (`gtpo.callbacks`), the same for every class.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from trl import GRPOTrainer, SFTTrainer

from gtpo.common.errors import UserError
from gtpo.config import TrainConfig
from gtpo.rewards.loading import import_dotted
from gtpo.trainer import GTPOTrainer

_METHODS: dict[str, type] = {"gtpo": GTPOTrainer, "grpo": GRPOTrainer, "sft": SFTTrainer}
"""method -> the class that trains, and that a class of the user's must be."""


def trainer_class(config: TrainConfig) -> Any:
    """Return the class to train with; that at `trainer.class_path`, where there is one.

    Raises UserError where the path does not import, or the class is no trainer of the config's method.
    """
    ours = _METHODS[config.method]
    path = config.trainer.class_path
    if path is None:
        return ours
    theirs = import_dotted(path, "trainer.class_path")
    if not isinstance(theirs, type):
        raise UserError(f'trainer.class_path "{path}": {type(theirs).__name__}, not a class')
    method = next((m for m in ("gtpo", "grpo", "sft") if issubclass(theirs, _METHODS[m])), None)
    if method is None:
        raise UserError(
            f'trainer.class_path "{path}": must be a subclass of gtpo.GTPOTrainer, trl.GRPOTrainer or trl.SFTTrainer'
        )
    if method != config.method:
        raise UserError(
            f'trainer.class_path "{path}" is a subclass of {_METHODS[method].__name__}: set method: {method} '
            f"(it is {config.method}), or derive it from {ours.__name__}"
        )
    keywords = [*_KEYWORDS, *(() if method == "sft" else ("reward_funcs",))]
    try:
        inspect.signature(vars(_owner_of_init(theirs))["__init__"]).bind(None, **dict.fromkeys(keywords))
    except TypeError as error:
        raise UserError(
            f'trainer.class_path "{path}": {_init_of(theirs)}: {error}. It is called with the keywords '
            f"{', '.join(keywords)}: take **kwargs, and hand them on to super().__init__"
        ) from None
    return theirs


_KEYWORDS = ("model", "args", "train_dataset", "processing_class", "peft_config")
"""What a run hands to the trainer of any method."""


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
    try:
        trainer = kind(**arguments)
    except TypeError as error:
        raise UserError(f'trainer.class_path "{path}": {_init_of(kind)} raised TypeError: {error}') from error
    if not hasattr(trainer, "callback_handler"):
        raise UserError(f'trainer.class_path "{path}": {_init_of(kind)} does not call super().__init__(**kwargs)')
    return trainer
