"""`--check-loss`: the fused loss against its specification, on the first real group of a run."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpo.common.log import LOG
from gtpo.fused import fused_linear_gtpo_loss
from gtpo.objective import Objective, reference_loss
from gtpo.trainer.calibration import GateCalibration
from gtpo.trainer.group_statistics import GroupStatistics
from gtpo.trainer.policy_head import LMHead, policy_forward
from gtpo.trainer.trl_seam import seam_of

MAX_TOKENS = 128
"""Completions are cut to this many tokens for the comparison, which holds all their logits at once."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Largest relative difference of the hidden states' gradient that counts as equal, by their dtype."""


class Check(NamedTuple):
    """Differences between the two, and whether they are within the dtype's tolerance."""

    loss: float
    """|fused - reference|."""
    entropy: float
    """Largest |<H>_i| difference, nats."""
    gradient: float
    """|dfused/dhidden - dreference/dhidden| over |dreference/dhidden|, Frobenius norms."""
    passed: bool

    def line(self) -> str:
        """Say it in one line."""
        verdict = "agrees with" if self.passed else "DIFFERS from"
        return (
            f"check-loss: the fused loss {verdict} the reference on the first group: loss {self.loss:.1e}, "
            f"entropy {self.entropy:.1e}, gradient {self.gradient:.1e} (relative)"
        )


def compare_losses(
    objective: Objective,
    hidden: Tensor,
    head: LMHead,
    completion_ids: Tensor,
    completion_mask: Tensor,
    rewards: Tensor,
    *,
    initial_entropy: float | None,
    temperature: float,
    truncated: Tensor,
) -> Check:
    """Return how far the fused loss of one group is from `reference_loss` in float64 (CPU) or float32 (GPU).

    hidden [G, L, D]; completion_ids, completion_mask [G, L]; rewards, truncated [G].
    """
    length = min(MAX_TOKENS, completion_ids.shape[1])
    ids, mask = completion_ids[:, :length], completion_mask[:, :length].bool()
    group = len(ids)
    shared: dict[str, Any] = {"initial_entropy": initial_entropy, "temperature": temperature, "truncated": truncated}
    with torch.enable_grad():
        ours = hidden[:, :length].detach().clone().requires_grad_()
        fused = fused_linear_gtpo_loss(
            objective,
            ours,
            head.weight.detach(),
            ids,
            mask,
            rewards,
            group,
            bias=None if head.bias is None else head.bias.detach(),
            logit_scale=head.logit_scale,
            softcap=head.softcap,
            **shared,
        )
        fused.loss.backward()
        wide = torch.float32 if hidden.is_cuda else torch.float64
        theirs = hidden[:, :length].detach().to(wide).requires_grad_()
        logits = theirs @ head.weight.detach().to(wide).T
        if head.bias is not None:
            logits = logits + head.bias.detach().to(wide)
        logits = logits * head.logit_scale
        if head.softcap is not None:
            logits = head.softcap * torch.tanh(logits / head.softcap)
        reference = reference_loss(objective, logits, ids, mask, rewards, group, **shared)
        reference.loss.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    norm = float(theirs.grad.norm())
    gradient = float((ours.grad.to(wide) - theirs.grad).norm()) / max(norm, 1e-30) if norm else float(ours.grad.norm())
    return Check(
        loss=abs(float(fused.loss.detach()) - float(reference.loss.detach())),
        entropy=float((fused.entropy.to(wide) - reference.entropy).abs().max()),
        gradient=gradient,
        passed=gradient <= TOLERANCE.get(hidden.dtype, 2e-2),
    )


class FirstGroupCheck:
    """Compares the two on the first group of a trainer's first round. Raises ValueError where they differ."""

    def __init__(self, trainer: Any, groups: GroupStatistics, gate: GateCalibration) -> None:
        self.trainer, self.groups, self.gate, self.seam = trainer, groups, gate, seam_of(trainer)
        self.done = False
        self.seam.around("round", self._round)

    def _round(self, plain: Any, inputs: Any) -> dict[str, Any]:
        batch: dict[str, Any] = plain(inputs)
        if not self.done:
            self.done = True
            found = self.compare(batch)
            if self.trainer.accelerator.is_main_process:
                LOG.info(found.line())
            if not found.passed:
                raise ValueError(found.line())
        return batch

    def compare(self, batch: dict[str, Any]) -> Check:
        """Compare them on the first group of a round. All processes take part."""
        accelerator, group, rows = self.trainer.accelerator, self.seam.group_size, {}
        names = {"prompt_ids": True, "prompt_mask": True, "completion_ids": False, "completion_mask": False}
        for name, left in names.items():
            whole = accelerator.pad_across_processes(batch[name], dim=1, pad_first=left)
            rows[name] = accelerator.gather(whole)[:group]
        lengths = rows["completion_mask"].sum(dim=1)
        loss = functools.partial(
            compare_losses,
            self.gate.objective,
            completion_ids=rows["completion_ids"],
            completion_mask=torch.arange(rows["completion_ids"].size(1), device=lengths.device) < lengths[:, None],
            rewards=self.groups.total_rewards()[:group],
            initial_entropy=self.gate.initial_entropy,
            temperature=self.seam.temperature,
            truncated=self.groups.rollouts[self.seam.mode].truncated[:group],
        )
        with torch.no_grad():
            found: Check = policy_forward(self.trainer, self.trainer.model_wrapped, rows, loss).value
        return found
