"""What verl is given by us, without verl: the section `gtpo`, token-level advantages, rewards and data sets.

verl's formula with the advantages is reference_loss, in value and in gradient; what it cannot compute is refused.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
import yaml
from approved import check_refusals
from torch import Tensor

from gtpo.integrations.verl.advantages import token_advantages
from gtpo.integrations.verl.data import main
from gtpo.integrations.verl.reward import final_score
from gtpo.integrations.verl.settings import _requirements, check_settings
from gtpo.objective import PRESETS, Objective, reference_loss, token_entropy
from gtpo.rewards import chat_messages, final_reward

# -- settings ----------------------------------------------------------------------------------------------------------


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


# -- advantages --------------------------------------------------------------------------------------------------------

G, L, V = 6, 17, 11
EXPRESSIBLE = [
    replace(objective, entropy_temperature="sampling", log_clamp=0.0, entropy_threshold=1.95)
    for objective in PRESETS.values()
]


def batch(seed: int, prompts: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = prompts * G
    lengths = torch.randint(3, L + 1, (rows,), generator=generator)
    return {
        "logits": torch.randn(rows, L, V, dtype=torch.float64, generator=generator) * 1.1,
        "completion_ids": torch.randint(0, 3, (rows, L), generator=generator),
        "completion_mask": torch.arange(L)[None] < lengths[:, None],
        "rewards": torch.randint(0, 3, (rows,), generator=generator).double(),
    }


def entropies(logits: Tensor) -> Tensor:
    return token_entropy(logits.log_softmax(dim=-1)).detach()


def loss_of_verl(objective: Objective, logits: Tensor, ids: Tensor, mask: Tensor, advantages: Tensor, n: int) -> Tensor:
    """-1/N sum_i 1/|o_i| sum_t rho a - c/N sum_i <H>_i, as verl's documentation of its losses has it."""
    log_probabilities = logits.log_softmax(dim=-1)
    logps = log_probabilities.gather(-1, ids[..., None]).squeeze(-1)
    ratio = torch.exp(logps - logps.detach())
    lengths = mask.sum(dim=1).clamp(min=1)
    policy = (torch.where(mask, ratio * advantages, 0.0).sum(dim=1) / lengths).sum() / n
    if objective.entropy_mode != "loss":
        return -policy
    entropy = torch.where(mask, token_entropy(log_probabilities), 0.0).sum(dim=1) / lengths
    return objective.gamma * (G if objective.group_reduction == "sum" else 1) * entropy.sum() / n - policy


@pytest.mark.parametrize("objective", EXPRESSIBLE, ids=list(PRESETS))
@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradient_are_the_reference(objective: Objective, seed: int) -> None:
    given = batch(seed)
    logits = given.pop("logits").requires_grad_()
    expected = reference_loss(objective, logits, **given, num_generations=G, initial_entropy=0.4)
    (expected_gradient,) = torch.autograd.grad(expected.loss, logits)

    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(seed))  # a group's rows lie apart
    ids, mask, rewards = (given[name][order] for name in ("completion_ids", "completion_mask", "rewards"))
    prompts = [f"prompt-{row // G}" for row in order.tolist()]
    logps = logits[order].detach().log_softmax(dim=-1).gather(-1, ids[..., None]).squeeze(-1)
    found = token_advantages(
        objective, ids, mask, rewards, entropies(logits[order]), prompts, batch_rows=len(order), token_logps=logps,
        initial_entropy=0.4,
    )  # fmt: skip
    loss = loss_of_verl(objective, logits[order], ids, mask, found.advantages.double(), len(order))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert float((loss - expected.loss).abs()) <= 1e-6 * max(1.0, float(expected.loss.abs()))
    assert float((gradient - expected_gradient).norm() / expected_gradient.norm()) <= 1e-6
    if objective.filter != "never" and objective.filter_scope == "all":
        assert 0 < found.metrics["gate/kept"] < 1
    assert found.metrics["gate/kept"] == pytest.approx(float(expected.kept.double().mean()))


def test_padding_and_groups_of_other_sizes_keep_the_mean_over_groups() -> None:
    """Two prompts of 6 and 4 samples and six rows of padding: each prompt counts as it does alone, by half."""
    given, objective = batch(3, prompts=2), PRESETS["gtpo-no-filter"]
    logits = given["logits"]
    groups = [slice(0, 6), slice(6, 10)]
    rows = [row for group in groups for row in range(group.start, group.stop)]
    expected = sum(
        reference_loss(
            objective, logits[g], given["completion_ids"][g], given["completion_mask"][g], given["rewards"][g],
            g.stop - g.start,
        ).loss
        / 2
        for g in groups
    )  # fmt: skip
    padding = 6
    ids = torch.cat([given["completion_ids"][rows], torch.zeros(padding, L, dtype=torch.long)])
    mask = torch.cat([given["completion_mask"][rows], torch.zeros(padding, L, dtype=torch.bool)])
    padded = torch.cat([logits[rows], torch.zeros(padding, L, V)])
    rewards, prompts = (
        torch.cat([given["rewards"][rows], torch.zeros(padding)]),
        [*"aaaaaabbbb", *["padding"] * padding],
    )
    found = token_advantages(objective, ids, mask, rewards, entropies(padded), prompts, batch_rows=16)
    assert not found.advantages[len(rows) :].any()
    loss = loss_of_verl(objective, padded, ids, mask, found.advantages.double(), 16)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    assert found.metrics["completions/length"] == pytest.approx(float(mask.sum() / len(rows)))


def test_unscored_and_truncated_completions_are_outside_the_loss() -> None:
    given, objective = batch(4, prompts=1), replace(PRESETS["gtpo-no-filter"], mask_truncated=True)
    given["rewards"][1] = torch.nan
    truncated = torch.zeros(G, dtype=torch.bool)
    truncated[2] = True
    logits = given.pop("logits")
    found = token_advantages(
        objective, *given.values(), entropies(logits), ["a"] * G, batch_rows=G, truncated=truncated
    )
    assert not found.advantages[1:3].any()
    assert found.advantages[0].any()
    assert found.metrics["reward/unscored"] == pytest.approx(1 / G)
    assert found.metrics["completions/truncated"] == pytest.approx(1 / G)


def test_a_batch_that_is_none_is_refused() -> None:
    logits, *tokens = batch(5, prompts=1).values()
    arguments = [*tokens, entropies(logits)]
    with pytest.raises(ValueError, match="more than one optimizer step"):
        token_advantages(PRESETS["grpo"], *arguments, ["a"] * G, batch_rows=4)
    arguments[1] = torch.zeros_like(arguments[1])
    with pytest.raises(ValueError, match="none of the 6 completions"):
        token_advantages(PRESETS["grpo"], *arguments, ["a"] * G, batch_rows=6)


# -- rewards and data --------------------------------------------------------------------------------------------------

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
