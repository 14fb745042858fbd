"""The contenders of bench.loss: the same loss and gradients by the paths that exist, their inputs and their errors.

Each takes a Case and returns a Result. All are handed lambda and the advantages; the gate and A' follow from each
one's own entropies, except where a contender has none (said in its note).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE, entropy_from_logits, selective_log_softmax

from bench.common import SEED
from gtpo.completions import Completions
from gtpo.conflict import conflict_weights
from gtpo.head import token_statistics
from gtpo.objective import PRESETS, Objective, policy_loss, reference_loss, token_entropy

GROUP = 8
BLOCK = 8192  # Rows of lm_head that are widened to float64 at a time


class Case(NamedTuple):
    """One set of inputs: N = B G completions of L tokens, all of full length."""

    objective: Objective
    hidden: Tensor  # [N, L, D], requires grad
    lm_head: Tensor  # [V, D]; requires grad iff trainable
    ids: Tensor  # [N, L]
    completions: Completions  # What the objective is told of them
    shaped: Tensor  # A' [N] from the float64 reference, for contenders without an entropy

    @property
    def leaves(self) -> list[Tensor]:
        """What gradients are taken of."""
        return [self.hidden, self.lm_head] if self.lm_head.requires_grad else [self.hidden]


class Result(NamedTuple):
    """What a contender returns; None where it has no such thing."""

    gradients: tuple[Tensor, ...]
    logps: Tensor | None = None  # [N, L]
    entropies: Tensor | None = None  # [N, L]

    def tensors(self) -> tuple[Tensor, ...]:
        """All that a contender was asked for."""
        return (*self.gradients, *(t for t in (self.logps, self.entropies) if t is not None))


def policy_result(case: Case, logps: Tensor, entropies: Tensor) -> Result:
    """Return the statistics [N, L] with the gradients of the objective's loss."""
    mask = torch.ones_like(case.ids, dtype=torch.bool)
    loss = policy_loss(case.objective, case.completions, logps, entropies, mask, GROUP, gate_active=True).loss
    return Result(torch.autograd.grad(loss, case.leaves), logps.detach(), entropies.detach())


def ours(case: Case) -> Result:
    """This project's head and objective."""
    mask = torch.ones_like(case.ids, dtype=torch.bool)
    return policy_result(case, *token_statistics(case.hidden, case.lm_head, case.ids, mask))


def trl_fused(case: Case) -> Result:
    """The pinned TRL's fused lm_head with the outputs that GRPOTrainer asks for."""
    flat = case.hidden.reshape(-1, case.hidden.shape[-1])
    logps, entropies, *_ = ChunkedLogProbFunction.apply(
        flat, case.lm_head, None, case.ids.reshape(-1), 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0,
        ("log_probs", "entropy"),
    )  # fmt: skip
    return policy_result(case, logps.view(case.ids.shape), entropies.view(case.ids.shape))


def full_logits(case: Case) -> Result:
    """All logits, log_softmax, entropy without gradient: what a first implementation does."""
    log_probabilities = (case.hidden @ case.lm_head.t()).float().log_softmax(dim=-1)
    logps = log_probabilities.gather(-1, case.ids[..., None]).squeeze(-1)
    with torch.no_grad():
        entropies = -(log_probabilities.exp() * log_probabilities).sum(dim=-1)
    return policy_result(case, logps, entropies)


def trl_plain(case: Case) -> Result:
    """All logits through TRL's memory-saving helpers."""
    logits = case.hidden @ case.lm_head.t()
    logps = selective_log_softmax(logits, case.ids)
    with torch.no_grad():
        entropies = entropy_from_logits(logits)
    return policy_result(case, logps, entropies)


def liger(case: Case) -> Result:
    """LigerFusedLinearGRPOLoss: lambda enters as its importance ratio, A' is handed to it."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    torch._dynamo.config.automatic_dynamic_shapes = False  # at a second length its compilation fails (torch 2.11)
    loss = LigerFusedLinearGRPOLoss(
        beta=0.0, compiled=case.hidden.is_cuda, use_ref_model=False, loss_type="grpo", temperature=1.0
    )
    value, _ = loss(
        _input=case.hidden, lin_weight=case.lm_head, selected_token_ids=case.ids,
        attention_mask=torch.ones_like(case.ids), advantages=case.shaped, vllm_is_ratio=case.completions.weights,
    )  # fmt: skip
    return Result(torch.autograd.grad(value, case.leaves))


def bare_matmuls(case: Case) -> Result:
    """The floor: the two (three) products of V columns and nothing else."""
    flat = case.hidden.detach().reshape(-1, case.hidden.shape[-1])
    weight = case.lm_head.detach()
    logits = flat @ weight.t()
    gradients = [logits @ weight]
    if case.lm_head.requires_grad:
        gradients.append(logits.t() @ flat)
    return Result(tuple(gradients))


class Contender(NamedTuple):
    """One row of the table."""

    name: str
    run: Callable[[Case], Result]
    note: str = ""
    comparable: bool = True  # Whether its gradients are the objective's: then they are checked before it is timed
    needs: str = ""  # A module that must be installed


CONTENDERS = [
    Contender("ours", ours),
    Contender("trl fused lm_head", trl_fused),
    Contender("full logits", full_logits),
    Contender("trl full logits", trl_plain, "selective_log_softmax, entropy_from_logits"),
    Contender("liger grpo", liger, "no entropy: A' given; dW always", needs="liger_kernel"),
    Contender("bare matmuls", bare_matmuls, "the floor", comparable=False),
]


def make_case(tokens: int, features: int, vocabulary: int, trainable: bool, dtype: torch.dtype, device: str) -> Case:
    """Return inputs as a trained policy has them: the sampled token likely, more so in some completions."""
    draw = torch.Generator(device).manual_seed(SEED)
    length = tokens // GROUP
    lm_head = torch.randn(vocabulary, features, generator=draw, device=device) * 0.05
    ids = torch.randint(0, vocabulary, (GROUP, length), generator=draw, device=device)
    shared = min(4, length // 4)
    ids[:, :shared] = ids[0, :shared]
    ids[:, length - shared :] = ids[0, length - shared :]
    noise = torch.randn(GROUP, length, features, generator=draw, device=device)
    # Scores of other tokens have deviation 1, the sampled token's about 12 to 18.
    noise = noise / (0.05 * features**0.5)
    aim = lm_head[ids]
    boost = torch.linspace(12, 18, GROUP, device=device)[:, None, None]
    hidden = (noise + aim * boost / aim.square().sum(dim=-1, keepdim=True)).to(dtype).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 0.6, -0.4, 1.2, -0.7, 0.3, -1.0], device=device)
    spans = conflict_weights(ids, torch.ones_like(ids, dtype=torch.bool), advantages, GROUP)
    objective = replace(PRESETS["gtpo"], filter="always")
    weight = lm_head.to(dtype).requires_grad_(trainable)
    return Case(objective, hidden, weight, ids, Completions(advantages, **spans._asdict()), advantages)


def float64_result(case: Case) -> tuple[Case, Result]:
    """Return the case with A' filled in, and the specification's result in float64 with both gradients."""
    hidden, weight = (leaf.detach().double().requires_grad_() for leaf in (case.hidden, case.lm_head))
    # Rewards whose centred values are the advantages: they sum to 0, and the scale is off.
    objective = replace(case.objective, scale_rewards="none")
    rewards = case.completions.advantages.double()
    assert float(rewards.sum().abs()) < 1e-5, "the advantages of make_case must sum to 0"
    logits = hidden @ weight.t()
    mask = torch.ones_like(case.ids, dtype=torch.bool)
    found = reference_loss(objective, logits, case.ids, mask, rewards, GROUP)
    grad_hidden, grad_weight = torch.autograd.grad(found.loss, [hidden, weight])
    gradients = (grad_hidden, grad_weight.float())  # half the memory; its rounding is far below any error measured
    with torch.no_grad():
        log_probabilities = logits.log_softmax(dim=-1)
        logps = log_probabilities.gather(-1, case.ids[..., None]).squeeze(-1)
        exact = Result(gradients, logps, token_entropy(log_probabilities))
    return case._replace(shaped=found.shaped_advantages.to(case.shaped.dtype)), exact


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
