"""Whether the loss is of the policy that samples: what is made equal beforehand, and one check for every sampler.

    prepare        sampling parameters of the model's own generation_config, dropout, positions of padded rows
    SamplerCheck   log-probabilities that the sampler gives for the tokens that it draws, against those of the loss

Before the first completion is sampled, so before H_ini is measured too, the trainer's own model draws a few tokens in a
padded batch, as rollouts are drawn. `generate` gives its logits before and after sampling parameters act on them. vLLM
gives log-probabilities with its completions: they are compared at the first round, and again at every step.

In exact arithmetic both sides are equal. What rounding makes of them depends on the coarsest dtype (measured:
docs/scale.md), and TOLERANCE lies above it: an untrained adapter on a pretrained model of 135 million parameters in
bfloat16 already differs by 0.04 from its vLLM. A mean beyond it means another distribution.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.trainer import trl_seam
from gtpo.trainer.group_statistics import padded, padded_batch

ROWS, WIDTH, DRAWN = 8, 64, 16
"""The check takes 8 rows of at most 64 tokens, of which the last 16 are drawn."""

TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Mean difference in nats per token up to which two computations with the same weights may differ, by dtype."""

_NOT_OF_SAMPLING = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "max_length", "use_cache"),
    *("cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
    *("return_dict_in_generate", "transformers_version"),
}
"""Fields of a generation_config that do not change which tokens are drawn, or that every call sets."""


class OtherPolicy(UserError, ValueError):
    """The loss would be of another policy than the one that samples."""


# -- what is made equal beforehand -------------------------------------------------------------------------------------


def prepare(trainer: Any) -> None:
    """Let the policy of a new GRPOTrainer sample from the distribution that its loss is taken of, and say what changed.

    Raises OtherPolicy for a temperature in generation_kwargs, which the loss would not know.
    """
    policy = trl_seam.policy(trainer)
    asked = None if trainer.use_vllm else trainer.generation_config
    if asked is not None and asked.temperature != trainer.temperature:
        raise OtherPolicy(
            f"generation_kwargs has temperature {asked.temperature}, and the loss is taken at {trainer.temperature}: "
            "set the argument temperature"
        )
    if asked is not None and (found := drop_leaks(policy.generation_config, asked)):
        LOG.warning(
            f"the model's generation_config is left out of the sampling: {found}; the loss is of the distribution "
            "without (generation_kwargs sets it on purpose)"
        )
    if trainer.args.disable_dropout and (found := ", ".join(sorted(set(zero_dropout(policy))))):
        LOG.info(f"set to 0, as disable_dropout says: {found}")
    count_positions(policy)
    if (reference := getattr(trainer, "ref_model", None)) is not None:  # of GRPO's KL term
        count_positions(trainer.accelerator.unwrap_model(reference))


def drop_leaks(own: GenerationConfig, asked: GenerationConfig) -> str:
    """Remove from a model's own generation_config what would act in `generate`, as `asked` leaves it open; name it."""
    names = [name for name in vars(GenerationConfig()) if not name.startswith("_") and name not in _NOT_OF_SAMPLING]
    leaks = {
        name: value
        for name in names
        if (value := getattr(own, name, None)) is not None and getattr(asked, name, None) is None
    }
    for name in leaks:
        setattr(own, name, None)
    return ", ".join(f"{name} {value}" for name, value in leaks.items() if value not in (0, 1, [], ""))


def _is_dropout(name: str, value: Any) -> bool:
    return ("dropout" in name or "pdrop" in name or "drop_rate" in name) and isinstance(value, float) and value > 0


def zero_dropout(model: nn.Module) -> Iterator[str]:
    """Set the dropout that modules apply as functions to 0, and name its attributes: TRL sets nn.Dropout only."""
    configs = {id(config): config for module in model.modules() if (config := getattr(module, "config", None))}
    for owner in (*model.modules(), *configs.values()):
        for name, value in list(vars(owner).items()):
            if _is_dropout(name, value):
                setattr(owner, name, 0.0)
                yield f"{name} {value:g}"


def active_dropout(model: nn.Module) -> list[str]:
    """Return the dropout that acts while the model is in training mode."""
    found = [f"{name} (nn.Dropout)" for name, part in model.named_modules() if isinstance(part, nn.Dropout) and part.p]
    return found + [name for part in model.modules() for name, value in vars(part).items() if _is_dropout(name, value)]


def count_positions(model: Any) -> None:
    """Let a padded batch have the positions of its rows without padding, as in `generate`.

    For models whose positions are absolute; rotary ones compute the same from any start.
    """
    backbone = trl_seam.backbone(model)
    rotary = getattr(model.config.get_text_config(), "rope_parameters", None)
    if rotary or "position_ids" not in inspect.signature(backbone.forward).parameters:
        return

    def fill(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask, cache = kwargs.get("attention_mask"), kwargs.get("past_key_values")
        absent = cache is None and kwargs.get("position_ids") is None  # with a cache, `generate` gives them itself
        if absent and isinstance(mask, Tensor) and mask.dim() == 2:
            kwargs = {**kwargs, "position_ids": (mask.long().cumsum(dim=1) - 1).clamp(min=0)}
        return args, kwargs

    backbone.register_forward_pre_hook(fill, with_kwargs=True)


# -- the check ---------------------------------------------------------------------------------------------------------


def coarsest(*dtypes: torch.dtype) -> torch.dtype:
    """Return the dtype with the fewest digits."""
    return max(dtypes, key=lambda dtype: TOLERANCE.get(dtype, 0.0))


def computing_dtype(trainer: Any) -> torch.dtype:
    """Return the coarsest dtype that the trainer's log-probabilities, and those of its sampler, are computed in.

    A vLLM server's is taken for bfloat16.
    """
    computes = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(trainer.accelerator.mixed_precision, torch.float32)
    held = {p.dtype for p in trainer.model.parameters() if p.dtype in TOLERANCE}
    if torch.backends.cuda.matmul.allow_tf32 and torch.cuda.is_available():
        held.add(torch.float16)  # TensorFloat-32 has as many digits
    if trainer.use_vllm:
        engine = getattr(trainer.vllm_generation, "llm", None)
        held.add(torch.bfloat16 if engine is None else engine.llm_engine.model_config.dtype)
    return coarsest(computes, *held)


def own_logits(trainer: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the logits [B, L, V] of the completions by the model's own forward, which knows what it does to them."""
    with torch.no_grad(), trainer.accelerator.autocast():
        output = trainer.model_wrapped(
            input_ids=torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            attention_mask=torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
        )
    logits: Tensor = output.logits[:, -batch["completion_ids"].size(1) - 1 : -1]
    return logits


def chosen_logps(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probabilities [B, L] of tokens [B, L] from logits [B, L, V]."""
    return logits.float().log_softmax(-1).gather(-1, ids[..., None])[..., 0]


class Drawn(NamedTuple):
    """A padded batch of B rows whose last L tokens were drawn, with their log-probabilities [B, L]."""

    batch: dict[str, Tensor]
    """prompt_ids, prompt_mask, completion_ids, completion_mask."""
    plain: Tensor
    """Before sampling parameters act, at the sampling temperature."""
    processed: Tensor
    """As they were drawn."""
    logits: Tensor
    """The drawn tokens' own logits."""


class SamplerCheck:
    """Compares the sampler's log-probabilities with the loss's, once before the first round and then at every step.

    tolerance: nats per token; None: that of the dtype.
    """

    def __init__(self, trainer: Any, tolerance: float | None = None) -> None:
        self.trainer, self.tolerance = trainer, tolerance
        self._checked, self._sum, self._tokens = False, 0.0, 0.0

    # -- at the first round ----------------------------------------------------------------------------------------

    def prompts(self, prompt_ids: Sequence[Sequence[int]]) -> None:
        """Check the ids of a round's prompts, and before the first round how the trainer's own model samples.

        Raises OtherPolicy. All processes call it.
        """
        trainer = self.trainer
        rows = trl_seam.policy(trainer).get_input_embeddings().num_embeddings
        largest = max((token for row in prompt_ids for token in row), default=0)
        if largest >= rows:
            token = trl_seam.tokenizer(trainer).convert_ids_to_tokens(largest)
            raise OtherPolicy(
                f"a prompt has the token {token!r} (id {largest}), and the model's embedding has {rows} rows: resize "
                "it (model.resize_token_embeddings), or take the tokenizer that belongs to the model"
            )
        if not self._checked and not trainer.use_vllm and trl_seam.mode(trainer) == "train":
            self._checked = True
            with torch.random.fork_rng():
                self._own_model(prompt_ids)

    def completions(self, outputs: Sequence[Any]) -> None:
        """Compare the log-probabilities of the first round that vLLM samples. outputs: what TRL's `_generate` returned.

        Raises OtherPolicy. All processes call it.
        """
        prompt_ids, completion_ids, tool_mask, logprobs = *outputs[:3], outputs[4]
        if self._checked or not logprobs or trl_seam.mode(self.trainer) != "train":
            return
        self._checked = True
        short = sorted(range(len(prompt_ids)), key=lambda row: len(prompt_ids[row]))
        rows = [row for at, row in enumerate(short[:ROWS]) if (at + 1) * (len(prompt_ids[row]) + DRAWN) <= ROWS * WIDTH]
        rows = rows or short[:1]
        drawn = slice(ROWS * DRAWN // len(rows))  # of few rows more: the mean of 16 tokens is no measure
        masks = [[1] * len(row) for row in completion_ids] if tool_mask is None else tool_mask
        ids = [[int(token) for token in completion_ids[row][drawn]] for row in rows]
        batch = padded_batch(self.trainer, [prompt_ids[row] for row in rows], ids)
        given = [[float("nan") if p is None else p for p in logprobs[row][drawn]] for row in rows]
        own = padded(self.trainer, [masks[row][drawn] for row in rows], 0, "right").bool()
        sampled = padded(self.trainer, given, 0.0, "right")
        known = own & ~sampled.isnan()
        self._judge(
            self.trainer.logps_of(batch),
            sampled.nan_to_num(),
            known,
            Drawn(batch, sampled, sampled, torch.zeros_like(sampled)),
        )

    def _own_model(self, prompt_ids: Sequence[Sequence[int]]) -> None:
        drawn = self._draw(prompt_ids)
        mask = drawn.batch["completion_mask"].bool()
        self._judge(self.trainer.logps_of(drawn.batch), drawn.plain, mask, drawn)
        shaped = _mean((drawn.processed - drawn.plain).abs(), mask)
        if shaped > self.allowed(_mean(drawn.logits.abs(), mask)):
            LOG.warning(
                f"sampling parameters move the log-probability of a drawn token by {shaped:.2g} nats on average: the "
                "loss, the gate and H_ini are of the distribution without them (training.top_p, top_k, min_p, "
                "repetition_penalty and generation_kwargs)"
            )

    def _draw(self, prompt_ids: Sequence[Sequence[int]]) -> Drawn:
        """Let the trainer's own model continue a few prompts, cut to different lengths so that there is padding."""
        trainer = self.trainer
        torch.manual_seed(trainer.args.seed + trainer.accelerator.process_index)
        prompts = []
        for row in range(ROWS):
            ids = prompt_ids[row % len(prompt_ids)][-(WIDTH - DRAWN) :]
            prompts.append(ids[-max(1, len(ids) * (ROWS - row) // ROWS) :])
        asked = copy.deepcopy(trainer.generation_config)
        asked.update(
            max_new_tokens=min(DRAWN, trainer.max_completion_length),
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
        )
        batch = padded_batch(trainer, prompts, [[] for _ in prompts])
        found = trl_seam.generate(trainer, batch["prompt_ids"], batch["prompt_mask"], asked)
        ids = found.sequences[:, batch["prompt_ids"].size(1) :]
        ends = torch.isin(ids, torch.tensor(trainer.eos_token_ids, device=ids.device))
        batch |= {"completion_ids": ids, "completion_mask": (ends.cumsum(dim=1) - ends.long() == 0).long()}
        logits, scores = (torch.stack(each, dim=1).float() for each in (found.logits, found.scores))
        taken = ids[..., None]
        return Drawn(
            batch,
            (logits / trainer.temperature).log_softmax(-1).gather(-1, taken)[..., 0],
            scores.log_softmax(-1).gather(-1, taken)[..., 0],
            logits.gather(-1, taken)[..., 0],
        )

    def allowed(self, size: float = 0.0) -> float:
        """Return the tolerance in nats per token; logits of this mean size, made in 16 bits, add their spacing."""
        if self.tolerance is not None:
            return self.tolerance
        dtype = computing_dtype(self.trainer)
        return TOLERANCE[dtype] + size * torch.finfo(dtype).eps

    def _judge(self, ours: Tensor, sampled: Tensor, mask: Tensor, drawn: Drawn) -> None:
        """Raise OtherPolicy if the loss's log-probabilities [B, L] are not the sampler's, with the likely cause."""
        gap, accelerator = (ours - sampled).abs(), self.trainer.accelerator
        parts = (gap, ours, sampled, drawn.logits.abs(), mask)
        here = torch.stack([torch.where(mask, each.float(), 0.0).sum() for each in parts])
        difference, loss, sampler, size, tokens = accelerator.gather(here).view(-1, 5).sum(dim=0).tolist()
        mean, allowed = difference / max(tokens, 1), self.allowed(size / max(tokens, 1))
        if mean <= allowed:  # never if it is not a number
            return
        policy, vllm = trl_seam.policy(self.trainer), self.trainer.use_vllm
        text = (
            f"{type(policy).__name__}: {'vLLM' if vllm else 'generate'} gives the tokens that it draws a mean "
            f"log-probability of {sampler / tokens:.4f}, the loss {loss / tokens:.4f}; they differ by {mean:.3g} nats "
            f"per token over {tokens:.0f} tokens, the tolerance is {allowed:.2g}. "
        )
        dropout = active_dropout(policy)
        if dropout and not self.trainer.args.disable_dropout:
            LOG.warning(f"{text}Dropout acts ({dropout[0]}): each forward is another policy; set disable_dropout=True")
            return
        raise OtherPolicy(text + self._cause(gap, mask, drawn, allowed, dropout))

    def _cause(self, gap: Tensor, mask: Tensor, drawn: Drawn, allowed: float, dropout: list[str]) -> str:
        """Say what is likely behind a difference, from its pattern and the model's own forward on the same tokens."""
        own, batch = self._forward(drawn.batch), drawn.batch
        apart = _mean((self.trainer.logps_of(batch) - own).abs(), mask)
        padding = (batch["prompt_mask"] == 0).sum(dim=1)
        full, padded = padding == 0, padding > 0
        if apart > allowed / 2:
            return (
                f"Likely cause: the model's own forward differs from the loss by {apart:.3g} nats too, so it changes "
                "its hidden states or logits after the last layer in a way that gtpo does not know. It cannot be "
                "trained here; please report the model's class"
            )
        if dropout:
            return f"Likely cause: dropout ({', '.join(dropout[:3])}); set it to 0 in the model's config"
        if self.trainer.use_vllm:
            return (
                "Likely cause: vLLM holds other weights (stale, merged, or another base); see gtpo doctor, or sample "
                "with the trainer's own model (rollout.engine: transformers, use_vllm=False)"
            )
        if full.any() and padded.any() and _mean(gap[full], mask[full]) <= allowed:
            return (
                "Likely cause: only rows with padding differ, so the model counts positions, or attends, from the "
                "padding on. Give prompts of equal length, or another model"
            )
        return (
            "Likely cause: `generate` computes with a cache, and the model's forward without one gives other logits "
            "for the same tokens. Try generation_kwargs use_cache: false, or another attn_implementation"
        )

    def _forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return log-probabilities [B, L] by the model's own forward."""
        return chosen_logps(own_logits(self.trainer, batch) / self.trainer.temperature, batch["completion_ids"])

    # -- at every step, vLLM ---------------------------------------------------------------------------------------

    def observe(self, step: int, difference: float, tokens: float, *, last: bool) -> None:
        """Take in the summed absolute difference of a micro-batch; `last` of its step, which is judged as a whole.

        Raises OtherPolicy beyond the tolerance.
        """
        self._sum, self._tokens = self._sum + difference, self._tokens + tokens
        if not last:  # a few tokens say little
            return
        mean, tokens, allowed = self._sum / max(self._tokens, 1.0), self._tokens, self.allowed()
        self._sum = self._tokens = 0.0
        if mean <= allowed:  # never if it is not a number
            return
        raise OtherPolicy(
            f"step {step}: vLLM's log-probabilities differ from the trainer's by {mean:.4g} nats per token over "
            f"{tokens:.0f} tokens, the tolerance is {allowed:g} (rollout.logp_difference_alarm): it "
            "samples from another policy than the one that is trained. Its weights are stale, or another base: see "
            "gtpo doctor, and train on with rollout.engine: transformers"
        )


def _mean(values: Tensor, mask: Tensor) -> float:
    """Return the mean over the tokens [B, L] of a mask."""
    return float(torch.where(mask.bool(), values, 0.0).sum() / mask.sum().clamp(min=1))
