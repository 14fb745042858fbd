"""Collapse, best step and early stop, from metrics alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gtpo.config import HealthSection
from gtpo.train.health import MAX_ROLLBACKS, Drift, Health, correlation_time, look_level, paired_bound


def row(accuracy: float = 5.0, **others: Any) -> dict[str, Any]:
    well = {"entropy/mean": 0.3, "loss": 0.1}
    return well | {"reward/accuracy": accuracy} | others


def lines(count: int, mean: float = 0.5, prompts: int = 1, seed: int = 0, **others: Any) -> list[dict[str, Any]]:
    """Return lines of a policy that stays as it is: groups of 8, problems from easy to hopeless."""
    draw = np.random.default_rng(seed)
    rates = draw.beta(0.5 * mean, 0.5 * (1 - mean), (count, prompts))
    return [row(10 * float(np.mean(draw.binomial(8, rate)) / 8), **others) for rate in rates]


def said(health: Health, rows: list[dict[str, Any]], first: int = 1) -> list[tuple[int, str]]:
    verdicts = [(step, health.observe(step, values).collapsed) for step, values in enumerate(rows, start=first)]
    return [(step, text) for step, text in verdicts if text]


@pytest.mark.parametrize(("prompts", "within"), [(1, 90), (16, 60)])
def test_a_reward_that_is_lost_is_said_once_and_one_that_stays_never(prompts: int, within: int) -> None:
    health = Health(HealthSection())
    assert said(health, lines(300, prompts=prompts)) == []
    ((step, text),) = said(health, lines(400, mean=0.02, prompts=prompts, seed=1), first=301)
    assert step <= 300 + within
    assert f"at step {step} the accuracy reward fell from " in text
    assert "in fewer than 0.25 % of runs" in text


@pytest.mark.parametrize("name", ["kl/untrained", "kl"])
def test_a_policy_that_moves_away_counts_only_while_accuracy_is_lower_too(name: str) -> None:
    fallen, risen = Health(HealthSection()), Health(HealthSection())
    for health in (fallen, risen):
        assert said(health, [row(5.0, **{name: 0.01})] * 60) == []
    assert said(risen, [row(6.0, **{name: 1.0})] * 60, first=61) == []
    found = [text for _, text in said(fallen, [row(4.4, **{name: 1.0})] * 60, first=61)]
    assert any("the KL divergence grew" in text for text in found), found
    only_accuracy = Health(HealthSection())
    said(only_accuracy, [row(5.0)] * 60)
    assert said(only_accuracy, [row(4.4)] * 60, first=61) == [], "accuracy that is a little lower is no collapse"


def test_a_learning_run_and_a_slowly_harder_one_are_well() -> None:
    draw = np.random.default_rng(3)
    rising = [row(10 * draw.binomial(32, 0.3 + 0.6 * t / 500) / 32) for t in range(500)]
    assert said(Health(HealthSection()), rising) == []
    harder = [row(10 * draw.binomial(32, 0.7 - 0.2 * t / 1000) / 32) for t in range(1000)]
    assert said(Health(HealthSection()), harder) == []


def test_a_loss_that_is_not_finite_is_collapse_at_once_and_a_gradient_after_three_lines() -> None:
    for loss in (math.nan, math.inf):
        verdict = Health(HealthSection()).observe(1, row(loss=loss))
        assert verdict.collapsed
        assert verdict.broken
    health = Health(HealthSection())
    assert said(health, [row(grad_norm=math.inf), row(grad_norm=1.0), row(grad_norm=math.nan)]) == []
    assert "grad_norm is not finite in 3 lines" in said(health, [row(grad_norm=math.nan)] * 2, first=4)[0][1]


def test_best_needs_more_than_noise_and_patience_counts_from_it() -> None:
    health = Health(HealthSection(smoothing_steps=4, early_stop_patience=8))
    accuracies = [1, 1, 1, 1, 5, 5, 5, 5, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]
    verdicts = [health.observe(step, row(value)) for step, value in enumerate(accuracies, start=1)]
    assert [step for step, verdict in enumerate(verdicts, start=1) if verdict.new_best] == [4, 8]
    assert (health.best_step, health.best_value) == (8, 5.0)
    assert [step for step, verdict in enumerate(verdicts, start=1) if verdict.out_of_patience] == [16, 17, 18]


@pytest.mark.parametrize("logging_steps", [1, 10, 20, 50])
def test_the_largest_of_many_noisy_means_is_seldom_best(logging_steps: int) -> None:
    changes = []
    for seed in range(8):
        health = Health(HealthSection(), logging_steps=logging_steps)
        changes.append(sum(health.observe(t, values).new_best for t, values in enumerate(lines(120, seed=seed))))
    assert np.mean(changes) < 2, "the first, and now and then another"
    assert "the first, or better than the best before beyond the noise of both" in health.about_best()["why"]


def test_a_loss_that_falls_is_followed_also_if_a_window_is_one_line() -> None:
    health = Health(HealthSection(), "loss", logging_steps=20)
    best = [at for at in range(1, 61) if health.observe(20 * at, {"loss": 5 * 0.9**at}).new_best]
    assert best[0] == 1
    assert best[-1] > 55


@pytest.mark.parametrize(("logging_steps", "count"), [(1, 20), (2, 10), (3, 7), (10, 2), (50, 1)])
def test_a_window_holds_the_steps_it_says_also_where_a_line_stands_for_several(logging_steps: int, count: int) -> None:
    health = Health(HealthSection(), logging_steps=logging_steps)
    best = [at for at in range(1, 3 * count + 1) if health.observe(at * logging_steps, row()).new_best]
    assert best == [next(at for at in range(1, 99) if at >= count and at % max(1, count // 2) == 0)]
    assert health.about_best()["smoothing_steps"] == logging_steps * count


def test_sft_is_judged_by_its_loss_lower_is_better() -> None:
    health = Health(HealthSection(smoothing_steps=1), "loss")
    losses = [3.0, *[3.1] * 7, 2.0, 2.5]
    assert [at for at, loss in enumerate(losses) if health.observe(at, {"loss": loss}).new_best] == [0, 8]


def test_a_rollback_begins_with_the_past_of_the_run_while_it_was_well() -> None:
    health = Health(HealthSection())
    said(health, lines(100, prompts=16))
    down = lines(60, mean=0.01, prompts=16, seed=1)
    assert len(said(health, down, first=101)) == 1
    health.after_rollback()
    assert health.rollbacks == 1 < MAX_ROLLBACKS
    assert said(health, lines(60, prompts=16, seed=2), first=161) == []
    assert len(said(health, down, first=221)) == 1, "a second fall is said again"


# -- held-out problems -------------------------------------------------------------------------------------------------


def held_out(rates: list[float], seed: int = 0, problems: int = 64) -> tuple[Health, list[Any]]:
    """Return what validations of these mean pass rates say; the first is the untrained model."""
    draw = np.random.default_rng(seed)
    health = Health(HealthSection(smoothing_evaluations=1), "validation/pass@1")
    ease = draw.uniform(-0.2, 0.2, problems)
    return health, [
        health.observe_validation(20 * at, draw.binomial(4, np.clip(rate + ease, 0, 1)) / 4)
        for at, rate in enumerate(rates)
    ]


def test_held_out_problems_judge_a_collapse_against_the_best_and_the_untrained_model() -> None:
    _, verdicts = held_out([0.3, 0.5, 0.6, 0.5, 0.15, 0.1])
    found = [verdict.collapsed for verdict in verdicts if verdict.collapsed]
    assert len(found) == 1
    assert "surely below 50% of the best" in found[0]
    _, verdicts = held_out([0.5, 0.5, 0.2, 0.2])
    (text,) = [verdict.collapsed for verdict in verdicts if verdict.collapsed]
    assert "of the untrained model" in text
    assert not any(verdict.collapsed for verdict in held_out([0.5] * 60)[1])


def test_best_is_the_untrained_model_until_something_is_better_beyond_noise() -> None:
    never = sum(held_out([0.5] * 20, seed=seed)[0].best_step == 0 for seed in range(20))
    assert never >= 12, "20 looks at 2.5 %, against a best that only rises"
    health, verdicts = held_out([0.2, 0.4, 0.6, 0.2])
    assert [verdict.new_best for verdict in verdicts] == [True, True, True, False]
    gain = health.gain()
    assert gain is not None
    assert gain[1] < gain[0] < gain[2]
    assert gain[0] == pytest.approx(0.4, abs=0.1)


# -- the mathematics ---------------------------------------------------------------------------------------------------


def test_false_alarms_of_one_test_stay_below_its_level() -> None:
    draw = np.random.default_rng(0)
    test = Drift(0.05, ratio=0.9, rows=200)
    wealth = np.stack([test.observe(draw.binomial(8, 0.3, 200) / 8) for _ in range(400)])
    assert (wealth.max(0) >= math.log(1 / 0.05)).mean() <= 0.05
    lost = np.stack([test.observe(draw.binomial(8, 0.02, 200) / 8) for _ in range(60)])
    assert (lost[-1] >= math.log(1 / 0.05)).mean() == 1.0


def test_correlation_time_of_a_process_whose_own_is_known() -> None:
    draw = np.random.default_rng(0)
    noise, values = draw.standard_normal((100, 2000)), np.zeros((100, 2000))
    for at in range(1, 2000):
        values[:, at] = 0.8 * values[:, at - 1] + noise[:, at]
    assert 9 <= np.median(correlation_time(values)) <= 18, "(1 + 0.8) / (1 - 0.8) = 9, and on the safe side"
    assert np.median(correlation_time(noise)) < 1.3
    stepped = noise[:, :400] + 3.0 * (np.arange(400) >= 200)
    assert np.median(correlation_time(stepped)) < 2.5, "a change of level is no long memory"


def test_paired_bounds_cover_and_looks_add_up() -> None:
    draw = np.random.default_rng(0)
    inside = [paired_bound(draw.normal(0.2, 1, 64), np.zeros(64), 0.05) for _ in range(2000)]
    assert np.mean([low <= 0.2 for low, _ in inside]) == pytest.approx(0.95, abs=0.015)
    assert np.mean([high >= 0.2 for _, high in inside]) == pytest.approx(0.95, abs=0.015)
    assert paired_bound([1.0], [0.0], 0.05) == (-math.inf, math.inf)
    assert sum(look_level(0.01, look) for look in range(1, 10_000)) == pytest.approx(0.01, rel=1e-3)
