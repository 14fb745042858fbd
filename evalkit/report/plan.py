"""What `gtpo plan` takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gtpo.common.errors import UserError
from gtpo.common.settings import CommandSettings, option


class PlanSettings(CommandSettings):
    """One `gtpo plan` command."""

    COMMAND: ClassVar[str] = "gtpo plan"
    ARGUMENT: ClassVar[str] = "runs"

    runs: Sequence[str] | None = option(None, "A pilot: runs of two methods or models, as for gtpo compare.")
    accuracy: float | None = option(None, "Without a pilot: about how much is solved, 0 to 1.", gt=0.0, lt=1.0)
    seed_sd: float | None = option(
        None, "Standard deviation of a method's accuracy between its training seeds. Default: the pilot's, else as in "
        "published experiments.", gt=0.0, lt=50.0, about={"unit": "points"},
    )  # fmt: skip
    models: bool = option(False, "Two models as they are; nothing is said about training them.")
    effect: float = option(2.0, "The difference to be seen.", gt=0.0, lt=100.0, about={"unit": "points"})
    margin: float | None = option(
        None, "Also: the power to show two equal methods to be equivalent within so much.", gt=0.0, lt=100.0,
        about={"unit": "points"},
    )  # fmt: skip
    questions: list[int] | None = option(None, "Sizes of a benchmark. Default: the pilot's, twice and four times it.")
    samples: list[int] | None = option(None, "Samples of each question.")
    seeds: list[int] | None = option(None, "Training seeds of each method, from 3 on.")
    baseline: str | None = option(None, "Of a pilot: the method to compare with, as for gtpo compare.")
    tokens: int | None = option(None, "Tokens of an answer, for the cost. Default: the pilot's mean.", ge=1)
    json_output: bool = option(False, "Print the plan as JSON on stdout.", "--json")

    def check_together(self) -> None:
        """Check what more than one option decides."""
        if self.runs and self.accuracy is not None:
            raise UserError("--accuracy describes what has no pilot; runs are one: give one of the two")
        if self.models and (self.seeds or self.seed_sd):
            raise UserError("--models is about two models as they are, so --seeds and --seed-sd say nothing of it")
        for flag, least in (("questions", 2), ("samples", 1), ("seeds", 3)):
            counts = getattr(self, flag)
            if counts is not None and (not counts or min(counts) < least):
                raise UserError(f"--{flag} must be whole numbers from {least} on, e.g. --{flag} {least},{4 * least}")
