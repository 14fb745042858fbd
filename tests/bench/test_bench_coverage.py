"""bench.coverage: what it simulates is what it says, and the published file keeps what the page promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.coverage import (
    LIMITS,
    Setting,
    draw,
    kept,
    mean_score,
    measure,
    measure_mean,
    measure_power,
    scored,
    settings,
    shift_for,
    tables,
)


@pytest.mark.parametrize("kind", ["alike", "unequal", "skewed", "collapse", "weights"])
def test_the_true_difference_is_the_one_that_is_drawn(kind: str) -> None:
    rng = np.random.default_rng(1)
    seeds = 0 if kind == "weights" else 4
    for one in (Setting(kind, seeds, seeds, questions=200, samples=4, difference=0.1),
                Setting(kind, seeds, seeds, questions=200, samples=4, k=4, ease=1.0, difference=0.05)):  # fmt: skip
        a, b = (scored(x, 4, one.k) for x in draw(rng, one, 49)[0])
        noise = 4 * np.hypot(a.mean(axis=(1, 2)).std(), b.mean(axis=(1, 2)).std()) / 7
        assert abs(a.mean() - b.mean() - one.difference) < noise
    shift = shift_for("alike", (0.3, 0.3), 0.0, 0.3, 1, 0.1)
    assert mean_score("alike", 0.3, shift, 0.3, 1) - mean_score("alike", 0.3, 0.0, 0.3, 1) == pytest.approx(0.1)


def test_a_cell_is_measured() -> None:
    judged = measure(Setting("alike", 3, 3, questions=30), 50, 1)
    assert judged["judged"]
    assert 0.8 < judged["coverage"] <= 1
    assert judged["marked"] == pytest.approx(1 - judged["coverage"])
    alone = measure(Setting("alike", 1, 1, questions=30, difference=0.1), 50, 1)
    assert (alone["judged"], alone["marked"], alone["equivalent"]) == (False, 0.0, 0.0)
    given = measure(Setting("collapse", 0, 3, difference=0.1), 50, 1)
    assert (given["of_weights"], given["judged"]) == (True, True)
    assert given["coverage"] > 0.8, "of the true difference of these very runs"
    for kind in ("missing", "repeated", "one-sided"):
        assert measure(Setting(kind, questions=30, difference=-0.1 if kind == "one-sided" else 0.0), 50, 1)["judged"]
    assert 0.8 < measure_mean(Setting("mean", 5, questions=30), 50, 1)["coverage"] <= 1
    assert "| alike |" in tables([judged, alone])
    assert kept(judged | {"marked": 0.5}) == {"marked": False, "coverage": True}
    for kind, runs in (("thrice", 1), ("unknown", 3)):
        assert measure(Setting(kind, runs, runs, questions=30), 50, 1)["marked"] == 0
    assert measure(Setting("chosen", 10, questions=30), 50, 1)["judged"]
    plan = measure_power(Setting("power", 3, 3, questions=50, samples=4, difference=1.0), 400, 1)
    assert all(kept(plan).values())
    assert kept(plan | {"shown": 0.5}) == {"power": False}


@pytest.fixture(scope="module")
def cells(published) -> list[dict[str, Any]]:
    return published("bench/coverage")["cells"]


def test_the_published_file_is_of_these_settings_and_keeps_what_is_promised(cells: list[dict[str, Any]]) -> None:
    assert {tuple(cell[name] for name in Setting._fields) for cell in cells} == {tuple(one) for one in settings()}
    assert all(cell["repeats"] >= 1000 for cell in cells)
    assert {name for cell in cells for name in kept(cell)} == {*LIMITS, "power"}
    assert [cell for cell in cells if not all(kept(cell).values())] == []


def test_methods_that_cannot_be_judged_are_never_marked(cells: list[dict[str, Any]]) -> None:
    alone = [cell for cell in cells if not cell.get("judged", True)]
    assert {(cell["a"], cell["b"]) for cell in alone if cell["kind"] != "unknown"} == {(1, 1), (1, 3), (2, 2), (2, 10)}
    assert {(cell["marked"], cell["equivalent"]) for cell in alone} == {(0.0, 0.0)}


def test_the_page_shows_the_published_table(root: Path, cells: list[dict[str, Any]]) -> None:
    assert tables(cells) in (root / "results/published/bench/coverage.md").read_text()
