"""The table that ends a run."""

from __future__ import annotations

import json
from pathlib import Path

from gtpo.run.logs import reward_rows, reward_table
from gtpo.runs.train_run import TrainFolder


def test_means_of_the_first_last_and_best_window(tmp_path: Path) -> None:
    values = [0.0, 2.0, 8.0, 6.0, 1.0, 3.0]
    rows = [
        {
            "step": step,
            "reward/accuracy": value,
            "rewards/mine/mean": 10 - value,
            "reward/unscored": 0.5 * (step == 2),
            "reward/unsimplified": 0.25,
        }
        for step, value in enumerate(values, start=1)
    ]
    accuracy, mine = reward_rows(rows, 2)
    assert accuracy == ("accuracy", 1.0, 2.0, 7.0)
    assert mine == ("mine", 9.0, 8.0, 9.0)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = reward_table(TrainFolder(tmp_path), 2)
    assert "accuracy" in text
    assert "unscored completions: 8.3%, in 1 of 6 steps" in text
    assert "unsimplified completions: 25.0%, in 6 of 6 steps" in text


def test_nothing_rewarded_gives_no_table(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert reward_table(TrainFolder(tmp_path), 5) == ""
