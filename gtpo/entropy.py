"""Calibration of the entropy gate: H_ini, the entropy of the untrained policy (Eq. 6; sections 4 and 5 of
docs/method.md).

    <H>_i = 1/|o_i| sum_t H_t        over the tokens of o_i, its first EOS included, in nats
    H_ini = 1/n sum_i <H>_i          one completion o_i for each of the first n = 100 training samples

The filter `auto` is active iff H_ini < ln 2: a model that starts above ln 2 would have most of its completions
dropped from the first step on. H_ini belongs to the untrained policy, so a run measures it once, before step 0, and
keeps its record; a resumed run takes the record up.

Symbols: n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gtpo.objective import LN2, Objective, filter_is_active

if TYPE_CHECKING:
    from jaxtyping import Float

# Training samples on which H_ini is measured (the paper's number).
SAMPLES = 100


class Calibration(NamedTuple):
    """H_ini and what it was measured on."""

    initial_entropy: float
    """H_ini in nats."""
    samples: int = 0
    """Completions it is the mean of; 0 if the user gave H_ini."""
    standard_error: float | None = None
    """Of the mean, in nats; None for fewer than two samples."""
    seconds: float | None = None
    """What sampling and scoring took; None if nothing was measured."""

    def record(self) -> dict[str, Any]:
        """Return what a run stores (`initial_entropy` in run.json)."""
        kept = self._asdict()
        # The unit is in the name: run.json is read by people.
        return {"nats": kept.pop("initial_entropy"), **kept}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Calibration:
        """Return the calibration that a run stored, so that a resumed run does not measure again."""
        return cls(record["nats"], record["samples"], record.get("standard_error"), record.get("seconds"))


def summarise(entropies: Float[Tensor, "N"]) -> Calibration:
    """Return H_ini, the mean over `<H>_i` [n], with its standard error. Raises ValueError naming a row not finite."""
    if entropies.dim() != 1 or not len(entropies):
        raise ValueError(f"entropies must have shape [n], n >= 1; found {list(entropies.shape)}")
    # A NaN here decides the gate for the whole run, so it is named instead of averaged.
    if not bool(torch.isfinite(entropies).all()):
        row = int((~torch.isfinite(entropies)).nonzero()[0])
        why = "its logits hold NaN or inf, or it wrote no token"
        raise ValueError(f"the untrained model's entropy on sample {row} is not finite; {why}")
    # A sum of 100 values near ln 2 in float32 may fall on the other side of it.
    values = entropies.double()
    error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else None
    return Calibration(float(values.mean()), len(values), error)


def calibrate_initial_entropy(
    completion_entropies: Callable[[Sequence[Any]], Tensor],
    prompts: Sequence[Any],
    *,
    batch_size: int,
    samples: int = SAMPLES,
) -> Calibration:
    """Measure H_ini on the first `samples` prompts, `batch_size` at a time; on all of them if there are fewer.

    completion_entropies: samples one completion for each of a batch of prompts [n], with the engine that rolls out,
    and returns `<H>_i` [n] in nats.

    Raises ValueError for an empty dataset, a batch size below 1, a batch whose shape does not match, and an entropy
    that is not finite.
    """
    # The first samples, not random ones: the paper's rule, and a resumed run would choose the same.
    chosen = list(prompts[:samples])
    if not chosen:
        raise ValueError("no training sample to calibrate the initial entropy on: the dataset is empty")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; found {batch_size}")
    measured: list[Tensor] = []
    for start in range(0, len(chosen), batch_size):
        batch = chosen[start : start + batch_size]
        entropies = completion_entropies(batch)
        # An engine that drops a completion would shift H_ini without an error.
        if entropies.shape != (len(batch),):
            raise ValueError(f"completion_entropies returned shape {list(entropies.shape)} for {len(batch)} prompts")
        # To the CPU at once: a hundred small tensors on a GPU would keep their batches alive.
        measured.append(entropies.detach().double().cpu())
    return summarise(torch.cat(measured))


def describe_gate(objective: Objective, calibration: Calibration | None) -> str:
    """Return the gate's decision in one line, e.g. `entropy filter on: 0.420 < 0.693 (H_ini of 100 samples, ...)`."""
    if objective.filter != "auto":
        return f"entropy filter {'on' if objective.filter == 'always' else 'off'} (filter: {objective.filter})"
    if calibration is None:
        return "entropy filter auto: on iff H_ini < ln 2, not measured yet"
    active = filter_is_active(objective, calibration.initial_entropy)
    value, count = calibration.initial_entropy, calibration.samples
    digits = next((n for n in range(3, 17) if (round(value, n) < round(LN2, n)) == active), 17)  # never 0.693 < 0.693
    of = f"H_ini of {count} sample{'s' * (count > 1)}" if count else "H_ini as given"
    of += f", all there are; the paper takes {SAMPLES}" if 0 < count < SAMPLES else ""
    of += "" if calibration.standard_error is None else f"; standard error {calibration.standard_error:.2g}"
    comparison = f"{value:.{digits}f} {'<' if active else '>='} {LN2:.{digits}f}"
    return f"entropy filter {'on' if active else 'off'}: {comparison} ({of}; against ln 2)"
