"""bench.coverage: what it simulates is what it says, and the published file keeps what the page promises."""

from __future__ import annotations

import numpy as np
import pytest

from bench.coverage import DESIGNS, Design, draw, mean_score, measure, measure_mean, shift_for, tables


@pytest.mark.parametrize("kind", ["alike", "unequal", "collapse"])
def test_the_true_difference_is_the_one_that_is_drawn(kind: str) -> None:
    rng = np.random.default_rng(1)
    for difference in (0.0, 0.1):
        a, b = draw(rng, kind, Design(4, 4), 200, 4, difference, 100)
        noise = 2.5 * np.hypot(a.mean(axis=(1, 2)).std(), b.mean(axis=(1, 2)).std()) / 10
        assert abs(a.mean() - b.mean() - difference) < noise
    assert mean_score(shift_for("alike", 0.1), 0.3, False) - mean_score(0.0, 0.3, False) == pytest.approx(0.1)


def test_a_cell_is_measured() -> None:
    judged = measure("alike", Design(3, 3), 30, 16, 0.0, 50, [1])
    assert judged["judged"]
    assert 0.8 < judged["coverage"] <= 1
    assert judged["marked"] == pytest.approx(1 - judged["coverage"])
    alone = measure("alike", Design(1, 1), 30, 16, 0.1, 50, [1])
    assert (alone["judged"], alone["marked"], alone["equivalent"]) == (False, 0.0, 0.0)
    assert measure("alike", Design(1, 1, others=(3, 3)), 30, 16, 0.0, 20, [1])["judged"]
    assert 0.8 < measure_mean("alike", 5, 30, 16, 50, [1])["coverage"] <= 1
    assert "| 3 v 3 |" in tables([judged | {"difference": d} for d in (0.0, 0.02, 0.1)])[0]


def test_half_of_the_runs_collapse_and_other_methods_lend() -> None:
    rng = np.random.default_rng(2)
    a, b, *others = draw(rng, "collapse", Design(1, 3, others=(2, 5)), 50, 16, 0.0, 200)
    assert [x.shape[1] for x in (a, b, *others)] == [1, 3, 2, 5]
    low = others[1].mean(axis=2) < 0.3
    assert 0.4 < low.mean() < 0.6
    assert len({design.name for design in DESIGNS}) == len(DESIGNS)
