"""The `gtpo` section of a verl config: presets and switches, and what verl cannot compute, refused by name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from approved import check_refusals

from gtpo.integrations.verl.settings import _requirements, check_settings
from gtpo.presets import PRESETS


def config(gtpo: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the parts of a verl config that decide its loss, as GTPO needs them, with dotted keys changed."""
    found: dict[str, Any] = {
        "gtpo": gtpo or {"preset": "gtpo"},
        "data": {"train_batch_size": 32, "max_response_length": 256},
        "algorithm": {
            "adv_estimator": "grpo",
            "use_kl_in_reward": False,
            "rollout_correction": {"bypass_mode": False, "rollout_rs": None},
        },
        "actor_rollout_ref": {
            "actor": {
                "policy_loss": {"loss_mode": "vanilla"},
                "loss_agg_mode": "seq-mean-token-mean",
                "entropy_coeff": 0,
                "use_kl_loss": False,
                "ppo_epochs": 1,
                "ppo_mini_batch_size": 32,
            },
            "rollout": {"n": 8, "temperature": 1.0, "multi_turn": {"enable": False}},
        },
        "trainer": {"use_v1": True, "critic_warmup": 0},
    }
    for dotted, value in changes.items():
        *path, name = dotted.replace("__", ".").split(".")
        section = found
        for part in path:
            section = section.setdefault(part, {})
        section[name] = value
    return found


def test_every_preset_that_verl_can_express() -> None:
    # The entropy term of Eq. 7 is verl's entropy bonus with the coefficient -gamma; the published code's clamped
    # logarithm is the one thing that verl does not have.
    needs = {
        "gtpo-eq7": {"actor_rollout_ref__actor__entropy_coeff": -0.1},
        "gtpo-published": {"gtpo": {"preset": "gtpo-published", "log_clamp": 0}},
    }
    for name, objective in PRESETS.items():
        settings = check_settings(config(**{"gtpo": {"preset": name}, **needs.get(name, {})}))
        assert settings.preset == name
        assert settings.objective.filter == objective.filter
        assert settings.batch_rows == 256
        assert settings.needs_calibration == (objective.filter == "auto")


def test_switches_and_a_known_initial_entropy() -> None:
    settings = check_settings(config({"gamma": 0.01, "filter": "auto", "initial_entropy": 0.4}))
    assert settings.objective.gamma == 0.01
    assert settings.initial_entropy == 0.4
    assert not settings.needs_calibration


def test_what_verl_cannot_compute_is_refused_by_name() -> None:
    """Each sentence has a headline, and a line a fault."""

    def verl(**changes: Any) -> None:
        check_settings(config(**changes))

    check_refusals("refused-verl.txt", {"verl": verl, "check_settings": check_settings, "config": config})


def test_the_kl_loss_of_the_grpo_preset_is_verls() -> None:
    check_settings(config({"preset": "grpo"}, actor_rollout_ref__actor__use_kl_loss=True))


def read_recipe(folder: Path, name: str) -> dict[str, Any]:
    """Return a recipe with the recipes it starts from, as Hydra composes them, without verl's own defaults."""
    recipe = yaml.safe_load((folder / f"{name}.yaml").read_text())
    (base,) = (entry for entry in recipe.pop("defaults") if entry != "_self_")
    return merge({} if base == "ppo_trainer" else read_recipe(folder, base), recipe)


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(base)
    for key, value in over.items():
        merged[key] = merge(merged[key], value) if isinstance(value, dict) and key in merged else value
    return merged


@pytest.mark.parametrize("size", ["1x8", "4x8"])
def test_the_recipes_differ_in_the_method_alone(root: Path, size: str) -> None:
    folder = root / "configs" / "verl"
    grpo, gtpo = (read_recipe(folder, f"gsm8k-{method}-{size}") for method in ("grpo", "gtpo"))
    assert gtpo.pop("gtpo") == {"preset": "gtpo"}
    assert gtpo["trainer"].pop("v1") == {"trainer_mode": "gtpo_sync"}
    assert (gtpo["trainer"].pop("experiment_name"), grpo["trainer"].pop("experiment_name")) == ("gtpo", "grpo")
    assert gtpo == grpo
    assert grpo["trainer"]["nnodes"] == int(size[0])


def test_the_page_lists_every_key_that_is_required(root: Path) -> None:
    page = (root / "docs" / "verl.md").read_text()
    required = {key for key, _, _ in _requirements(PRESETS["gtpo"], "gtpo", config())}
    assert {key for key in required if key not in page} == {"trainer.use_v1", "trainer.critic_warmup"}
