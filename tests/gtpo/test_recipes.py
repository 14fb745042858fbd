"""Every YAML of configs/ loads, is what its name says, and is in configs/README.md."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from logs import logged

from gtpo.common.errors import UserError
from gtpo.config import TrainConfig, load_config
from gtpo.config.load import TABLE, config_names, find_config
from gtpo.presets import PRESETS

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(
    f"{name}.yaml"
    for name in config_names()
    # recipes/ holds layers of a config; the others have formats of their own
    if not name.startswith(("accelerate/", "recipes/", "slurm/", "verl/"))
)
LAYERS = sorted(path.stem for path in (ROOT / "configs/recipes").glob("*.yaml") if path.stem != "start")
PAPER = [f"paper/{model}-{data}" for model in ("llama", "qwen") for data in ("gsm8k", "math")]
RUNS = ["gtpo-g8", "gtpo-g12", "gtpo-g8-matched", "gtpo-g12-matched", "sft"] + [
    f"grpo-g{group}-beta{beta}" for group in (8, 12) for beta in ("0", "1e-6")
]


@functools.cache
def load(name: str) -> TrainConfig:
    return load_config(ROOT / "configs" / name, world_size=1)


@pytest.mark.parametrize("name", RECIPES)
def test_resolved_recipe_reads_back_to_itself(name: str, tmp_path: Path) -> None:
    config = load(name)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    with logged() as notices:
        assert load_config(tmp_path / "config.yaml").as_dict() == config.as_dict()
    assert notices == []


def test_an_error_in_a_table_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    table = "base:\n  method: gtpo\nsize:\n  small: {}\n  large:\n    objective: {gamm: 1}\n"
    (tmp_path / "mine" / TABLE).write_text(table)
    with pytest.raises(UserError, match=r"table.yaml:6: unknown key .objective.gamm"):
        load_config(tmp_path / "mine/large.yaml")
    assert find_config("paper/table") is None


@pytest.mark.parametrize("base", PAPER)
@pytest.mark.parametrize("run", RUNS)
def test_paper_recipe_is_what_its_name_says(base: str, run: str) -> None:
    config = load(f"{base}-{run}.yaml")
    training, model = config.training, config.model
    llama = "llama" in base
    assert model.model_name == ("meta-llama/Llama-3.1-8B-Instruct" if llama else "Qwen/Qwen2.5-3B-Instruct")
    assert (model.lora_rank, model.lora_alpha) == ((128, 128) if llama else (64, 64))
    assert model.load_in_4bit
    assert model.max_seq_length - training.max_prompt_length == 1500
    assert config.dataset.name == base.split("-")[1]
    assert config.method == run.split("-")[0]
    assert (training.learning_rate, training.max_grad_norm, training.weight_decay) == (1e-6, 0.1, 0.1)
    high = config.method == "gtpo" and not run.endswith("matched")
    assert (training.adam_beta1, training.adam_beta2) == ((0.999999, 0.999999) if high else (0.9, 0.95))
    assert training.optimizer == ("paged_adamw_32bit" if high else "paged_adamw_8bit")
    if config.method != "sft":
        group = 12 if "g12" in run else 8
        assert (training.num_generations, training.per_device_train_batch_size) == (group, group)
        assert training.beta == (1e-6 if run.endswith("1e-6") else 0)
    if config.method == "gtpo":
        assert config.resolved_objective().filter == ("always" if llama else "never")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fig4-llama-math-gamma0.001", {"gamma": 0.001, "filter": "always", "entropy_mode": "advantage"}),
        ("fig4-llama-math-no-filter", {"gamma": 0.1, "filter": "never", "entropy_mode": "advantage"}),
        ("fig5-llama-gsm8k-conflict-only", {"filter": "never", "entropy_mode": "none", "conflict": True}),
        ("fig10a-llama-gsm8k-threshold2.00", {"entropy_threshold": 2.0, "filter": "always", "filter_scope": "all"}),
        ("fig10b-qwen-gsm8k-only-negative1.05", {"entropy_threshold": 1.05, "filter_scope": "negative"}),
        ("fig10c-llama-gsm8k-grpo-filtered", {"conflict": False, "entropy_threshold": 1.05, "gamma": 0.1}),
    ],
)
def test_ablation_varies_what_its_name_says(name: str, expected: dict[str, object]) -> None:
    objective = load(f"ablations/{name}.yaml").resolved_objective()
    assert {key: getattr(objective, key) for key in expected} == expected


def test_as_computed_recipe_is_the_published_objective() -> None:
    config = load("published/llama-math-as-computed.yaml")
    assert config.resolved_objective() == PRESETS["gtpo-published"]
    assert config.trainer.reward_funcs == ["gtpo.rewards.published_final_reward"]
    assert config.training.temperature == 0.9


def test_every_layer_has_a_run_of_the_demo_and_names_its_source() -> None:
    plain, gtpo, sft = (load(f"demo/{name}.yaml") for name in ("grpo", "gtpo", "sft"))
    assert plain.model.model_name == f"results/train/{load('demo/base.yaml').run_name}"
    for other in (gtpo, sft):
        assert {name for name, value in plain if value != getattr(other, name)} <= {"run_name", "method", "objective"}
    assert len(LAYERS) == 8
    for name in LAYERS:
        text = (ROOT / f"configs/recipes/{name}.yaml").read_text()
        assert "arXiv 25" in text
        assert {"Sets:", "Leaves out:"} & set(re.findall(r"Sets:|Leaves out:", text))
        with logged() as notices:
            config = load(f"demo/{name}.yaml")
        assert notices == [], "nothing in a recipe is changed"
        for section in ("model", "dataset", "rollout", "health"):
            assert getattr(config, section) == getattr(plain, section), f"{name}: a layer sets the method alone"
