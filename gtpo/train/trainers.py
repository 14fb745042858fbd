"""What a run trains with: the arguments of its trainer, the trainer's class, and reward functions that cannot end it.

Methods grpo and sft are TRL's trainers, which log as GTPOTrainer does and call the parts of a run (`gtpo.callbacks`).
A user's class may stand at the place of ours. The arguments of all methods are made in one place, so that they differ
by method only: what the config says of our keys, and what it passes on to TRL as it is.

A reward function that raises is called again one completion at a time; the completions on which it raises are
*unscored*: left out of the group's mean, given no gradient, and counted. If more than half of a batch is unscored, the
run stops and shows the first traceback.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor
from transformers import GenerationConfig, Trainer
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.packages import installed, lacks_package, require
from gtpo.config import TrainConfig
from gtpo.config.load import RENAMED, checked, fields_of
from gtpo.config.schema import TrainingSection, TrlDefaults
from gtpo.inputs.model import compute_precision
from gtpo.rewards.loading import RewardFunction, import_dotted, says, score_fault
from gtpo.trainer import GTPOConfig, GTPOTrainer, RunTrainer, SampledTrainer
from gtpo.trainer.group_statistics import GroupStatistics
from gtpo.trainer.gtpo_config import DECIDED, sampling_faults
from gtpo.trainer.policy_head import sequences
from gtpo.trainer.shared_prefixes import share_prefixes
from gtpo.trainer.trl_seam import score_only_labels

# Published name -> TRL's. A warm-up below 1 is a share of all steps; a warmup_steps that is set comes later and wins.
_TRLS_NAMES = {"optimizer": "optim", "warmup_ratio": "warmup_steps"}

# Setting of TRL -> the package that it needs, and the extra that brings it. What transformers looks for itself it says
# in its own words, or when the model is loaded.
_NEEDED = {"deepspeed": ("deepspeed", "deepspeed"), "use_liger_kernel": ("liger_kernel", "liger-kernel")}


# -- the trainers ------------------------------------------------------------------------------------------------------


class SFTBaseline(RunTrainer, SFTTrainer):
    """TRL's SFTTrainer; the parts of a run can be added to it (`gtpo.callbacks`)."""


class GRPOBaseline(SampledTrainer):
    """TRL's GRPOTrainer, with its own loss: what it logs of a group has GTPOTrainer's names.

    The parts of a run can be added to it (`gtpo.callbacks`). Raises ValueError for what TRL would train otherwise than
    the arguments say.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, why in grpo_faults(self.args):
            raise ValueError(f"GRPOConfig: {name} {why}")
        self.groups = GroupStatistics(self)
        self._micro_batch: dict[str, Any] = {}

    def logps_of(self, batch: dict[str, Tensor]) -> Tensor:
        """Return log-probabilities [B, L] of a batch's completions as TRL's loss has them."""
        length = batch["completion_ids"].size(1)
        with torch.no_grad():
            outputs = super()._get_per_token_logps_and_entropies(self.model_wrapped, *sequences(batch).values(), length)
        logps: Tensor = outputs[0]
        return logps

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._micro_batch = inputs
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        logps, entropies = outputs[:2]
        # In the loss, not while a round is scored.
        if kwargs.get("compute_entropy") and entropies is not None:
            self.groups.log_completions(self._micro_batch, entropies.detach())
            self.sampler.observe(logps, self._micro_batch)
        return outputs


def require_trainer(part: Any, trainer: Any, kind: type = RunTrainer) -> Any:
    """Return a trainer that `part` is built for. Raises ValueError if it never calls one."""
    if not isinstance(trainer, kind):
        needed = f"{type(part).__name__} needs a GTPOTrainer, or GRPOBaseline or SFTBaseline of gtpo.callbacks"
        raise ValueError(f"{needed}; found {type(trainer).__name__}")
    return trainer


# Arguments that a run gives to the trainer of any method.
_KEYWORDS = ("model", "args", "train_dataset", "processing_class", "peft_config")

# method -> the class that a user's class must derive from, and the class that trains.
_METHODS: dict[str, tuple[type, type]] = {
    "gtpo": (GTPOTrainer, GTPOTrainer),
    "grpo": (GRPOTrainer, GRPOBaseline),
    "sft": (SFTTrainer, SFTBaseline),
}


def trainer_class(config: TrainConfig) -> Any:
    """Return the class to train with: that at `trainer.class_path`, if it is set, with ours before it.

    Raises UserError if the path does not import, or the class is no trainer of the config's method.
    """
    (base, ours), path, method = _METHODS[config.method], config.trainer.class_path, config.method
    if path is None:
        return ours
    theirs = import_dotted(path, "trainer.class_path")
    # The first that fits: a GTPOTrainer is a GRPOTrainer too.
    kinds = _METHODS.items() if isinstance(theirs, type) else ()
    its = next((its for its, (parent, _) in kinds if issubclass(theirs, parent)), None)
    if its != method:
        other = f"; for this class set method: {its}" if its else ""
        raise UserError(f'trainer.class_path "{path}": must be a subclass of {base.__name__}{other}')
    keywords = [*_KEYWORDS, *(() if method == "sft" else ("reward_funcs",))]
    try:  # before any weights are loaded
        inspect.signature(theirs).bind(**dict.fromkeys(keywords))
    except TypeError as error:
        raise UserError(
            f'trainer.class_path "{path}": {error}. It is called with the keywords {", ".join(keywords)}: take '
            "**kwargs, and hand them on to super().__init__"
        ) from None
    # A user's subclass of TRL's trainer does not call the parts of a run; ours does, and its super() is theirs.
    return theirs if issubclass(theirs, ours) else type(theirs.__name__, (ours, theirs), {})


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
    with shared, score_only_labels():
        yield


# -- their arguments ---------------------------------------------------------------------------------------------------


def rollout_engine(config: TrainConfig) -> str:
    """Return the engine that `rollout.engine` means on this machine: transformers, vllm or vllm_server."""
    engine = config.rollout.engine
    if engine == "auto":
        return "vllm" if installed("vllm") and torch.cuda.is_available() else "transformers"
    return engine


def _common(config: TrainConfig, kind: Any, output: Path, dtype: str) -> dict[str, Any]:
    training = config.training
    # Our keys that TRL has under the same names, but what it would decide otherwise.
    same = TrainingSection.model_fields.keys() - TrlDefaults.model_fields.keys() - DECIDED["run"].keys()
    same -= DECIDED["objective"].keys() if config.method == "gtpo" else set()
    return {
        **{entry.name: getattr(training, entry.name) for entry in fields(kind) if entry.name in same},
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
        **compute_precision(config.model, dtype),
    }


def _rollout_arguments(config: TrainConfig) -> dict[str, Any]:
    rollout, engine = config.rollout, rollout_engine(config)
    corrected = rollout.importance_sampling_correction
    if corrected is None and config.method == "grpo":
        corrected = True  # TRL's default
    return {
        "reward_weights": config.trainer.reward_weights,
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
        "vllm_importance_sampling_correction": corrected,
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
    return checked(config, "rollout", known, whose, decided | DECIDED["sampler"])


def grpo_faults(arguments: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, why) for what TRL's GRPO takes, and then ends at its first loss or trains otherwise than it says."""
    yield from sampling_faults(arguments)
    loss, high, level = arguments.loss_type, arguments.epsilon_high, arguments.importance_sampling_level
    # inspect.getsource would parse it for half a second.
    if f'"{loss}"' not in Path(inspect.getfile(GRPOTrainer)).read_text():
        yield "loss_type", f"{loss!r} is none of TRL's losses (grpo, dapo, dr_grpo, cispo and others: its GRPOConfig)"
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


def trainer_arguments(config: TrainConfig, output: Path, dtype: str) -> Any:
    """Return the GTPOConfig, GRPOConfig or SFTConfig of a run; checkpoints go to `output`.

    dtype: of the model's weights, as loaded.

    Raises UserError for a setting that TRL does not have, that is decided elsewhere or has another type, and if this
    machine or batch cannot do what the config asks.
    """
    kind = {"gtpo": GTPOConfig, "grpo": GRPOConfig, "sft": SFTConfig}[config.method]
    # Otherwise than TRL's; the user may set them.
    defaults: dict[str, Any] = {"dataloader_pin_memory": torch.cuda.is_available(), "ddp_find_unused_parameters": False}
    if config.method != "sft":
        # As in the paper; TRL's default is DAPO's.
        defaults |= {"disable_dropout": True, "loss_type": "grpo"}
    arguments, known, others = _common(config, kind, output, dtype), fields_of(kind), dict[str, str]()
    if config.method == "sft":
        # Problems are shuffled once, by model.random_seed.
        arguments |= {"max_length": config.model.max_seq_length, "train_sampling_strategy": "sequential"}
        grpo = {entry.name for entry in fields(GRPOConfig)} - {entry.name for entry in fields(kind)}
        others = dict.fromkeys(grpo, "a setting of GRPO, which SFT does not have")
        # The rows are rendered with it (`gtpo.runs.prompt`), as those of the other methods are.
        known["chat_template_kwargs"] = fields_of(GRPOConfig)["chat_template_kwargs"]
        del others["chat_template_kwargs"]
    else:
        objective = config.resolved_objective()
        arguments |= _rollout_arguments(config)
        if config.method == "gtpo":
            arguments |= {"preset": config.preset_name(), "objective": objective}
            others = {name: f"remove it: {why}" for name, why in DECIDED["objective"].items()}
        else:
            arguments["scale_rewards"] = objective.scale_rewards
            arguments["mask_truncated_completions"] = objective.mask_truncated
    known |= {name: known[theirs] for name, theirs in _TRLS_NAMES.items()}
    decided = others | dict.fromkeys(arguments, "gtpo train sets it") | DECIDED["run"]
    settings = checked(config, "training", known, kind.__name__, decided)
    settings = {_TRLS_NAMES.get(name, name): value for name, value in settings.items()}
    if config.method == "sft":
        settings.pop("chat_template_kwargs", None)
    for name, (package, extra) in _NEEDED.items():
        if settings.get(name):
            require(str(config.setting(f"training.{name}")), package, extra=extra)
    # TRL checks what only it knows, such as which schedules there are.
    try:
        made = kind(**defaults | arguments | settings)
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
    return str(next((setting for setting in settings if setting.value is not None), "training"))


def require_optimizer(config: TrainConfig, arguments: Any) -> None:
    """Raise UserError if the package of `training.optimizer` is not installed; arguments: of the run's trainer."""
    try:
        Trainer.get_optimizer_cls_and_kwargs(arguments)
    except (ImportError, ValueError) as error:
        # Some also want the model, which is not loaded yet.
        if isinstance(error, ImportError) or "install" in str(error):
            raise UserError(f"{config.setting('training.optimizer')} {config.training.optimizer}: {error}") from None


# -- rewards -----------------------------------------------------------------------------------------------------------

_NOT_COLUMNS = ("trainer_state", "log_extra", "log_metric", "environments")


class GuardedReward:
    """A reward function whose exceptions leave completions unscored. Has TRL's signature."""

    # It was called for a try before the weights were loaded (`gtpo.dry_run`).
    probed = True

    def __init__(self, function: RewardFunction, name: str | None = None) -> None:
        self.function = function
        self.__name__ = name or getattr(function, "__name__", type(function).__name__)
        self.is_accuracy, self.has_format = (says(function, key) for key in ("is_accuracy", "has_format"))
        self.first_traceback: str | None = None

    def __call__(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **columns: Any
    ) -> list[float | None]:
        """Return one score per completion, None if the function raised or returned None.

        Raises UserError if what it returned are no scores of these completions.
        """
        scores = self._scores(prompts, completions, completion_ids, columns)
        if scores is not None:
            return scores
        scores = []
        for index in range(len(completions)):
            one = slice(index, index + 1)
            row = {key: value if key in _NOT_COLUMNS else value[one] for key, value in columns.items()}
            # One bad completion must not take the scores of the others.
            scores += self._scores(prompts[one], completions[one], completion_ids[one], row) or [None]
        return scores

    def _scores(self, prompts: Any, completions: Any, ids: Any, columns: dict[str, Any]) -> list[float | None] | None:
        """Return the scores of some completions; None if the function raised."""
        try:
            returned = self.function(prompts=prompts, completions=completions, completion_ids=ids, **columns)
        except Exception:
            # The user's code may raise anything; its traceback is shown, and no score is made up.
            if self.first_traceback is None:
                self.first_traceback = traceback.format_exc()
                LOG.warning(
                    f"reward function {self.__name__} raised; these completions are unscored\n{self.first_traceback}"
                )
            return None
        scores = list(returned) if isinstance(returned, Iterable) else returned
        if fault := score_fault(str(self.__name__), scores, len(completions)):
            raise UserError(fault)
        return scores
