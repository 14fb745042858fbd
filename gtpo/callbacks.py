"""What makes `gtpo train` trustworthy, as parts for any script with a GTPOTrainer, GRPOBaseline or SFTBaseline.

The baselines are TRL's GRPOTrainer and SFTTrainer; GRPOBaseline logs the metrics of groups under GTPOTrainer's names.
Each part is built for a trainer and added to it, before `train()`; `gtpo train` uses the same:

    trainer.add_callback(ExactCheckpoints(trainer))

ExactCheckpoints   a resumed run is the uninterrupted one, bit for bit, also within a round of sampling
UntrainedKL        logs the distance from the untrained policy, without a KL term in the loss
Advice             warns of settings that learn nothing
Validation         samples and scores held-out problems while training
CollapseWatch      warns of a run that collapses, or stops it, with a stated rate of false alarms
"""

from __future__ import annotations

from typing import Any, Literal

from transformers import TrainerCallback

from gtpo.common.log import LOG
from gtpo.config import HealthSection
from gtpo.run.advice import Advice
from gtpo.run.exact import ExactCheckpoints
from gtpo.run.health import Health
from gtpo.run.logs import metrics_row
from gtpo.run.trainers import GRPOBaseline, SFTBaseline
from gtpo.run.untrained_kl import UntrainedKL
from gtpo.run.validation import METRIC, Validation

__all__ = ["Advice", "CollapseWatch", "ExactCheckpoints", "GRPOBaseline", "SFTBaseline", "UntrainedKL", "Validation"]


class CollapseWatch(TrainerCallback):
    """Watches the metrics of a run for collapse (`gtpo.run.health`, docs/training.md).

    trainer: a GTPOTrainer, GRPOBaseline, or TRL's GRPOTrainer, whose reward is watched if no accuracy is logged.
    on_collapse: warn, or stop training after saving. false_alarms: share of the runs of a policy that does not change
    in which a collapse is reported. validation: the judge, where there is one; added to the trainer before.
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
        """Take in the validation of the untrained model."""
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
