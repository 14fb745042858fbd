"""The arguments of a run's trainer: what the config says of our keys, and what it passes on to TRL as it is.

The arguments of all three methods are made in one place, so that they differ by method only.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
from transformers import GenerationConfig, Trainer
from trl import GRPOConfig, GRPOTrainer, SFTConfig

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.packages import installed, lacks_package, require
from gtpo.config import TrainConfig
from gtpo.config.load import checked, fields_of
from gtpo.config.published import RENAMED
from gtpo.config.schema import TrainingSection, TrlDefaults
from gtpo.inputs.model import compute_precision
from gtpo.trainer import GTPOConfig
from gtpo.trainer.gtpo_config import NOT_GTPO

# Settings of TRL that a run decides -> what the user sets instead.
_DECIDED = tomllib.loads(Path(__file__).with_name("decided.toml").read_text(encoding="utf-8"))

# Settings for which a run has a default of its own, and that may be set under `training`.
_MAY_CHANGE = ("loss_type", "disable_dropout", "dataloader_pin_memory", "ddp_find_unused_parameters")

# Validation is ours: TRL would evaluate on a dataset of its own.
_OWN = TrainingSection.model_fields.keys() - TrlDefaults.model_fields.keys() - {"eval_steps"}

# Published name -> TRL's. A warm-up below 1 is a share of all steps; a warmup_steps that is set comes later and wins.
_TRLS_NAMES = {"optimizer": "optim", "warmup_ratio": "warmup_steps"}

# Setting of TRL -> the package that it needs, and the extra that brings it. What transformers looks for itself it says
# in its own words, or when the model is loaded.
_NEEDED = {"deepspeed": ("deepspeed", "deepspeed"), "use_liger_kernel": ("liger_kernel", "liger-kernel")}

# Fields of a sampler that the trainer sets itself.
_OF_A_GROUP = (
    *("n", "num_return_sequences", "max_tokens", "max_new_tokens", "max_length", "do_sample", "logprobs"),
    "return_dict_in_generate",
    # Beams are no draws from the policy.
    "num_beams",
)


def rollout_engine(config: TrainConfig) -> str:
    """Return the engine that `rollout.engine` means on this machine: transformers, vllm or vllm_server."""
    engine = config.rollout.engine
    if engine == "auto":
        return "vllm" if installed("vllm") and torch.cuda.is_available() else "transformers"
    return engine


def _common(config: TrainConfig, kind: Any, output: Path, dtype: str) -> dict[str, Any]:
    training = config.training
    return {
        # Our keys that TRL has under the same names.
        **{entry.name: getattr(training, entry.name) for entry in fields(kind) if entry.name in _OWN},
        "output_dir": str(output),
        "run_name": config.run_name,
        "logging_nan_inf_filter": False,  # a loss that is not finite must be seen
        "save_strategy": "steps",
        # A tracker is no part of the method: without its package the run is the same.
        "report_to": [name for name in training.report_to if installed(name)] or "none",
        "seed": config.model.random_seed,
        "use_cpu": not torch.accelerator.is_available(),
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "ddp_find_unused_parameters": False,
        **compute_precision(config.model, dtype),
    }


def _sampled(config: TrainConfig) -> dict[str, Any]:
    rollout, engine = config.rollout, rollout_engine(config)
    return {
        "reward_weights": config.trainer.reward_weights,
        "disable_dropout": True,
        "generation_kwargs": sampling_arguments(config, engine) or None,
        "shuffle_dataset": False,
        "use_vllm": engine != "transformers",
        "vllm_mode": "server" if engine == "vllm_server" else "colocate",
        "vllm_server_host": rollout.server_host,
        "vllm_server_port": rollout.server_port,
        "vllm_tensor_parallel_size": rollout.tensor_parallel_size,
        "vllm_gpu_memory_utilization": config.model.gpu_memory_utilization,
        "vllm_max_model_length": config.model.max_seq_length,
        # The same for both methods, which then differ only by method.
        "vllm_importance_sampling_correction": rollout.importance_sampling_correction,
        "trust_remote_code": config.model.trust_remote_code,
    }


def sampling_arguments(config: TrainConfig, engine: str) -> dict[str, Any]:
    """Return what `rollout` passes on to the sampler. Raises UserError for what the sampler does not have."""
    if engine == "transformers":
        known, whose = dict.fromkeys(GenerationConfig().to_dict(), Any), "transformers' GenerationConfig"
    elif installed("vllm"):
        from vllm import SamplingParams

        known, whose = get_type_hints(SamplingParams), "vllm.SamplingParams"
    else:  # the server runs on another machine
        return config.rollout.passed_on
    decided = {entry.name: f"the key is training.{entry.name}" for entry in fields(GRPOConfig)}
    # Of the trainer it is another setting; some models sample right only without.
    del decided["use_cache"]
    here = "gtpo train sets it (training.num_generations, training.max_completion_length)"
    return checked(config, "rollout", known, whose, decided | dict.fromkeys(_OF_A_GROUP, here))


def grpo_faults(arguments: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, why) for what TRL's GRPO takes, and then ends at its first loss or trains otherwise than it says."""
    loss, high, level = arguments.loss_type, arguments.epsilon_high, arguments.importance_sampling_level
    # inspect.getsource would parse it for half a second.
    source = Path(inspect.getfile(GRPOTrainer)).read_text()
    if f'"{loss}"' not in source:
        compared = " ".join(re.findall(r'self\.loss_type (?:==|in) (?:"\w+"|\[.*?\])', source))
        known = sorted(set(re.findall(r'"(\w+)"', compared)))
        yield "loss_type", f"must be one of {', '.join(known)}; found {loss!r}.{did_you_mean(loss, known)}"
    if loss == "cispo" and (high is None or high < 1):
        why = "cuts the ratio itself off at epsilon_high; set it above 1 (configs/recipes/cispo.yaml: 5.0)"
        yield "epsilon_high", f"{high} contradicts loss_type cispo, which {why}"
    if loss == "luspo" and level != "sequence":
        why = "a loss of whole sequences; set it to sequence"
        yield "importance_sampling_level", f"{level} contradicts loss_type luspo, {why}"
    if arguments.neftune_noise_alpha:
        yield "neftune_noise_alpha", "contradicts method grpo: the loss would be of another policy than what sampled"
    low, most = arguments.entropy_coef_min, arguments.entropy_coef_max
    if arguments.use_adaptive_entropy and low > most:
        yield "entropy_coef_min", f"{low} exceeds entropy_coef_max {most}"


def trainer_arguments(config: TrainConfig, output: Path, dtype: str, *, check_loss: bool = False) -> Any:
    """Return the GTPOConfig, GRPOConfig or SFTConfig of a run; checkpoints go to `output`.

    dtype: of the model's weights, as loaded.

    Raises UserError for a setting that TRL does not have, that is decided elsewhere or has another type, and if this
    machine or batch cannot do what the config asks.
    """
    kind = {"gtpo": GTPOConfig, "grpo": GRPOConfig, "sft": SFTConfig}[config.method]
    arguments = _common(config, kind, output, dtype)
    if config.method == "sft":
        arguments["max_length"] = config.model.max_seq_length
        # Problems are shuffled once, by model.random_seed.
        arguments["train_sampling_strategy"] = "sequential"
    else:
        objective = config.resolved_objective()
        arguments |= _sampled(config)
        if config.method == "gtpo":
            arguments.pop("beta")
            arguments |= {"preset": config.preset_name(), "objective": objective, "check_loss": check_loss}
        else:
            arguments["scale_rewards"] = objective.scale_rewards
            arguments["mask_truncated_completions"] = objective.mask_truncated
            # As in the paper; TRL's default is DAPO's.
            arguments["loss_type"] = "grpo"
    decided = {name: "gtpo train sets it" for name in arguments if name not in _MAY_CHANGE} | _DECIDED
    # What the objective decides has a better reason than that it is set here.
    if config.method == "gtpo":
        decided = {name: f"remove it: {why}" for name, why in NOT_GTPO.items()} | decided
    if config.method == "sft":
        grpo = {entry.name for entry in fields(GRPOConfig)} - {entry.name for entry in fields(kind)}
        decided = dict.fromkeys(grpo, "a setting of GRPO, which SFT does not have") | decided
    known = fields_of(kind)
    known |= {name: known[theirs] for name, theirs in _TRLS_NAMES.items()}
    settings = checked(config, "training", known, kind.__name__, decided)
    settings = {_TRLS_NAMES.get(name, name): value for name, value in settings.items()}
    idle = next((name for name in settings if name.startswith("vllm_importance_sampling_")), None)
    if idle and not config.rollout.importance_sampling_correction:
        needed = "rollout.importance_sampling_correction: true"
        raise UserError(f"{config.setting(f'training.{idle}')} does nothing without {needed}")
    for name, (package, extra) in _NEEDED.items():
        if settings.get(name):
            require(str(config.setting(f"training.{name}")), package, extra=extra)
    # TRL checks what only it knows, such as which schedules there are.
    try:
        made = kind(**arguments | settings)
    except Exception as error:
        # transformers' own checks; TypeError: a key of a mapping among the values.
        if not (isinstance(error, ValueError | TypeError) or lacks_package(error)):
            raise
        raise UserError(f"{_named_in(str(error), config)}: {' '.join(str(error).split())}") from error
    if config.method == "grpo":
        for name, why in grpo_faults(made):
            raise UserError(f"{config.setting(f'training.{name}')} {why}")
    return made


def _named_in(sentence: str, config: TrainConfig) -> str:
    """Return the first key under training that a sentence of TRL's names, where the user set it; else training."""
    names = [f"training.{word}" for word in re.findall(r"\w+", sentence)]
    settings = [config.setting(RENAMED.get(name, name)) for name in names]
    return str(next((setting for setting in settings if setting.place or setting.is_flag), "training"))


def require_optimizer(config: TrainConfig, arguments: Any) -> None:
    """Raise UserError if the package of `training.optimizer` is not installed; arguments: of the run's trainer."""
    try:
        Trainer.get_optimizer_cls_and_kwargs(arguments)
    except (ImportError, ValueError) as error:
        # Some also want the model, which is not loaded yet.
        if isinstance(error, ImportError) or "install" in str(error):
            raise UserError(f"{config.setting('training.optimizer')} {config.training.optimizer}: {error}") from None
