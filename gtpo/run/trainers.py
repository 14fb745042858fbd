"""Which class of trainer a config means, and how a run builds it.

Methods grpo and sft are TRL's trainers, which log as GTPOTrainer does and call the parts of a run (`gtpo.callbacks`).
A user's class may stand at the place of ours.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer, SFTTrainer

from gtpo.common.errors import UserError
from gtpo.config import TrainConfig
from gtpo.rewards.loading import import_dotted
from gtpo.trainer import GTPOTrainer, RunTrainer, SampledTrainer
from gtpo.trainer.group_statistics import GroupStatistics
from gtpo.trainer.shared_prefixes import share_prefixes
from gtpo.trainer.trl_seam import scoring_labels_alone


class SFTBaseline(RunTrainer, SFTTrainer):
    """TRL's SFTTrainer; the parts of a run can be added to it (`gtpo.callbacks`)."""


class GRPOBaseline(SampledTrainer):
    """TRL's GRPOTrainer, with its own loss: what it logs of a group has GTPOTrainer's names.

    The parts of a run can be added to it (`gtpo.callbacks`).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = GroupStatistics(self)
        self._micro_batch: dict[str, Any] = {}

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._micro_batch = inputs
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        logps, entropies = outputs[:2]
        if kwargs.get("compute_entropy") and entropies is not None:  # in the loss, not while a round is scored
            inputs, mask = self._micro_batch, self._micro_batch["completion_mask"]
            # NaN, and left out, for a truncated completion whose mask TRL has emptied.
            entropy = (entropies.detach() * mask).sum(dim=1) / mask.sum(dim=1)
            self.groups.log_completions(inputs["row"], entropy, None)
            self.sampler.observe(logps, inputs)
        return outputs


_METHODS: dict[str, type] = {"gtpo": GTPOTrainer, "grpo": GRPOTrainer, "sft": SFTTrainer}
"""method -> the class that a user's class must derive from."""

_OURS: dict[str, type] = {"gtpo": GTPOTrainer, "grpo": GRPOBaseline, "sft": SFTBaseline}
"""method -> the class that trains."""


def trainer_class(config: TrainConfig) -> Any:
    """Return the class to train with: that at `trainer.class_path`, if it is set, with ours before it.

    Raises UserError if the path does not import, or the class is no trainer of the config's method.
    """
    ours, path = _OURS[config.method], config.trainer.class_path
    if path is None:
        return ours
    theirs = users_class(path, config.method)
    # A user's subclass of TRL's trainer does not call the parts of a run; ours does, and its super() is theirs.
    return theirs if issubclass(theirs, ours) else type(theirs.__name__, (ours, theirs), {})


def users_class(path: str, method: str) -> Any:
    """Return the class at `trainer.class_path`. Raises UserError if it is no trainer of the method."""
    theirs = import_dotted(path, "trainer.class_path")
    if not isinstance(theirs, type):
        raise UserError(f'trainer.class_path "{path}": {type(theirs).__name__}, not a class')
    its = next((m for m in ("gtpo", "grpo", "sft") if issubclass(theirs, _METHODS[m])), None)
    if its is None:
        raise UserError(
            f'trainer.class_path "{path}": must be a subclass of gtpo.GTPOTrainer, trl.GRPOTrainer or trl.SFTTrainer'
        )
    if its != method:
        raise UserError(
            f'trainer.class_path "{path}" is a subclass of {_METHODS[its].__name__}: set method: {its} '
            f"(it is {method}), or derive it from {_METHODS[method].__name__}"
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
    return next(base for base in theirs.__mro__ if "__init__" in vars(base) and base not in _OURS.values())


def _init_of(theirs: type) -> str:
    """Return the name of the __init__ that a class has, with its file and line."""
    owner = _owner_of_init(theirs)
    name = f"{owner.__name__}.__init__"
    try:
        return f"{name} ({inspect.getsourcefile(owner)}:{inspect.getsourcelines(vars(owner)['__init__'])[1]})"
    except (OSError, TypeError):  # a class without a source file
        return name


def build_trainer(kind: Any, path: str | None, arguments: Mapping[str, Any]) -> Any:
    """Return `kind(**arguments)`; `path` names the user's class (`trainer.class_path`); None without one.

    Raises UserError if that class's own __init__ does not build a trainer.
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


@contextmanager
def sharing_prefixes(config: TrainConfig, model: Any) -> Iterator[None]:
    """Let a model that no trainer has yet share prefixes inside, if the config asks for it.

    Raises UserError if it cannot.
    """
    if not config.training.share_prefixes:
        yield
        return
    try:
        if config.model.backend == "unsloth":
            raise ValueError("unsloth computes attention in its own way")
        shared = share_prefixes(model)
    except ValueError as error:
        raise UserError(f"training.share_prefixes: {error}; set it to false") from None
    try:
        with scoring_labels_alone():
            yield
    finally:
        shared.remove()


@contextmanager
def vllm_failures_explained(model: Any) -> Iterator[None]:
    """Turn what vLLM raises inside, as it starts or samples, into one UserError. Other errors pass."""
    try:
        yield
    except Exception as error:
        inside_vllm = any("/vllm/" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
        if not inside_vllm or isinstance(error, torch.OutOfMemoryError):
            raise
        raise UserError(
            f"rollout.engine vllm: vLLM fails with {model.name_or_path}: "
            f"{' '.join(str(error).split())[:400]}. Set rollout.engine: transformers, which "
            "samples with the trainer's own model"
        ) from error
