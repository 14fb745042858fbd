"""A training run: lock its folder, load what it trains, build the trainer from the parts of `gtpo.callbacks`, train."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PrinterCallback

from gtpo.common.errors import UserError
from gtpo.common.files import lock_folder
from gtpo.common.log import LOG, duration, libraries_aside
from gtpo.common.provenance import command_line
from gtpo.config import TrainConfig
from gtpo.dry_run import RunInputs
from gtpo.entropy import Calibration
from gtpo.inputs.dataset import check_ids, held_out_benchmark, to_row
from gtpo.inputs.model import LoadedModel, load_model, rounded_away, widen_adapters
from gtpo.rewards.completions import problem_text
from gtpo.rewards.loading import load_rewards
from gtpo.runs.prompt import Clock
from gtpo.runs.train_run import TrainFolder, checkpoint_step, last_checkpoint
from gtpo.train.advice import Advice, explain
from gtpo.train.collapse import CollapseWatch
from gtpo.train.continuation import begin, check_same
from gtpo.train.environment import Stop, quiet_libraries
from gtpo.train.progress import Progress
from gtpo.train.resume import ExactCheckpoints, check_checkpoint, provide_base
from gtpo.train.run_log import RunLog
from gtpo.train.trainers import (
    GuardedReward,
    require_optimizer,
    rollout_engine,
    sharing_prefixes,
    trainer_arguments,
    trainer_class,
)
from gtpo.train.untrained_kl import untrained_kl
from gtpo.train.validation import ScoreHeldOut, Validation
from gtpo.trainer import GTPOTrainer, SampledTrainer


class TrainingRun:
    """One run of a config: it loads, builds the trainer with its parts, and trains into the run folder.

    score_held_out: what scores the held-out problems; UserError without it if the config asks for validation.
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
        if config.training.eval_steps is not None and score_held_out is None:
            raise UserError(
                "training.eval_steps: held-out problems cannot be scored without score_held_out; gtpo train gives it"
            )
        # Without being told, accelerate sees one process if torchrun started several on CPUs.
        self.processes = PartialState(cpu=not torch.accelerator.is_available())
        self.main = self.processes.is_main_process
        # What TRL refuses is told before the weights are loaded; `_build` makes them again for their data type.
        self.arguments = trainer_arguments(config, folder.checkpoints, "float32")
        require_optimizer(config, self.arguments)
        self.begin = time.monotonic()
        self.beside_vllm = config.method != "sft" and rollout_engine(config) == "vllm"
        self.progress = Progress(f"{config.run_name} ({config.method})", shown=self.main)
        self.trainer: Any = None

    def run(self) -> None:
        """Train from the start or the last checkpoint to the end, or to a clean stop."""
        rewards = []
        if self.config.method != "sft":
            functions = load_rewards(self.config.trainer.reward_calls(), self.config.trainer.reward_weights)
            rewards = list(map(GuardedReward, functions.functions, functions.names))
        kind = trainer_class(self.config)
        if self.main:
            lock = lock_folder(self.folder.root)
            self.stop.forget()
        try:
            self.folder.metrics()  # a damaged line is refused
            checkpoint = last_checkpoint(self.folder.checkpoints)
            if checkpoint is not None:
                check_same(self.folder, self.processes.num_processes)
                check_checkpoint(checkpoint)
            loaded, dataset, about = self._load(checkpoint)
            with sharing_prefixes(self.config, loaded.model):
                self._build(kind, loaded, dataset, rewards, about)
                self._train(checkpoint)
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
        if checkpoint is not None:
            check_same(self.folder, processes.num_processes, loaded.dtype)
        # What the chat template is told of the time, the same in all processes: when the run began.
        clock = [Clock.of(self.folder.prompt() if self.folder.has_begun() else None)]
        broadcast_object_list(clock)
        self.inputs.problems.clock = clock[0]
        dataset, report = self.inputs.problems.dataset(loaded.tokenizer)
        prompt = self.inputs.problems.prompt_fields(loaded.tokenizer)
        check_ids(report, loaded.tokenizer, loaded.model.get_input_embeddings().num_embeddings)
        if self.main:
            begin(self.folder, config)
            self.folder.write_problems(map(problem_text, dataset["prompt"]))
        processes.wait_for_everyone()
        if self.main:
            LOG.info(f"{self.folder.root}   follow it: gtpo view {shlex.quote(str(self.folder.root))}")
        for line in [*loaded.notes, *report.lines()]:
            LOG.info(line)
        preset = None if config.method == "sft" else config.preset_name()
        about = {"run_name": config.run_name, "preset": preset, "base_model": loaded.base, "dtype": loaded.dtype}
        return loaded, dataset, {**about, "prompt": prompt, "notes": loaded.notes, "dataset": report.as_dict()}

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
        if training.eval_steps is not None and self.score_held_out is not None:
            problems = self.inputs.problems.validation(loaded.tokenizer)
            prompts = [to_row(problem, config)["prompt"] for problem in problems]
            how: Any = {"every": training.eval_steps, "samples": training.eval_samples, "prompts": prompts}
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

    def _train(self, checkpoint: Path | None) -> None:
        if checkpoint is not None:
            LOG.info(f"resuming from {checkpoint}")
        try:
            self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            self._say_the_end()
        finally:
            self.progress.on_train_end()
        if self.main:
            self.stop.forget()
        # A launcher ends the others when the first process has ended.
        self.processes.wait_for_everyone()

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
