"""The fused loss inside a causal LM's forward, where DDP, FSDP and ZeRO have their hooks.

`model(input_ids, attention_mask, policy_loss=f)` runs the backbone to the last hidden states and returns a PolicyOutput
with what f(hidden [N, T, D], LMHead) returns; called without `policy_loss`, the model behaves as before. The logits of
the whole batch never exist, and the weights of the head are whole while `f` runs: gathered from FSDP2's shards or
ZeRO-3's partitions. With `output_router_logits=True` a mixture of experts gives its load-balancing loss beside it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from trl.trainer.utils import maybe_gather_lm_head_ctx

from gtpo.completions import Kept, check_finite
from gtpo.head import token_statistics
from gtpo.inputs.model import backbone
from gtpo.inputs.model_shape import logit_transform


class LMHead(NamedTuple):
    """The language model head: logits = softcap tanh(scale (h W^T + b) / softcap). Keywords of `gtpo.head`."""

    # [V, D], in the dtype of the hidden states.
    lm_head: Tensor
    # [V] or None.
    bias: Tensor | None
    logit_scale: float
    softcap: float | None

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states [..., D], all at once."""
        logits = torch.nn.functional.linear(hidden, self.lm_head, self.bias) * self.logit_scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


class PolicyOutput(NamedTuple):
    """What the forward gives for a `policy_loss`."""

    # What `policy_loss` returned.
    value: Any
    # Load-balancing loss of a mixture of experts, a scalar without its coefficient; None unless asked for.
    aux_loss: Tensor | None


def add_policy_head(model: Any) -> None:
    """Let `model` (a transformers causal LM, before any PEFT wrapping or sharding) take `policy_loss`.

    A deep copy of the model takes it too, and computes with the copy's weights.
    """
    plain_forward, text_config = model.forward, model.config.get_text_config()
    logit_scale, softcap = logit_transform(text_config)

    # `generate` validates its arguments against the signature, so it stays the model's own.
    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, policy_loss: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
        if policy_loss is None:
            if self is model:
                return plain_forward(*args, **kwargs)
            # A deep copy: what `plain_forward` and TRL's patch below it are bound to is the original.
            patched = plain_forward.__func__ if kwargs.get("fused_lm_head") else type(self).forward
            return patched(self, *args, **kwargs)
        # Looked up on each call: FSDP and PEFT replace modules after the patch.
        # No cache: it would hold the keys and values of all layers until the backward.
        outputs = backbone(self)(*args, **{**kwargs, "use_cache": False})
        aux_loss = None
        if kwargs.get("output_router_logits"):
            from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func  # TRL's choice too

            sizes = (text_config.num_experts, text_config.num_experts_per_tok)
            aux_loss = cast(Any, load_balancing_loss_func)(outputs.router_logits, *sizes, kwargs.get("attention_mask"))
        hidden, head = outputs.last_hidden_state, self.get_output_embeddings()
        weight, bias = head.weight, getattr(head, "bias", None)
        # A model that is spread over GPUs has its head on the last or the first.
        hidden = hidden.to(weight.device)
        if isinstance(weight, DTensor):
            weight = weight.full_tensor()
            bias = None if bias is None else bias.full_tensor()
        # The head chooses its own types; autocast would round its float32 products to 16 bits.
        precise = torch.autocast(hidden.device.type, enabled=False)
        # TRL's takes partitioned weights only, once ZeRO-3 is on; an untrained copy (UntrainedKL) is whole.
        partitioned = hasattr(weight, "ds_status")
        with precise, maybe_gather_lm_head_ctx(weight, bias) if partitioned else nullcontext():  # type: ignore[arg-type]
            whole = LMHead(
                weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype), logit_scale, softcap
            )
            return PolicyOutput(policy_loss(hidden, whole), aux_loss)

    model.forward = types.MethodType(forward, model)


def sequences(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a model takes of a batch of prompts and completions: input_ids and attention_mask [B, T]."""
    names = {"input_ids": "ids", "attention_mask": "mask"}
    return {key: torch.cat([batch[f"prompt_{x}"], batch[f"completion_{x}"]], dim=1) for key, x in names.items()}


def token_forward(
    trainer: Any,
    model: Any,
    batch: Mapping[str, Any],
    mask: Tensor,
    loss: Callable[[Tensor, Tensor, Tensor], Any],
    *,
    find: Callable[[Tensor, LMHead, Tensor, Tensor], Kept] | None = None,
    **options: Any,
) -> PolicyOutput:
    """Run a model's forward as its trainer does; return what `loss` makes of log-probabilities, entropies and the mask.

    batch: prompt_ids, prompt_mask, completion_ids, completion_mask [B, .], and under truncated sampling the kept sets.
    mask [B, L] bool: the tokens that are wanted; others have 0. find: finds these, if the policy is still the one
    that sampled (`KeptSets.find`). options: temperature, log_clamp and entropy_gradient of `gtpo.head.head_statistics`.

    Raises ValueError if a statistic is not finite.
    """
    ids = batch["completion_ids"]

    def of_hidden(hidden: Tensor, head: LMHead) -> Any:
        hidden = hidden[:, -ids.size(1) - 1 : -1]
        kept = None if find is None else find(hidden, head, ids, mask)
        if "kept_ids" in batch:
            kept = Kept.of_tokens(batch["kept_counts"], batch["kept_ids"])
        logps, entropies = token_statistics(hidden, ids=ids, mask=mask, kept_set=kept, **options, **head._asdict())
        output = loss(logps, entropies, mask)
        # Last: it waits for the GPU.
        check_finite(hidden, head.lm_head, head.bias, logps, entropies)
        return output

    router = {"output_router_logits": True} if trainer.aux_loss_enabled else {}
    with trainer.accelerator.autocast():
        return cast(PolicyOutput, model(**sequences(batch), policy_loss=of_hidden, **router))
