"""The KL divergence of the policy from the untrained one, for any method, without a KL term in the loss.

    KL = mean over tokens of sum_v p(v) (log p(v) - log q(v))        p the policy, q the untrained policy, in nats

at the tokens of the step's first micro-batch, before the step changes the policy: of the completions that it sampled,
or (sft) of the targets. The sum runs over the whole vocabulary, so that its only noise is which texts are in the batch.
q is the same model with its adapter disabled, or a second copy of the weights that the run started from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from accelerate.utils import is_peft_model
from torch import Tensor

from gtpo.config import TrainConfig
from gtpo.inputs.model import LoadedModel, load_model
from gtpo.train.trainers import require_trainer
from gtpo.trainer import GTPOTrainer, RunPart, SampledTrainer, trl_seam
from gtpo.trainer.policy_head import LMHead, add_policy_head, sequences

METRIC = "kl/untrained"
# Steps between measurements, if they cost no second copy of the weights.
KL_STEPS = 10
# Sequences of the micro-batch that are looked at, per process.
MAX_ROWS = 32
# Bytes of logits that are held at a time, of each of the two policies.
CHUNK_BYTES = 2**27


def token_kl(logits: Tensor, reference_logits: Tensor) -> Tensor:
    """Return KL(p || q) [...] in nats from two sets of logits [..., V], in float32 or better."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    p, q = logits.to(wide).log_softmax(dim=-1), reference_logits.to(wide).log_softmax(dim=-1)
    # 0 log 0 = 0: a token that the policy cannot take adds nothing.
    return torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(dim=-1)


def summed_kl(
    now: Tensor, head: LMHead, before: Tensor, their_head: LMHead, mask: Tensor, temperature: float
) -> Tensor:
    """Return [the sum of KL(p || q) over the tokens of mask [B, T - 1], their number], from hidden states [B, T, D]."""
    total = torch.zeros(2, dtype=torch.float64, device=now.device)
    rows = max(1, CHUNK_BYTES // (4 * len(head.lm_head)))
    chosen = (hidden[:, :-1][mask].split(rows) for hidden in (now, before))
    for p, q in zip(*chosen, strict=True):
        kl = token_kl(head.logits(p) / temperature, their_head.logits(q) / temperature)
        total += torch.stack([kl.sum().double(), torch.tensor(len(p), dtype=torch.float64, device=kl.device)])
    return total


class UntrainedKL(RunPart):
    """Logs `kl/untrained` every `every` steps: `trainer.add_callback(UntrainedKL(trainer, every=10))`.

    trainer: a GTPOTrainer, GRPOBaseline or SFTBaseline. reference: the untrained model; needed if the model has no
    adapter to disable and TRL holds no reference: ValueError without it.
    """

    def __init__(self, trainer: Any, every: int, reference: Any = None) -> None:
        self.trainer, self.every, self._measured_for = require_trainer(self, trainer), every, -1
        self.reference = getattr(trainer, "ref_model", None)
        if self.reference is None and not is_peft_model(trainer.accelerator.unwrap_model(trainer.model)):
            if reference is None:
                raise ValueError("UntrainedKL: all weights are trained, so it needs reference=, the untrained model")
            self.reference = reference.eval().requires_grad_(False).to(trainer.accelerator.device)
        if not isinstance(trainer, GTPOTrainer):  # which has done it
            add_policy_head(trl_seam.policy(trainer))
        if self.reference is not None:
            add_policy_head(trainer.accelerator.unwrap_model(self.reference))

    def on_micro_batch(self, model: Any, inputs: Mapping[str, Any]) -> None:
        """Measure on a micro-batch if its step is due and this is the first of it. All processes call it."""
        trainer, reference = self.trainer, cast(Any, self.reference)
        step = trainer.state.global_step + 1
        if step % self.every or step == self._measured_for:
            return
        self._measured_for = step
        batch, mask = _sequences(inputs)
        temperature = getattr(trainer, "temperature", 1.0)  # of the sampling; sft has none

        def divergence(now: Tensor, head: LMHead, before: Tensor, their_head: LMHead) -> Tensor:
            return summed_kl(now, head, before, their_head, mask, temperature)

        def of_both(now: Tensor, head: LMHead) -> Any:
            return reference(**batch, policy_loss=lambda before, theirs: divergence(now, head, before, theirs)).value

        with torch.no_grad(), trainer.accelerator.autocast():
            if reference is None:
                now = model(**batch, policy_loss=lambda hidden, head: hidden).value
                with trainer.accelerator.unwrap_model(model).disable_adapter():
                    # Both have one head: an adapter on it is refused.
                    # accelerate gives what a forward returns in float32.
                    output = model(**batch, policy_loss=lambda b, head: divergence(now.to(b.dtype), head, b, head))
            else:
                # One forward inside the other: a sharded head is whole only in its own.
                output = model(**batch, policy_loss=of_both)
        total = trainer.accelerator.reduce(output.value)
        trl_seam.log(trainer, METRIC, float(total[0] / total[1].clamp(min=1)))


def untrained_kl(trainer: Any, config: TrainConfig, loaded: LoadedModel, source: str) -> UntrainedKL | None:
    """Return the part that a config asks for, or that costs no second copy of the weights; else None.

    source: of the weights that the run began from (`find_weights`), also if it resumes.
    """
    training = config.training
    every = training.log_kl_steps
    if every is None:
        # TRL logs the divergence itself with beta. Of a policy that samples nothing the watch could not use it.
        wanted = isinstance(trainer, SampledTrainer) and not training.beta and loaded.peft_config is not None
        every = training.logging_steps * math.ceil(KL_STEPS / training.logging_steps) if wanted else 0
    # The adapter is disabled, or TRL's own reference serves.
    copied = loaded.peft_config is None and training.beta == 0
    return UntrainedKL(trainer, every, load_model(config, source).model if copied else None) if every else None


def _sequences(inputs: Mapping[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """Return what a model takes of the first rows, and which of their tokens from the second on count [B, T - 1]."""
    some = {name: rows[:MAX_ROWS] for name, rows in inputs.items() if isinstance(rows, Tensor) and rows.dim()}
    if "labels" in some:  # sft
        ids = some["input_ids"]
        batch = {"input_ids": ids, "attention_mask": some.get("attention_mask", torch.ones_like(ids))}
        return batch, some["labels"][:, 1:] != -100
    mask = torch.cat([torch.zeros_like(some["prompt_mask"]), some["completion_mask"]], dim=1)
    return sequences(some), mask[:, 1:].bool()
