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


@pytest.mark.parametrize(("logging_steps", "lines"), [(1, 20), (2, 10), (3, 7), (10, 2), (50, 1)])
def test_a_window_holds_the_steps_it_says_also_where_a_line_stands_for_several(logging_steps: int, lines: int) -> None:
    health = Health(HealthSection(), logging_steps=logging_steps)
    well, steps = range(1, 3 * lines + 1), logging_steps * lines
    best = [at for at in well if health.observe(at * logging_steps, row()).new_best]
    assert best == [next(at for at in well if at >= lines and at % max(1, lines // 2) == 0)]
    assert health.covered() == {"smoothing_steps": steps}
    fallen = range(3 * lines + 1, 5 * lines + 1)
    said = [(at, health.observe(at * logging_steps, row(accuracy=0.0)).collapsed) for at in fallen]
    ((at, text),) = [(at, text) for at, text in said if text]
    assert at <= 4 * lines, "once the window holds nothing else"
    assert f"(mean of {steps} steps)" in text


def test_a_run_shorter_than_the_window_says_what_its_mean_covers() -> None:
    health = Health(HealthSection(), logging_steps=4)
    for step in (4, 8):
        assert not health.observe(step, row()).new_best
    assert health.covered() == {"smoothing_steps": 8}


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


# -- the other end -----------------------------------------------------------------------------------------------------

WELL = {"entropy/above_ln2": 0.1, "completions/length": 30.0, "completions/truncated": 0.0, "completions/repeated": 0.0}


@pytest.mark.parametrize(
    ("symptom", "said"),
    [
        ({"entropy/mean": 0.001}, "entropy fell from 0.300 to "),
        ({"entropy/mean": 1.4, "entropy/above_ln2": 0.9}, "entropy went from 0.30 to "),
        ({"entropy/above_ln2": 0.8}, " % of the completions above ln 2"),
        ({"completions/repeated": 0.9}, " % of the completions repeat"),
        ({"completions/length": 90.0}, "completions grew from 30 to "),
        ({"completions/truncated": 0.7}, " % cut off"),
    ],
)
def test_accuracy_that_halves_with_a_symptom_is_collapse_and_either_alone_is_not(
    symptom: dict[str, float], said: str
) -> None:
    """Format may stay perfect: a policy that is sure of one wrong answer is in format."""

    def verdicts(**changes: float) -> list[str]:
        health = Health(HealthSection(smoothing_steps=3))
        for step in range(8):
            assert health.observe(step, row() | WELL).collapsed is None
        found = [health.observe(step, row(form=10.0) | WELL | changes).collapsed for step in range(8, 20)]
        return [text for text in found if text]

    (text,) = verdicts(**{"reward/accuracy": 2.0}, **symptom)
    assert said in text
    assert "the accuracy reward (mean of 3 steps) fell from 5.00 to" in text
    assert verdicts(**{"reward/accuracy": 2.0}) == []
    assert verdicts(**symptom) == []
    (text,) = verdicts(**{"reward/accuracy": 0.5})
    assert "while format is 10.00 and entropy 0.30 nats" in text, "lost altogether, it needs no symptom"


def test_run_that_falls_again_after_a_rollback_is_said_again() -> None:
    health = Health(HealthSection(smoothing_steps=2))
    for step in range(4):
        health.observe(step, row() | WELL)
    down = row(accuracy=0.0, entropy=0.001) | WELL
    assert any(health.observe(step, down).collapsed for step in range(4, 8))
    health.after_rollback()
    assert health.rollbacks == 1
    assert any(health.observe(step, down).collapsed for step in range(8, 12))


def validated(rate: float, accuracy: float = 10.0) -> dict[str, Any]:
    return row(accuracy=accuracy) | {
        "validation/pass@1": rate,
        "validation/pass@1_low": rate - 0.05,
        "validation/pass@1_high": rate + 0.05,
    }


def test_saturated_reward_with_falling_held_out_accuracy_is_a_warning_once() -> None:
    def warnings(rates: list[float], accuracy: float = 10.0) -> list[str]:
        health = Health(HealthSection(smoothing_steps=2, smoothing_evaluations=1), "validation/pass@1")
        found = []
        for step, rate in enumerate(rates):
            for values in (validated(rate, 10.0 if step < 3 else accuracy), row(accuracy=10.0)):
                found.append(health.observe(step, values).overfitted)
        return [text for text in found if text]

    (text,) = warnings([0.4, 0.5, 0.6, 0.3, 0.3, 0.3])
    assert "fell from 60.0 % at step 2 to 30.0 %" in text
    assert warnings([0.4, 0.5, 0.6, 0.56, 0.57, 0.58]) == [], "within the noise of a validation"
    assert warnings([0.4, 0.5, 0.6, 0.3, 0.3, 0.3], accuracy=4.0) == [], "the reward fell too: no secret"
    assert warnings([0.3, 0.4, 0.5, 0.6]) == []


def test_best_follows_validations_alone_where_there_are_any() -> None:
    health = Health(HealthSection(smoothing_steps=2, smoothing_evaluations=2), "validation/pass@1")
    rates = {2: 0.1, 4: 0.5, 6: 0.4, 8: 0.1}
    best = [s for s in range(1, 9) if health.observe(s, validated(rates[s]) if s in rates else row()).new_best]
    assert best == [4, 6]
    assert health.best_value == pytest.approx(0.45)


def test_patience_that_runs_out_between_validations_waits_for_the_next() -> None:
    health = Health(
        HealthSection(smoothing_steps=2, smoothing_evaluations=1, early_stop_patience=1), "validation/pass@1"
    )
    rates = {1: 0.3, 5: 0.4, 9: 0.2}
    verdicts = [health.observe(s, validated(rates[s]) if s in rates else row()) for s in range(1, 11)]
    assert [step for step, verdict in enumerate(verdicts, start=1) if verdict.out_of_patience] == [9]
