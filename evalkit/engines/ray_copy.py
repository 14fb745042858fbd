"""What runs in a Ray actor: one copy of the model, around the vllm engine as it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import Generation, Sampling, Task
from gtpo.evalkit.engines.model_ref import ModelRef

SLICE_S = 0.25
"""A call returns what was finished within this time: long beside the way of a call, short beside a restart."""

MOST_AT_ONCE = 2048
"""Completions after which a call returns earlier."""


class Started(NamedTuple):
    """What a copy says once it is up, or why it is not."""

    described: dict[str, Any]
    batch: int = 0
    """Samples that it runs at once."""
    mistake: str | None = None


class ModelCopy:
    """One model copy. Its process may die at any moment: it keeps nothing that cannot be asked for again."""

    def start(self, ref: ModelRef, sampling: Sampling, longest_prompt: int, options: dict[str, Any]) -> Started:
        """Load the model. A mistake of the user's is returned, not raised: Ray would wrap it in a traceback."""
        try:
            for folder in (ref.source, ref.adapter):
                if folder is not None and Path(folder).is_absolute() and not Path(folder).is_dir():
                    raise UserError(f"{folder} is not on every node of the cluster: put it on a shared file system")
            from gtpo.evalkit.engines.vllm import VLLMEngine, check_batch_invariant

            if options.get("deterministic"):
                check_batch_invariant()
            self._engine = VLLMEngine(ref, sampling, longest_prompt, **options)
        except UserError as error:
            return Started({}, mistake=str(error))
        return Started(self._engine.describe(), self._engine.batch)

    def sample(self, tasks: Sequence[Task]) -> list[Generation]:
        """Take on more questions; work on all that it has for SLICE_S and return what was finished."""
        self._engine.submit(tasks)
        finished: list[Generation] = []
        end = time.monotonic() + SLICE_S
        while self._engine.unfinished and time.monotonic() < end and len(finished) < MOST_AT_ONCE:
            finished += self._engine.step()
        return finished
