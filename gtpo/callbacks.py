"""What makes `gtpo train` trustworthy, as parts for any script with a GTPOTrainer, GRPOBaseline or SFTBaseline.

The baselines are TRL's GRPOTrainer and SFTTrainer; GRPOBaseline logs the metrics of groups under GTPOTrainer's names.
Each part is built for a trainer and added to it, before `train()`; `gtpo train` uses the same:

    trainer.add_callback(ExactCheckpoints(trainer))

ExactCheckpoints   a resumed run is the uninterrupted one, bit for bit, also within a round of sampling
UntrainedKL        logs the distance from the untrained policy, without a KL term in the loss
Advice             warns of settings that learn nothing
Validation         samples and scores held-out problems while training
CollapseWatch      warns of a run that collapses, or stops it, with a stated rate of false alarms
RunLog             a run folder, which `gtpo view` and `gtpo compare` read; for TRL's own trainers too
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from transformers import TrainerCallback
from trl import SFTTrainer

from gtpo.common.errors import UserError
from gtpo.common.files import lock_folder, write_text
from gtpo.common.log import LOG
from gtpo.common.provenance import git_commit, package_versions
from gtpo.config import HealthSection
from gtpo.run.advice import Advice
from gtpo.run.exact import ExactCheckpoints
from gtpo.run.health import Health
from gtpo.run.logs import PACKAGES, log_rollout, metrics_row, prompt_text
from gtpo.run.trainers import GRPOBaseline, SFTBaseline
from gtpo.run.untrained_kl import UntrainedKL
from gtpo.run.validation import METRIC, Validation
from gtpo.runs.train_run import TrainFolder
from gtpo.trainer import GTPOTrainer

__all__ = [
    "Advice",
    "CollapseWatch",
    "ExactCheckpoints",
    "GRPOBaseline",
    "RunLog",
    "SFTBaseline",
    "UntrainedKL",
    "Validation",
]


class CollapseWatch(TrainerCallback):
    """Watches the metrics of a run for collapse (`gtpo.run.health`, docs/training.md).

    trainer: a GTPOTrainer, GRPOBaseline, or TRL's GRPOTrainer, whose reward is watched if no accuracy is logged.
    on_collapse: warn, or stop training after saving. false_alarms: share of the runs of a policy that does not change
    in which a collapse is reported. validation: the judge, if there is one; added to the trainer before.
    """

    def __init__(
        self,
        trainer: Any,
        on_collapse: Literal["warn", "stop"] = "warn",
        false_alarms: float = 0.01,
        validation: Validation | None = None,
    ) -> None:
        section, lines = HealthSection(false_alarms=false_alarms), max(1, int(trainer.args.logging_steps))
        self.health = Health(section, "reward/accuracy" if validation is None else METRIC, lines)
        self.stops, self.validation = on_collapse == "stop", validation

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take in the validation of the untrained model; of a resumed run, what trainer_state.json says of its past."""
        for logs in state.log_history:
            if "loss" in logs:
                self.health.observe(logs["step"], {**logs, **metrics_row(logs["step"], logs, "gtpo")})
        if self.validation is not None and state.global_step == 0:
            self.health.validated(0, self.validation.passed)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Judge a line of metrics."""
        if not logs or "loss" not in logs:
            return
        step = state.global_step
        verdict = self.health.observe(step, {**logs, **metrics_row(step, logs, "gtpo")})
        if self.validation is not None:
            verdict = self.validation.judged(self.health, step, verdict)
            self.validation.fresh = {}
        if verdict.collapsed:
            LOG.warning(f"collapse: {verdict.collapsed}")
            control.should_training_stop = control.should_training_stop or self.stops
            control.should_save = control.should_save or self.stops


class RunLog(TrainerCallback):
    """Write a run folder as `gtpo train` does: config.yaml, run.json, metrics.jsonl, completions/.

    trainer: a GTPOTrainer, or GRPOTrainer or SFTTrainer of TRL. folder: results/train/NAME, or any other; UserError at
    the first step if it holds another run. completions_steps: a rollout is written so often (0: none), token by token,
    for a GTPOTrainer and a GRPOBaseline; TRL's own trainers keep no statistics of tokens.
    """

    def __init__(self, trainer: Any, folder: str | Path, *, completions_steps: int = 10) -> None:
        self.trainer, self.folder, self.every = trainer, TrainFolder(Path(folder)), completions_steps
        sft = "sft" if isinstance(trainer, SFTTrainer) else "grpo"
        self.method = "gtpo" if isinstance(trainer, GTPOTrainer) else sft

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what ran; drop what a run that is resumed will log again."""
        if not state.is_world_process_zero:
            return
        if state.global_step == 0 and self.folder.has_begun():
            raise UserError(f"{self.folder.root} holds a run already; give RunLog another folder, or move it away")
        self.lock = lock_folder(self.folder.root)
        self.folder.drop_after(state.global_step)
        rows = self.trainer.train_dataset
        if "prompt" in (getattr(rows, "column_names", None) or ()) and hasattr(rows, "__len__"):
            self.folder.write_problems(map(prompt_text, rows["prompt"]))
        versions = package_versions(*PACKAGES)
        name, base = self.folder.root.name, getattr(self.trainer.model.config, "_name_or_path", "") or None
        plain = json.loads(args.to_json_string())
        training = {key: value for key, value in plain.items() if key not in ("seed", "output_dir", "run_name")}
        model = {"name": base, "random_seed": args.seed}
        config = {"run_name": name, "method": self.method, "model": model, "training": training}
        write_text(self.folder.config_yaml, json.dumps(config, indent=1))  # JSON is YAML
        self.folder.update_run(
            run_name=name, method=self.method, seed=args.seed, base_model=base, steps=state.max_steps, status="running",
            python=versions.pop("python"), packages=versions, git_commit=git_commit(),
        )  # fmt: skip

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Write a line of metrics."""
        if logs and "loss" in logs and state.is_world_process_zero:
            self.folder.append_metrics(metrics_row(state.global_step, logs, self.method))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the rollout that the last step completed, if it is due."""
        if hasattr(self.trainer, "groups"):
            log_rollout(self.trainer, self.folder, self.every)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the end."""
        if state.is_world_process_zero:
            self.folder.update_run(status="finished", step=state.global_step)
            self.lock.release()
