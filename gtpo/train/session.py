"""A training run: lock its folder, load what it trains, build the trainer from the parts of `gtpo.callbacks`, train.

A reward function that raises is called again one completion at a time; the completions on which it raises are
*unscored*: left out of the group's mean, given no gradient, and counted. If more than half of a batch is unscored, the
run stops and shows the first traceback.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import time
import traceback
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import GenerationConfig, PrinterCallback, Trainer
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from gtpo.common.errors import UserError
from gtpo.common.files import lock_folder
from gtpo.common.log import LOG, duration, libraries_aside
from gtpo.common.packages import installed, lacks_package, require
from gtpo.common.provenance import command_line, text_hash
from gtpo.config import TrainConfig
from gtpo.config.load import RENAMED, checked, fields_of
from gtpo.config.schema import TrainingSection, TrlDefaults
from gtpo.dry_run import RunInputs
from gtpo.entropy import Calibration
from gtpo.inputs.dataset import check_ids, held_out_benchmark, to_row
from gtpo.inputs.model import LoadedModel, compute_precision, load_model, lora_settings, rounded_away, widen_adapters
from gtpo.rewards.completions import problem_text
from gtpo.rewards.loading import RewardFunction, import_dotted, load_rewards, says, score_fault, source_hash
from gtpo.runs.train_run import TrainFolder, checkpoint_step, last_checkpoint
from gtpo.train.collapse import CollapseWatch, ScoreHeldOut, Validation, untrained_kl
from gtpo.train.environment import Stop, begin, check_config, quiet_libraries
from gtpo.train.resume import ExactCheckpoints, check_checkpoint, out_of_space, provide_base
from gtpo.train.run_log import Advice, Progress, RunLog
from gtpo.trainer import GTPOConfig, GTPOTrainer, SampledTrainer
from gtpo.trainer.gtpo_trainer import DECIDED, GRPOBaseline, SFTBaseline, grpo_faults
from gtpo.trainer.shared_prefixes import share_prefixes
from gtpo.trainer.trl_seam import score_only_labels


class TrainingRun:
    """One run of a config: it loads, builds the trainer with its parts, and trains into the run folder.

    score_held_out: what scores the held-out problems, if the config asks for validation.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: TrainFolder,
        inputs: RunInputs,
        stop: Stop,
        *,
        score_held_out: ScoreHeldOut | None = None,
    ) -> None:
        quiet_libraries()
        if not torch.accelerator.is_available():
            # Before accelerate and DeepSpeed look: process 1 would have the device cpu:1, onto which torch.load puts no
            # checkpoint, and DeepSpeed warns on stdout that it found no accelerator.
            os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        self.config, self.folder, self.inputs, self.stop = config, folder, inputs, stop
        self.score_held_out = score_held_out
        # Without being told, accelerate sees one process if torchrun started several on CPUs.
        self.processes = PartialState(cpu=not torch.accelerator.is_available())
        self.main = self.processes.is_main_process
        # What TRL refuses is told before the weights are loaded; `_build` makes them again for their data type.
        self.arguments = trainer_arguments(config, folder.checkpoints, "float32")
        require_optimizer(config, self.arguments)
        if config.model.lora_rank:
            lora_settings(config)
        self.begin = time.monotonic()
        self.beside_vllm = config.method != "sft" and rollout_engine(config) == "vllm"
        self.progress = Progress(f"{config.run_name} ({config.method})")
        self.trainer: Any = None
        # What the run's numbers follow from beside its config; in run.json, and the same when it is resumed.
        self.identity: dict[str, Any] = {"processes": self.processes.num_processes}

    def run(self) -> None:
        """Train from the start or the last checkpoint to the end, or to a clean stop."""
        rewards = []
        if self.config.method != "sft":
            calls = self.config.trainer.reward_calls()
            functions = load_rewards(calls, self.config.trainer.reward_weights)
            rewards = list(map(GuardedReward, functions.functions, functions.names))
            # Of the user's own: gtpo's version is in run.json.
            sources = [source_hash(path, "reward") for path, _ in calls if not path.startswith("gtpo.")]
            self.identity |= {"engine": rollout_engine(self.config), "reward_hashes": sources}
        kind = trainer_class(self.config)
        if self.main:
            lock = lock_folder(self.folder.root)
            self.stop.forget()
        try:
            self.folder.metrics()  # a damaged line is refused
            checkpoint = last_checkpoint(self.folder.checkpoints)
            if checkpoint is not None:
                check_config(self.folder, self.config, **self.identity)
                check_checkpoint(checkpoint)
            loaded, dataset, about = self._load(checkpoint)
            with sharing_prefixes(self.config, loaded.model):
                self._build(kind, loaded, dataset, rewards, about)
                if checkpoint is not None:
                    LOG.info(f"resuming from {checkpoint}")
                self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            self._say_the_end()
            if self.main:
                self.stop.forget()
            # A launcher ends the others when the first process has ended.
            self.processes.wait_for_everyone()
        except Exception as error:
            step = None if self.trainer is None else self.trainer.state.global_step
            mistake = explain(error, self.config, self.folder, step or 0)
            if mistake is None:
                raise
            if self.main and step is not None and self.folder.run_json.exists():
                self.folder.remove_partial()
                with suppress(OSError):  # a full disk cannot take this either
                    self.folder.update_run(status="failed", stopped_because=str(mistake).splitlines()[0])
            raise mistake from (None if isinstance(error, UserError | torch.OutOfMemoryError) else error)
        finally:
            self.progress.on_train_end()
            if self.main:
                lock.release()
            # Left to the interpreter's end, it can wait forever. vLLM closes what it shares by itself.
            if self.processes.num_processes > 1 and not self.beside_vllm:
                torch.distributed.destroy_process_group()

    def _load(self, checkpoint: Path | None) -> tuple[LoadedModel, Any, dict[str, Any]]:
        """Return the model, the rows to train on, and what run.json says of both."""
        config, processes = self.config, self.processes
        with libraries_aside():
            loaded = load_model(config, self.inputs.weights)
        # All weights are trained in the type in which they are held.
        if loaded.peft_config is None:
            for why in rounded_away(self.arguments, loaded.model):
                raise UserError(f"model.dtype {config.model.dtype}: {why}")
        # What the chat template is told of the time, the same in all processes: when the run began.
        clock = [(self.folder.prompt().time if self.folder.has_begun() else None) or self.inputs.problems.time]
        broadcast_object_list(clock)
        self.inputs.problems.time = clock[0]
        rows, report = self.inputs.problems.select(loaded.tokenizer)
        prompt = self.inputs.problems.prompts(loaded.tokenizer).fields(rows[0]["prompt"])
        check_ids(report, loaded.tokenizer, loaded.model.get_input_embeddings().num_embeddings)
        held_out = [[problem.problem, problem.answer] for problem in self.inputs.problems.split()[1]]
        texts = [{key: row[key] for key in row if not key.endswith(("_ids", "_mask", "_masks"))} for row in rows]
        self.identity |= {"dtype": loaded.dtype, "data_hash": text_hash(json.dumps([texts, held_out]))}
        if checkpoint is not None:  # of a start without one the main process writes the config meanwhile
            check_config(self.folder, config, **self.identity)
        if self.main:
            begin(self.folder, config, **self.identity)
            self.folder.write_problems(problem_text(row["prompt"]) for row in rows)
        processes.wait_for_everyone()
        if self.main:
            LOG.info(f"{self.folder.root}   follow it: gtpo view {shlex.quote(str(self.folder.root))}")
        for line in [*loaded.notes, *report.lines()]:
            LOG.info(line)
        preset = None if config.method == "sft" else config.preset_name()
        about: dict[str, Any] = {"run_name": config.run_name, "preset": preset, "base_model": loaded.base}
        about["prompt"] = {"system": config.dataset.system_instruction, **prompt}
        about |= {**self.identity, "notes": loaded.notes, "dataset": asdict(report)}
        return loaded, Dataset.from_list(rows), about

    def _build(self, kind: Any, loaded: LoadedModel, dataset: Any, rewards: list[Any], about: dict[str, Any]) -> None:
        config = self.config
        named = config.training.beta > 0 or loaded.peft_config is not None or self.beside_vllm
        if loaded.made_here and named:
            provide_base(loaded, self.folder, self.processes)
            about["base_model"] = loaded.base
        if self.beside_vllm:
            LOG.info(f"starting vLLM with {loaded.base}")
        with libraries_aside():
            trainer = self.trainer = kind(
                model=loaded.model,
                args=trainer_arguments(config, self.folder.checkpoints, loaded.dtype),
                train_dataset=dataset,
                processing_class=loaded.tokenizer,
                peft_config=loaded.peft_config,
                **({} if config.method == "sft" else {"reward_funcs": list(rewards)}),
            )
        if loaded.peft_config is not None:
            widen_adapters(trainer.model)
        trainer.writes_model_card = False  # run.json says what ran
        trainer.remove_callback(PrinterCallback)
        if isinstance(trainer, GTPOTrainer):
            # The folder is one run's, also if it stopped before its first checkpoint.
            measured = self.folder.run().get("initial_entropy")
            if measured and trainer.gate.calibration is None:
                trainer.gate.calibration = Calibration.from_record(measured)
        if isinstance(trainer, SampledTrainer):
            renderer = self.inputs.problems.prompts(loaded.tokenizer)
            trainer.chat_template_kwargs = renderer.arguments
            if renderer.asks_for_time:
                trainer.chat_template = renderer.template
            trainer.set_resampling(config.training.resample_equal_groups)
            trainer.sampler.tolerance = config.rollout.logp_difference_alarm
            trainer.unscored_as_whole = True
            if config.training.eval_steps is None and not any(f.is_accuracy for f in rewards):
                LOG.warning(
                    "no reward function says that it is an accuracy (FUNCTION.is_accuracy = True), and "
                    "training.eval_steps is not set: nothing chooses best/, and the collapse watch sees the whole "
                    "reward and the KL divergence"
                )
        for part in self._parts(loaded, about):
            trainer.add_callback(part)

    def _parts(self, loaded: LoadedModel, about: dict[str, Any]) -> list[Any]:
        """Return the parts of the run, in the order in which they see each event."""
        config, trainer, training, validation = self.config, self.trainer, self.config.training, None
        if training.eval_steps is not None:
            problems = self.inputs.problems.validation(loaded.tokenizer)
            prompts = [to_row(problem, config)["prompt"] for problem in problems]
            how: Any = {"every": training.eval_steps, "samples": training.eval_samples, "prompts": prompts}
            assert self.score_held_out is not None  # `gtpo train` gives it
            validation = Validation(trainer, problems, self.score_held_out, **how)
        distance = untrained_kl(trainer, config, loaded, self.inputs.weights)
        self.watch = CollapseWatch(trainer, validation=validation, best=self.folder.best, **config.health.model_dump())
        self.log = RunLog(
            trainer,
            self.folder.root,
            completions_steps=training.log_completions_steps,
            watch=self.watch,
            about=about,
            stop=self.stop,
            begin=self.begin,
        )
        if self.main:
            self.log.write_about()
        return [
            *filter(None, (distance, validation)),
            self.watch,
            self.log,
            self.progress,
            Advice(trainer),
            # The last, since the others ask for checkpoints.
            ExactCheckpoints(trainer, shuffled_from=1),
        ]

    def _say_the_end(self) -> None:
        folder, step, total = self.folder, self.trainer.state.global_step, self.trainer.state.max_steps
        if self.log.interrupted:
            saved = checkpoint_step(last_checkpoint(folder.checkpoints))
            LOG.info(
                f"{folder.root}: stopped at step {step} of {total}; the same command resumes the run from step "
                f"{saved}: {command_line()}"
            )
            return
        if self.watch.collapsed:
            best = f"step {self.watch.health.best_step} in best/" if folder.best.exists() else "no step before it"
            LOG.error(f"{folder.root}: collapsed at step {step} of {total}; it keeps the weights of {best}")
            return
        took = duration(folder.run().get("wall_time_s", 0.0))
        words = held_out_benchmark(self.config.dataset) + " --with-base" * (folder.began_from() is not None)
        run = shlex.quote(str(folder.root))
        LOG.info(f"{folder.root}: finished at step {step} after {took}\nnext: gtpo eval {run} {words}")


# Published name -> TRL's. A warm-up below 1 is a share of all steps; a warmup_steps that is set comes later and wins.
_TRLS_NAMES = {"optimizer": "optim", "warmup_ratio": "warmup_steps"}
# Setting of TRL -> the package that it needs, and the extra that brings it. What transformers looks for itself it says
# in its own words, or when the model is loaded.
_NEEDED = {"deepspeed": ("deepspeed", "deepspeed"), "use_liger_kernel": ("liger_kernel", "liger-kernel")}
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
    keywords = ["model", "args", "train_dataset", "processing_class", "peft_config"]
    keywords += [] if method == "sft" else ["reward_funcs"]
    try:  # before any weights are loaded
        inspect.signature(theirs).bind(**dict.fromkeys(keywords))
    except TypeError as error:
        raise UserError(
            f'trainer.class_path "{path}": {error}. It is called with the keywords {", ".join(keywords)}: take '
            "**kwargs, and hand them on to super().__init__"
        ) from None
    # A user's subclass of TRL's trainer does not call the parts of a run; ours does, and its super() is theirs.
    return theirs if issubclass(theirs, ours) else type(theirs.__name__, (ours, theirs), {})


def sharing_prefixes(config: TrainConfig, model: Any) -> AbstractContextManager[Any]:
    """Let a model that no trainer has yet share prefixes inside, if the config asks for it.

    Raises UserError if it cannot.
    """
    if not config.training.share_prefixes:
        return nullcontext()
    try:
        if config.model.backend == "unsloth":
            raise ValueError("unsloth computes attention in its own way")
        shared = share_prefixes(model)
    except ValueError as error:
        raise UserError(f"training.share_prefixes: {error}; set it to false") from None
    shared.enter_context(score_only_labels())
    return shared


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
        count = len(completions)
        try:
            returned = self.function(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
        except Exception:
            # The user's code may raise anything; its traceback is shown, and no score is made up.
            if self.first_traceback is None:
                self.first_traceback = traceback.format_exc()
                LOG.warning(
                    f"reward function {self.__name__} raised; these completions are unscored\n{self.first_traceback}"
                )
            scores: list[float | None] = [None] * count
            # One bad completion must not take the scores of the others.
            for index in range(count) if count > 1 else ():
                one = slice(index, index + 1)
                row = {key: value if key in _NOT_COLUMNS else value[one] for key, value in columns.items()}
                scores[one] = self(prompts[one], completions[one], completion_ids[one], **row)
            return scores
        scores = list(returned) if isinstance(returned, Iterable) else returned
        if fault := score_fault(str(self.__name__), scores, count):
            raise UserError(fault)
        return scores


# What helps if a GPU's memory is used up (docs/one_gpu.md).
_LESS_MEMORY = (
    "Lower, in this order: training.per_device_train_batch_size, and raise training.gradient_accumulation_steps by the "
    "same factor; training.max_completion_length (sft: model.max_seq_length); model.gpu_memory_utilization, vLLM's "
    "share. Or set training.gradient_checkpointing: true, model.lora_rank: 64 (adapters only), model.load_in_4bit: true"
)
# Messages of weights that are not finite: from torch as it samples, and from our own checks of statistics.
_NO_NUMBERS = re.compile("probability tensor contains either|(?:is|are) not finite")


def explain(error: Exception, config: TrainConfig, folder: TrainFolder, step: int) -> UserError | None:
    """Return what the user can do about an error that ended a run after `step`; None if nothing is known of it."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        first = ". ".join(str(error).split(". ", maxsplit=2)[:2])
        return UserError(f"out of GPU memory ({first}). {_LESS_MEMORY}")
    last = last_checkpoint(folder.checkpoints)
    if out_of_space(error):
        return UserError(
            f"no room on disk in {folder.root} ({str(error).splitlines()[0]}). "
            + (f"{last.name} is whole: " if last else "There is no checkpoint yet: ")
            + "free some space (or raise ulimit -f, if it is set); the same command resumes the run"
        )
    if any("/vllm/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)):
        return UserError(
            f"rollout.engine vllm: vLLM fails: {' '.join(str(error).split())[:400]}. Set rollout.engine: transformers, "
            "which samples with the trainer's own model"
        )
    # Of all other errors the traceback says more than a sentence could.
    if not _NO_NUMBERS.search(str(error)):
        return None
    why = "the weights of model.model_name hold NaN or infinity, or overflow in model.dtype"
    if step:
        why = "the weights have overflowed: lower training.learning_rate and choose another run_name"
    return UserError(f"step {step + 1}: the policy's probabilities are no numbers ({error}); {why}")
