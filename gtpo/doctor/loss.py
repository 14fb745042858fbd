"""The fused loss on this machine's device, against float64. `python -m gtpo.doctor.loss` prints the errors as JSON.

In a process of its own, because a faulty kernel can take the process with it. How fast it is, `bench.loss` measures.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Literal

import torch
from torch import Tensor

from gtpo.common.packages import installed
from gtpo.fused import fused_linear_gtpo_loss
from gtpo.objective import PRESETS, reference_loss

GROUP = 8
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Largest relative difference of a gradient (Frobenius norms) that counts as equal, by the dtype of the inputs."""


def make_case(rows: int, length: int, width: int, vocabulary: int) -> list[Tensor]:
    """Return hidden [N, L, D], lm_head [V, D], ids [N, L], mask [N, L] and rewards [N]. On the CPU, in float32.

    The completions are ragged and share tokens at both ends; half of them have a high entropy.
    """
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (rows, length), generator=draw)
    ids[:, :3] = ids[0, :3]
    sharpness = torch.where(torch.arange(rows) % 2 == 0, 20.0, 0.5)[:, None, None]
    hidden = torch.randn(rows, length, width, generator=draw) * sharpness
    lm_head = torch.randn(vocabulary, width, generator=draw) / width**0.5
    mask = torch.arange(length) < torch.randint(length // 2, length + 1, (rows, 1), generator=draw)
    return [hidden, lm_head, ids, mask, torch.randint(0, 3, (rows,), generator=draw).float()]


def _backends(device: str) -> list[Literal["torch", "triton"]]:
    return ["torch", "triton"] if device == "cuda" and installed("triton") else ["torch"]


def check_gradients(device: str) -> list[dict[str, Any]]:
    """Return, for each backend, preset, dtype and head, how far loss and gradients are from float64 on the CPU."""
    rows, case = [], make_case(2 * GROUP, 24, 64, 1000)
    presets = ("gtpo", "gtpo-published", "gtpo-eq7", "grpo")
    for (dtype, tolerance), preset, trainable in itertools.product(TOLERANCE.items(), presets, (False, True)):
        objective, parameters = PRESETS[preset], 1 + trainable
        here = [value.detach().to(device, dtype).requires_grad_(at < parameters) for at, value in enumerate(case[:2])]
        exact = [value.detach().cpu().double().requires_grad_(at < parameters) for at, value in enumerate(here)]
        logits, (ids, mask, rewards) = exact[0] @ exact[1].T, case[2:]
        wanted = reference_loss(objective, logits, ids, mask, rewards, GROUP, initial_entropy=0.1)
        targets = torch.autograd.grad(wanted.loss, exact[:parameters])
        for backend in _backends(device):
            told = [value.to(device) for value in (ids, mask, rewards)]
            got = fused_linear_gtpo_loss(
                objective, here[0], here[1], told[0], told[1], told[2], GROUP, initial_entropy=0.1, backend=backend
            )
            found = torch.autograd.grad(got.loss, here[:parameters])
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
