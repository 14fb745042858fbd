"""Validation while training: held-out problems, sampled by the training engine, scored by the same verifier."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accelerate.utils import broadcast_object_list, gather_object

from gtpo.common.log import LOG
from gtpo.rewards.completions import completion_text
from gtpo.rewards.data.problem import Problem, chat_messages
from gtpo.train.health import Health, Judgement
from gtpo.train.trainers import require_trainer
from gtpo.trainer import RunPart, SampledTrainer, trl_seam

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

    def checkpoint_state(self) -> dict[str, Any]:
        """Keep the latest validation, which may wait for the next line of the log to be judged."""
        return {"validation": {"passed": self.passed, "fresh": self.fresh}}

    def on_resume(self, state: dict[str, Any]) -> None:
        """Restore the latest validation; a checkpoint of 0.2 has none."""
        for name, value in state.get("validation", {}).items():
            setattr(self, name, value)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Validate after each `every`-th step, and the last that is logged; the next line of the log has the result."""
        step, last = state.global_step, state.max_steps
        if step % self.every == 0 or (step == last and step % max(1, int(args.logging_steps)) == 0):
            for name, value in self.run(step).items():
                trl_seam.log(self.trainer, name, value, instead=True)

    def judge(self, health: Health, step: int, verdict: Judgement) -> Judgement:
        """Return what counts of a line that gave `verdict`: an alarm is a reason to ask the held-out problems.

        All processes call it.
        """
        if verdict.collapsed and not verdict.broken and not self.fresh:
            LOG.info(f"asking the held-out problems: {verdict.collapsed}")
            self.run(step)
        if verdict.broken or not self.fresh:
            return verdict
        if verdict.collapsed is not None:
            health.dismiss_alarm()
        judgement = health.observe_validation(step, self.passed)
        if verdict.collapsed is not None and judgement.collapsed is None:
            LOG.warning(f"{verdict.collapsed}. The held-out problems do not confirm a collapse; the run goes on")
        return judgement

    def run(self, step: int) -> dict[str, float]:
        """Return the metrics of the policy as it is now. All processes must call it; the training does not notice."""
        trainer, begin = self.trainer, time.perf_counter()
        accelerator = trainer.accelerator
        # Another stream for each step, and none that a round of sampling has.
        seed = (trainer.args.seed * 1_000_003 + step) % 2**31 + 2**31
        row: list[dict[str, Any]] = [{}]
        with trainer.activity("validating", len(self.prompts)):
            texts = self._sample(seed)
            if accelerator.is_main_process:
                completions = [texts[at : at + self.samples] for at in range(0, len(texts), self.samples)]
                scores = dict(self.score(self.problems, completions))
                row[0]["passed"] = [float(value) for value in scores.pop("problems")]
                for name, interval in scores.items():
                    row[0][f"validation/{name}"] = interval.mean
                    row[0] |= {f"validation/{name}_low": interval.low, f"validation/{name}_high": interval.high}
        broadcast_object_list(row)
        self.passed = row[0].pop("passed")
        seconds = time.perf_counter() - begin
        self.seconds += seconds
        self.count += 1
        row[0]["time/validation"] = seconds
        if accelerator.is_main_process:
            LOG.info(self._line(step, row[0]))
        self.fresh = row[0]
        return row[0]

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
        untrained, gain = health.first_value, health.gain()
        LOG.info(
            f"validated {self.count} time{'s' * (self.count != 1)}: {self.seconds:.1f} s, "
            f"{100 * self.seconds / session_s:.1f} % of the run"
        )
        if gain is not None and health.best_step == 0:
            LOG.info("best/ is the untrained model: no validation was better by more than noise")
        elif gain is not None:
            mean, low, high = (100 * value for value in gain)
            LOG.info(f"held-out pass@1 of best/ less the untrained model's: {mean:+.1f} [{low:+.1f}, {high:+.1f}]")
        return {
            "untrained": untrained,
            "gain": None if gain is None else dict(zip(("mean", "low", "high"), gain, strict=True)),
            "problems": [problem.id for problem in self.problems],
            "samples": self.samples,
            "count": self.count,
            "seconds": round(self.seconds, 1),
            "share_of_session": round(self.seconds / session_s, 4),
        }

    def _line(self, step: int, row: Mapping[str, float]) -> str:
        """Say a validation's result and its cost."""
        parts = [
            f"{name.removeprefix('validation/')} {100 * value:.1f} % "
            f"[{100 * row[f'{name}_low']:.0f}, {100 * row[f'{name}_high']:.0f}]"
            for name, value in row.items()
            if f"{name}_low" in row
        ]
        return (
            f"step {step}: held-out {', '.join(parts)}; {len(self.problems)} problems x {self.samples} samples in "
            f"{row['time/validation']:.1f} s"
        )
