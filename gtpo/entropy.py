"""Calibration of the entropy gate: H_ini, the entropy of the untrained policy (Eq. 6; DESIGN section 2.4).

    H_ini = mean over the first 100 training samples of <H>_i
    <H>_i = 1/|o_i| sum_t H(pi(. | q_i, o_i,<t))        nats; one completion o_i sampled per prompt q_i

The filter `auto` is active iff H_ini < ln 2: a model that starts above ln 2 would have its completions dropped from
the first step on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gtpo.objective import LN2, Objective, filter_is_active

SAMPLES = 100
"""Training samples on which H_ini is measured (the paper's number)."""


class Calibration(NamedTuple):
    """H_ini in nats and the number of samples it was measured on."""

    initial_entropy: float
    samples: int


def calibrate_initial_entropy(
    completion_entropies: Callable[[Sequence[Any]], torch.Tensor],
    prompts: Sequence[Any],
    *,
    batch_size: int,
    samples: int = SAMPLES,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Measure H_ini on the first `samples` prompts, `batch_size` at a time.

    completion_entropies: samples one completion for each of a batch of prompts [n], with the engine that rolls out,
    and returns <H>_i [n] in nats. progress: called with (done, total) after each batch.

    Raises ValueError for an empty dataset, a batch whose size does not match, and an entropy that is not finite.
    """
    chosen = list(prompts[:samples])
    if not chosen:
        raise ValueError("no training sample to calibrate the initial entropy on: the dataset is empty")
    total = 0.0
    for start in range(0, len(chosen), batch_size):
        batch = chosen[start : start + batch_size]
        entropies = completion_entropies(batch)
        if entropies.shape != (len(batch),):
            raise ValueError(f"completion_entropies returned shape {tuple(entropies.shape)} for {len(batch)} prompts")
        if not bool(torch.isfinite(entropies).all()):
            raise ValueError("the untrained model gives an entropy that is not finite; its logits hold NaN or inf")
        total += float(entropies.double().sum())
        if progress is not None:
            progress(start + len(batch), len(chosen))
    return Calibration(total / len(chosen), len(chosen))


def describe_gate(objective: Objective, calibration: Calibration | None) -> str:
    """Return the gate's decision in one line, e.g. `entropy filter on: H_ini 0.420 < ln 2 = 0.693 (100 samples)`."""
    if objective.filter != "auto":
        return (
            f"entropy filter {'on' if objective.filter == 'always' else 'off'} (objective.filter: {objective.filter})"
        )
    assert calibration is not None
    active = filter_is_active(objective, calibration.initial_entropy)
    fewer = "" if calibration.samples >= SAMPLES else f", all there are; the paper takes {SAMPLES}"
    return (
        f"entropy filter {'on' if active else 'off'}: H_ini {calibration.initial_entropy:.3f} "
        f"{'<' if active else '>='} ln 2 = {LN2:.3f} ({calibration.samples} samples{fewer})"
    )
