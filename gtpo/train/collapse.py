"""The collapse watch of a run, as a part of its trainer: it warns, stops, or rolls back to the best weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from trl import SFTTrainer

from gtpo.common.log import LOG
from gtpo.config import HealthSection
from gtpo.train.health import MAX_ROLLBACKS, Health
from gtpo.train.resume import save_weights
from gtpo.train.run_log import metrics_row
from gtpo.train.validation import METRIC, Validation
from gtpo.trainer import RunPart, trl_seam


class CollapseWatch(RunPart):
    """Watches the metrics of a run for collapse (`gtpo.train.health`, docs/watch.md), and keeps its best weights.

    trainer: a GTPOTrainer, GRPOBaseline or SFTBaseline, or TRL's own, whose reward is watched if no accuracy is logged.
    on_collapse: warn; stop training after saving; or roll back to the best weights with half the learning rate.
    false_alarms: share of the runs of a policy that does not change in which a collapse is reported. validation: the
    judge, if there is one; added to the trainer before. best: the folder that keeps the best weights, such as best/ in
    the folder of RunLog; rollback needs it. early_stop_patience, smoothing_*: as in a config (section health).

    Raises ValueError for a rollback without best.
    """

    def __init__(
        self,
        trainer: Any,
        on_collapse: Literal["warn", "stop", "rollback"] = "warn",
        false_alarms: float = 0.01,
        validation: Validation | None = None,
        *,
        best: str | Path | None = None,
        **settings: Any,
    ) -> None:
        if on_collapse == "rollback" and best is None:
            raise ValueError("CollapseWatch: on_collapse='rollback' needs best=, a folder for the best weights")
        section = HealthSection(on_collapse=on_collapse, false_alarms=false_alarms, **settings)
        metric = "loss" if isinstance(trainer, SFTTrainer) else "reward/accuracy" if validation is None else METRIC
        self.trainer, self.validation, self.best = trainer, validation, None if best is None else Path(best)
        self.health = Health(section, metric, max(1, int(trainer.args.logging_steps)))
        self.stopped_because: str | None = None
        self._restored = False

    @property
    def collapsed(self) -> bool:
        """Return whether the run ended because it collapsed."""
        return (self.stopped_because or "").startswith("collapse")

    def checkpoint_state(self) -> dict[str, Any]:
        """Keep the state of the tests, and why the run stopped."""
        return {"health": self.health.state(), "stopped_because": self.stopped_because}

    def on_resume(self, state: dict[str, Any]) -> None:
        """Go on with the tests; a checkpoint that was written without a watch has none."""
        if "health" in state:
            self.health.load(state["health"])
            self.stopped_because, self._restored = state["stopped_because"], True

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take in the validation of the untrained model; of a resumed run, what trainer_state.json says of its past."""
        for logs in () if self._restored else state.log_history:
            if "loss" in logs:
                self.health.observe(logs["step"], {**logs, **metrics_row(logs["step"], logs, args)})
        if self.validation is not None and state.global_step == 0:
            self.health.observe_validation(0, self.validation.passed)
            self._save_best()
        # Stopped for good, and killed before its last weights were written.
        if self.stopped_because:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Judge a line of metrics and act on it."""
        if not logs or "loss" not in logs:
            return
        step, health = state.global_step, self.health
        verdict = health.observe(step, {**logs, **metrics_row(step, logs, args)})
        if self.validation is not None:
            verdict = self.validation.judge(health, step, verdict)
            # Of one that an alarm has asked for, too.
            logs |= self.validation.fresh
            state.log_history[-1] |= self.validation.fresh
            self.validation.fresh = {}
        if verdict.new_best:
            self._save_best()
        if verdict.out_of_patience:
            self._stop(control, f"no better {health.metric} for {health.section.early_stop_patience} steps")
        if why := verdict.collapsed:
            action = health.section.on_collapse
            LOG.warning(f"collapse: {why} (health.on_collapse: {action})")
            if action == "stop":
                self._stop(control, f"collapse: {why}")
            elif action == "rollback" and (obstacle := self._roll_back(control)):
                self._stop(control, f"collapse, and no rollback ({obstacle}): {why}")

    def _stop(self, control: Any, why: str) -> None:
        self.stopped_because = why
        LOG.warning(f"stopping: {why}")
        control.should_training_stop = True
        control.should_save = True

    def _roll_back(self, control: Any) -> str:
        """Put the best weights back, clear the optimizer's moments, halve the rate; return why not, empty if done."""
        health = self.health
        if self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled:
            return "sharded weights cannot be put back in place"
        if health.rollbacks >= MAX_ROLLBACKS:
            return f"{health.rollbacks} rollbacks did not help"
        if self.best is None or not self.best.exists():
            return "there are no best weights yet"
        trainer = self.trainer
        # What is left of the round of sampling in use goes too: the policy that is taken back wrote it.
        trl_seam.load_weights(trainer, str(self.best))
        getattr(trainer.optimizer, "optimizer", trainer.optimizer).state.clear()
        trainer.lr_scheduler.base_lrs = [rate / 2 for rate in trainer.lr_scheduler.base_lrs]
        trainer.lr_scheduler._last_lr = [rate / 2 for rate in trainer.lr_scheduler._last_lr]
        for group in trainer.optimizer.param_groups:
            group["lr"] /= 2
        health.after_rollback()
        # A resumed run must not start from the weights that collapsed.
        control.should_save = True
        LOG.warning(
            f"rolled back to the weights of step {health.best_step}; the learning rate is halved "
            f"(rollback {health.rollbacks} of {MAX_ROLLBACKS})"
        )
        return ""

    def _save_best(self) -> None:
        if self.best is not None:
            save_weights(self.trainer, self.best, self.health.about_best())
