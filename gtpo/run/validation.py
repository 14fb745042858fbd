"""Validation while training: held-out problems, sampled by the training engine, scored by the same verifier."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from accelerate.utils import broadcast_object_list

from gtpo.common.log import LOG
from gtpo.config import TrainConfig
from gtpo.inputs.dataset import to_row
from gtpo.rewards.data.problem import Problem
from gtpo.run.health import Health
from gtpo.trainer.group_statistics import GroupStatistics

METRIC = "validation/pass@1"
"""What `best/` follows, a fraction."""


class Score(NamedTuple):
    """A mean over the problems with its 95 % interval, as fractions."""

    mean: float
    low: float
    high: float


ScoreHeldOut = Callable[[Sequence[Problem], Sequence[Sequence[str]]], Mapping[str, Any]]
"""(problems, their completions) -> metric (pass@1, maj@k, format) -> something with mean, low and high; and "problems"
-> pass@1 of each. `gtpo train` hands over evalkit's, so that a validation and an evaluation of the same completions say
the same."""


class Validation:
    """Samples and scores the held-out problems of a run, and remembers what that cost."""

    def __init__(self, config: TrainConfig, problems: Sequence[Problem], score: ScoreHeldOut) -> None:
        self.problems, self.score = problems, score
        self.samples, self.every = config.training.eval_samples, config.training.eval_steps
        self.logging_steps, self.seed = config.training.logging_steps, config.model.random_seed
        self.prompts = [to_row(problem, config)["prompt"] for problem in problems for _ in range(self.samples)]
        self.seconds = 0.0
        """Spent on validation by this process."""
        self.count = 0
        self.passed: list[float] = []
        """pass@1 of each problem in the latest validation."""

    def is_due(self, step: int, last_step: int) -> bool:
        """Return whether `step` ends with a validation: every `training.eval_steps`, and the last that is logged."""
        assert self.every is not None
        return step % self.every == 0 or (step == last_step and step % self.logging_steps == 0)

    def run(self, groups: GroupStatistics, step: int) -> dict[str, float]:
        """Return the metrics of the policy as it is now. All processes must call it; the training does not notice."""
        begin, accelerator = time.perf_counter(), groups.trainer.accelerator
        # Another stream for each step, and none that a round of sampling has.
        texts = groups.sample_texts(self.prompts, seed=(self.seed * 1_000_003 + step) % 2**31 + 2**31)
        row: list[dict[str, Any]] = [{}]
        if accelerator.is_main_process:
            completions = [texts[at : at + self.samples] for at in range(0, len(texts), self.samples)]
            scores = dict(self.score(self.problems, completions))
            row[0]["passed"] = [float(value) for value in scores.pop("problems")]
            for name, found in scores.items():
                row[0][f"validation/{name}"] = found.mean
                row[0] |= {f"validation/{name}_low": found.low, f"validation/{name}_high": found.high}
        broadcast_object_list(row)
        self.passed = row[0].pop("passed")
        seconds = time.perf_counter() - begin
        self.seconds += seconds
        self.count += 1
        row[0]["time/validation"] = seconds
        if accelerator.is_main_process:
            LOG.info(self._line(step, row[0]))
        return row[0]

    def summary(self, session_s: float, health: Health) -> dict[str, Any]:
        """Return, and say, what validation gave and what it cost in a session of `session_s` seconds, for run.json."""
        untrained, gain = health.first_value, health.gain()
        LOG.info(f"{self.count} validations: {self.seconds:.1f} s, {100 * self.seconds / session_s:.1f} % of the run")
        if gain is not None:
            mean, low, high = (100 * value for value in gain)
            LOG.info(f"held-out pass@1 of best/ less the untrained model's: {mean:+.1f} ({low:+.1f} to {high:+.1f})")
        return {
            "validation": {
                "untrained": untrained,
                "gain": None if gain is None else dict(zip(("mean", "low", "high"), gain, strict=True)),
                "problems": [problem.id for problem in self.problems],
                "samples": self.samples,
                "count": self.count,
                "seconds": round(self.seconds, 1),
                "share_of_session": round(self.seconds / session_s, 4),
            }
        }

    def _line(self, step: int, row: Mapping[str, float]) -> str:
        """Say a validation's result and its cost."""
        parts = [
            f"{name.removeprefix('validation/')} {100 * value:.1f} % "
            f"({100 * row[f'{name}_low']:.0f}-{100 * row[f'{name}_high']:.0f})"
            for name, value in row.items()
            if f"{name}_low" in row
        ]
        return (
            f"step {step}: held-out {', '.join(parts)}; {len(self.problems)} problems x {self.samples} samples in "
            f"{row['time/validation']:.1f} s"
        )
