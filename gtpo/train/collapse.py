"""What judges a run while it trains, and what follows from it. The distance from the untrained policy, any method:

    KL = mean over tokens of sum_v p(v) (log p(v) - log q(v))        p the policy, q the untrained policy, in nats

at the tokens of the step's first micro-batch, before the step changes the policy: of the completions that it sampled,
or (sft) of the targets. The sum runs over the whole vocabulary, so that its only noise is which texts are in the batch.
q is the same model with its adapter disabled, or a second copy of the weights that the run started from.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model
from torch import Tensor
from trl import SFTTrainer

from gtpo.common.log import LOG
from gtpo.config import HealthSection, TrainConfig
from gtpo.inputs.model import LoadedModel, load_model
from gtpo.rewards.completions import completion_text
from gtpo.rewards.data.problem import Problem, chat_messages
from gtpo.train.health import MAX_ROLLBACKS, Health, Judgement
from gtpo.train.resume import save_weights
from gtpo.train.run_log import metrics_row
from gtpo.trainer import GTPOTrainer, RunPart, SampledTrainer, trl_seam
from gtpo.trainer.gtpo_trainer import require_trainer
from gtpo.trainer.policy_head import LMHead, add_policy_head, sequences

# -- the distance from the untrained policy ----------------------------------------------------------------------------

KL_METRIC = "kl/untrained"
# Steps between measurements, if they cost no second copy of the weights.
KL_STEPS = 10
# Sequences of the micro-batch that are looked at, per process.
MAX_ROWS = 32
# Bytes of logits that are held at a time, of each of the two policies.
CHUNK_BYTES = 2**27


def token_kl(logits: Tensor, reference_logits: Tensor) -> Tensor:
    """Return KL(p || q) [...] in nats from two sets of logits [..., V], in float32 or better."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    p, q = logits.to(wide).log_softmax(dim=-1), reference_logits.to(wide).log_softmax(dim=-1)
    # 0 log 0 = 0: a token that the policy cannot take adds nothing.
    return torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(dim=-1)


def summed_kl(
    now: Tensor, head: LMHead, before: Tensor, their_head: LMHead, mask: Tensor, temperature: float
) -> Tensor:
    """Return [the sum of KL(p || q) over the tokens of mask [B, T - 1], their number], from hidden states [B, T, D]."""
    total = torch.zeros(2, dtype=torch.float64, device=now.device)
    rows = max(1, CHUNK_BYTES // (4 * len(head.lm_head)))
    chosen = (hidden[:, :-1][mask].split(rows) for hidden in (now, before))
    for p, q in zip(*chosen, strict=True):
        kl = token_kl(head.logits(p) / temperature, their_head.logits(q) / temperature)
        total += torch.stack([kl.sum().double(), torch.tensor(len(p), dtype=torch.float64, device=kl.device)])
    return total


class UntrainedKL(RunPart):
    """Logs `kl/untrained` every `every` steps: `trainer.add_callback(UntrainedKL(trainer, every=10))`.

    trainer: a GTPOTrainer, GRPOBaseline or SFTBaseline. reference: the untrained model; needed if the model has no
    adapter to disable and TRL holds no reference: ValueError without it.
    """

    def __init__(self, trainer: Any, every: int, reference: Any = None) -> None:
        self.trainer, self.every, self._measured_for = require_trainer(self, trainer), every, -1
        self.reference = getattr(trainer, "ref_model", None)
        if self.reference is None and not is_peft_model(trainer.accelerator.unwrap_model(trainer.model)):
            if reference is None:
                raise ValueError("UntrainedKL: all weights are trained, so it needs reference=, the untrained model")
            self.reference = reference.eval().requires_grad_(False).to(trainer.accelerator.device)
        if not isinstance(trainer, GTPOTrainer):  # which has done it
            add_policy_head(trl_seam.policy(trainer))
        if self.reference is not None:
            add_policy_head(trainer.accelerator.unwrap_model(self.reference))

    def on_micro_batch(self, model: Any, inputs: Mapping[str, Any]) -> None:
        """Measure on a micro-batch if its step is due and this is the first of it. All processes call it."""
        trainer, reference = self.trainer, cast(Any, self.reference)
        step = trainer.state.global_step + 1
        if step % self.every or step == self._measured_for:
            return
        self._measured_for = step
        batch, mask = _sequences(inputs)
        # sft has no temperature of the sampling.
        divergence = functools.partial(summed_kl, mask=mask, temperature=getattr(trainer, "temperature", 1.0))

        def of_both(now: Tensor, head: LMHead) -> Any:
            return reference(**batch, of_hidden=lambda before, theirs: divergence(now, head, before, theirs)).value

        with torch.no_grad(), trainer.accelerator.autocast():
            if reference is None:
                # Both have one head, whole only inside a forward; unless it is trained too (modules_to_save).
                trained, own = trl_seam.policy(trainer).get_output_embeddings().weight.requires_grad, list[LMHead]()

                def of_policy(hidden: Tensor, head: LMHead) -> Tensor:
                    own.extend([head._replace(lm_head=head.lm_head.clone())] if trained else [])
                    return hidden

                def of_untrained(before: Tensor, head: LMHead) -> Tensor:
                    # accelerate gives what a forward returns in float32.
                    return divergence(now.to(before.dtype), (own or [head])[0], before, head)

                now = model(**batch, of_hidden=of_policy).value
                with trainer.accelerator.unwrap_model(model).disable_adapter():
                    output = model(**batch, of_hidden=of_untrained)
            else:
                # One forward inside the other: a sharded head is whole only in its own.
                output = model(**batch, of_hidden=of_both)
        total = trainer.accelerator.reduce(output.value)
        trl_seam.log(trainer, KL_METRIC, float(total[0] / total[1].clamp(min=1)))


def untrained_kl(trainer: Any, config: TrainConfig, loaded: LoadedModel, source: str) -> UntrainedKL | None:
    """Return the part that a config asks for, or that costs no second copy of the weights; else None.

    source: of the weights that the run began from (`find_weights`), also if it resumes.
    """
    training = config.training
    every = training.log_kl_steps
    if every is None:
        # TRL logs the divergence itself with beta. Of a policy that samples nothing the watch could not use it.
        wanted = isinstance(trainer, SampledTrainer) and not training.beta and loaded.peft_config is not None
        every = training.logging_steps * math.ceil(KL_STEPS / training.logging_steps) if wanted else 0
    # The adapter is disabled, or TRL's own reference serves.
    copied = loaded.peft_config is None and training.beta == 0
    return UntrainedKL(trainer, every, load_model(config, source).model if copied else None) if every else None


def _sequences(inputs: Mapping[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """Return what a model takes of the first rows, and which of their tokens from the second on count [B, T - 1]."""
    some = {name: rows[:MAX_ROWS] for name, rows in inputs.items() if isinstance(rows, Tensor) and rows.dim()}
    if "labels" in some:  # sft
        ids = some["input_ids"]
        batch = {"input_ids": ids, "attention_mask": some.get("attention_mask", torch.ones_like(ids))}
        return batch, some["labels"][:, 1:] != -100
    mask = torch.cat([torch.zeros_like(some["prompt_mask"]), some["completion_mask"]], dim=1)
    return sequences(some), mask[:, 1:].bool()


# -- held-out problems -------------------------------------------------------------------------------------------------

# The metric that `best/` follows, a fraction.
METRIC = "validation/pass@1"
# (problems, their completions) -> metric (pass@1, maj@k, format) -> something with mean, low and high as fractions;
# and "problems" -> pass@1 of each. `gtpo train` passes evalkit's, so that a validation and an evaluation of the same
# completions say the same.
ScoreHeldOut = Callable[[Sequence[Problem], Sequence[Sequence[str]]], Mapping[str, Any]]


class Validation(RunPart):
    """Samples and scores held-out problems every `every` steps, and before the first: `trainer.add_callback(...)`.

    trainer: a GTPOTrainer or GRPOBaseline. score: what scores them, such as
    `gtpo.evalkit.evaluation.summary.score_held_out`. prompts: of the problems, in the form of the training data; by
    default the system prompt of the published experiments and the problem. The training does not notice it: it has
    its own random stream. `CollapseWatch` takes it as the judge of a collapse.
    """

    def __init__(
        self,
        trainer: Any,
        problems: Sequence[Problem],
        score: ScoreHeldOut,
        *,
        every: int,
        samples: int = 4,
        prompts: Sequence[Any] | None = None,
    ) -> None:
        self.trainer, self.problems, self.score = require_trainer(self, trainer, SampledTrainer), problems, score
        self.samples, self.every = samples, every
        rows = [chat_messages(problem.problem) for problem in problems] if prompts is None else prompts
        self.prompts = [prompt for prompt in rows for _ in range(samples)]
        # Seconds that this process spent on validation.
        self.seconds = 0.0
        self.count = 0
        # pass@1 of each problem in the latest validation.
        self.passed: list[float] = []
        # The latest validation, until it is judged.
        self.fresh: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Validate the untrained model."""
        if state.global_step == 0 and not self.count:
            self.run(0)
            self.fresh = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Validate after each `every`-th step, and the last that is logged; the next line of the log has the result."""
        step, last = state.global_step, state.max_steps
        if step % self.every == 0 or (step == last and step % max(1, int(args.logging_steps)) == 0):
            for name, value in self.run(step).items():
                trl_seam.log(self.trainer, name, value, instead=True)

    def run(self, step: int) -> dict[str, float]:
        """Return the metrics of the policy as it is now. All processes must call it; the training does not notice."""
        trainer, begin = self.trainer, time.perf_counter()
        accelerator = trainer.accelerator
        # Another stream for each step, and none that a round of sampling has.
        seed = (trainer.args.seed * 1_000_003 + step) % 2**31 + 2**31
        row: dict[str, Any] = {}
        with trainer.activity("validating", len(self.prompts)):
            texts = self._sample(seed)
            if accelerator.is_main_process:
                completions = [texts[at : at + self.samples] for at in range(0, len(texts), self.samples)]
                scores = dict(self.score(self.problems, completions))
                row["passed"] = [float(value) for value in scores.pop("problems")]
                for name, interval in scores.items():
                    ends = {"": interval.mean, "_low": interval.low, "_high": interval.high}
                    row |= {f"validation/{name}{end}": value for end, value in ends.items()}
        (row,) = broadcast_object_list([row])
        self.passed = row.pop("passed")
        row["time/validation"] = seconds = time.perf_counter() - begin
        self.seconds += seconds
        self.count += 1
        if accelerator.is_main_process:
            means = ", ".join(
                f"{name} {100 * each.mean:.1f} % [{100 * each.low:.0f}, {100 * each.high:.0f}]"
                for name, each in scores.items()
            )
            LOG.info(
                f"step {step}: held-out {means}; {len(self.problems)} problems x {self.samples} samples in "
                f"{seconds:.1f} s"
            )
        self.fresh = row
        return row

    def _sample(self, seed: int) -> list[str]:
        """Return one sampled completion per prompt, on every process; each samples its share of the prompts.

        The trainer's own model samples as many at once as a step samples; vLLM, which bounds its memory, all of them.
        """
        trainer, prompts = self.trainer, self.prompts
        args = trainer.args
        batch = args.per_device_train_batch_size * args.steps_per_generation * trainer.accelerator.num_processes
        if trainer.use_vllm:
            batch = max(batch, len(prompts))
        texts: list[str] = []
        with trl_seam.aside(trainer, seed):
            for start in range(0, len(prompts), batch):
                some = prompts[start : start + batch]
                completions = trl_seam.sample(trainer, [{"prompt": prompt} for prompt in some])[3]
                texts += gather_object([completion_text(completion) for completion in completions])[: len(some)]
        return texts

    def summary(self, session_s: float, health: Health) -> dict[str, Any]:
        """Return, and say, what validation gave and what it cost in a session of `session_s` seconds, for run.json."""
        LOG.info(
            f"validated {self.count} time{'s' * (self.count != 1)}: {self.seconds:.1f} s, "
            f"{100 * self.seconds / session_s:.1f} % of the run"
        )
        gain = None
        if (bounds := health.gain()) is not None:
            gain = dict(zip(("mean", "low", "high"), bounds, strict=True))
            mean, low, high = (100 * value for value in bounds)
            LOG.info(
                f"held-out pass@1 of best/ less the untrained model's: {mean:+.1f} [{low:+.1f}, {high:+.1f}]"
                if health.best_step
                else "best/ is the untrained model: no validation was better by more than noise"
            )
        return {
            "untrained": None if health.first is None else float(np.mean(health.first)),
            "gain": gain,
            "problems": [problem.id for problem in self.problems],
            "samples": self.samples,
            "count": self.count,
            "seconds": round(self.seconds, 1),
            "share_of_session": round(self.seconds / session_s, 4),
        }


# -- the watch ---------------------------------------------------------------------------------------------------------


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
        self._new_health = functools.partial(Health, section, metric, max(1, int(trainer.args.logging_steps)))
        self.health = self._new_health()
        self.stopped_because: str | None = None
        # Step -> pass@1 of each held-out problem. With the lines of the log this is all that the watch goes by.
        self.validations: dict[int, list[float]] = {}
        self._of_0_2: dict[str, Any] = {}

    @property
    def collapsed(self) -> bool:
        """Return whether the run ended because it collapsed."""
        return (self.stopped_because or "").startswith("collapse")

    def checkpoint_state(self) -> dict[str, Any]:
        """Keep what trainer_state.json does not say of the run's past."""
        return {"validations": self.validations, "stopped_because": self.stopped_because}

    def on_resume(self, state: dict[str, Any]) -> None:
        """Take up the validations; a checkpoint that was written without a watch has none."""
        self.validations = {int(step): passed for step, passed in state.get("validations", {}).items()}
        self.stopped_because, self._of_0_2 = state.get("stopped_because"), state.get("health", {})

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take in the validation of the untrained model; of a resumed run, judge its past again."""
        self.health, starts = self._new_health(), self.validation is not None and state.global_step == 0
        if self.validation is not None and starts:
            self.validations = {0: self.validation.passed}
        if 0 in self.validations:
            self.health.observe_validation(0, self.validations[0])
        for logs in state.log_history:
            if "loss" in logs:
                verdict = self._judge(logs["step"], logs, args, past=True)
                if verdict.collapsed and self.health.section.on_collapse == "rollback":
                    self.health.after_rollback()
        for name in ("best", "best_step", "first", "looks", "rollbacks", "fallen", "judged") if self._of_0_2 else ():
            setattr(self.health, name, self._of_0_2[name])  # it kept no validations
        self._of_0_2 = {}
        if starts:
            self._save_best()
        # Stopped for good, and killed before its last weights were written.
        if self.stopped_because:
            control.should_training_stop = True

    def _judge(self, step: int, logs: Mapping[str, Any], args: Any, *, past: bool = False) -> Judgement:
        """Return what a line of metrics says, or the held-out problems at its step. past: of a run that is resumed."""
        health, held_out = self.health, self.validation
        verdict = health.observe(step, {**logs, **metrics_row(step, logs, args)})
        alarm = verdict.collapsed
        if held_out is None or verdict.broken:
            return verdict
        # An alarm is a reason to ask the held-out problems.
        if alarm and not past and step not in self.validations:
            LOG.info(f"asking the held-out problems: {alarm}")
            held_out.run(step)
            self.validations[step] = held_out.passed
        if step in self.validations:
            if alarm:
                health.dismiss_alarm()
            verdict = health.observe_validation(step, self.validations[step])
            if alarm and not verdict.collapsed and not past:
                LOG.warning(f"{alarm}. The held-out problems do not confirm a collapse; the run goes on")
        return verdict

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Judge a line of metrics and act on it."""
        if not logs or "loss" not in logs:
            return
        step, health, held_out = state.global_step, self.health, self.validation
        if held_out is not None and held_out.fresh:
            self.validations[step] = held_out.passed
        verdict = self._judge(step, logs, args)
        if held_out is not None:
            logs |= held_out.fresh
            state.log_history[-1] |= held_out.fresh
            held_out.fresh = {}
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
