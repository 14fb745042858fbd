"""A round of sampling, gathered over ranks, and its rows in TRL's batch dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gtpo.completions import Completions

BATCH_ROWS = {
    "weights": "conflict_weights",
    "forward": "conflict_forward",
    "backward": "conflict_backward",
    "union": "conflict_union",
    "excluded": "excluded",
}
"""Field of `Completions` -> key of the batch dict. TRL shuffles and splits these rows with the completions."""


@dataclass
class Scores:
    """What the reward functions gave, gathered over ranks."""

    prompts: list[Any]
    """This rank's prompts, one per completion."""
    rewards: Tensor
    """[N, functions]; NaN where a function gave none."""
    format: Tensor
    """Format reward [N]."""
    accuracy: Tensor | None
    """Accuracy reward [N]; None where no function computes it."""


@dataclass
class Rollout(Scores):
    """A round of sampling: N completions, rank-major (group = row // G). What the completions log writes."""

    step: int
    """The step it was sampled for, from 1."""
    ids: Tensor
    """Completion tokens [N, L]."""
    mask: Tensor
    """Which of them belong to the completion [N, L] bool."""
    truncated: Tensor
    """Completions that ended without EOS [N] bool."""
    advantages: Tensor
    """A_i [N]."""
    weights: Tensor
    """lambda [N, L]."""
    entropy: Tensor
    """<H>_i [N] in nats; NaN until the completion has been through the loss."""
    keep_mask: Tensor
    """delta_i [N] bool; True until the completion has been through the loss."""
    logged: bool = False
    """Whether the completions log has it."""


def to_batch(completions: Completions, rows: slice, length: int) -> dict[str, Tensor]:
    """Return one rank's rows of `completions` as they travel in the batch dict, cut to its `length` tokens."""
    batch = {key: getattr(completions, field)[rows] for field, key in BATCH_ROWS.items()}
    batch["conflict_weights"] = batch["conflict_weights"][:, :length]
    return batch


def without_empty_columns(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a micro-batch without the columns that none of its rows uses.

    Prompts are padded on the left and completions on the right; every tensor [B, L] is cut with them.
    """
    width = batch["completion_ids"].size(1)
    prompt = int(batch["prompt_mask"].sum(dim=1).max())
    length = max(1, int(batch["completion_mask"].sum(dim=1).max()))
    cut = dict(batch)
    for name, value in batch.items():
        if name in ("prompt_ids", "prompt_mask"):
            cut[name] = value[:, value.size(1) - prompt :]
        elif isinstance(value, Tensor) and value.dim() == 2 and value.size(1) == width:
            cut[name] = value[:, :length]
    return cut


def from_batch(batch: Mapping[str, Any]) -> Completions:
    """Return the completions of a micro-batch. `old_keep_mask` is left to the caller, who knows the gate."""
    return Completions(
        advantages=batch["advantages"],
        **{field: batch[key] for field, key in BATCH_ROWS.items()},
        old_entropy=batch.get("behaviour_entropy"),
        old_logps=batch.get("old_per_token_logps"),
        importance_weights=batch.get("importance_sampling_ratio"),
    )
