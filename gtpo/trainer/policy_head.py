"""The statistics of tokens inside a causal LM's forward, where DDP, FSDP and ZeRO have their hooks; their kept sets.

`model(input_ids, attention_mask, of_hidden=f)` runs the backbone to the last hidden states and returns a PolicyOutput
with what f(hidden [N, T, D], LMHead) returns; called without `of_hidden`, the model behaves as before. The logits of
the whole batch never exist, and the weights of the head are whole while `f` runs: gathered from FSDP2's shards or
ZeRO-3's partitions. With `output_router_logits=True` a mixture of experts gives its load-balancing loss beside it.

A kept set holds the ids that a truncated sampler (top_p, top_k, min_p) could draw at a position. It belongs to the
policy that sampled. So it is found once a round, before the first update, by the sampler's own rule on logits made as
the sampler makes them; the ids travel with the round, and every optimizer step of it takes log-probabilities and
entropies over them. The id that was drawn always belongs: another rounding may put it just outside. A completion with
an id further out than rounding explains was drawn by another rule: it is left out, counted.
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
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessor,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from trl.trainer.utils import maybe_gather_lm_head_ctx, pad

from gtpo.completions import Kept, check_finite
from gtpo.head import token_statistics
from gtpo.inputs.model import NOT_OF_SAMPLING, backbone, logit_transform
from gtpo.trainer import trl_seam


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
    """What the forward gives for an `of_hidden`."""

    # What `of_hidden` returned.
    value: Any
    # Load-balancing loss of a mixture of experts, a scalar without its coefficient; None unless asked for.
    aux_loss: Tensor | None


def add_policy_head(model: Any) -> None:
    """Let `model` (a transformers causal LM, before any PEFT wrapping or sharding) take `of_hidden`.

    A deep copy of the model takes it too, and computes with the copy's weights.
    """
    plain_forward, text_config = model.forward, model.config.get_text_config()
    logit_scale, softcap = logit_transform(text_config)

    # `generate` validates its arguments against the signature, so it stays the model's own.
    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, of_hidden: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
        if of_hidden is None:
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
            return PolicyOutput(of_hidden(hidden, whole), aux_loss)

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
    *,
    find: Callable[[Tensor, LMHead, Tensor, Tensor], dict[str, Tensor]] | None = None,
    **options: Any,
) -> PolicyOutput:
    """Run a model's forward as its trainer does; return the `logps` and `entropies` [B, L] of tokens.

    batch: prompt_ids, prompt_mask, completion_ids, completion_mask [B, .], and under truncated sampling the kept sets.
    mask [B, L] bool: the tokens that are wanted; others have 0. find: finds the kept sets, if the policy is still the
    one that sampled (`KeptSets.find`); they are returned too. options: temperature, log_clamp and entropy_gradient of
    `gtpo.head.head_statistics`.

    Raises ValueError if a statistic is not finite.
    """
    ids = batch["completion_ids"]

    def of_hidden(hidden: Tensor, head: LMHead) -> dict[str, Tensor]:
        hidden = hidden[:, -ids.size(1) - 1 : -1]
        found = {} if find is None else find(hidden, head, ids, mask)
        sets = {**batch, **found}
        kept = Kept.of_tokens(sets["kept_counts"], sets["kept_ids"]) if "kept_ids" in sets else None
        logps, entropies = token_statistics(hidden, ids=ids, mask=mask, kept_set=kept, **options, **head._asdict())
        # Last: it waits for the GPU.
        check_finite(hidden, head.lm_head, head.bias, logps, entropies)
        return {"logps": logps, "entropies": entropies, **found}

    router = {"output_router_logits": True} if trainer.aux_loss_enabled else {}
    with trainer.accelerator.autocast():
        return cast(PolicyOutput, model(**sequences(batch), of_hidden=of_hidden, **router))


# -- kept sets ---------------------------------------------------------------------------------------------------------

# What `generate` removes ids with, if it asks no more than the logits of their position.
_OF_GENERATE = (TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper, TypicalLogitsWarper, EpsilonLogitsWarper,
                EtaLogitsWarper, TopHLogitsWarper, SuppressTokensLogitsProcessor)  # fmt: skip
# In the order in which vLLM applies them; ties at the edge stay, as there.
_OF_VLLM: dict[str, Any] = {"min_p": MinPLogitsWarper, "top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper}
# Parameters of vLLM's sampler that do not change which tokens are likely.
_NOT_OF_VLLM_SAMPLING = {
    *("n", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "include_stop_str_in_output"),
    *("skip_special_tokens", "spaces_between_special_tokens", "detokenize", "output_kind", "truncate_prompt_tokens"),
    *("logprobs", "prompt_logprobs", "flat_logprobs", "extra_args", "skip_clone"),
}
# Multiple of the mean difference that rounding may make, by which two logits may have come apart.
FARTHEST = 4.0
# Logits that are sorted at a time.
LOGITS = {"cpu": 2**22, "cuda": 2**26}
# Keys of the batch dict: sizes of the sets [B, L], their ids [B, W] (`Kept.of_tokens`), tokens outside theirs [B, L].
KEPT_ROWS = ("kept_counts", "kept_ids", "kept_outside")


def shaping(trainer: Any) -> dict[str, Any]:
    """Return the sampling parameters that leave another distribution than the model's."""
    kwargs = trainer.args.generation_kwargs or {}
    names = {"top_p", "top_k", "min_p", "repetition_penalty", *kwargs} - NOT_OF_SAMPLING
    if trainer.use_vllm:
        names -= _NOT_OF_VLLM_SAMPLING
        values = {name: kwargs.get(name, getattr(trainer.args, name, None)) for name in sorted(names)}
    else:
        values = {name: getattr(trainer.generation_config, name, None) for name in sorted(names)}
    # -1 is vLLM's word for no top_k.
    neutral = {"top_k": (0, -1), "min_p": (0,), "temperature": (trainer.temperature,)}
    off = {name: (None, *neutral.get(name, (0, 1, [], {}))) for name in values}
    return {name: value for name, value in values.items() if value not in off[name]}


def listed(parameters: Mapping[str, Any]) -> str:
    """Return `min_p 0.1, top_p 0.9`."""
    return ", ".join(f"{name} {value}" for name, value in parameters.items())[:99]


class KeptSets:
    """Finds the kept sets of completions in the forward that scores them.

    rule: what the sampler does to the logits of a position, in its order. tolerance: mean difference of the sampler's
    logits from ours, given their size (`SamplerCheck.allowed`).
    """

    def __init__(self, rule: list[LogitsProcessor], tolerance: Any) -> None:
        self.rule, self.tolerance = rule, tolerance

    @classmethod
    def of_trainer(cls, trainer: Any) -> KeptSets | None:
        """Return what finds the sets of a trainer's sampler; None if it draws from all ids.

        Raises ValueError if they cannot be had.
        """
        acting, temperature = shaping(trainer), TemperatureLogitsWarper(float(trainer.temperature))
        if trainer.use_vllm:
            rule = [cut(acting[name]) for name, cut in _OF_VLLM.items() if name in acting]
            others = listed({name: value for name, value in acting.items() if name not in _OF_VLLM})
        else:
            each = [one for one in trl_seam.logits_processors(trainer) if type(one) is not TemperatureLogitsWarper]
            rule = [one for one in each if isinstance(one, _OF_GENERATE)]
            others = ", ".join(type(one).__name__ for one in each if not isinstance(one, _OF_GENERATE))
        if not rule:
            return None
        truncated = f"{type(trainer).__name__}: sampling is truncated ({listed(acting)}), and what could be drawn "
        if others:
            raise ValueError(
                f"{truncated}cannot be found beside {others}, which sees more than logits. Remove one of them"
            )
        if trainer.rollout_func is not None:
            raise ValueError(f"{truncated}is known to rollout_func only: sample from all ids in it, and remove these")
        return cls([temperature, *rule], trainer.sampler.allowed)

    def inside(self, logits: Tensor) -> Tensor:
        """Return which ids [m, V] the sampler may draw, given their logits."""
        for processor in self.rule:
            logits = processor(None, logits)
        return logits > -torch.inf

    def find(self, hidden: Tensor, head: Any, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the kept sets of the tokens that the mask marks, as rows of the batch dict (`KEPT_ROWS`).

        hidden [B, L, D]: states that predict ids [B, L]; head: an LMHead.
        """
        rows = mask.flatten().nonzero()[:, 0]
        counts = torch.zeros(ids.numel(), dtype=torch.long, device=ids.device)
        outside, parts = torch.zeros_like(counts, dtype=torch.bool), [counts[:0].int()]
        size = max(1, LOGITS.get(hidden.device.type, 2**22) // len(head.lm_head))
        for some in rows.split(size):
            # In the model's own type: rounded logits have ties, which belong to the rule.
            logits, own = head.logits(hidden.flatten(0, 1)[some]).float(), ids.flatten()[some, None].long()
            inside = self.inside(logits)
            counts[some] = inside.sum(dim=1)
            parts.append(inside.nonzero()[:, 1].int())
            if len(out := (~inside.gather(1, own)[:, 0]).nonzero()[:, 0]):
                # As far as rounding can go for the id that was drawn: all that are likelier are less so, and those
                # that are as likely, of which a sampler may sort others first.
                logits, own, shift = logits[out], own[out], self.rule[0].temperature * FARTHEST
                drawn = logits.gather(1, own)
                shift *= self.tolerance(float(drawn.abs().mean()))
                lowered = torch.where(logits < drawn, logits, logits - shift).scatter(1, own, drawn)
                outside[some[out]] = ~self.inside(lowered).gather(1, own)[:, 0]
        counts, outside = counts.view(ids.shape), outside.view(ids.shape)
        kept = pad(torch.cat(parts).split(counts.sum(dim=1).tolist()))
        return dict(zip(KEPT_ROWS, (counts, kept, outside), strict=True))
