"""The scripts in examples/ run as they stand, and the README's rows are read."""

from __future__ import annotations

import json
import re
from statistics import mean

import pytest
from commands import command_line, python

from gtpo.rewards.loading import load_rewards


@pytest.mark.slow
def test_the_step_in_plain_torch_learns_the_sum(root):
    """The step itself checks its loss against `reference_loss`."""
    done = python(root / "examples/gtpo_step.py", timeout=240)
    assert "the gate is on" in done.stdout
    rewards = [float(line.split()[4]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert mean(rewards[:2]) < 14 < 16 < mean(rewards[-2:]), rewards


@pytest.mark.slow
def test_the_trl_script_trains(root, tmp_path):
    done = python(root / "examples/trl_script.py", "--steps", "1", cwd=tmp_path, timeout=240)
    assert "step 1: reward" in done.stdout


def test_own_reward_scores_and_says_what_it_cannot(root, monkeypatch):
    monkeypatch.chdir(root / "examples")
    function = load_rewards(["own_reward.brevity"], None).functions[0]
    logged = {}
    scores = function(["<answer>1</answer>", "no tags", "x"], answer=["1", "1", None], log_metric=logged.__setitem__)
    assert scores == [pytest.approx(2.0, abs=0.05), 0.0, None]
    assert logged == {"reward/brief": 0.5}


def test_own_benchmark_checks(root):
    done = command_line("eval", "--check", "own_benchmark.yaml", cwd=root / "examples", code=0)
    assert "4 of 4 golds verify against themselves" in done.stdout


def test_recordings_are_scored_as_their_labels_say(root, tmp_path):
    done = command_line("eval", "--completions", root / "examples/recordings.jsonl", "--k", "3", cwd=tmp_path, code=0)
    assert "labels agree on 9 of 9 (lenient)" in done.stdout


def test_the_readmes_row_of_completions_is_scored(root, tmp_path):
    row = re.search(r"`(\{\"id\".*\})`", (root / "README.md").read_text()).group(1)
    (tmp_path / "mine.jsonl").write_text(row + "\n")
    command_line("eval", "--completions", "mine.jsonl", "--k", "2", cwd=tmp_path, code=0)
    results = json.loads((tmp_path / "results/eval/mine/eval.json").read_text())
    assert results["benchmarks"]["mine"]["pass@k"]["1"]["mean"] == 0.5


def committed(root):
    return json.loads((root / "examples/tour.ipynb").read_text())


def printed(notebook):
    """What a notebook's cells printed, in order."""
    return ["".join(part["text"]) for cell in notebook["cells"] for part in cell.get("outputs", []) if "text" in part]


def test_the_notebook_is_committed_with_what_it_prints(root):
    notebook = committed(root)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells), "python docs/tools/notebook.py"
    assert "kept False" in "".join(printed(notebook))


@pytest.mark.docs
def test_the_notebook_prints_what_is_committed(root):
    from notebook import run

    assert printed(run()) == printed(committed(root))
