"""The runs on small models: which run comes next follows from the records, and nothing is made twice."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def small(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program beside the plan, as a module of this test."""
    path = root / "results/published/small/run.py"
    spec = importlib.util.spec_from_file_location("small_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "small_runs", module)
    spec.loader.exec_module(module)
    return module


def record(run: Any, right: float) -> dict[str, Any]:
    """A record of a run that is right in a share of its samples."""
    return run._asdict() | {"run": run.name, "samples": 8, "lenient": [8 * right] * 4}


def make_all(small: Any, accuracy: Any) -> tuple[dict[str, Any], list[Any]]:
    """Make what is planned, one run at a time, from nothing to the end."""
    records: dict[str, Any] = {}
    made: list[Any] = []
    while (run := next((run for run in small.planned(records) if run.name not in records), None)) is not None:
        records[run.name] = record(run, accuracy(run))
        made.append(run)
    return records, made


def test_the_plan_is_made_to_its_end(small: Any) -> None:
    """A best rate at an edge makes the grid grow for both; a wide spread of the first pairs asks for all pairs."""
    best = {"gtpo": 4e-4, "grpo": 1e-4}
    noise = np.random.default_rng(0).normal(0, 0.03, 1000)

    def accuracy(run: Any) -> float:
        return 0.7 - 0.05 * abs(np.log2(run.rate / best.get(run.arm, 2e-4))) + (run.phase == "pairs") * noise[run.seed]

    records, made = make_all(small, lambda run: accuracy(run) * (1 if run.arm == "gtpo" else 0.99))
    assert len(set(made)) == len(made)
    grids = {steps: small.grid_of(records, "130k", steps, ("gtpo", "grpo"))[0] for steps in (4, 1)}
    assert grids[4] == (2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4, 8e-4)
    assert grids[1] == (5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)
    searched = Counter((run.model, run.steps, run.arm) for run in made if run.phase == "search")
    assert {searched[part] for part in searched if part[:2] == ("130k", 4)} == {12}
    assert small.rates_of(records, "130k", 4) == best
    pairs = Counter((run.model, run.steps, run.arm, run.rate) for run in made if run.phase == "pairs")
    first = small.differences(
        records, *(small.Run("pairs", "130k", 0, arm, 4, best[arm]) for arm in best), range(201, 225)
    )
    assert pairs["130k", 4, "gtpo", 4e-4] == pairs["130k", 4, "grpo", 1e-4] == small.pairs_needed(first.std(ddof=1))
    assert pairs["130k", 4, "gtpo", 2e-4] == pairs["130k", 4, "grpo", 2e-4] == 24
    assert {pairs["130k", 4, arm, 2e-4] for arm in ("conflict", "gate", "dapo", "dr-grpo")} == {16}
    assert pairs["2.2m", 4, "gtpo", 4e-4] == 16
    seeds = {phase: {run.seed for run in made if run.phase == phase} for phase in ("search", "pairs")}
    assert seeds["search"] == {101, 102}
    assert min(seeds["pairs"]) == 201
    assert max(seeds["pairs"]) <= 248


def test_runs_are_found_again(small: Any, tmp_path: Path) -> None:
    """A line that was cut off is no record; the base of a seed comes before its runs."""
    run = small.Run("search", "130k", 101, "gtpo", 4, 1e-4)
    lines = tmp_path / "records.jsonl"
    lines.write_text(json.dumps(record(run, 0.5)) + "\n" + json.dumps(record(run._replace(rate=2e-4), 0.5))[:-9])
    assert [*small.read(lines, None)] == [run.name]
    assert small.next_run({}, {}, set()) == small.Run("base", "130k", 101)
    first = small.next_run({}, {7: small.Run("base", "130k", 101)}, set())
    assert first == small.Run("base", "130k", 102)


def test_the_number_of_pairs_shows_a_point(small: Any) -> None:
    rng = np.random.default_rng(0)
    for spread in (1.0, 1.4, 1.7, 2.0):
        count = small.pairs_needed(spread)
        d = rng.normal(small.EFFECT, spread, (4000, count))
        shown = np.abs(d.mean(1)) / (d.std(1, ddof=1) / count**0.5)
        from scipy import stats

        found = (2 * stats.t.sf(shown, count - 1) < small.ALPHA).mean()
        assert found == pytest.approx(small.power(count, spread), abs=0.02)
        assert found > 0.88
    assert (small.pairs_needed(0.1), small.pairs_needed(9.0)) == (small.LEAST, small.MOST)


def test_the_sets_of_problems_are_disjoint(small: Any) -> None:
    from gtpo.rewards.data.arithmetic import arithmetic_problems

    sets = {name: {each.problem for each in problems} for name, problems in small.problem_sets().items()}
    sets["train"] = {each.problem for each in arithmetic_problems("train")}
    assert {name: len(each) for name, each in sets.items()} == {"search": 256, "final": 512, "train": 3000}
    assert len(set.union(*sets.values())) == 3768
