"""The published experiments: which run comes next, and what they say, follows from their records alone."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import python


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


def record(run: Any, right: float, **more: Any) -> dict[str, Any]:
    """A record of a run that is right in a share of its samples."""
    total = round(8 * 64 * right)
    lenient = [total // 64 + (at < total % 64) for at in range(64)]
    return run._asdict() | {"run": run.name, "base": "", "samples": 8, "lenient": lenient, "strict": lenient, **more}


def test_packed_runs_are_read_back(small: Any, again: Any, tmp_path: Path) -> None:
    """A line that was cut off is no record."""
    run, lines, file = small.Run("search", "130k", 101, "gtpo", 4, 1e-4), tmp_path / "records", tmp_path / "runs"
    rows = [record(run.base, 0.6, started="1"), record(run, 0.5, started="2", validation=[0.5, 0.51234])]
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n" + json.dumps(record(run._replace(rate=2e-4), 0.5))[:-9])
    again.pack(lines, file)
    base, back = again.read(tmp_path / "none", file).values()
    assert (base["run"], base["validation"]) == (run.base.name, None)
    assert back["validation"] == pytest.approx([0.5, 0.5123])
    assert (back["lenient"], back["strict"]) == (rows[1]["lenient"], 256)


def test_a_base_that_was_made_again_is_beside_the_first(small: Any, again: Any, tmp_path: Path) -> None:
    base, lines, file = small.Run("search", "130k", 101, "gtpo", 4, 1e-4).base, tmp_path / "records", tmp_path / "runs"
    rows = [record(base, right, started=weights, base=weights) for right, weights in ((0.6, "1"), (0.5, "2"))]
    for row in rows:
        lines.write_text(json.dumps(row) + "\n")
        again.pack(lines, file)
    found = again.read(lines, file)
    assert {name: row["base"] for name, row in found.items()} == {f"{base.name} 1": "1", base.name: "2"}


def test_the_plan_says_what_the_design_gives(root: Path, again: Any) -> None:
    page = " ".join((root / "results/published/small/README.md").read_text().split())
    found = again.design()
    spreads = found.pop("spread shown with 90 %")
    assert f"up to a spread of {spreads[24]:.2f}, 48 up to {spreads[48]:.2f}" in page
    assert f"in at most {100 * max(row['equal'] for row in found.values()):.1f} % of 20,000 draws" in page
    assert f"at a spread of 4.5 48 pairs show it in {100 * found['4.5']['1 point apart']:.0f} %" in page
    assert f"{100 * found['4.5']['equal called equivalent'][48]:.0f} % at 4.5" in page
    assert min(found["3.0"]["equal called equivalent"][48], found["2.0"]["equal called equivalent"][24]) > 0.99


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
    pretrained: Any, again: Any, monkeypatch: pytest.MonkeyPatch, lift: float, gain: float, spread: float, pairs: int
) -> None:
    monkeypatch.setattr(pretrained, "steps_of_the_plan", lambda: 1)
    rng = np.random.default_rng(1)

    def right(run: Any) -> float:
        best = 0.45 + lift - 0.04 * abs(np.log(run.rate / 6e-4) / np.log(3))
        return best + gain * (run.arm == "gtpo") + (run.phase == "pairs") * rng.normal(0, spread)

    base = record(pretrained.BASE, 0.45) | {"lenient_search": [8 * 0.45] * 4}
    records, made = {pretrained.BASE.name: base}, []
    while run := next((run for run in pretrained.planned(records) if run.name not in records), None):
        records[run.name] = record(run, right(run)) | {"completions/length": [30.0, 30.0 - 10 * (run.arm == "gtpo")]}
        made.append(run)
    assert len({run.rate for run in made if run.phase == "search"}) == 4, "the best was at the edge of three"
    assert sum(run.phase == "search" for run in made) == 16
    assert {run.seed for run in made if run.phase == "pairs"} == set(range(401, 401 + pairs))
    assert sum(run.phase == "pairs" for run in made) == 2 * pairs
    found = again.real_model(records)
    assert found["warm starts"][""]["search"] == pytest.approx(45.0)
    assert [len(each) for each in found["accuracy by rate"]["gtpo"].values()] == [2] * 4
    if not pairs:
        assert found["search"] == "no pairs: no gain of 5 points by both"
        assert "primary" not in found
        return
    assert found["search"] == {arm: pytest.approx(6e-4) for arm in ("gtpo", "grpo")}
    assert found["primary"]["pairs"] == pairs
    assert found["primary"]["difference"] == pytest.approx(100 * gain, abs=8)
    assert (found["primary"]["verdict"] == "better") == (gain > 0)
    assert found["log ratio of lengths, last ten steps"] == pytest.approx([np.log(2 / 3)] * 3)
    records[made[-1].name]["base"] = "another"
    with pytest.raises(SystemExit, match="began from different warm starts"):
        again.real_model(records)


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


def test_the_sets_of_problems_are_disjoint(small: Any) -> None:
    from gtpo.rewards.data.arithmetic import arithmetic_problems

    sets = {name: {each.problem for each in problems} for name, problems in small.problem_sets().items()}
    sets["train"] = {each.problem for each in arithmetic_problems("train")}
    assert {name: len(each) for name, each in sets.items()} == {"search": 256, "final": 512, "train": 3000}
    assert len(set.union(*sets.values())) == 3768


def test_the_results_follow_from_the_runs(root: Path, tmp_path: Path) -> None:
    """From a copy of the folder, so from its files and without gtpo."""
    folder = shutil.copytree(root / "results/published/small", tmp_path / "small")
    assert python("-I", folder / "recompute.py", cwd=folder).stderr == ""


def test_every_run_was_made_by_the_plan(root: Path, again: Any, small: Any) -> None:
    """Of one clean commit, in the plan's order as far as the records go, with every answer scored."""
    records = again.read(Path("none"), root / "results/published/small/runs.parquet")
    assert {row["git_commit"] for row in records.values()} == {"c259435fd39a6f0224489189a0736fe2a0e4f921"}
    trained = {name for name, row in records.items() if row["phase"] != "base"}
    assert trained <= {run.name for run in small.planned(records)}
    assert not any(records[name]["unscored"] for name in trained)
    assert {records[name]["samples"] for name in records} == {8}


# -- on a real model ---------------------------------------------------------------------------------------------------


@pytest.fixture
def marks(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script beside the records."""
    monkeypatch.syspath_prepend(str(root / "results/published/real"))
    return importlib.import_module("marks")


def test_the_published_numbers_are_those_of_the_records(marks: Any) -> None:
    """Those of the null are drawn, and a processor may round a draw over a bound."""
    for name, numbers in (
        ("selection", marks.selection_of_untrained()), ("tests", marks.tests(closed=True)),
        ("afterwards", marks.afterwards()),
    ):  # fmt: skip
        written = json.loads((marks.OUT / f"{name}.json").read_text())
        assert json.loads(json.dumps(numbers, default=marks.rounded)) == written, name
    first = json.loads((marks.OUT / "null.json").read_text())
    for pairs, draws in marks.null().items():
        for draw, rates in first[pairs].items():
            assert rates == pytest.approx({key: float(value) for key, value in draws[draw].items()}, abs=1e-4)


def test_nothing_is_computed_before_the_end(marks: Any) -> None:
    with pytest.raises(SystemExit, match="not computed before the end; not recorded: "):
        marks.tests(closed=False)
