"""Calibration of H_ini: entropies against a float64 brute force, batching, the decision, what a resumed run reuses."""

from __future__ import annotations

import math

import pytest
import torch
from approved import check_refusals

from gtpo.entropy import SAMPLES, Calibration, calibrate_initial_entropy, describe_gate, summarise
from gtpo.objective import LN2, PRESETS, reference_loss

SEED = 20250819


def mean_entropy(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """<H>_i [N] of logits [N, L, V]."""
    ids, rewards = torch.zeros_like(mask, dtype=torch.long), torch.zeros(len(mask))
    return reference_loss(PRESETS["grpo"], logits, ids, mask, rewards, 1).entropy


@pytest.mark.parametrize("batch_size", [1, 7, 100, 1000])
def test_the_first_hundred_samples_whatever_the_batch(batch_size: int) -> None:
    seen: list[int] = []
    asked: list[int] = []

    def score(prompts):
        asked.append(len(prompts))
        seen.extend(prompts)
        return torch.tensor([0.01 * p for p in prompts])

    found = calibrate_initial_entropy(score, list(range(250)), batch_size=batch_size)
    assert seen == list(range(100))
    assert found.samples == SAMPLES == 100
    assert found.initial_entropy == pytest.approx(0.495, abs=1e-6)
    assert found.standard_error == pytest.approx(0.290115 / 10, abs=1e-5)
    assert len(asked) == math.ceil(100 / batch_size)
    assert max(asked) <= batch_size


def test_what_cannot_be_measured_is_refused() -> None:
    names = {"calibrate": calibrate_initial_entropy, "mean_entropy": mean_entropy, "summarise": summarise}
    check_refusals("refused-entropy.txt", {**names, "torch": torch})


def test_the_decision_in_words() -> None:
    gtpo, fewer = PRESETS["gtpo"], calibrate_initial_entropy(torch.tensor, [0.4, 0.44], batch_size=8)
    assert "on: 0.420 < 0.693 (H_ini of 2 samples, all there are; the paper takes 100" in describe_gate(gtpo, fewer)
    assert "on: 0.420 < 0.693 (H_ini of 100 samples; standard error 0.012" in describe_gate(
        gtpo, Calibration(0.42, 100, 0.012)
    )
    assert "off: 0.900 >= 0.693" in describe_gate(gtpo, Calibration(0.9, 100))
    assert "off: 0.693 >= 0.693" in describe_gate(gtpo, Calibration(LN2, 100)), "equality leaves the filter off"
    assert "on: 0.69314 < 0.69315" in describe_gate(gtpo, Calibration(LN2 - 1e-5, 100)), "the digits show the sign"
    assert "H_ini as given" in describe_gate(gtpo, Calibration(0.42))
    assert describe_gate(gtpo, None).endswith("not measured yet")
    assert describe_gate(PRESETS["gtpo-published"], None) == "entropy filter on (filter: always)"
    assert describe_gate(PRESETS["gtpo-no-filter"], None) == "entropy filter off (filter: never)"
