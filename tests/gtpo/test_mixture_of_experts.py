"""Mixtures of experts: the load-balancing loss is the one TRL adds, or the model is refused before its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from step_gradients import Gradients
from test_gradients import assert_same
from test_sampler_check import TOKENIZER, small
from test_train_run import config_of as tiny_config
from test_trainer import SETTINGS, needs_trl_kernel
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from gtpo import GTPOConfig, GTPOTrainer
from gtpo.common.errors import UserError
from gtpo.train.command import train

COEFFICIENT = 0.5  # so that its gradient is no rounding error beside the policy's


def save_model(folder: Path, family: str, coefficient: float = COEFFICIENT) -> Path:
    """Write a model of two layers with four experts, two of them a token."""
    small(family, router_aux_loss_coef=coefficient).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def step(trainer_class: Any, arguments: Any, folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Return the gradient of one optimizer step of two micro-batches, and what it logged."""
    gradients = Gradients()
    trainer = trainer_class(
        model=str(folder),
        reward_funcs=lambda completion_ids, **_: [float(sum(ids) % 7) for ids in completion_ids],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["1 + 2", "30 - 4"] * 2}),
        callbacks=[gradients],
    )
    trainer.train()
    return gradients.found, next(entry for entry in trainer.state.log_history if "loss" in entry)


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return SETTINGS | {"output_dir": str(folder / "out"), "gradient_accumulation_steps": 2, "max_steps": 1,
                       "max_grad_norm": 0.0, "gradient_checkpointing": False, "shuffle_dataset": False,
                       "model_init_kwargs": {"dtype": "float32"}, **changes}  # fmt: skip


@needs_trl_kernel
@pytest.mark.parametrize("family", ["Qwen3Moe", "Mixtral"])
def test_load_balancing_loss_is_trls(family: str, tmp_path: Path) -> None:
    """With preset grpo the gradient is that of TRL's GRPO, the routers' included, and so is the logged loss."""
    folder, common = save_model(tmp_path / "model", family), settings(tmp_path)
    expected, logged = step(GRPOTrainer, GRPOConfig(**common, loss_type="grpo"), folder)
    found, ours = step(GTPOTrainer, GTPOConfig(**common, preset="grpo"), folder)
    assert ours["aux_loss"] == pytest.approx(logged["aux_loss"], rel=1e-6)
    assert ours["loss"] == pytest.approx(logged["loss"], rel=1e-5)
    assert_same(found, expected)
    # Without the coefficient the routers are moved elsewhere: the comparison above sees the loss that it is about.
    without, _ = step(GTPOTrainer, GTPOConfig(**common, preset="grpo", router_aux_loss_coef=0.0), folder)
    router = next(name for name in expected if name.endswith("gate.weight"))
    assert (without[router] - expected[router]).abs().max() > 0.01 * expected[router].abs().max()


def config_of(tmp_path: Path, model: Path, **changes: Any) -> Any:
    given = {"model.build": None, "model.model_name": str(model), "training.max_steps": 2}
    return tiny_config(tmp_path, **given, **changes)


@pytest.mark.parametrize("method", ["gtpo", pytest.param("grpo", marks=needs_trl_kernel), "sft"])
def test_run(method: str, tmp_path: Path) -> None:
    folder = train(
        config_of(tmp_path, save_model(tmp_path / "model", "Qwen3Moe"), method=method),
        results_dir=tmp_path / "results",
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["router/aux_loss"] > 1 for row in rows)  # 2 where all experts are used alike, more elsewhere
    assert AutoModelForCausalLM.from_pretrained(folder / "final").config.model_type == "qwen3_moe"


def test_family_whose_loss_trl_cannot_compute_is_refused_without_its_weights_or_trains_without_the_loss(
    tmp_path: Path,
) -> None:
    folder = save_model(tmp_path / "model", "GraniteMoe")
    with pytest.raises(ValueError, match="granitemoe is a mixture of experts"):
        step(GTPOTrainer, GTPOConfig(**settings(tmp_path)), folder)
    config, weights = folder / "config.json", folder / "model.safetensors"
    weights.rename(tmp_path / "aside")
    with pytest.raises(
        UserError, match=r"granitemoe is a mixture .* cannot compute without num_experts .* to 0"
    ) as told:
        train(config_of(tmp_path, folder), results_dir=tmp_path / "results")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "results/train/run/run.json").exists()
    # As the refusal advises.
    (tmp_path / "aside").rename(weights)
    config.write_text(json.dumps({**json.loads(config.read_text()), "router_aux_loss_coef": 0.0}))
    run = train(config_of(tmp_path, folder), results_dir=tmp_path / "results")
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
