"""bench.coverage: what it simulates is what it says, and the published file keeps what the page promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.coverage import (
    DESIGNS,
    Design,
    covers_as_promised,
    draw,
    mean_score,
    measure,
    measure_mean,
    promised,
    promises,
    shift_for,
    tables,
    tolerance,
)


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


@pytest.fixture(scope="module")
def cells(published) -> list[dict[str, Any]]:
    return published("bench/coverage")["cells"]


def test_the_published_file_keeps_what_is_promised(cells: list[dict[str, Any]]) -> None:
    kept = [cell for cell in cells if promised(cell)]
    assert {cell["kind"] for cell in kept} == {"alike", "unequal", "collapse", "weights", "mean"}
    assert {cell["difference"] for cell in kept if cell["kind"] != "mean"} == {0.0, 0.02, 0.1}
    assert all(cell["repeats"] >= 1000 for cell in cells)
    for cell in kept:
        if covers_as_promised(cell):
            low, high = 0.93, 0.975
            assert low - tolerance(cell, low) <= cell["coverage"] <= high + tolerance(cell, high), cell
        if cell.get("difference") == 0:
            limit = 0.08 if cell["kind"] == "collapse" else 0.06
            assert cell["marked"] <= limit + tolerance(cell, limit), cell
        elif cell["kind"] != "mean":
            assert cell["equivalent"] <= 0.05 + tolerance(cell, 0.05), cell


def test_methods_that_cannot_be_judged_are_never_marked(cells: list[dict[str, Any]]) -> None:
    alone = [cell for cell in cells if not cell.get("judged", True)]
    assert {tuple(cell["seeds"]) for cell in alone} == {(1, 1), (1, 3), (2, 2)}
    assert {(cell["marked"], cell["equivalent"]) for cell in alone} == {(0.0, 0.0)}


def test_the_page_shows_the_published_tables(root: Path, cells: list[dict[str, Any]]) -> None:
    page = (root / "docs/comparison.md").read_text()
    for table in (*tables(cells), promises(cells)):
        assert table in page
