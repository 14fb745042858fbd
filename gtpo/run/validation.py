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
from gtpo.trainer.group_statistics import GroupStatistics

METRIC = "validation/pass@1"
"""What `best/` follows, a fraction."""


class Score(NamedTuple):
    """A mean over the problems with its 95 % interval, as fractions."""

    mean: float
    low: float
    high: float


ScoreHeldOut = Callable[[Sequence[Problem], Sequence[Sequence[str]]], Mapping[str, Any]]
"""(problems, their completions) -> metric (pass@1, maj@k, format) -> something with mean, low and high. `gtpo train`
hands over evalkit's, so that a validation and an evaluation of the same completions say the same."""


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

    def is_due(self, step: int, last_step: int) -> bool:
        """Return whether `step` ends with a validation: every `training.eval_steps`, and the last that is logged."""
        assert self.every is not None
        return step % self.every == 0 or (step == last_step and step % self.logging_steps == 0)

    def run(self, groups: GroupStatistics, step: int) -> dict[str, float]:
        """Return the metrics of the policy as it is now. All processes must call it; the training does not notice."""
        begin, accelerator = time.perf_counter(), groups.trainer.accelerator
        # Another stream for each step, and none that a round of sampling has.
        texts = groups.sample_texts(self.prompts, seed=(self.seed * 1_000_003 + step) % 2**31 + 2**31)
        row: list[dict[str, float]] = [{}]
        if accelerator.is_main_process:
            completions = [texts[at : at + self.samples] for at in range(0, len(texts), self.samples)]
            for name, found in self.score(self.problems, completions).items():
                row[0][f"validation/{name}"] = found.mean
                row[0] |= {f"validation/{name}_low": found.low, f"validation/{name}_high": found.high}
        broadcast_object_list(row)
        seconds = time.perf_counter() - begin
        self.seconds += seconds
        self.count += 1
        row[0]["time/validation"] = seconds
        if accelerator.is_main_process:
            LOG.info(self._line(step, row[0]))
        return row[0]

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
