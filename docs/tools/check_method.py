"""What `make docs` checks of the page on the method and of paper_vs_code.md: presets, numbers, switches."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest
import torch

from gtpo.completions import group_advantages, prepare_completions
from gtpo.config.load import WITHOUT_EFFECT
from gtpo.config.schema import keys
from gtpo.objective import (
    LN2,
    PRESETS,
    Objective,
    entropy_gate,
    filter_is_active,
    loss_from_statistics,
    reference_loss,
    token_entropy,
)

ROOT = Path(__file__).resolve().parents[2]
METHOD = (ROOT / "docs/method.md").read_text(encoding="utf-8")
DIFFERENCES = (ROOT / "results/published/paper_vs_code.md").read_text(encoding="utf-8")
PASSED = {"training.loss_type", "training.epsilon"}
"""Settings of TRL that these pages name."""


# -- presets ---------------------------------------------------------------------------------------------------------


def preset_table() -> str:
    """Return what each preset sets otherwise than `gtpo`."""

    def cell(value: object) -> str:
        return "ln 2" if value == LN2 else str(value).lower() if isinstance(value, bool) else f"{value}"

    lines = ["| preset | differs from `gtpo` in |", "|:--|:--|"]
    for name, preset in PRESETS.items():
        other = [f.name for f in fields(Objective) if getattr(preset, f.name) != getattr(PRESETS["gtpo"], f.name)]
        shown = ", ".join(f"`{field}: {cell(getattr(preset, field))}`" for field in other)
        lines += [f"| `{name}` | {shown} |"] if other else []
    return "\n".join(lines)


def same_in_all() -> str:
    """Return the fields whose value is the same in every preset."""
    same = [f for f in fields(Objective) if len({getattr(o, f.name) for o in PRESETS.values()}) == 1]
    assert all(f.default is not MISSING and f.default == getattr(PRESETS["gtpo"], f.name) for f in same)
    return ", ".join(f"`{f.name}: {str(f.default).lower()}`" for f in same)


def test_table_of_presets() -> None:
    assert preset_table() in METHOD
    assert same_in_all() in METHOD


# -- the worked example ----------------------------------------------------------------------------------------------

COMPLETIONS = ("The sum is 4 . <eos>", "It is 4 . <eos>", "The sum is 5 . <eos>", "It must be 5 . <eos>")
REWARDS = (20.0, 20.0, 10.0, 1.0)
ENTROPIES = (0.20, 0.35, 0.45, 0.90)
H_INI = 0.42


def example(name: str) -> tuple[list[str], float]:
    """Return the example's rows under a preset, and its loss."""
    objective = PRESETS[name]
    words = [text.split() for text in COMPLETIONS]
    vocabulary = sorted({word for row in words for word in row})
    lengths = torch.tensor([len(row) for row in words])
    ids = torch.zeros(4, int(lengths.max()), dtype=torch.long)
    for i, row in enumerate(words):
        ids[i, : len(row)] = torch.tensor([vocabulary.index(word) for word in row])
    mask = torch.arange(ids.shape[1]) < lengths[:, None]
    scored = group_advantages(objective, torch.tensor(REWARDS, dtype=torch.float64), 4)
    spans = prepare_completions(objective, scored, ids, mask, 4)
    advantages = scored.advantages
    entropy = torch.tensor(ENTROPIES, dtype=torch.float64)
    kept = entropy_gate(objective, entropy, advantages, gate_active=filter_is_active(objective, H_INI))
    shaped = torch.where(kept, advantages - objective.gamma * entropy, 0.0)
    total = loss_from_statistics(
        objective, advantages, entropy, lengths, spans.forward, spans.backward, 4, initial_entropy=H_INI
    )
    norm = torch.maximum(spans.forward, spans.backward) if objective.conflict_norm == "max" else torch.ones(4)
    sums = torch.where(mask, spans.weights, 0.0).sum(dim=1)
    assert torch.allclose(total.losses, -shaped * sums / lengths / norm), "the parts make the loss"
    rows = []
    for i in range(4):
        weights = " ".join(f"{weight:.0f}" for weight in spans.weights[i, : lengths[i]].tolist())
        rows.append(f"| {i + 1} | {advantages[i]:+.4f} | {weights} | {shaped[i]:+.4f} | {total.losses[i]:+.4f} |")
    return rows, float(total.loss)


@pytest.mark.parametrize("name", ["gtpo", "gtpo-published"])
def test_worked_example(name: str) -> None:
    rows, loss = example(name)
    for text, reward, entropy, row in zip(COMPLETIONS, REWARDS, ENTROPIES, rows, strict=True):
        assert rf"`{text}` with reward {reward:.0f} and \<H\> {entropy:.2f}" in METHOD
        assert row in METHOD
    assert f"`{name}`: **{loss:+.4f}**" in METHOD


# -- which way entropy goes ------------------------------------------------------------------------------------------

POLICY = (0.7, 0.1, 0.1, 0.1)
GROUP = 8
STEP = 0.1


def one_token_steps() -> dict[str, float]:
    """Return what one step on G one-token completions of equal reward does to the entropy, in both modes, exactly.

    All groups of 8 tokens are enumerated with their probabilities. Gradients come from `reference_loss`.
    """
    logits = torch.tensor(POLICY, dtype=torch.float64).log()
    advantage_mode, loss_mode = PRESETS["gtpo-no-filter"], replace(PRESETS["gtpo-eq7"], filter="never")

    def gradient(objective: Objective, tokens: list[int]) -> torch.Tensor:
        row = logits.clone().requires_grad_()
        loss = reference_loss(
            objective, row.expand(GROUP, 1, 4), torch.tensor(tokens)[:, None], torch.ones(GROUP, 1),
            torch.zeros(GROUP), GROUP,
        ).loss  # fmt: skip
        (found,) = torch.autograd.grad(loss, row)
        return found

    def entropy_after(step: torch.Tensor) -> float:
        return float(token_entropy((logits + step).log_softmax(0)))

    before = entropy_after(torch.zeros(4))
    found = dict.fromkeys(("weight", "drift", "plain", "scaled", "raised"), 0.0)
    drift = torch.zeros(4, dtype=torch.float64)
    for tokens in itertools.combinations_with_replacement(range(4), GROUP):
        counts = [tokens.count(v) for v in range(4)]
        weight = float(math.factorial(GROUP))
        for count, probability in zip(counts, POLICY, strict=True):
            weight *= probability**count / math.factorial(count)
        step = -gradient(advantage_mode, list(tokens))
        scaled = entropy_after(step * STEP / step.norm()) - before
        drift += weight * step
        found["weight"] += weight
        found["plain"] += weight * (entropy_after(step) - before)
        found["scaled"] += weight * scaled
        found["raised"] += weight * (scaled > 0)
    found["drift"] = float(drift.abs().max())
    down = -gradient(loss_mode, [0] * GROUP)
    assert torch.allclose(down, -gradient(loss_mode, [0, 1, 1, 2, 2, 3, 3, 3])), "it does not look at the tokens"
    found["before"] = before
    found["loss_plain"] = entropy_after(down) - before
    found["loss_scaled"] = entropy_after(down * STEP / down.norm()) - before
    return found


def test_the_two_modes_push_entropy_in_opposite_directions() -> None:
    found = one_token_steps()
    assert found["weight"] == pytest.approx(1)
    assert found["drift"] < 1e-12, "in expectation the score-function term does not move one token's distribution"
    assert found["scaled"] > 0 > found["loss_scaled"]
    assert f"H = {found['before']:.4f}" in METHOD
    assert f"{found['scaled']:+.4f}" in METHOD
    assert f"{100 * found['raised']:.0f} %" in METHOD
    assert f"{found['plain']:+.1e}" in METHOD
    assert f"{found['loss_scaled']:+.4f}" in METHOD
    assert f"{found['loss_plain']:+.4f}" in METHOD


# -- paper_vs_code ---------------------------------------------------------------------------------------------------


def test_every_switch_named_exists() -> None:
    for text in (METHOD, DIFFERENCES):
        switches = re.findall(
            r"`((?:objective|training|model|dataset|trainer|rollout|health|gtpo_runtime)\.[a-z_]\w*)", text
        )
        assert switches
        unknown = sorted({switch for switch in switches if switch not in {*keys(), *WITHOUT_EFFECT, *PASSED}})
        assert unknown == []
        for preset in re.findall(r"`((?:gtpo|grpo)-[\w-]+)`", text):
            assert preset in PRESETS, preset


def test_default_values_in_the_table_are_the_defaults() -> None:
    """`objective.x: value` in bold is the default of that key."""
    stated = re.findall(r"\*\*`objective\.(\w+): ([\w.-]+)`\*\*", DIFFERENCES)
    assert len(stated) >= 10
    for name, value in stated:
        default = getattr(PRESETS["gtpo"], name)
        shown = "ln2" if default == LN2 else str(default).lower() if isinstance(default, bool) else str(default)
        assert value == shown, name
    for name, value in re.findall(r"\*\*`(training\.\w+): ([\w.-]+)`\*\*", DIFFERENCES):
        assert str(keys()[name].default) == value, name


def test_figures_from_the_logged_steps() -> None:
    file = Path(os.environ.get("GTPO_SHARED_DIR", ROOT.parent / "shared")) / "golden/published_steps.json"
    if not file.exists():
        pytest.skip(f"no {file}")
    steps = json.loads(file.read_text(encoding="utf-8"))
    completions = [completion for step in steps for completion in step["completions"]]
    norms = [max(1, completion["prefix"], completion["suffix"]) for completion in completions]
    norm_of_gradient = [float(step["logged_grad_norm_preclip"]) for step in steps if step["logged_grad_norm_preclip"]]
    assert f"{len(completions)} logged completions of {len(steps)} steps" in DIFFERENCES
    assert f"from {min(norms)} to {max(norms)}" in DIFFERENCES
    assert f"{sum(c['prefix'] + c['suffix'] > c['len'] for c in completions)} of {len(completions)}" in DIFFERENCES
    assert f"{sum(n > 0.1 for n in norm_of_gradient)} of {len(norm_of_gradient)}" in DIFFERENCES
    assert f"{sum(n > 0.1 for n in norm_of_gradient)} of {len(norm_of_gradient)}" in METHOD
    largest = max(abs(completion["adv"]) for completion in completions)
    assert rf"(\|A\| up to {largest:.0f} *logged*)" in DIFFERENCES
    between = sum(LN2 < c["entropy"] <= 0.7 for c in completions)
    assert f"{between} of {len(completions)} logged completions lies between" in DIFFERENCES
    qwen = [c["entropy"] for s in steps if s["dataset"] == "gsm8k" for c in s["completions"]]
    assert f"{sum(qwen) / len(qwen):.3f} nats" in DIFFERENCES
    assert f"{len(qwen)} completions" in DIFFERENCES
