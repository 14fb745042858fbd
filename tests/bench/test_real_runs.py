"""What the records of the runs on a real model are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.claims.plan import load_plan
from bench.real_runs import PLAN, best_rate, conflict_kinds, kinds, portable, with_settings
from gtpo.config import load_config


def test_kinds() -> None:
    tokens = ["<", "answer", ">", "4", "2", " is", " a<", "/answer>", "<eos>"]
    assert kinds(tokens) == ["tag", "tag", "tag", "number", "number", "word", "tag", "tag", "end"]
    assert kinds(["<reasoning>x", "y</", "reasoning", ">"]) == ["tag", "tag", "tag", "tag"]


def test_conflict_tokens_by_kind(tmp_path: Path) -> None:
    """A pair that shares its first tag and its end; the pair without an advantage has no conflict."""
    rows: list[tuple[int, list[str], float | None]] = [
        (0, ["<answer>", "4", "</answer>", "!"], 1.0),
        (0, ["<answer>", "5", " no", "!"], -1.0),
        (1, ["a", "b"], 0.0),
        (1, ["a", "b"], None),
    ]
    columns: dict[str, Any] = {
        "step": [7] * 4, "group": [row[0] for row in rows], "tokens": [row[1] for row in rows],
        "advantage": [row[2] for row in rows],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "step-000007.parquet")
    found = conflict_kinds(tmp_path)
    assert found["step"] == [7]
    assert (found["tokens/tag"], found["conflict/tag"]) == ([3], [2])
    assert (found["tokens/end"], found["conflict/end"]) == ([4], [2])
    assert (found["tokens/number"], found["conflict/number"]) == ([2], [0])
    assert (found["tokens/word"], found["conflict/word"]) == ([3], [0])


def test_records_name_no_folder_of_a_machine() -> None:
    config = {
        "model": {"model_name": "/home/me/qwen", "lora_rank": 8},
        "dataset": {"name": "gsm8k", "data_dir": "/data"},
    }
    assert portable(config) == {"model": {"model_name": "qwen", "lora_rank": 8}, "dataset": {"name": "gsm8k"}}
    assert config["dataset"]["data_dir"] == "/data"


def test_the_smallest_rate_that_is_not_worse() -> None:
    def record(rate: float, mean: float) -> dict[str, Any]:
        config = {"dataset": {"validation_problems": 64}, "training": {"learning_rate": rate}}
        curve = {"mean": [0.01, None, mean]}
        return {"curves": {"metrics": {"validation/pass@1": curve}}, "config": config}

    found = [record(1e-4, 0.20), record(5e-5, 0.16), record(2e-5, 0.08), record(2e-4, 0.19)]
    assert best_rate(found)[0] == 5e-5
    assert best_rate([record(1e-4, 0.0), record(5e-5, 0.0)])[0] == 5e-5


def test_the_planned_runs_share_all_but_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.claims.plan.CONFIGS", tmp_path)
    plan = load_plan(PLAN)
    configs = {}
    for run in plan.runs:
        given = with_settings(run, "some/model", tmp_path, 3e-5 if run.regime == "gsm8k" else None)
        configs[run.name] = load_config(given.write_config()).as_dict()
    gtpo, grpo = configs["real-gsm8k-gtpo-s1"], configs["real-gsm8k-grpo-s1"]
    assert {key for key in gtpo if gtpo[key] != grpo[key]} <= {"method", "run_name", "objective"}
    assert gtpo["training"]["learning_rate"] == 3e-5
    assert gtpo["training"]["max_steps"] == 80
    rates = {name: config["training"]["learning_rate"] for name, config in configs.items() if "search" in name}
    assert sorted(rates.values()) == [5e-5, 2e-4]
    assert {config["method"] for name, config in configs.items() if "search" in name} == {"grpo"}
