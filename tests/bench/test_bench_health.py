"""bench.health: what it simulates is what it says, and the page shows what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.health import RUNS, STEPS, curve, read_records, tables, trends
from gtpo.train.run_log import EQUAL, EQUAL_STEPS


def test_false_alarms_are_what_is_promised(published) -> None:
    """At most one run of a hundred within 3,000 steps, over all settings without a memory of their own."""
    measured = published("bench/health")
    rows = [row for row in measured["stationary"] if not row["memory"]]
    assert {row["accuracy"] for row in rows} >= {0.05, 0.2, 0.5, 0.8}
    assert {row["prompts"] for row in rows} == {1, 4, 16}
    assert all(row["runs"] == RUNS for row in rows)
    assert sum(row["flagged"][str(STEPS)] for row in rows) <= 0.01 * RUNS * len(rows)
    assert [row["trend"] for row in measured["trends"]] == list(trends())


def test_the_page_shows_the_published_tables(root: Path, published) -> None:
    page, measured = (root / "results/published/bench/health.md").read_text(), published("bench/health")
    for table in tables(measured):
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
        (steps, equal), (_, accuracy) = (curve(record, key) for key in ("groups/zero_variance", "reward/accuracy"))
        blocks = int(np.ceil(EQUAL_STEPS / np.diff(steps).min()))
        due = np.convolve(equal, np.ones(blocks) / blocks, "valid") >= EQUAL / EQUAL_STEPS
        return accuracy[blocks - 1 :][due][0] if due.any() else None

    found: dict[str, list[float | None]] = {}
    for record in read_records():
        if record["method"] not in ("base", "sft"):
            found.setdefault(record["regime"], []).append(first_accuracy(record))
    calm = [first for regime in ("micro-calm", "small-calm") for first in found[regime]]
    told = [first for first in calm if first is not None]
    assert len(calm) > 200
    assert len(told) <= 1
    assert all(first > 9.5 for first in told)
    for regime in ("micro-unstable", "micro-weak-base", "micro-high-rate", "micro-weaker-base"):
        assert sum(first is not None for first in found[regime]) >= 0.9 * len(found[regime]), regime
