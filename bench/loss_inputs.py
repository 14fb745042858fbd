"""The inputs of bench.loss, their float64 reference, and errors against it."""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.loss_contenders import Case, Result
from gtpo.conflict import conflict_weights
from gtpo.objective import PRESETS, entropy_gate, reference_loss

SEED = 20250819
GROUP = 8
BLOCK = 8192
"""Rows of lm_head that are widened to float64 at a time."""


def make_case(
    tokens: int, features: int, vocabulary: int, trainable: bool, dtype: torch.dtype, device: str, count: int = GROUP
) -> Case:
    """Return inputs as a trained policy has them: the sampled token likely, more so in some completions.

    count: completions, in groups of 8.
    """
    draw = torch.Generator(device).manual_seed(SEED)
    length = tokens // count
    lm_head = torch.randn(vocabulary, features, generator=draw, device=device) * 0.05
    ids = torch.randint(0, vocabulary, (count, length), generator=draw, device=device)
    shared = min(4, length // 4)
    ids[:, :shared] = ids[0, :shared]
    ids[:, length - shared :] = ids[0, length - shared :]
    noise = torch.randn(count, length, features, generator=draw, device=device)
    # Scores of other tokens have deviation 1, the sampled token's about 12 to 18.
    noise = noise / (0.05 * features**0.5)
    aim = lm_head[ids]
    boost = torch.linspace(12, 18, GROUP, device=device).repeat(count // GROUP)[:, None, None]
    hidden = (noise + aim * boost / aim.square().sum(dim=-1, keepdim=True)).to(dtype).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 0.6, -0.4, 1.2, -0.7, 0.3, -1.0], device=device).repeat(count // GROUP)
    spans = conflict_weights(ids, torch.ones_like(ids, dtype=torch.bool), advantages, GROUP)
    objective = replace(PRESETS["gtpo"], filter="always")
    weight = lm_head.to(dtype).requires_grad_(trainable)
    return Case(objective, hidden, weight, ids, advantages, spans, GROUP, advantages)


def float64_result(case: Case) -> tuple[Case, Result]:
    """Return the case with A' filled in, and the reference's result: float64, gradients of hidden and of lm_head.

    By formula, a block of lm_head at a time, so that 8B's head fits; `check_reference` holds it to autograd. dlm_head
    is kept in float32, whose rounding (6e-8) is far below any error measured against it.
    """
    hidden = case.hidden.detach().double().flatten(0, 1)
    weight, ids = case.lm_head.detach(), case.ids.flatten()
    scores = torch.empty(len(hidden), len(weight), dtype=torch.float64, device=hidden.device)
    for start in range(0, len(weight), BLOCK):
        torch.mm(hidden, weight[start : start + BLOCK].double().t(), out=scores[:, start : start + BLOCK])
    logps, entropies = torch.empty(2, len(hidden), dtype=torch.float64, device=hidden.device).unbind()
    for start in range(0, len(hidden), 64):  # scores become probabilities
        rows = slice(start, start + 64)
        logp = scores[rows].log_softmax(dim=-1)
        logps[rows] = logp.gather(-1, ids[rows, None]).squeeze(-1)
        probabilities = torch.exp(logp, out=scores[rows])
        entropies[rows] = -logp.mul_(probabilities).sum(dim=-1)
    mean = entropies.view(case.ids.shape).mean(dim=1)
    kept = entropy_gate(case.objective, mean, case.advantages, gate_active=True)
    shaped = torch.where(kept, case.advantages.double() - case.objective.gamma * mean, 0.0)
    slope = shaped[:, None] * case.spans.weights.double() / case.ids.numel()
    scores[torch.arange(len(ids), device=ids.device), ids] -= 1
    scores *= slope.flatten()[:, None]
    grad_hidden = torch.zeros_like(hidden)
    grad_weight = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    for start in range(0, len(weight), BLOCK):
        columns = slice(start, start + BLOCK)
        grad_hidden.addmm_(scores[:, columns], weight[columns].double())
        grad_weight[columns] = scores[:, columns].t() @ hidden
    gradients = (grad_hidden.view(case.hidden.shape), grad_weight)
    shape = case.ids.shape
    return case._replace(shaped=shaped.to(case.advantages.dtype)), Result(
        gradients, logps.view(shape), entropies.view(shape)
    )


def check_reference() -> None:
    """The float64 result above is the specification's, on a case small enough to hold its logits."""
    case = make_case(64, 16, 50, True, torch.float32, "cpu")
    case, found = float64_result(case)
    hidden, weight = (leaf.detach().double().requires_grad_() for leaf in case.leaves)
    # Rewards whose centred values are the advantages: they sum to 0, and the scale is off.
    objective = replace(case.objective, scale_rewards="none")
    rewards = case.advantages.double()
    assert float(rewards.sum().abs()) < 1e-6, "the advantages of make_case must sum to 0"
    mask = torch.ones_like(case.ids, dtype=torch.bool)
    loss = reference_loss(objective, hidden @ weight.t(), case.ids, mask, rewards, GROUP).loss
    for got, want in zip(found.gradients, torch.autograd.grad(loss, [hidden, weight]), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-9)


def errors(result: Result, exact: Result) -> dict[str, float]:
    """Return the largest absolute error of statistics and the relative L2 error of gradients."""
    found = {}
    for name, got, want in (("logp", result.logps, exact.logps), ("entropy", result.entropies, exact.entropies)):
        if got is not None and want is not None:
            found[name] = float((got.detach().double() - want).abs().max())
    for name, got, want in zip(("dhidden", "dlm_head"), result.gradients, exact.gradients, strict=False):
        squares = [0.0, 0.0]
        for one, other in zip(got.detach().flatten(0, -2).split(BLOCK), want.flatten(0, -2).split(BLOCK), strict=True):
            squares[0] += float((one.double() - other).square().sum())
            squares[1] += float(other.double().square().sum())
        found[name] = (squares[0] / squares[1]) ** 0.5
    return found
