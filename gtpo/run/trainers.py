"""Which class of trainer a config means, its arguments, and how a run builds it.

The arguments of all three trainers are made in one place, so that they differ by method alone. A user's class
may stand at the place of ours.

The run's own concerns are parts beside the trainer (`gtpo.callbacks`), the same for every class.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from gtpo.common.errors import UserError
from gtpo.common.packages import installed
from gtpo.config import TrainConfig
from gtpo.config.schema import CLIPPING, SWITCHES
from gtpo.inputs.model import compute_precision
from gtpo.rewards.loading import import_dotted
from gtpo.trainer import GRPOBaseline, GTPOConfig, GTPOTrainer, SFTBaseline
from gtpo.trainer.shared_prefixes import share_prefixes
from gtpo.trainer.trl_seam import scoring_labels_alone

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


@contextmanager
def sharing_prefixes(config: TrainConfig, model: Any) -> Iterator[None]:
    """Let a model that no trainer has yet share prefixes inside, where the config asks for it.

    Raises UserError where it cannot.
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


_SAME = (
    "learning_rate", "lr_scheduler_type", "adam_beta1", "adam_beta2", "weight_decay", "max_grad_norm",
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
    "gradient_checkpointing", "logging_steps", "save_steps", "save_total_limit",
)  # fmt: skip
_SAME_SAMPLED = (
    "num_generations", "steps_per_generation", "num_iterations", "max_completion_length", "temperature", "beta",
)  # fmt: skip
"""Keys of `training` that TRL has under the same names: of any method, and of those that sample."""


def rollout_engine(config: TrainConfig) -> str:
    """Return the engine that `rollout.engine` means on this machine: transformers, vllm or vllm_server."""
    engine = config.rollout.engine
    if engine == "auto":
        return "vllm" if installed("vllm") and torch.cuda.is_available() else "transformers"
    return engine


def _common(config: TrainConfig, output: Path, dtype: str) -> dict[str, Any]:
    training = config.training
    return {
        "output_dir": str(output),
        "run_name": config.run_name,
        **{name: getattr(training, name) for name in _SAME},
        "warmup_steps": training.warmup_ratio,  # a float below 1 is a share of all steps
        "optim": training.optimizer,
        "logging_nan_inf_filter": False,  # a loss that is not finite must be seen
        "save_strategy": "steps",
        "report_to": list(training.report_to) or "none",
        "seed": config.model.random_seed,
        "use_cpu": not torch.accelerator.is_available(),
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "ddp_find_unused_parameters": False,
        **compute_precision(config.model, dtype),
    }


def _sampled(config: TrainConfig) -> dict[str, Any]:
    training, rollout = config.training, config.rollout
    engine = rollout_engine(config)
    return {
        **{name: getattr(training, name) for name in (*_SAME_SAMPLED, *CLIPPING)},
        "reward_weights": config.trainer.reward_weights,
        "disable_dropout": True,
        "shuffle_dataset": False,
        "use_vllm": engine != "transformers",
        "vllm_mode": "server" if engine == "vllm_server" else "colocate",
        "vllm_server_host": rollout.server_host,
        "vllm_server_port": rollout.server_port,
        "vllm_tensor_parallel_size": rollout.tensor_parallel_size,
        "vllm_gpu_memory_utilization": config.model.gpu_memory_utilization,
        "vllm_max_model_length": config.model.max_seq_length,
        # The same for both methods, which then differ by method alone.
        "vllm_importance_sampling_correction": rollout.importance_sampling_correction,
        "trust_remote_code": config.model.trust_remote_code,
    }


def trainer_arguments(config: TrainConfig, output: Path, dtype: str, *, check_loss: bool = False) -> Any:
    """Return the GTPOConfig, GRPOConfig or SFTConfig of a run; checkpoints go to `output`.

    dtype: of the model's weights, as loaded.

    Raises UserError where this machine or batch cannot do what the config asks.
    """
    try:
        if config.method == "sft":
            return SFTConfig(**_common(config, output, dtype), max_length=config.model.max_seq_length)
        arguments = _common(config, output, dtype) | _sampled(config)
        objective = config.resolved_objective()
        if config.method == "gtpo":
            arguments.pop("beta")
            return GTPOConfig(
                **arguments,
                preset=config.preset_name(),
                objective=objective,
                check_loss=check_loss,
            )
        return GRPOConfig(
            **arguments,
            **{name: getattr(config.training, name) for name in SWITCHES},
            scale_rewards=objective.scale_rewards,
            mask_truncated_completions=objective.mask_truncated,
        )
    except ValueError as error:
        raise UserError(f"training: {error}") from None
