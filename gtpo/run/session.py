"""One session of a run: from the lock on its folder to its final weights."""

from __future__ import annotations

import logging
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging

from gtpo.config import TrainConfig
from gtpo.inputs.dataset import training_dataset
from gtpo.inputs.model import LoadedModel, load_model, widen_adapters
from gtpo.run.completions_log import completions_table, write_completions
from gtpo.run.folder import PARTIAL, RunFolder, replace_folder
from gtpo.run.guarded_reward import guarded_rewards
from gtpo.run.health import MAX_ROLLBACKS, Health
from gtpo.run.progress import Progress
from gtpo.run.provenance import provenance
from gtpo.run.reward_table import reward_table
from gtpo.run.trainer_arguments import trainer_arguments
from gtpo.run.trainer_class import trainer_class
from gtpo.trainer.rollout import Rollout
from rewards.support.errors import UserError
from rewards.support.files import write_json

RENAMED = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "kl": "kl",
    "mean_token_accuracy": "tokens/accuracy",
    "num_tokens": "tokens/seen",
    "epoch": "epoch",
    "sampling/sampling_logp_difference/mean": "sampling/logp_difference",
}
"""TRL's names -> those of metrics.jsonl. Names with these prefixes are kept as they are:"""
KEPT_PREFIXES = (
    "reward/",
    "entropy/",
    "gate/",
    "conflict/",
    "groups/",
    "completions/",
    "rewards/",
    "time/",
    "sampling/logp",
)
_DROPPED = ("completions/m", "completions/clipped", "completions/min", "completions/max")


def quiet_libraries() -> None:
    """Keep the libraries' chatter off the terminal; their errors still raise."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("accelerate", "trl", "datasets", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(transformers|trl|accelerate|peft|torch)(\.|$)")
    import datasets

    datasets.disable_progress_bars()


class Session:
    """Builds the trainer of a config, runs it, and writes the run folder."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        results: Path,
        *,
        quiet: bool,
        interrupt: Any,
        check_loss: bool = False,
    ) -> None:
        from accelerate import PartialState

        quiet_libraries()
        self.config, self.folder, self.results = config, folder, results
        self.interrupt, self.check_loss = interrupt, check_loss
        # Without being told, accelerate sees one process where torchrun started several on CPUs.
        self.processes = PartialState(cpu=not torch.accelerator.is_available())
        self.main = self.processes.is_main_process
        self.progress = Progress(f"{config.run_name} ({config.method})", quiet=quiet or not self.main)
        self.health = Health(config.health, "loss" if config.method == "sft" else "reward/accuracy")
        self.begin = time.monotonic()
        self.stopped_because: str | None = None
        self.trainer: Any = None

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train from the start or the last checkpoint to the end, or to a clean stop."""
        names = self.config.trainer
        rewards = guarded_rewards(names.reward_funcs, names.reward_weights) if self.config.method != "sft" else []
        self.trainer_class = trainer_class(self.config)
        if self.main:
            self.folder.lock()
        try:
            loaded = load_model(self.config, self.results)
            dataset, report = training_dataset(self.config, loaded.tokenizer)
            if self.main:
                self.folder.start(self.config)
            self.processes.wait_for_everyone()
            checkpoint = self.folder.last_checkpoint()
            for line in [*loaded.notes, *report.lines()]:
                self.progress.say(line)
            self._build(loaded, dataset, rewards)
            if self.main:
                self._describe(loaded, report.as_dict())
            if checkpoint is not None:
                self.progress.say(f"resuming from {checkpoint}")
            try:
                self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
                self._finish()
            finally:
                self.progress.stop()
        except torch.OutOfMemoryError as fault:
            mistake = UserError(self._memory_advice(fault))
            self._note_failure(mistake)
            raise mistake from None
        except UserError as mistake:
            self._note_failure(mistake)
            raise
        finally:
            if self.main:
                self.folder.unlock()

    def _note_failure(self, mistake: UserError) -> None:
        """Say in run.json that the run stopped; the same command goes on from its last checkpoint."""
        if self.main and self.trainer is not None and self.folder.run_json.exists():
            self.folder.update_run(status="failed", stopped_because=str(mistake).splitlines()[0])

    def _provide_base(self, loaded: LoadedModel) -> None:
        """Write weights that lie nowhere (built, or merged from an adapter) where others look for them.

        A LoRA adapter names its base, and TRL reads the reference of its KL term from where the model came.
        """
        if not loaded.made_here or (self.config.training.beta == 0 and loaded.peft_config is None):
            return
        if self.main and not self.folder.base.exists():
            partial = self.folder.base.with_name(f"{PARTIAL}-base")
            loaded.model.save_pretrained(partial)
            loaded.tokenizer.save_pretrained(partial)
            replace_folder(partial, self.folder.base)
        self.processes.wait_for_everyone()
        loaded.model.config._name_or_path = loaded.model.name_or_path = str(self.folder.base)

    def _build(self, loaded: LoadedModel, dataset: Any, rewards: list[Any]) -> None:
        self._provide_base(loaded)
        arguments = trainer_arguments(self.config, self.folder.checkpoints, check_loss=self.check_loss)
        common = {
            "model": loaded.model,
            "args": arguments,
            "train_dataset": dataset,
            "processing_class": loaded.tokenizer,
            "peft_config": loaded.peft_config,
            "run_folder": self.folder,
            "say": self.progress.say,
            "extra_state": lambda: {"health": self.health.state()},
        }
        if self.config.method != "sft":
            common["reward_funcs"] = list(rewards)
        self.trainer = self.trainer_class(**common)
        if self.config.model.load_in_4bit:
            widen_adapters(self.trainer.model)
        self.trainer.remove_callback(PrinterCallback)
        self.trainer.add_callback(_RunCallback(self))

    # -- events ----------------------------------------------------------------------------------------------------

    def on_begin(self, state: Any) -> None:
        """Take up the state of the checkpoint and show where the run stands."""
        if self.trainer.restored:
            self.health.load(self.trainer.restored["health"])
        if self.main:
            self.folder.forget_after(state.global_step)
        self.progress.start(state.global_step, state.max_steps)

    def on_metrics(self, state: Any, control: Any, logs: dict[str, Any]) -> None:
        """Write one line of metrics.jsonl and act on the run's health."""
        row: dict[str, Any] = {"step": state.global_step}
        row |= {new: logs[old] for old, new in RENAMED.items() if old in logs}
        row |= {k: v for k, v in logs.items() if k.startswith(KEPT_PREFIXES) and not k.startswith(_DROPPED)}
        if self.config.method == "sft" and "entropy" in logs:
            row["entropy/mean"] = logs["entropy"]
        row["time/step"] = self.step_seconds / max(1, self.steps_timed)
        for name, seconds in getattr(self.trainer, "stopwatch", {}).items():
            row[name] = seconds / max(1, self.steps_timed)
        getattr(self.trainer, "stopwatch", {}).clear()
        self.step_seconds, self.steps_timed = 0.0, 0
        if self.main:
            self.folder.append_metrics(row)
        self.progress.step(state.global_step, row)
        verdict = self.health.observe(state.global_step, row)
        if verdict.new_best:
            self._save_best(state.global_step)
        if verdict.out_of_patience:
            self._stop(control, f"no better {self.health.metric} for {self.config.health.early_stop_patience} steps")
        if verdict.collapsed:
            self._collapsed(control, verdict.collapsed)

    step_seconds = 0.0
    steps_timed = 0

    def log_completions(self) -> None:
        """Write the round of sampling that the last step completed, if its turn has come. All processes call it."""
        every, rollouts = self.config.training.log_completions_steps, getattr(self.trainer, "rollouts", {})
        rollout: Rollout | None = rollouts.get("train")
        if not every or rollout is None or rollout.logged or self.trainer.mid_round():
            return
        if rollout.step % every and rollout.step != 1:
            return
        rollout.logged = True
        prompts = gather_object(rollout.prompts)
        if self.main:
            table = completions_table(
                rollout,
                prompts,
                self.trainer.reward_func_names,
                self.trainer.processing_class,
                self.trainer.args.num_generations,
            )
            write_completions(self.folder.completions, table, rollout.step)

    def _stop(self, control: Any, why: str) -> None:
        self.stopped_because = why
        self.progress.warn(f"stopping: {why}")
        control.should_training_stop = True
        control.should_save = True

    def _collapsed(self, control: Any, why: str) -> None:
        action = self.config.health.on_collapse
        self.progress.warn(f"collapse: {why} (health.on_collapse: {action})")
        if action == "stop":
            self._stop(control, f"collapse: {why}")
        elif action == "rollback":
            self._roll_back(control, why)

    def _roll_back(self, control: Any, why: str) -> None:
        """Put the best weights back, forget the optimiser's moments, and go on with half the learning rate."""
        trainer = self.trainer
        sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
        if sharded or not self.folder.best.exists() or self.health.rollbacks >= MAX_ROLLBACKS:
            reason = (
                "sharded weights cannot be put back in place"
                if sharded
                else f"{self.health.rollbacks} rollbacks did not help"
                if self.health.rollbacks
                else "there are no best weights yet"
            )
            self._stop(control, f"collapse, and no rollback ({reason}): {why}")
            return
        trainer._load_from_checkpoint(str(self.folder.best), trainer.model)
        getattr(trainer.optimizer, "optimizer", trainer.optimizer).state.clear()
        trainer.lr_scheduler.base_lrs = [rate / 2 for rate in trainer.lr_scheduler.base_lrs]
        trainer.lr_scheduler._last_lr = [rate / 2 for rate in trainer.lr_scheduler._last_lr]
        for group in trainer.optimizer.param_groups:
            group["lr"] /= 2
        self.health.after_rollback()
        control.should_save = True  # a resumed run must not go on from the weights that collapsed
        self.progress.warn(
            f"rolled back to the weights of step {self.health.best_step}; the learning rate is halved "
            f"(rollback {self.health.rollbacks} of {MAX_ROLLBACKS})"
        )

    # -- weights ---------------------------------------------------------------------------------------------------

    def _save_weights(self, target: Path, about: dict[str, Any] | None = None) -> None:
        """Write weights and tokenizer to `target`, whole or not at all. All processes must call it."""
        partial = target.with_name(f"{PARTIAL}-{target.name}")
        if self.main:
            shutil.rmtree(partial, ignore_errors=True)
        self.processes.wait_for_everyone()
        self.trainer.save_model(str(partial))
        self.processes.wait_for_everyone()
        if self.main:
            (partial / "training_args.bin").unlink(missing_ok=True)  # a pickle that nobody needs
            if about is not None:
                write_json(partial / "best.json", about)
            replace_folder(partial, target)

    def _save_best(self, step: int) -> None:
        self._save_weights(
            self.folder.best,
            {
                "schema_version": 1,
                "step": step,
                "metric": self.health.metric,
                "value": self.health.best_value,
                "smoothing_steps": self.config.health.smoothing_steps,
                "why": f"the best running mean of {self.health.metric} so far",
            },
        )

    def _finish(self) -> None:
        step, total = self.trainer.state.global_step, self.trainer.state.max_steps
        fields: dict[str, Any] = {"step": step, "steps": total}
        stopped = self.interrupt.asked and step < total and self.stopped_because is None
        if not stopped:
            self._save_weights(self.folder.final)
            if not self.folder.best.exists():
                self.health.best_value, self.health.best_step = self.health.smoothed(self.health.metric), step
                if self.health.best_value is not None:
                    self._save_best(step)
        if self.main:
            self.folder.update_run(
                **fields,
                status="interrupted" if stopped else "finished",
                stopped_because=self.stopped_because,
                best={"step": self.health.best_step, "metric": self.health.metric, "value": self.health.best_value},
                wall_time_s=round(self.folder.run().get("wall_time_s", 0.0) + time.monotonic() - self.begin, 1),
                peak_memory_bytes=torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
            )
        self.progress.stop()
        if stopped:
            self.progress.say(f"stopped at step {step} of {total}; the same command goes on from there")
        else:
            if self.main and (table := reward_table(self.folder.metrics_jsonl, self.config.health.smoothing_steps)):
                self.progress.say(table)
            self.progress.say(f"{self.folder.root}: done at step {step}\nnext: gtpo eval {self.folder.root}")

    # -- words -----------------------------------------------------------------------------------------------------

    def _describe(self, loaded: LoadedModel, dataset: dict[str, Any]) -> None:
        config = self.config
        model = self.trainer.model
        self.folder.update_run(
            run_name=config.run_name,
            method=config.method,
            preset=None if config.method == "sft" else config.preset_name(),
            base_model=loaded.base,
            parameters={
                "all": sum(p.numel() for p in model.parameters()),
                "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
            },
            notes=loaded.notes,
            dataset=dataset,
            seeds={"random_seed": config.model.random_seed},
            **provenance(),
            processes=self.processes.num_processes,
            started=self.folder.run().get("started") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            status="running",
        )

    def _memory_advice(self, fault: BaseException) -> str:
        training, model = self.config.training, self.config.model
        batch, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
        advice = []
        if batch > 1:
            advice.append(
                f"training.per_device_train_batch_size {batch} -> {batch // 2} with "
                f"training.gradient_accumulation_steps {accumulation} -> {accumulation * 2} (the same gradient)"
            )
        if not training.gradient_checkpointing:
            advice.append("training.gradient_checkpointing: true")
        if training.max_completion_length:
            longest = training.max_completion_length
            advice.append(f"training.max_completion_length {longest} -> {longest // 2}")
        if self.config.rollout.engine in ("auto", "vllm"):
            advice.append(f"model.gpu_memory_utilization {model.gpu_memory_utilization} -> 0.3 (vLLM's share)")
        if model.lora_rank == 0:
            advice.append("model.lora_rank: 64 (train adapters only)")
        elif not model.load_in_4bit:
            advice.append("model.load_in_4bit: true")
        first = str(fault).split(". ", maxsplit=2)
        return f"out of GPU memory ({'. '.join(first[:2])}). Lower, in this order: " + "; ".join(advice)


class _RunCallback(TrainerCallback):
    """Hands the events of transformers' Trainer to the session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._step_begin = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session.on_begin(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step_begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session.step_seconds += time.perf_counter() - self._step_begin
        self.session.steps_timed += 1
        self.session.log_completions()
        if self.session.interrupt.asked:
            control.should_save = True
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.session.on_metrics(state, control, logs)
