"""The benches: what they simulate is what they say, and the pages show the published files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import health, shared_prefixes, step
from bench.coverage import LIMITS, Setting, draw, kept, mean_score, measure, scored, settings, shift_for, tables
from gtpo.common.files import read_json
from gtpo.train.run_log import EQUAL, EQUAL_STEPS


@pytest.fixture(scope="session")
def published(root: Path) -> Callable[[str], Any]:
    """Name below results/published, without its end -> what the JSON holds."""
    return lambda name: read_json(root / f"results/published/{name}.json")


# -- coverage ----------------------------------------------------------------------------------------------------------


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
    assert 0.8 < measure(Setting("mean", 5, questions=30), 50, 1)["coverage"] <= 1
    assert "| alike |" in tables([judged, alone])
    assert kept(judged | {"marked": 0.5}) == {"marked": False, "coverage": True}
    for kind, runs in (("thrice", 1), ("unknown", 3)):
        assert measure(Setting(kind, runs, runs, questions=30), 50, 1)["marked"] == 0
    assert measure(Setting("chosen", 10, questions=30), 50, 1)["judged"]
    plan = measure(Setting("power", 3, 3, questions=50, samples=4, difference=1.0), 400, 1)
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


# -- health ------------------------------------------------------------------------------------------------------------


def test_false_alarms_are_what_is_promised(published) -> None:
    """At most one run of a hundred within 3,000 steps, over all settings without a memory of their own."""
    measured = published("bench/health")
    rows = [row for row in measured["stationary"] if not row["memory"]]
    assert {row["accuracy"] for row in rows} >= {0.05, 0.2, 0.5, 0.8}
    assert {row["prompts"] for row in rows} == {1, 4, 16}
    assert all(row["runs"] == health.RUNS for row in rows)
    assert sum(row["flagged"][str(health.STEPS)] for row in rows) <= 0.01 * health.RUNS * len(rows)
    assert [row["trend"] for row in measured["trends"]] == list(health.trends())


def test_the_page_shows_the_published_simulations(root: Path, published) -> None:
    page, measured = (root / "results/published/bench/health.md").read_text(), published("bench/health")
    for table in health.tables(measured):
        assert table in page
    regimes = measured["claims"]["regimes"].values()
    collapsed, flagged = (sum(regime[name] for regime in regimes) for name in ("collapsed", "flagged"))
    delay = measured["claims"]["median_delay_steps"]
    assert f"Of the {collapsed} runs" in page
    assert f"{flagged} are flagged, in the median {delay:.0f} steps after that" in " ".join(page.split())


def test_advice_on_equal_rewards_in_recorded_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calm training: given once, to a run with nearly every answer right. Failing training: to nine runs of ten."""
    monkeypatch.chdir(root)

    def first_accuracy(record: dict) -> float | None:  # type: ignore[type-arg]
        (steps, equal), (_, accuracy) = (
            health.curve(record, key) for key in ("groups/zero_variance", "reward/accuracy")
        )
        blocks = int(np.ceil(EQUAL_STEPS / np.diff(steps).min()))
        due = np.convolve(equal, np.ones(blocks) / blocks, "valid") >= EQUAL / EQUAL_STEPS
        return accuracy[blocks - 1 :][due][0] if due.any() else None

    found: dict[str, list[float | None]] = {}
    for record in health.read_records():
        if record["method"] not in ("base", "sft"):
            found.setdefault(record["regime"], []).append(first_accuracy(record))
    calm = [first for regime in ("micro-calm", "small-calm") for first in found[regime]]
    told = [first for first in calm if first is not None]
    assert len(calm) > 200
    assert len(told) <= 1
    assert all(first > 9.5 for first in told)
    for regime in ("micro-unstable", "micro-weak-base", "micro-high-rate", "micro-weaker-base"):
        assert sum(first is not None for first in found[regime]) >= 0.9 * len(found[regime]), regime


# -- steps -------------------------------------------------------------------------------------------------------------


def test_the_pages_tables_are_the_published_measurements(root: Path, published) -> None:
    scale = (root / "results/published/bench/steps.md").read_text()
    for name in ("", "_wide", "_wide_sampled", "_bfloat16", "_bfloat16_sampled", "_bfloat16_profile"):
        assert step.page(published(f"bench/step{name}")) in scale, name


def test_shared_prefixes(root: Path, published) -> None:
    page = (root / "results/published/bench/steps.md").read_text()
    assert shared_prefixes.page(published("bench/shared_prefixes")) in page
    null = published("bench/shared_prefixes_null")["ratio"]
    told = "one turn of each gave {:.2f} (GTPO) and {:.2f} (GRPO) of the time"
    assert told.format(*(null[method]["cpu_seconds"] for method in ("gtpo", "grpo"))) in page
