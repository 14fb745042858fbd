"""Token credit of other papers, each against a plain loop over tokens, and a loss of the user's own."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from step_gradients import step_gradients
from torch import Tensor

from gtpo.common.errors import UserError
from gtpo.common.provenance import file_hash
from gtpo.completions import group_advantages, prepare_completions
from gtpo.config import load_config
from gtpo.integrations.verl.advantages import token_advantages
from gtpo.objective import PRESETS, Objective, policy_loss, reference_loss, reference_statistics
from gtpo.own_loss import needs_entropy_gradient, user_loss, with_loss

G, L, V = 4, 12, 9
CREDIT = {
    **{name: PRESETS[name] for name in ("gtpo", "grpo", "nsr", "psr", "w-reinforce", "rsi", "ntf")},
    # Where the schedule begins: above this policy's entropy, about it, and below it.
    **{f"band-{low}": replace(PRESETS["entropy-band"], band_low=low, band_high=low + 0.1) for low in (3.0, 1.6, 0.1)},
    "positive-advantage-reweighting": replace(PRESETS["grpo"], positive_advantage_weight=0.25),
    "rsi-of-gtpo": replace(PRESETS["gtpo"], surprisal_low=0.5, surprisal_high=1.5, negative_token_share=0.4),
}


def batch(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(2 * G, L, V, generator=draw, dtype=torch.float64) * 1.3
    ids = torch.randint(0, 4, (2 * G, L), generator=draw)
    mask = torch.arange(L) < torch.randint(3, L + 1, (2 * G, 1), generator=draw)
    return logits, ids, mask, torch.randint(0, 3, (2 * G,), generator=draw).double()


def by_token(objective: Objective, logits: Tensor, ids: Tensor, mask: Tensor, rewards: Tensor) -> Tensor:
    """Return the loss by plain loops over groups, completions and tokens; only lambda is taken from elsewhere."""
    probabilities = logits.softmax(dim=-1)
    lengths = [int(row.sum()) for row in mask]

    def surprisal(i: int, t: int) -> Tensor:
        return -probabilities[i, t, ids[i, t]].log()

    def entropy(i: int, t: int) -> float:
        return -sum(float(p) * math.log(float(p)) for p in probabilities[i, t].detach())

    means = [sum(entropy(i, t) for t in range(n)) / n for i, n in enumerate(lengths)]
    round_mean = sum(means) / len(means)
    high = objective.band_high is not None and round_mean > objective.band_high
    direction = int(high) - int(round_mean < objective.band_low)
    scored = group_advantages(objective, rewards, G)
    weights = prepare_completions(objective, scored, ids, mask, G).weights
    total = torch.zeros((), dtype=torch.float64)
    for first in range(0, len(ids), G):
        group = rewards[first : first + G].tolist()
        mean = sum(group) / G
        deviation = math.sqrt(sum((r - mean) ** 2 for r in group) / (G - 1))
        advantages = [(r - mean) / (deviation + 1e-4) if deviation else 0.0 for r in group]
        accepted = [i for i in range(G) if direction * advantages[i] >= 0]
        for place in accepted:
            i, a = first + place, advantages[place]
            kept = objective.filter == "never" or means[i] <= objective.entropy_threshold
            a *= objective.positive_advantage_weight if a > 0 else objective.negative_advantage_weight
            a -= objective.gamma * means[i] if objective.entropy_mode == "advantage" else 0.0
            least_likely = sorted(range(lengths[i]), key=lambda t, i=i: -surprisal(i, t).item())
            if advantages[place] < 0:
                least_likely = least_likely[: max(1, round(objective.negative_token_share * lengths[i]))]
            for t in least_likely if kept else ():
                index = surprisal(i, t).item() / entropy(i, t)
                if index < objective.surprisal_low or index > (objective.surprisal_high or math.inf):
                    continue
                logp = -surprisal(i, t)
                rho = (logp - logp.detach()).exp()
                total = total - a * float(weights[i, t]) * rho / lengths[i] / len(accepted)
    return total / (len(ids) // G)


@pytest.mark.parametrize("name", CREDIT)
def test_each_rule_is_its_loop_over_tokens(name: str) -> None:
    seen = set()
    for seed in range(4):
        logits, ids, mask, rewards = batch(seed)
        objective = replace(CREDIT[name], entropy_threshold=1.7)
        ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        found = reference_loss(objective, ours, ids, mask, rewards, G, initial_entropy=0.1).loss
        wanted = by_token(objective, theirs, ids, mask, rewards)
        found.backward()
        wanted.backward()
        assert abs(found.item() - wanted.item()) <= 1e-12
        assert float((ours.grad - theirs.grad).abs().max()) <= 1e-12
        plain = logits.clone().requires_grad_()
        reference_loss(PRESETS["grpo"], plain, ids, mask, rewards, G).loss.backward()
        seen.add(bool((ours.grad != plain.grad).any()))
    # A rule that never acts on these batches would not have been tested.
    assert seen == {name not in ("grpo", "band-1.6")}


def test_a_token_set_holds_at_least_one_and_ties_go_to_the_first() -> None:
    objective = replace(PRESETS["ntf"], negative_token_share=0.01)
    logps = torch.tensor([[-1.0, -3.0, -3.0, -2.0]] * 2, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 4, dtype=torch.bool)
    given = prepare_completions(
        objective, group_advantages(objective, [1.0, 0.0], 2), torch.arange(8).view(2, 4), mask, 2
    )
    loss = policy_loss(objective, given, logps, torch.ones_like(logps), mask, 2, gate_active=False).loss
    (slope,) = torch.autograd.grad(loss, logps)
    assert [int(count) for count in (slope != 0).sum(dim=1)] == [4, 1]
    assert slope[1].nonzero().tolist() == [[1]]


@pytest.mark.parametrize("counts", ["gate", "weight", "excluded", "token"])
def test_a_ratio_that_overflows_where_nothing_counts_leaves_the_loss_finite(counts: str) -> None:
    objective = replace(PRESETS["gtpo"], filter="always", entropy_mode="none")
    _, ids, mask, _ = batch(0)
    ids, mask = ids[:2], mask[:2]
    given = prepare_completions(objective, group_advantages(objective, [1.0, 0.0], 2), ids, mask, 2)
    old = torch.full(ids.shape, -1.0)
    old[1] = -800.0  # exp of the difference is infinite
    given = given._replace(old_logps=old, old_entropy=torch.tensor([0.1, 5.0 if counts == "gate" else 0.1]))
    if counts == "weight":
        given = given._replace(weights=given.weights * torch.tensor([[1.0], [0.0]]))
    if counts == "excluded":
        given = given._replace(excluded=torch.tensor([False, True]))
    if counts == "token":
        objective = replace(objective, surprisal_low=5.0)
    logps = torch.full(ids.shape, -0.5, requires_grad=True)
    loss = policy_loss(objective, given, logps, torch.full(ids.shape, 0.4), mask, 2, gate_active=True).loss
    assert loss.isfinite()
    assert torch.autograd.grad(loss, logps)[0].isfinite().all()


# -- a loss of the user's own ------------------------------------------------------------------------------------------


def own_rsi(objective, completions, logps, entropies, mask, group, **options):
    surprisal = torch.zeros(mask.shape)
    surprisal[mask] = (-logps / entropies.clamp(min=torch.finfo(logps.dtype).tiny)).detach()[mask]
    stable = (surprisal >= 0.1) & (surprisal <= 3.0)
    completions = completions._replace(weights=completions.weights * stable)
    return policy_loss(objective, completions, logps, entropies, mask, group, **options)


class Scaled:
    def __call__(self, *arguments, **options):
        return policy_loss(*arguments, **options)


def own_entropy(objective, completions, logps, entropies, mask, num_generations, **options):
    found = policy_loss(objective, completions, logps, entropies, mask, num_generations, **options)
    return found._replace(loss=found.loss + 0.1 * torch.where(mask, entropies, 0.0).sum() / mask.sum())


def declared(*arguments, **options):
    return own_entropy(*arguments, **options)


declared.needs_entropy_gradient = True
not_a_function = 3


def too_few(objective, completions):
    return None


def raising(*arguments, **options):
    raise KeyError("mine")


def changing(change):
    return lambda *arguments, **options: change(policy_loss(*arguments, **options))


of_another_type = changing(lambda found: found.loss)
of_another_shape = changing(lambda found: found._replace(kept=found.kept[:1]))
not_finite = changing(lambda found: found._replace(loss=found.loss * math.nan))
without_gradient = changing(lambda found: found._replace(loss=found.loss.detach()))
FAULTS = {
    "not_a_function": "'int' object is not callable; it is called as policy_loss is",
    "too_few": "it is called as policy_loss is, (objective, completions, logps, ",
    "raising": "raised KeyError: 'mine'",
    "of_another_type": "returned Tensor; return a gtpo.objective.PolicyLoss",
    "of_another_shape": "kept of its PolicyLoss must be a tensor [4]; found [1]",
    "not_finite": "is nan on a batch whose statistics are finite",
    "without_gradient": "has no gradient",
    "own_entropy": "differentiates the entropies: say so with needs_entropy_gradient = True",
    "absent": 'has no "absent"',
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_loss_that_cannot_be_one_is_refused_in_a_sentence(name: str) -> None:
    for preset in ("gtpo", "grpo"):
        with pytest.raises(UserError, match=re.escape(f'objective.loss "{__name__}:{name}"')) as fault:
            user_loss(replace(PRESETS[preset], loss=f"{__name__}:{name}"))
        assert FAULTS[name] in str(fault.value)
        assert "\n" not in str(fault.value)


def test_a_loss_that_differentiates_the_entropies_says_so_or_its_objective_does() -> None:
    assert needs_entropy_gradient(PRESETS["grpo"], user_loss(PRESETS["grpo"], declared))
    assert user_loss(PRESETS["gtpo-eq7"], own_entropy) is own_entropy
    # A batch on which it pushes nothing refuses no loss.
    nothing = replace(PRESETS["gtpo"], entropy_threshold=1e-3, surprisal_low=99.0)
    assert user_loss(nothing, own_rsi) is own_rsi
    assert not needs_entropy_gradient(PRESETS["grpo"], user_loss(PRESETS["grpo"], own_rsi))


@pytest.mark.parametrize(
    ("function", "name"), [(own_rsi, "own_rsi"), (partial(own_rsi, epsilon_low=0.1), "own_rsi"), (Scaled(), "Scaled")]
)
def test_a_function_that_is_handed_in_has_a_name_and_the_hash_of_its_file(function: Any, name: str) -> None:
    objective = with_loss(PRESETS["grpo"], function)
    assert (objective.loss, objective.loss_source) == (f"{__name__}:{name}", file_hash(Path(__file__)))


def test_a_users_rsi_is_the_presets_to_the_last_digit_on_trl_and_verl(tmp_path) -> None:
    ours = step_gradients(tmp_path / "ours.pt", "rsi", 4, 2)
    own = step_gradients(tmp_path / "own.pt", "grpo", 4, 2, loss=own_rsi)
    assert ours.keys() == own.keys()
    assert all(torch.equal(ours[name], own[name]) for name in ours)
    assert any(bool(gradient.any()) for gradient in ours.values())

    logits, ids, mask, rewards = batch(1)
    logps, entropies = reference_statistics(PRESETS["rsi"], logits, ids, mask, 1.0)
    prompts = [f"prompt {row // G}" for row in range(2 * G)]
    given, known = (ids, mask, rewards, entropies, prompts), {"batch_rows": 2 * G, "token_logps": logps}
    preset = token_advantages(PRESETS["rsi"], *given, **known).advantages
    users = token_advantages(PRESETS["grpo"], *given, **known, loss_function=own_rsi).advantages
    assert torch.equal(preset, users)
    assert 0 < int((users != 0).sum()) < int(mask.sum())


def test_another_formula_in_the_same_place_is_another_setting(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "def mine(*given, **options):\n    return None\n"
    (tmp_path / "my_losses.py").write_text(text)
    first = load_config("laptop/first-steps", {"objective.loss": "my_losses:mine"}).as_dict()["objective"]
    assert (first["loss"], len(first["loss_source"])) == ("my_losses:mine", 16)
    (tmp_path / "my_losses.py").write_text(text + "# changed\n")
    assert (
        load_config("laptop/first-steps", {"objective.loss": "my_losses:mine"}).as_dict()["objective"]["loss_source"]
        != first["loss_source"]
    )
    with pytest.raises(UserError, match='no module named "my_lossse"'):
        load_config("laptop/first-steps", {"objective.loss": "my_lossse:mine"})
