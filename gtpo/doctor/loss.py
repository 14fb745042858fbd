"""The fused loss on this machine's device, against float64. `python -m gtpo.doctor.loss` prints the errors as JSON.

In a process of its own, because a faulty kernel can take the process with it. How fast it is, `bench.loss` measures.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gtpo.common.packages import installed
from gtpo.fused import fused_linear_gtpo_loss
from gtpo.objective import PRESETS, reference_loss

GROUP = 8
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Largest relative difference of a gradient (Frobenius norms) that counts as equal, by the dtype of the inputs."""


class Case(NamedTuple):
    """Two groups of completions, and the two factors of their logits."""

    hidden: Tensor
    """[N, L, D]."""
    lm_head: Tensor
    """[V, D]."""
    ids: Tensor
    """[N, L]."""
    mask: Tensor
    """[N, L] bool."""
    rewards: Tensor
    """[N]."""

    def to(self, device: str, dtype: torch.dtype) -> Case:
        """Return the case on a device, with hidden and lm_head of this dtype."""
        hidden, lm_head = (factor.to(device, dtype) for factor in (self.hidden, self.lm_head))
        return Case(hidden, lm_head, *(tensor.to(device) for tensor in self[2:]))


def make_case(rows: int, length: int, width: int, vocabulary: int) -> Case:
    """Return ragged completions that share tokens at both ends, half of them of high entropy. On the CPU, float32."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (rows, length), generator=draw)
    ids[:, :3] = ids[0, :3]
    sharpness = torch.where(torch.arange(rows) % 2 == 0, 20.0, 0.5)[:, None, None]
    hidden = torch.randn(rows, length, width, generator=draw) * sharpness
    lm_head = torch.randn(vocabulary, width, generator=draw) / width**0.5
    mask = torch.arange(length) < torch.randint(length // 2, length + 1, (rows, 1), generator=draw)
    return Case(hidden, lm_head, ids, mask, torch.randint(0, 3, (rows,), generator=draw).float())


def _backends(device: str) -> list[Literal["torch", "triton"]]:
    return ["torch", "triton"] if device == "cuda" and installed("triton") else ["torch"]


def check_gradients(device: str) -> list[dict[str, Any]]:
    """Return, for each backend, preset, dtype and head, how far loss and gradients are from float64 on the CPU."""
    rows = []
    for dtype, tolerance in TOLERANCE.items():
        here = make_case(2 * GROUP, 24, 64, 1000).to(device, dtype)
        exact = here.to("cpu", torch.float64)
        for preset in ("gtpo", "gtpo-published", "gtpo-eq7", "grpo"):
            objective = PRESETS[preset]
            for trainable in (False, True):
                leaves = [here.hidden.requires_grad_(), here.lm_head.requires_grad_(trainable)][: 1 + trainable]
                doubled = [exact.hidden.requires_grad_(), exact.lm_head.requires_grad_(trainable)][: 1 + trainable]
                logits = exact.hidden @ exact.lm_head.T
                wanted = reference_loss(
                    objective, logits, exact.ids, exact.mask, exact.rewards, GROUP, initial_entropy=0.1
                )
                targets = torch.autograd.grad(wanted.loss, doubled)
                for backend in _backends(device):
                    got = fused_linear_gtpo_loss(objective, *here, GROUP, initial_entropy=0.1, backend=backend)
                    found = torch.autograd.grad(got.loss, leaves)
                    worst = max(
                        float((one.cpu().double() - other).norm() / other.norm())
                        for one, other in zip(found, targets, strict=True)
                    )
                    rows.append(
                        {
                            "backend": backend,
                            "preset": preset,
                            "dtype": str(dtype).removeprefix("torch."),
                            "head": "trainable" if trainable else "frozen",
                            "loss_error": float((got.loss - wanted.loss.to(device)).abs().detach()),
                            "gradient_error": worst,
                            "kept": int(got.kept.sum()),
                            "ok": worst < tolerance and torch.equal(got.kept.cpu(), wanted.kept),
                        }
                    )
    return rows


if __name__ == "__main__":
    here = "cuda" if torch.cuda.is_available() else "cpu"
    print(json.dumps({"device": here, "gradients": check_gradients(here)}))
