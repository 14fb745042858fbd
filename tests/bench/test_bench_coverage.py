"""bench.coverage: the published coverages keep what the intervals claim, and the page shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from bench.coverage import (
    DIFFERENCE,
    ELSEWHERE,
    SEEDS,
    claimed,
    least_coverage,
    measure,
    misses,
    tables,
    tolerance,
    without_claim,
)
from bench.coverage_scenarios import METHODS, RUNS

Cells = list[dict[str, Any]]


@pytest.fixture(scope="module")
def cells(root: Path) -> Cells:
    found: Cells = json.loads((root / "results/published/bench/coverage.json").read_text())["cells"]
    return found


def test_every_cell_is_there_and_marked(cells: Cells) -> None:
    assert len(cells) == 5 * (2 * len(RUNS) + 3 * len(SEEDS) * len(METHODS))
    assert [cell["claimed"] for cell in cells] == [claimed(cell) for cell in cells]
    for what in {cell["what"] for cell in cells}:
        assert any(cell["claimed"] for cell in cells if cell["what"] == what)
    kept = {without_claim(cell) for cell in cells if not cell["claimed"]}
    assert kept == set(ELSEWHERE)


def test_claimed_cells_cover_93_to_97_percent(cells: Cells) -> None:
    for cell in cells:
        if cell["claimed"]:
            assert 0.93 - tolerance(cell, 0.93) <= cell["coverage"] <= 0.97 + tolerance(cell, 0.97), cell


def test_no_cell_covers_much_less(cells: Cells) -> None:
    for cell in cells:
        least = least_coverage(cell)
        assert cell["coverage"] >= least - tolerance(cell, least), cell


def test_true_null_hypotheses_are_rejected_at_their_level(cells: Cells) -> None:
    tested = [cell for cell in cells if "rejects" in cell]
    assert {cell["seeds"] for cell in tested} == {1, *SEEDS}
    for cell in tested:
        assert cell["rejects"] <= 0.055 + tolerance(cell, 0.055), cell
        # Exact where seeds stand for themselves; over questions only one run each is a test of methods.
        assert cell.get("rejects_over_seeds", 0) <= 0.055 + tolerance(cell, 0.055), cell
        if cell["what"] == DIFFERENCE:
            assert cell["rejects_over_questions"] <= 0.055 + tolerance(cell, 0.055), cell


def test_the_page_shows_the_published_tables(root: Path, cells: Cells) -> None:
    page = (root / "docs/comparison.md").read_text()
    for table in tables(cells):
        assert table in page


def test_cells_that_missed_a_mark_were_simulated_again(cells: Cells) -> None:
    assert all(cell.get("again") for cell in cells if misses(cell))
    assert all(cell["repeats"] == 12_000 for cell in cells if cell.get("again"))


def test_what_the_table_says_of_few_outcomes_is_exact() -> None:
    """2 % of 30, 64 and 100 questions: the chance that at most five differ."""
    found = [100 * stats.binom.cdf(5, questions, 0.02) for questions in (30, 64, 100)]
    assert [f"{share:.1f}" for share in found] == ["100.0", "99.8", "98.5"]
    assert "100, 99.8 and 98.5 %" in ELSEWHERE["few"][1]
    assert stats.binomtest(0, 5).pvalue == 2 / 2**5 > 0.05


def test_a_cell_is_measured() -> None:
    """A small one, whose coverage is known: six questions that nearly all agree."""
    mean, difference = measure(RUNS[6], 6, 1, 20, [1])
    assert (mean["coverage"], mean["expected"], mean["whole"]) == (1.0, 0.0, True)
    assert difference["coverage"] == 1.0
    assert "rejects" not in difference
    equal = next(scenario for scenario in METHODS if scenario.name == "seeds differ, equal")
    _, unpaired, paired = measure(equal, 6, 3, 20, [1])
    assert {"rejects", "rejects_over_questions", "rejects_over_seeds"} <= unpaired.keys() & paired.keys()
    assert unpaired["training_share"] == paired["training_share"] > 0
