"""`gtpo doctor`: the whole command on this machine, and that it notices what is broken."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import python

from gtpo import doctor
from gtpo.common.errors import UserError
from gtpo.doctor import Outcome, Trained
from gtpo.head import fold, head_statistics


def test_a_report_that_cannot_be_written_is_refused_before_the_check(tmp_path):
    with pytest.raises(UserError, match=r"--out .*: that is a folder; name a file in it"):
        doctor.run_doctor(out=tmp_path, json_output=False)


# -- --gpu: faults that are handed in ----------------------------------------------------------------------------------


class OffByOne(torch.autograd.Function):
    """Moves what comes back for the columns that the forward keeps by one."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        kept = gradient[:1024].roll(1, dims=0)
        return torch.cat([kept, gradient[1024:]])


def without_its_last_tile(hidden, lm_head, ids, *, bias=None, **options):
    bias = torch.zeros_like(lm_head[:, 0]) if bias is None else bias
    outside = torch.arange(len(lm_head)) >= len(lm_head) - 100
    return head_statistics(hidden, lm_head, ids, bias=bias.masked_fill(outside, -1e4), **options)


def a_kept_column_off_by_one(hidden, lm_head, ids, **options):
    return head_statistics(hidden, OffByOne.apply(lm_head), ids, **options)


def without_its_entropy_gradient(hidden, lm_head, ids, **options):
    logps, entropies = head_statistics(hidden, lm_head, ids, **options)
    return logps, entropies.detach()


def without_its_soft_cap(hidden, lm_head, ids, *, softcap=None, **options):
    return head_statistics(hidden, lm_head, ids, **options)


def wrong_fold(z, e, sums, ids, start, lag, earlier):
    fold(z, e, sums, ids, start, math.inf if start else lag, earlier)
    sums[2] *= 1.001


def fold_with_nan(z, e, sums, ids, start, lag, earlier):
    fold(z, e, sums, ids, start, lag, earlier)
    e[0, 0] = math.nan


def attention_with_nan(kernel, device, dtype):
    gradient = doctor.attention_gradient(kernel, device, dtype)
    return gradient.index_fill(0, torch.tensor([7]), math.nan) if kernel == "sdpa" else gradient


WEIGHTS = {"layer.lora_B.weight": torch.full((2, 2), 0.5), "layer.lora_A.weight": torch.ones(2, 2)}
METRICS = [{"sampling/logp_difference": 1e-4 + 1e-5 * step} for step in range(10)]


def trained(*, resumed: bool = False, **changes: Any) -> Any:
    """What `gtpo train` leaves, with changes; resumed: of the run that was killed only."""

    def run(folder: Path, name: str, *flags: str, kill_at: int | None = None) -> Trained:
        found = Trained(WEIGHTS, METRICS, {})
        return found if resumed and kill_at is None else found._replace(**changes)

    return run


def run_that_ends(*given: Any, **options: Any) -> Trained:
    raise RuntimeError("gtpo train ended with 1: no space left")


RESUMED, BESIDE = "ten LoRA steps, killed and resumed", "ten LoRA steps beside vLLM"
# Fault -> the check, what is handed in, and the outcome that is wrong.
FAULTS = {
    "last tile": (doctor.check_head, without_its_last_tile, "head float32, one visit"),
    "kept column": (doctor.check_head, a_kept_column_off_by_one, "head bfloat16, trained, columns kept"),
    "entropy": (doctor.check_head, without_its_entropy_gradient, "head float32, entropy differentiated"),
    "soft cap": (doctor.check_head, without_its_soft_cap, "head float32, one visit, cap, bias"),
    "fold": (doctor.check_fold, wrong_fold, "fold of a tile in Triton"),
    "fold with NaN": (doctor.check_fold, fold_with_nan, "fold of a tile in Triton"),
    "attention": (doctor.check_attention, attention_with_nan, "attention sdpa"),
    "other weights": (
        doctor.check_training, trained(resumed=True, weights={k: v + 1e-7 for k, v in WEIGHTS.items()}), RESUMED
    ),
    "weights of NaN": (
        doctor.check_training, trained(resumed=True, weights={k: v * math.nan for k, v in WEIGHTS.items()}), RESUMED
    ),
    "no adapter": (doctor.check_training, trained(weights={"layer.weight": torch.ones(2, 2)}), RESUMED),
    "still adapter": (doctor.check_training, trained(weights={"layer.lora_B.weight": torch.zeros(2, 2)}), RESUMED),
    "still in 4 bits": (
        doctor.check_training, trained(weights={"layer.lora_B.weight": torch.zeros(2, 2)}), "LoRA over 4 bits"
    ),
    "stale adapter": (
        doctor.check_training, trained(metrics=[{"sampling/logp_difference": 0.004 * n} for n in range(10)]), BESIDE
    ),
    "silent sampler": (doctor.check_training, trained(metrics=[{}] * 10), BESIDE),
    "memory": (doctor.check_training, trained(run={"peak_memory_bytes": 3 << 30}), "memory against forecast"),
    "end": (doctor.check_training, run_that_ends, "training"),
}  # fmt: skip


def tried(check: Any, part: Any, device: str = "cpu") -> dict[str, Outcome]:
    def handed_in(device: str, large: bool) -> Any:
        return check(device, large, part)

    handed_in.__name__ = check.__name__
    return {outcome.name: outcome for outcome in doctor.outcomes(device, False, [handed_in])}


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed does not decide which check runs; nothing of these packages is called."""
    monkeypatch.setattr(doctor, "installed", lambda package: True)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, packages: None) -> None:
    check, part, name = FAULTS[fault]
    found = tried(check, part, "cuda" if fault == "memory" else "cpu")
    assert found[name].ok is False, found[name].line()
    assert found[name].line().startswith(f"WRONG    {name}")
    if fault in ("other weights", "memory"):
        assert [name for name, outcome in found.items() if outcome.ok is False] == [name]


def test_what_is_right_is_found_right_and_what_is_not_there_is_said(packages: None) -> None:
    for check, part in ((doctor.check_fold, fold), (doctor.check_training, trained())):
        assert {outcome.ok for outcome in tried(check, part).values()} <= {True, None}
    left_out = {name: o.text for name, o in tried(doctor.check_training, trained()).items() if o.ok is None}
    assert left_out == {
        "memory against forecast": "the peak is known on a GPU",
        "ten LoRA steps beside vLLM, sleep mode": "needs vLLM and a GPU",
    }


@pytest.mark.slow
def test_the_whole_command_on_this_machine(tmp_path: Path) -> None:
    done = python("-m", "gtpo", "doctor", "--gpu", "--json", cwd=tmp_path)
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert len(rows) >= 17
    assert rows["ten LoRA steps, killed and resumed"]["ok"] is True
    assert all(row["ok"] is not False and row["text"] for row in rows.values())
