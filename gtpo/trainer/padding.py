"""Micro-batches with little padding: columns that no row uses are cut, rows of like length are computed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gtpo.fused import FusedLoss


def token_counts(batch: Mapping[str, Any]) -> Tensor:
    """Return the tokens of each row [B], prompt and completion."""
    counts: Tensor = batch["prompt_mask"].sum(dim=1) + batch["completion_mask"].sum(dim=1)
    return counts


def rows_of_like_length(lengths: Sequence[int], max_padding: float) -> list[list[int]]:
    """Return the rows in parts of which at most this share is padding, the longest rows first.

    lengths: tokens of each row; a part is multiplied at the length of its longest row.
    """
    parts: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if parts:
            held = sum(lengths[other] for other in parts[-1]) + lengths[row]
            if held >= (1 - max_padding) * lengths[parts[-1][0]] * (len(parts[-1]) + 1):
                parts[-1].append(row)
                continue
        parts.append([row])
    return parts


def take_rows(batch: Mapping[str, Any], rows: Sequence[int] | None = None) -> dict[str, Any]:
    """Return these rows of a batch (None: all) without the columns that none of them uses.

    Prompts are padded on the left and completions on the right; every tensor [B, L] or [B] is cut with them.
    """
    size, width = batch["completion_ids"].shape
    index = None if rows is None else torch.tensor(rows, device=batch["completion_ids"].device)
    chosen = {
        name: value[index]
        if index is not None and isinstance(value, Tensor) and value.dim() and len(value) == size
        else value
        for name, value in batch.items()
    }
    prompt = int(chosen["prompt_mask"].sum(dim=1).max())
    length = max(1, int(chosen["completion_mask"].sum(dim=1).max()))
    for name, value in chosen.items():
        if not isinstance(value, Tensor) or value.dim() != 2:
            continue
        if name in ("prompt_ids", "prompt_mask"):
            chosen[name] = value[:, value.size(1) - prompt :]
        elif value.size(1) == width:
            chosen[name] = value[:, :length]
    return chosen


def joined(parts: Sequence[tuple[Sequence[int], FusedLoss]], width: int) -> FusedLoss:
    """Return the loss of a micro-batch from those of its parts, rows in their places again.

    parts: (rows, their loss); the losses add up. width: L of the micro-batch; a part's columns beyond its own are 0.
    """
    order = torch.tensor([row for rows, _ in parts for row in rows])
    back = torch.argsort(order)

    def together(name: str) -> Tensor:
        tensors = [getattr(loss, name) for _, loss in parts]
        if tensors[0].dim() == 2:
            tensors = [torch.nn.functional.pad(tensor, (0, width - tensor.size(1))) for tensor in tensors]
        return torch.cat(tensors)[back.to(tensors[0].device)]

    rest = {name: together(name) for name in FusedLoss._fields if name != "loss"}
    return FusedLoss(loss=torch.stack([loss.loss for _, loss in parts]).sum(), **rest)
