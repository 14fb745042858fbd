"""The fused loss on this machine's device: right, and how fast. `python -m gtpo.doctor.kernels` prints it as JSON.

In a process of its own, because a faulty kernel can take the process with it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gtpo.common.packages import installed
from gtpo.fused import fused_linear_gtpo_loss
from gtpo.objective import PRESETS, reference_loss

GROUP = 8
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Largest relative difference of a gradient (Frobenius norms) that counts as equal, by the dtype of the inputs."""
REPEATS = 5


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


def measure_speed(device: str) -> dict[str, Any]:
    """Return seconds of forward and backward with a frozen head: the fused loss, all logits, and the bare products."""
    dtype = torch.float32
    tokens, width, vocabulary = 512, 256, 16384
    if device == "cuda":
        free = torch.cuda.mem_get_info()[0] / 2**30
        dtype, width, vocabulary = torch.bfloat16, 4096, 131072
        tokens = 8192 if free > 64 else 2048 if free > 20 else 512
    case = make_case(GROUP, tokens // GROUP, width, vocabulary).to(device, dtype)
    hidden = case.hidden.requires_grad_()
    objective = PRESETS["gtpo-no-filter"]  # every completion is kept: no row may be skipped

    def fused(backend: Literal["torch", "triton"]) -> None:
        loss = fused_linear_gtpo_loss(objective, *case, GROUP, initial_entropy=0.1, backend=backend).loss
        torch.autograd.grad(loss, [hidden])

    def all_logits() -> None:
        logits = (hidden @ case.lm_head.T).float()
        loss = reference_loss(objective, logits, *case[2:], GROUP, initial_entropy=0.1).loss
        torch.autograd.grad(loss, [hidden])

    def products() -> None:
        logits = hidden.detach().flatten(0, 1) @ case.lm_head.T
        logits @ case.lm_head

    contenders: dict[str, Callable[[], None]] = {"all logits": all_logits, "bare products": products}
    for backend in _backends(device):
        contenders[f"fused, {backend}"] = lambda backend=backend: fused(backend)  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in contenders}
    peaks: dict[str, float] = {}
    for repeat in range(REPEATS + 1):
        for name, call in contenders.items():
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            begin = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
                peaks[name] = round((torch.cuda.max_memory_allocated() - before) / 2**30, 2)
            if repeat:  # the first call compiles and warms up
                times[name].append(time.perf_counter() - begin)
    return {
        "shape": {"tokens": tokens, "hidden": width, "vocabulary": vocabulary},
        "dtype": str(dtype).removeprefix("torch."),
        "seconds": {name: statistics.median(found) for name, found in times.items()},
        "peak_gib": peaks or None,
    }


if __name__ == "__main__":
    here = "cuda" if torch.cuda.is_available() else "cpu"
    if here == "cpu":
        torch.set_num_threads(min(4, torch.get_num_threads()))
    print(json.dumps({"device": here, "gradients": check_gradients(here), "speed": measure_speed(here)}))
