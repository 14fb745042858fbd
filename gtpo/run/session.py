"""A training run: from the lock on its folder to its final weights."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from accelerate import PartialState
from transformers import PrinterCallback, TrainerCallback

from gtpo.common.errors import UserError
from gtpo.common.files import lock_folder
from gtpo.common.log import LOG, duration, libraries_aside
from gtpo.common.provenance import command_line, now, peak_memory
from gtpo.config import TrainConfig
from gtpo.entropy import Calibration
from gtpo.inputs.dataset import check_ids, held_out_benchmark, to_row
from gtpo.inputs.model import LoadedModel, load_model, rounded_away, widen_adapters
from gtpo.plan.preflight import RunInputs
from gtpo.rewards.data.problem import Problem
from gtpo.run.advice import Advice, memory_advice
from gtpo.run.arguments import require_optimizer, rollout_engine, trainer_arguments
from gtpo.run.checkpoint import (
    check_checkpoint,
    no_room,
    out_of_space,
    provide_base,
    readable,
    restore_best,
    save_weights,
)
from gtpo.run.continuation import begin, check_same
from gtpo.run.environment import Stop, StoppedBeforeTraining, quiet_libraries, run_on_cpu
from gtpo.run.exact import ExactCheckpoints
from gtpo.run.health import MAX_ROLLBACKS, Health
from gtpo.run.logs import describe_calibration, describe_run, log_rollout, metrics_row, prompt_text, reward_table
from gtpo.run.progress import Progress, StepProgress
from gtpo.run.trainers import (
    guarded_rewards,
    mark_unscored,
    sharing_prefixes,
    trainer_class,
    vllm_failures_explained,
)
from gtpo.run.untrained_kl import UntrainedKL
from gtpo.run.validation import METRIC as VALIDATION_METRIC
from gtpo.run.validation import ScoreHeldOut, Validation
from gtpo.runs.train_run import TrainFolder, checkpoint_step, last_checkpoint
from gtpo.trainer import GTPOTrainer, SampledTrainer, trl_seam
from gtpo.trainer.group_statistics import GroupStatistics

# Steps between measurements of the KL divergence, if it costs no second copy of the weights.
KL_STEPS = 10


# Messages of weights that are not finite: from torch as it samples, and from our own checks of statistics.
_NO_NUMBERS = re.compile("probability tensor contains either|(?:is|are) not finite")


class TrainingRun(TrainerCallback):
    """Builds the trainer of a config, runs it, and writes the run folder; its methods on_* are the trainer's events.

    score_held_out: what scores the held-out problems; UserError without it if the config asks for validation.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: TrainFolder,
        inputs: RunInputs,
        stop: Stop,
        *,
        check_loss: bool = False,
        score_held_out: ScoreHeldOut | None = None,
    ) -> None:
        quiet_libraries()
        if not torch.accelerator.is_available():
            run_on_cpu()
        self.config, self.folder, self.inputs, self.stop = config, folder, inputs, stop
        self.check_loss, self.score_held_out = check_loss, score_held_out
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
        self.progress = Progress(f"{config.run_name} ({config.method})", shown=self.main)
        best = VALIDATION_METRIC if config.training.eval_steps is not None else "reward/accuracy"
        best = "loss" if config.method == "sft" else best
        self.health = Health(config.health, best, config.training.logging_steps)
        self.begin = time.monotonic()
        # Seconds of each step since the last line of metrics.jsonl.
        self.step_seconds: list[float] = []
        self.stopped_because: str | None = None
        self.beside_vllm = config.method != "sft" and rollout_engine(config) == "vllm"
        self.trainer: Any = None
        # Statistics of what the trainer samples; None if it samples nothing (sft).
        self.groups: GroupStatistics | None = None
        self.held_out: list[Problem] = []
        self.validation: Validation | None = None

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train from the start or the last checkpoint to the end, or to a clean stop."""
        names = self.config.trainer
        rewards = guarded_rewards(names.reward_calls(), names.reward_weights) if self.config.method != "sft" else []
        kind = trainer_class(self.config)
        if self.main:
            lock = lock_folder(self.folder.root)
            self.stop.forget()
        try:
            self.folder.metrics()
            checkpoint = last_checkpoint(self.folder.checkpoints)
            if checkpoint is not None:
                check_same(self.folder, self.processes.num_processes)
                check_checkpoint(checkpoint)
            with libraries_aside():
                loaded = load_model(self.config, self.inputs.weights)
            # All weights are trained in the type in which they are held.
            if loaded.peft_config is None:
                for why in rounded_away(self.arguments, loaded.model):
                    raise UserError(f"model.dtype {self.config.model.dtype}: {why}")
            if checkpoint is not None:
                check_same(self.folder, self.processes.num_processes, loaded.dtype)
            dataset, report = self.inputs.problems.dataset(loaded.tokenizer)
            check_ids(report, loaded.tokenizer, loaded.model.get_input_embeddings().num_embeddings)
            if self.score_held_out is not None and self.config.training.eval_steps is not None:
                self.held_out = self.inputs.problems.validation(loaded.tokenizer)
            if self.main:
                begin(self.folder, self.config)
                self.folder.write_problems(map(prompt_text, dataset["prompt"]))
            self.processes.wait_for_everyone()
            if self.main:
                LOG.info(f"{self.folder.root}   follow it: gtpo view {self.folder.root}")
            for line in [*loaded.notes, *report.lines()]:
                LOG.info(line)
            explained = vllm_failures_explained(loaded.model) if self.beside_vllm else nullcontext()
            with sharing_prefixes(self.config, loaded.model), explained:
                self._build(kind, loaded, dataset, rewards)
                self.exact.checked = checkpoint
                if self.main:
                    about = describe_run(self.config, loaded, self.trainer.model)
                    started = self.folder.run().get("started") or now()
                    processes = self.processes.num_processes
                    self.folder.update_run(
                        **about, dataset=report.as_dict(), processes=processes, started=started, status="running"
                    )
                if checkpoint is not None:
                    LOG.info(f"resuming from {checkpoint}")
                try:
                    self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
                    self._finish()
                except StoppedBeforeTraining:
                    if self.main:
                        self.folder.update_run(status="interrupted", step=0)
                        self.stop.forget()
                    LOG.info("stopped before the first step; the same command starts the run")
                finally:
                    self.progress.stop()
        except Exception as error:
            mistake = self._explained(error)
            if mistake is None:
                raise
            self._record_failure(mistake)
            raise mistake from (None if isinstance(error, UserError | torch.OutOfMemoryError) else error)
        finally:
            if self.main:
                lock.release()
            # Left to the interpreter's end, it can wait forever. vLLM closes what it shares by itself.
            if self.processes.num_processes > 1 and not self.beside_vllm:
                torch.distributed.destroy_process_group()

    def _explained(self, error: Exception) -> UserError | None:
        """Return what the user can do about an error that ended the run; None if nothing is known of it."""
        if isinstance(error, UserError):
            return error
        if isinstance(error, torch.OutOfMemoryError):
            return UserError(memory_advice(self.config, error))
        if out_of_space(error):
            return no_room(self.folder.checkpoints, f"in {self.folder.root} ({str(error).splitlines()[0]})")
        # Of all other errors the traceback says more than a sentence could.
        if not _NO_NUMBERS.search(str(error)):
            return None
        step = 0 if self.trainer is None else self.trainer.state.global_step
        last = last_checkpoint(self.folder.checkpoints)
        why = "the weights of model.model_name hold NaN or infinity, or overflow in model.dtype"
        if step:
            why = "its weights have overflowed: lower training.learning_rate and choose another run_name"
            why += f" ({last.name} is whole)" if last else ""
        return UserError(f"step {step + 1}: the policy's probabilities are no numbers ({error}); {why}")

    def _record_failure(self, mistake: UserError) -> None:
        """Write to run.json that the run stopped; the same command resumes it."""
        if not (self.main and self.trainer is not None and self.folder.run_json.exists()):
            return
        self.folder.remove_partial()
        with suppress(OSError):  # a full disk cannot take this either
            self.folder.update_run(status="failed", stopped_because=str(mistake).splitlines()[0])

    def _build(self, kind: Any, loaded: LoadedModel, dataset: Any, rewards: list[Any]) -> None:
        named = self.config.training.beta > 0 or loaded.peft_config is not None or self.beside_vllm
        if loaded.made_here and named:
            provide_base(loaded, self.folder, self.processes)
        common = {
            "model": loaded.model,
            "args": trainer_arguments(self.config, self.folder.checkpoints, loaded.dtype, check_loss=self.check_loss),
            "train_dataset": dataset,
            "processing_class": loaded.tokenizer,
            "peft_config": loaded.peft_config,
        }
        if self.config.method != "sft":
            common["reward_funcs"] = list(rewards)
        loading = time.monotonic()
        if self.beside_vllm:
            LOG.info(f"starting vLLM with {loaded.base}")
        with libraries_aside():
            self.trainer = kind(**common)
        if self.beside_vllm:
            LOG.info(f"vLLM is ready after {time.monotonic() - loading:.0f} s")
        if loaded.peft_config is not None:
            widen_adapters(self.trainer.model)
        trainer = self.trainer
        # Of the baselines too, so that methods differ only by their loss.
        trl_seam.round_nothing_in_fsdp2(trainer.accelerator)
        self.exact = ExactCheckpoints(
            trainer, lambda: {"health": self.health.state(), "stopped_because": self.stopped_because}
        )
        self.exact.shuffled_from = 1
        if isinstance(trainer, GTPOTrainer):
            gate = trainer.gate
            # The folder is one run's, also if it stopped before its first checkpoint.
            measured = self.folder.run().get("initial_entropy")
            if measured and gate.calibration is None:
                gate.calibration = Calibration.from_record(measured)
            gate.around_batch = self._stopping_before_training
        if isinstance(trainer, SampledTrainer):
            self.groups = trainer.groups
            trainer.set_resampling(self.config.training.resample_equal_groups)
            trainer.sampler.tolerance = self.config.rollout.logp_difference_alarm
            self.groups.mark_unscored = partial(mark_unscored, trainer)
        StepProgress(trainer, self.progress)
        every = self.config.training.eval_steps
        if self.groups is not None and every is None and not any(f.is_accuracy for f in rewards):
            LOG.warning(
                "no reward function says that it is an accuracy (FUNCTION.is_accuracy = True), and "
                "training.eval_steps is not set: nothing chooses best/, and the collapse watch sees only the KL "
                "divergence"
            )
        if every is not None and self.score_held_out is not None:
            self.validation = Validation(
                trainer,
                self.held_out,
                self.score_held_out,
                every=every,
                samples=self.config.training.eval_samples,
                prompts=[to_row(problem, self.config)["prompt"] for problem in self.held_out],
            )
        trainer.writes_model_card = False  # run.json says what ran
        trainer.remove_callback(PrinterCallback)
        if kl_every := self._kl_every(loaded):
            trainer.add_callback(UntrainedKL(trainer, kl_every, self._untrained(loaded)))
        trainer.add_callback(self)
        # After the run, which asks for checkpoints.
        trainer.add_callback(self.exact)
        trainer.add_callback(Advice(trainer))

    @contextmanager
    def _stopping_before_training(self) -> Iterator[None]:
        with self.stop.at_once():
            yield
        if self.stop.agree(self.trainer.accelerator):
            raise StoppedBeforeTraining

    def _kl_every(self, loaded: LoadedModel) -> int:
        """Return the steps between measurements of the KL divergence from the untrained policy; 0: never."""
        training = self.config.training
        if training.log_kl_steps is not None:
            return training.log_kl_steps
        # TRL logs the divergence itself with beta. Of a policy that samples nothing the watch could not use it.
        wanted = isinstance(self.trainer, SampledTrainer) and not training.beta and loaded.peft_config is not None
        return training.logging_steps * math.ceil(KL_STEPS / training.logging_steps) if wanted else 0

    def _untrained(self, loaded: LoadedModel) -> Any:
        """Return the weights that the run started from, also if it resumes; None if no second copy is needed."""
        if loaded.peft_config is not None or self.config.training.beta > 0:
            # The adapter is disabled, or TRL's own reference serves.
            return None
        return load_model(self.config, self.inputs.weights).model

    # -- events ----------------------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Load the state of the checkpoint and start the progress display; end at once after the run's last step."""
        if restored := self.exact.restored:
            with readable(last_checkpoint(self.folder.checkpoints) or self.folder.checkpoints):
                self.health.load(restored["health"])
                self.stopped_because = restored["stopped_because"]
        if self.main:
            self.folder.drop_after(state.global_step)
            if isinstance(self.trainer, GTPOTrainer):
                self.folder.update_run(**describe_calibration(self.trainer.gate))
        if self.validation is not None and state.global_step == 0:
            with self.stop.at_once():
                self.validation.run(0)
            self.validation.fresh = {}
            self.health.validated(0, self.validation.passed)
            self._save_best(0)
        self.progress.start(state.global_step, state.max_steps)
        # Stopped for good, and killed before its last weights were written.
        if self.stopped_because:
            control.should_training_stop = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the step's clock."""
        self.step_begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the completions, validate if it is due, and save and stop if the processes agree to."""
        self.step_seconds.append(time.perf_counter() - self.step_begin)
        self._log_completions()
        if self.validation is not None and self.validation.is_due(state.global_step, state.max_steps):
            self.validation.run(state.global_step)
        if self.stop.agree(self.trainer.accelerator):
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Write one line of metrics.jsonl and act on the run's health."""
        if not logs or "loss" not in logs:
            return
        method, ratios_move = self.config.method, not self.config.training.one_step_per_rollout
        row = metrics_row(state.global_step, logs, method, ratios_move=ratios_move)
        steps = max(1, len(self.step_seconds))
        row["time/step"] = sum(self.step_seconds) / steps
        self.step_seconds.clear()
        row |= {name: seconds / steps for name, seconds in self.trainer.step_progress.seconds.items()}
        self.trainer.step_progress.seconds.clear()
        verdict = self.health.observe(state.global_step, row)
        if self.validation is not None:
            verdict = self.validation.judged(self.health, state.global_step, verdict)
            row |= self.validation.fresh
            self.validation.fresh = {}
        if self.main:
            self.folder.append_metrics(row)
        self.progress.step(state.global_step, row)
        if verdict.new_best:
            self._save_best(state.global_step)
        if verdict.out_of_patience:
            self._stop(control, f"no better {self.health.metric} for {self.config.health.early_stop_patience} steps")
        if verdict.collapsed:
            self._collapsed(control, verdict.collapsed)

    def _log_completions(self) -> None:
        if self.groups is not None:
            log_rollout(self.trainer, self.folder, self.config.training.log_completions_steps)

    def _stop(self, control: Any, why: str) -> None:
        self.stopped_because = why
        LOG.warning(f"stopping: {why}")
        control.should_training_stop = True
        control.should_save = True

    def _collapsed(self, control: Any, why: str) -> None:
        action = self.config.health.on_collapse
        LOG.warning(f"collapse: {why} (health.on_collapse: {action})")
        if action == "stop":
            self._stop(control, f"collapse: {why}")
        elif action == "rollback":
            self._roll_back(control, why)

    def _roll_back(self, control: Any, why: str) -> None:
        if self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled:
            obstacle = "sharded weights cannot be put back in place"
        elif self.health.rollbacks >= MAX_ROLLBACKS:
            obstacle = f"{self.health.rollbacks} rollbacks did not help"
        elif not self.folder.best.exists():
            obstacle = "there are no best weights yet"
        else:
            restore_best(self.trainer, self.folder.best)
            # No later step trains on what is left of the round.
            self._log_completions()
            self.health.after_rollback()
            # A resumed run must not start from the weights that collapsed.
            control.should_save = True
            LOG.warning(
                f"rolled back to the weights of step {self.health.best_step}; the learning rate is halved "
                f"(rollback {self.health.rollbacks} of {MAX_ROLLBACKS})"
            )
            return
        self._stop(control, f"collapse, and no rollback ({obstacle}): {why}")

    # -- the end ---------------------------------------------------------------------------------------------------

    def _save_best(self, step: int) -> None:
        save_weights(self.trainer, self.folder.best, self.health.about_best())

    def _resampling(self) -> dict[str, Any]:
        """Return what drawing equal groups again did, over all logged rounds, for run.json."""
        rows = [row for row in self.folder.metrics().values() if row.get("groups/resampled") is not None]
        names = {"zero_variance_drawn": "groups/zero_variance_drawn", "zero_variance": "groups/zero_variance"}
        means = {key: round(sum(row[name] for row in rows) / max(1, len(rows)), 6) for key, name in names.items()}
        again = sum(row["groups/resampled"] for row in rows) / max(1, len(rows))
        return {"resampling": {"draws_again_per_group": round(again, 6), **means}}

    @property
    def collapsed(self) -> bool:
        """Return whether the run ended because it collapsed."""
        return (self.stopped_because or "").startswith("collapse")

    def _finish(self) -> None:
        step, total = self.trainer.state.global_step, self.trainer.state.max_steps
        # A stop in the last step has stopped nothing.
        stopped = self.stop.agreed and step < total and self.stopped_because is None
        if not stopped:
            save_weights(self.trainer, self.folder.final)
            if not self.folder.best.exists() and self.health.last_is_best(step):
                self._save_best(step)
        if self.main:
            self.folder.update_run(
                step=step,
                steps=total,
                status="interrupted" if stopped else "collapsed" if self.collapsed else "finished",
                stopped_because=self.stopped_because,
                **(self._resampling() if self.config.training.resample_equal_groups else {}),
                **(self.validation.summary(time.monotonic() - self.begin, self.health) if self.validation else {}),
                best={"step": self.health.best_step, "metric": self.health.metric, "value": self.health.best_value},
                wall_time_s=round(self.folder.run().get("wall_time_s", 0.0) + time.monotonic() - self.begin, 1),
                peak_memory_bytes=peak_memory(),
            )
            self.stop.forget()
        # A launcher ends the others when the first process has ended.
        self.processes.wait_for_everyone()
        self.progress.stop()
        if stopped:
            saved = checkpoint_step(last_checkpoint(self.folder.checkpoints))
            again = f" from step {saved} and makes {step - saved} step{'s' * (step - saved > 1)} again"
            within = step > saved
            LOG.info(
                f"{self.folder.root}: stopped at step {step} of {total}{', within a round of sampling' * within}; the "
                f"same command resumes the run{again * within}: {command_line()}"
            )
            return
        if self.main and (table := reward_table(self.folder, self.health.lines)):
            LOG.info(table)
        if self.collapsed:
            kept = f"step {self.health.best_step} in best/" if self.folder.best.exists() else "no step before it"
            LOG.error(f"{self.folder.root}: collapsed at step {step} of {total}; it keeps the weights of {kept}")
            return
        took = duration(self.folder.run().get("wall_time_s", 0.0))
        words = held_out_benchmark(self.config.dataset) + " --with-base" * (self.folder.began_from() is not None)
        LOG.info(
            f"{self.folder.root}: finished at step {step} after {took}\nnext: gtpo eval {self.folder.root} {words}"
        )
