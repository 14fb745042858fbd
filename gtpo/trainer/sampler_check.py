"""Whether vLLM samples from the policy that is trained: its log-probabilities against the trainer's, token by token.

In exact arithmetic they are equal. What rounding makes of them depends on the coarser of the two dtypes (measured:
docs/scale.md), and `TOLERANCE` lies above it: an untrained adapter on a pretrained model of 135 million parameters in
bfloat16 already differs by 0.04. A mean beyond it means other weights: stale, merged, or another base.
"""

from __future__ import annotations

from typing import Any

import torch

from gtpo.common.errors import UserError

TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Mean difference in nats per token up to which two engines that hold the same weights may differ, by dtype."""


def coarsest(*dtypes: torch.dtype) -> torch.dtype:
    """Return the dtype with the fewest digits."""
    return max(dtypes, key=lambda dtype: TOLERANCE.get(dtype, 0.0))


def tolerance_of(trainer: Any) -> float:
    """Return what a trainer's log-probabilities may differ by from those of its vLLM; bfloat16's for a server."""
    engine = getattr(trainer.vllm_generation, "llm", None)
    sampler = torch.bfloat16 if engine is None else engine.llm_engine.model_config.dtype
    computes = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(trainer.accelerator.mixed_precision, torch.float32)
    held = {p.dtype for p in trainer.model.parameters() if p.dtype in TOLERANCE}
    return TOLERANCE[coarsest(sampler, computes, *held)]


class SamplerCheck:
    """Sums the differences over the micro-batches of a step, and stops the run beyond `tolerance` nats per token."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self._step, self._sum, self._tokens = tolerance, -1, 0.0, 0.0

    def observe(self, step: int, difference: float, tokens: float) -> None:
        """Take in the summed absolute difference of a micro-batch of `step`. Raises UserError beyond the tolerance."""
        if step != self._step:
            self._step, self._sum, self._tokens = step, 0.0, 0.0
        self._sum, self._tokens = self._sum + difference, self._tokens + tokens
        mean = self._sum / max(self._tokens, 1.0)
        if mean <= self.tolerance:  # never where it is not a number
            return
        raise UserError(
            f"step {step}: vLLM's log-probabilities differ from the trainer's by {mean:.4g} nats per token over "
            f"{self._tokens:.0f} tokens, the tolerance is {self.tolerance:g} (rollout.logp_difference_alarm): it "
            "samples from another policy than the one that is trained. Its weights are stale, or another base: see "
            "gtpo doctor, and train on with rollout.engine: transformers"
        )
