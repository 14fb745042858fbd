"""Our rewards and data sets in verl's shape, without verl."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from gtpo.integrations.verl.data import SOURCES, main
from gtpo.integrations.verl.reward import final_score
from gtpo.rewards import chat_messages, final_reward
from gtpo.rewards.data.problems import SOURCE_NAMES

RIGHT = "<reasoning>\n3+4=7\n</reasoning>\n<answer>7</answer>"
COMPLETIONS = [RIGHT, RIGHT.replace(">7<", ">8<"), "7", ""]


@pytest.mark.parametrize("text", COMPLETIONS)
def test_the_score_is_the_final_reward(text: str) -> None:
    extra = {"problem": "What is 3+4?"}
    found = final_score("gtpo/gsm8k", text, "7", extra)
    assert [found["score"]] == final_reward([text], ["7"], prompts=[extra["problem"]])
    assert found["score"] == found["accuracy"] + found["format"]
    assert found["acc"] == float(text == RIGHT)
    assert found["unscored"] == 0


def test_a_completion_that_cannot_be_scored_says_so() -> None:
    found = final_score("gtpo/gsm8k", RIGHT, "", None)
    assert (found["score"], found["unscored"]) == (0, 1)


def test_data_set_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["data", "arithmetic", "--out", str(tmp_path)])
    main()
    assert "train.parquet: 3,000 problems" in capsys.readouterr().out
    for split in ("train", "test"):
        rows = pyarrow.parquet.read_table(tmp_path / f"{split}.parquet").to_pylist()
        assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))
        for row in rows[:3]:
            problem, gold = row["extra_info"]["problem"], row["reward_model"]["ground_truth"]
            assert row["prompt"] == chat_messages(problem)
            text = RIGHT.replace(">7<", f">{gold}<")
            assert final_score(row["data_source"], text, gold, row["extra_info"])["acc"] == 1

    monkeypatch.setattr(sys, "argv", ["data", "gsm8k", "--out", str(tmp_path), "--data-dir", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "nowhere is not a folder" in capsys.readouterr().err


def test_every_source_is_known() -> None:
    assert {source for files in SOURCES.values() for source in files.values()} <= set(SOURCE_NAMES)
