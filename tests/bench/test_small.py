"""The runs on small models: which run comes next follows from the records, and nothing is made twice."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def again(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """recompute.py beside the plan, as a module of this test."""
    monkeypatch.syspath_prepend(str(root / "results/published/small"))
    for name in ("driver", "run", "recompute", "pretrained"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("recompute")


@pytest.fixture
def small(again: Any) -> Any:
    """run.py beside the plan."""
    return sys.modules["run"]


@pytest.fixture
def driver(again: Any) -> Any:
    """driver.py beside the plan."""
    return sys.modules["driver"]


def record(run: Any, right: float) -> dict[str, Any]:
    """A record of a run that is right in a share of its samples, at a pace that its rate has nothing to do with."""
    total = round(8 * 64 * right)
    lenient = [total // 64 + (at < total % 64) for at in range(64)]
    rollouts = np.arange(0, 241, 24) // run.steps if run.steps else np.zeros(1)
    curve = right - (right - 0.5) * np.exp(-np.linspace(0, 5, len(rollouts)))
    curves = {"sampled": (128 * 19.0 * rollouts).tolist(), "validation": curve.tolist()} if run.phase != "base" else {}
    return run._asdict() | curves | {
        "run": run.name, "samples": 8, "lenient": lenient, "strict": lenient, "base": "x", "status": "finished",
        "started": "2026",
    }  # fmt: skip


def make_all(small: Any, accuracy: Any) -> tuple[dict[str, Any], list[Any]]:
    """Make what is planned, from nothing to the end, and the bases."""
    records: dict[str, Any] = {}
    made: list[Any] = []
    while runs := [run for run in small.planned(records) if run.name not in records]:
        for run in dict.fromkeys(runs):
            records[run.name] = record(run, accuracy(run))
            records[run.base.name] = record(run.base, 0.6)
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


def test_runs_are_found_again(small: Any, again: Any, driver: Any, tmp_path: Path) -> None:
    """A line that was cut off is no record; the base of a seed comes before its runs."""
    run = small.Run("search", "130k", 101, "gtpo", 4, 1e-4)
    lines = tmp_path / "records.jsonl"
    lines.write_text(json.dumps(record(run, 0.5)) + "\n" + json.dumps(record(run._replace(rate=2e-4), 0.5))[:-9])
    assert [*again.read(lines, None)] == [run.name]
    assert driver.next_run(small.STUDY, {}, {}, set()) == small.Run("base", "130k", 101)
    first = driver.next_run(small.STUDY, {}, {7: small.Run("base", "130k", 101)}, set())
    assert first == small.Run("base", "130k", 102)


def test_the_sets_of_problems_are_disjoint(small: Any) -> None:
    from gtpo.rewards.data.arithmetic import arithmetic_problems

    sets = {name: {each.problem for each in problems} for name, problems in small.problem_sets().items()}
    sets["train"] = {each.problem for each in arithmetic_problems("train")}
    assert {name: len(each) for name, each in sets.items()} == {"search": 256, "final": 512, "train": 3000}
    assert len(set.union(*sets.values())) == 3768


def test_the_tests_on_simulated_records(small: Any, again: Any, tmp_path: Path) -> None:
    """GTPO two points better everywhere is shown, with the tokens it saves; of half of the runs nothing is computed."""
    rng = np.random.default_rng(3)

    def accuracy(run: Any) -> float:
        best = 0.72 + 0.02 * (run.arm in ("gtpo", "conflict"))
        return best - 0.03 * abs(np.log2(run.rate / 1e-4)) + rng.normal(0, 0.004)

    records, made = make_all(small, accuracy)
    found = again.results(records)
    tests = found["tests"]
    assert {name: tests[name]["verdict"] for name in ("4 steps", "8 steps", "conflict weights", "gate")} == {
        "4 steps": "better", "8 steps": "better", "conflict weights": "better", "gate": "equivalent",
    }  # fmt: skip
    assert "common rate" not in tests  # both rates are 1e-4
    assert tests["4 steps"]["difference"] == pytest.approx(2, abs=0.3)
    assert tests["4 steps"]["bases"] == pytest.approx(60, abs=0.1)
    gain = found["by tokens"]["4 steps"]["tokens for the other's accuracy"]
    assert gain["95 %"][0] <= gain["share"] <= gain["95 %"][1] < 1
    assert found["by tokens"]["steps a rollout"]["tokens, millions"] == pytest.approx(30 * 128 * 19 / 1e6)
    assert found["searches"]["130k, 4 a rollout"]["rates"]["gtpo"] == 1e-4
    half = {run.name: records[run.name] for run in made[: made.index(next(run for run in made if run.seed == 212))]}
    assert again.results(half)["tests"] == {"4 steps": {"a": "gtpo at 0.0001", "b": "grpo at 0.0001", "planned": 24,
                                                        "recorded": 11}}  # fmt: skip
    lines, file = tmp_path / "records.jsonl", tmp_path / "runs.parquet"
    lines.write_text("".join(json.dumps(row) + "\n" for row in records.values()))
    again.pack(lines, file)
    back = again.read(tmp_path / "none", file)
    assert {*back} == {*records}
    for run in made:
        assert back[run.name]["validation"] == pytest.approx(records[run.name]["validation"], rel=1e-3)
        assert back[run.name]["strict"] == sum(records[run.name]["strict"])
    assert again.results(back)["tests"] == tests


def test_the_plan_says_what_the_design_gives(root: Path, again: Any) -> None:
    page = " ".join((root / "results/published/small/README.md").read_text().split())
    found = again.design()
    spreads = found.pop("spread shown with 90 %")
    assert f"up to a spread of {spreads[24]:.2f}, 48 up to {spreads[48]:.2f}" in page
    assert f"in at most {100 * max(row['equal'] for row in found.values()):.1f} % of 20,000 draws" in page
    assert f"at a spread of 4.5 48 pairs show it in {100 * found['4.5']['1 point apart']:.0f} %" in page
    assert f"{100 * found['4.5']['equal called equivalent'][48]:.0f} % at 4.5" in page
    assert min(found["3.0"]["equal called equivalent"][48], found["2.0"]["equal called equivalent"][24]) > 0.99


def test_tokens_to_reach_a_level(again: Any) -> None:
    curve = np.array([[[0.0, 1.0, 2.0, 3.0], [50.0, 60.0, 70.0, 70.0]]])
    assert again.tokens_to_reach(curve, 65.0) == pytest.approx(1.5)
    assert again.tokens_to_reach(curve, 70.0) == pytest.approx(2.0)
    assert again.tokens_to_reach(curve, 49.0) == 0.0
    assert again.tokens_to_reach(curve, 71.0) == np.inf
    slow = curve * np.array([[[2.0], [1.0]]])
    assert again.tokens_saved(curve, slow)["share"] == pytest.approx(0.5)


@pytest.fixture
def pretrained(again: Any) -> Any:
    """pretrained.py beside its plan."""
    return importlib.import_module("pretrained")


@pytest.mark.parametrize(
    ("lift", "gain", "spread", "pairs"),
    [(0.04, 0.0, 0.02, 0), (0.10, 0.0, 0.02, 8), (0.10, 0.0, 0.09, 12), (0.10, 0.10, 0.01, 4)],
    ids=["no rate lifts both", "eight pairs", "a wide spread", "shown at the look"],
)
def test_the_plan_of_a_real_model(
    pretrained: Any, monkeypatch: pytest.MonkeyPatch, lift: float, gain: float, spread: float, pairs: int
) -> None:
    monkeypatch.setattr(pretrained, "steps_of_the_plan", lambda: 1)
    rng = np.random.default_rng(1)

    def right(run: Any) -> float:
        best = 0.45 + lift - 0.04 * abs(np.log(run.rate / 6e-4) / np.log(3))
        return best + gain * (run.arm == "gtpo") + (run.phase == "pairs") * rng.normal(0, spread)

    base = record(pretrained.BASE, 0.45) | {"lenient_search": [8 * 0.45] * 4}
    records, made = {pretrained.BASE.name: base}, []
    while run := next((run for run in pretrained.planned(records) if run.name not in records), None):
        records[run.name] = record(run, right(run))
        made.append(run)
    assert len({run.rate for run in made if run.phase == "search"}) == 4, "the best was at the edge of three"
    assert sum(run.phase == "search" for run in made) == 16
    assert {run.seed for run in made if run.phase == "pairs"} == set(range(401, 401 + pairs))
    assert sum(run.phase == "pairs" for run in made) == 2 * pairs


def test_a_real_model_waits_for_the_small_ones(
    pretrained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "__file__", str(tmp_path / "pretrained.py"))
    with pytest.raises(SystemExit, match="no verdict of the primary test on small models yet"):
        next(pretrained.planned({}))
    for verdict, steps in (("better", 4), ("equivalent", 1), ("undecided", 1)):
        (tmp_path / "results.json").write_text(json.dumps({"tests": {"4 steps": {"verdict": verdict}}}))
        assert pretrained.steps_of_the_plan() == steps


def test_the_power_of_the_plan_of_a_real_model(root: Path, pretrained: Any) -> None:
    page = (root / "results/published/small/pretrained.md").read_text()
    found = pretrained.design()
    for spread, row in found.items():
        cells = (row["3 points"], row["5 points"], row["equal called equivalent"])
        assert f"| {float(spread):.0f} | {' | '.join(f'{100 * cell:.0f} %' for cell in cells)} |" in page
    assert f"at most {100 * max(row['0 points'] for row in found.values()):.1f} %" in " ".join(page.split())


def test_the_results_follow_from_the_runs(root: Path, tmp_path: Path) -> None:
    """From a copy of the folder, so from its files and without gtpo."""
    folder = shutil.copytree(root / "results/published/small", tmp_path / "small")
    command = [sys.executable, "-I", str(folder / "recompute.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_run_was_made_by_the_plan(root: Path, again: Any, small: Any) -> None:
    """Of one clean commit, in the plan's order as far as the records go, with every answer scored."""
    records = again.read(Path("none"), root / "results/published/small/runs.parquet")
    assert {row["git_commit"] for row in records.values()} == {"c259435fd39a6f0224489189a0736fe2a0e4f921"}
    trained = {name for name, row in records.items() if row["phase"] != "base"}
    assert trained <= {run.name for run in small.planned(records)}
    assert not any(records[name]["unscored"] for name in trained)
    assert {records[name]["samples"] for name in records} == {8}
