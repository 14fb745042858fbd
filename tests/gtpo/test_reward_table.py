"""The table that ends a run."""

from __future__ import annotations

import json
from pathlib import Path

from gtpo.runs.train_run import TrainFolder
from gtpo.train.run_log import reward_table


def test_means_of_the_first_and_last_window(tmp_path: Path) -> None:
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
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    accuracy, mine, *shares = reward_table(TrainFolder(tmp_path), 2).splitlines()
    assert accuracy.split()[:4] == ["accuracy", "1.00", "->", "2.00"]
    assert mine.split()[:4] == ["mine", "9.00", "->", "8.00"]
    assert shares == [
        "unscored completions: 8.3%, in 1 of 6 logged steps",
        "unsimplified completions: 25.0%, in 6 of 6 logged steps",
    ]


def test_nothing_rewarded_gives_no_table(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert reward_table(TrainFolder(tmp_path), 5) == ""
