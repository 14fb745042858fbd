"""What the README promises: its files and targets exist, its rows are read (its script: gtpo/test_trainer.py)."""

from __future__ import annotations

import json
import re

import pytest
from commands import command_line


@pytest.fixture(scope="module")
def readme(root) -> str:
    return (root / "README.md").read_text()


def test_its_recipes_and_pages_exist(readme, root):
    linked = set(re.findall(r"\]\(([^)#:]+)\)", readme)) | set(re.findall(r"configs/[\w./-]+\.yaml", readme))
    assert linked
    assert [name for name in sorted(linked) if not (root / name).exists()] == []


def test_its_make_targets_exist(readme, root):
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)(?:[`;\s])", readme)) & targets >= {"demo", "test", "docs"}


def test_its_row_of_completions_is_scored(readme, root, tmp_path):
    row = re.search(r"```json\n(.*)\n```", readme).group(1)
    (tmp_path / "mine.jsonl").write_text(row + "\n")
    done = command_line("eval", "--completions", "mine.jsonl", "--k", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results/eval/mine/eval.json").read_text())
    assert results["benchmarks"]["mine"]["pass@k"]["1"]["mean"] == 0.5


def test_the_demo_on_file_took_what_is_said(readme, root):
    minutes, seconds = re.search(
        r"^demo: (\d+):(\d+)$", (root / "results/published/demo/time.txt").read_text(), re.MULTILINE
    ).groups()
    assert f"compares them: about {minutes} minutes" in readme
    assert f"{minutes}:{seconds} on an" in (root / "docs/index.md").read_text()


def test_the_cost_of_the_harness_is_that_of_its_files(root):
    text = (root / "results/published/bench/eval.md").read_text()
    rows = re.findall(r"\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \(.*?/(eval\w*\.json)\) \|", text)
    assert len(rows) == 4
    for samples, tokens, alone_ms, ratio, name in rows:
        measured = json.loads((root / "results/published/bench" / name).read_text())
        assert int(samples.replace(",", "")) == measured["samples"]
        assert int(tokens) == round(measured["tokens"] / measured["samples"])
        bare = measured["seconds"]["bare"]
        assert float(alone_ms) == round(1e3 * sum(bare) / len(bare) / measured["samples"], 1)
        assert float(ratio) == round(measured["ratio_median"], 2)
