"""Collapse, best step and early stop, from metrics alone."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gtpo.config import HealthSection
from gtpo.run.health import Health


def row(form: float = 9.0, entropy: float = 0.3, accuracy: float = 5.0, loss: float = 0.1) -> dict[str, Any]:
    return {"reward/format": form, "entropy/mean": entropy, "reward/accuracy": accuracy, "loss": loss}


def test_collapse_is_format_falling_while_entropy_rises_and_is_said_once() -> None:
    health = Health(HealthSection(smoothing_steps=4))
    said = [health.observe(step, row()).collapsed for step in range(1, 11)]
    assert said == [None] * 10
    said = [health.observe(step, row(form=2.0, entropy=1.5)).collapsed for step in range(11, 21)]
    assert sum(word is not None for word in said) == 1
    first = next(word for word in said if word)
    assert "9.00" in first
    assert "ln 2" in first


@pytest.mark.parametrize(
    ("form", "entropy"),
    [(2.0, 0.6), (8.0, 1.5)],  # entropy below ln 2; format still near its best
)
def test_either_sign_alone_is_no_collapse(form: float, entropy: float) -> None:
    health = Health(HealthSection(smoothing_steps=4))
    for step in range(10):
        health.observe(step, row())
    assert not any(health.observe(step, row(form=form, entropy=entropy)).collapsed for step in range(10, 30))


def test_a_model_that_starts_above_ln2_must_rise_from_there() -> None:
    health = Health(HealthSection(smoothing_steps=2))
    for step in range(6):
        health.observe(step, row(entropy=1.2))
    assert not any(health.observe(step, row(form=1.0, entropy=1.1)).collapsed for step in range(6, 12))
    assert any(health.observe(step, row(form=1.0, entropy=1.6)).collapsed for step in range(12, 18))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_loss_that_is_not_finite_is_collapse_at_once(loss: float) -> None:
    assert Health(HealthSection()).observe(1, row(loss=loss)).collapsed


def test_best_is_the_highest_running_mean_and_patience_counts_from_it() -> None:
    health = Health(HealthSection(smoothing_steps=4, early_stop_patience=8))
    accuracies = [1, 1, 1, 1, 5, 5, 5, 5, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]
    verdicts = [health.observe(step, row(accuracy=value)) for step, value in enumerate(accuracies, start=1)]
    assert [step for step, verdict in enumerate(verdicts, start=1) if verdict.new_best] == [4, 6, 8]
    assert (health.best_step, health.best_value) == (8, 5.0)
    assert [step for step, verdict in enumerate(verdicts, start=1) if verdict.out_of_patience] == [16, 17, 18]


def test_sft_is_judged_by_its_loss_lower_is_better() -> None:
    health = Health(HealthSection(smoothing_steps=1), "loss")
    best = [health.observe(step, {"loss": loss}).new_best for step, loss in enumerate([3.0, 2.0, 2.5], start=1)]
    assert best == [True, True, False]


def test_state_survives_a_checkpoint() -> None:
    whole, first = (Health(HealthSection(smoothing_steps=3)) for _ in range(2))
    rows = [row(form=9 - step, entropy=0.2 * step, accuracy=float(step % 4)) for step in range(12)]
    for step, values in enumerate(rows[:7]):
        whole.observe(step, values)
        first.observe(step, values)
    second = Health(HealthSection(smoothing_steps=3))
    second.load(json.loads(json.dumps(first.state())))
    for step, values in enumerate(rows[7:], start=7):
        assert second.observe(step, values) == whole.observe(step, values)
    assert second.state() == whole.state()
