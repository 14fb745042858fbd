"""What the README promises: its rows are read (its script: gtpo/test_trainer.py)."""

from __future__ import annotations

import json
import re

import pytest
from commands import command_line


@pytest.fixture(scope="module")
def readme(root) -> str:
    return (root / "README.md").read_text()


def test_its_row_of_completions_is_scored(readme, root, tmp_path):
    row = re.search(r"`(\{\"id\".*\})`", readme).group(1)
    (tmp_path / "mine.jsonl").write_text(row + "\n")
    done = command_line("eval", "--completions", "mine.jsonl", "--k", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results/eval/mine/eval.json").read_text())
    assert results["benchmarks"]["mine"]["pass@k"]["1"]["mean"] == 0.5
