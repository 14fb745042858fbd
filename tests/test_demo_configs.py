"""The demo compares methods, so its configs may differ in nothing else."""

from __future__ import annotations

import pytest

from gtpo.config import load_config

METHOD_KEYS = {"run_name", "method", "objective"}


@pytest.fixture(autouse=True)
def _in_the_checkout(root, monkeypatch):
    monkeypatch.chdir(root)


def resolved(name: str) -> dict:
    return load_config(f"configs/demo/{name}.yaml").model_dump(mode="json")


def test_the_three_methods_share_everything_but_the_method():
    configs = {name: resolved(name) for name in ("sft", "grpo", "gtpo")}
    assert [config["method"] for config in configs.values()] == ["sft", "grpo", "gtpo"]
    shared = [{k: v for k, v in config.items() if k not in METHOD_KEYS} for config in configs.values()]
    assert shared[0] == shared[1] == shared[2]


def test_the_methods_start_from_the_run_that_the_base_config_makes():
    assert resolved("base")["model"]["build"] is not None
    assert resolved("gtpo")["model"]["model_name"] == f"results/train/{resolved('base')['run_name']}"


def test_the_base_model_s_targets_are_faulty_by_the_configured_share_and_no_target_of_a_method_is():
    from gtpo.inputs.dataset import TrainingProblems
    from gtpo.rewards import format_ok
    from gtpo.rewards.data.arithmetic import arithmetic_problems

    shares = {}
    for name in ("base", "sft"):
        config = load_config(f"configs/demo/{name}.yaml")
        rows, _ = TrainingProblems(config, arithmetic_problems("train", 400)).select(None)
        shares[name] = sum(not format_ok(row["completion"][0]["content"]) for row in rows) / len(rows)
    assert 0.2 < shares["base"] < 0.35  # half of the faults are in the tags, half in the answer
    assert shares["sft"] == 0
