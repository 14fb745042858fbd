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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.trainer import trl_seam
from gtpo.trainer.group_statistics import loss_mask, padded, padded_batch

# The check takes 8 rows of at most 64 tokens, of which the last 16 are drawn.
ROWS, WIDTH, DRAWN = 8, 64, 16

# Mean difference in nats per token up to which two computations with the same weights may differ, by dtype.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}

# Fields of a generation_config that do not change which tokens are drawn, or that every call sets.
_NOT_OF_SAMPLING = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "max_length", "use_cache"),
    *("cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
    *("return_dict_in_generate", "transformers_version"),
}


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
    if trainer.args.disable_dropout and (acting := list(dropouts(policy))):
        LOG.info(f"set to 0, as disable_dropout says: {', '.join(sorted({f'{name} {p:g}' for _, name, p in acting}))}")
        for owner, name, _ in acting:
            setattr(owner, name, 0.0)
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


def dropouts(model: nn.Module) -> Iterator[tuple[Any, str, float]]:
    """Yield (owner, attribute, value) of each dropout above 0 of a model's modules and their configs."""
    configs = {id(config): config for module in model.modules() if (config := getattr(module, "config", None))}
    for owner in (*model.modules(), *configs.values()):
        for name, value in vars(owner).items():
            # TRL sets nn.Dropout to 0 itself, and not what attention takes as a number.
            named = any(part in name for part in ("dropout", "pdrop", "drop_rate"))
            if (named or (isinstance(owner, nn.Dropout) and name == "p")) and isinstance(value, float) and value > 0:
                yield owner, name, value


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
        # With a cache, `generate` gives them itself.
        absent = cache is None and kwargs.get("position_ids") is None
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

        Of two completions, of the shortest prompts: a round may be large. Raises OtherPolicy. All processes call it.
        """
        prompt_ids, completion_ids, tool_mask, logprobs = *outputs[:3], outputs[4]
        if self._checked or not logprobs or trl_seam.mode(self.trainer) != "train":
            return
        self._checked = True
        rows, drawn = sorted(range(len(prompt_ids)), key=lambda row: len(prompt_ids[row]))[:2], slice(WIDTH)
        batch = padded_batch(
            self.trainer, [prompt_ids[row] for row in rows], [completion_ids[row][drawn] for row in rows]
        )
        given = [[float("nan") if p is None else p for p in logprobs[row][drawn]] for row in rows]
        sampled = padded(self.trainer, given, float("nan"), "right")
        known = batch["completion_mask"].bool() & ~sampled.isnan()
        if tool_mask is not None:  # what a tool wrote, nobody drew
            known &= padded(self.trainer, [tool_mask[row][drawn] for row in rows], 0, "right").bool()
        self._judge(batch, sampled.nan_to_num(), known)

    def _own_model(self, prompt_ids: Sequence[Sequence[int]]) -> None:
        """Let the trainer's own model continue a few prompts, cut to different lengths so that there is padding."""
        trainer = self.trainer
        torch.manual_seed(trainer.args.seed + trainer.accelerator.process_index)
        prompts = []
        for row in range(ROWS):
            ids = prompt_ids[row % len(prompt_ids)][-(WIDTH - DRAWN) :]
            prompts.append(ids[-max(1, len(ids) * (ROWS - row) // ROWS) :])
        asked = copy.deepcopy(trainer.generation_config)
        asked.update(max_new_tokens=min(DRAWN, trainer.max_completion_length), return_dict_in_generate=True)
        asked.update(output_scores=True, output_logits=True)
        batch = padded_batch(trainer, prompts, [[] for _ in prompts])
        found = trl_seam.generate(trainer, batch["prompt_ids"], batch["prompt_mask"], asked)
        drawn = found.sequences[:, batch["prompt_ids"].size(1) :]
        ends = torch.isin(drawn, torch.tensor(trainer.eos_token_ids, device=drawn.device))
        mask = ends.cumsum(dim=1) - ends.long() == 0
        batch |= {"completion_ids": drawn, "completion_mask": mask.long()}

        logits, scores = (torch.stack(each, dim=1).float() for each in (found.logits, found.scores))
        plain, size = (
            chosen_logps(logits / trainer.temperature, drawn),
            logits.gather(-1, drawn[..., None])[..., 0].abs(),
        )
        self._judge(batch, plain, mask, size)
        shaped = _mean((chosen_logps(scores, drawn) - plain).abs(), mask)
        if shaped > self.allowed(_mean(size, mask)):
            LOG.warning(
                f"sampling parameters move the log-probability of a drawn token by {shaped:.2g} nats on average: the "
                "loss, the gate and H_ini are of the distribution without them (training.top_p, top_k, min_p, "
                "repetition_penalty and generation_kwargs)"
            )

    def allowed(self, size: float = 0.0) -> float:
        """Return the tolerance in nats per token; logits of this mean size, made in 16 bits, add their spacing."""
        if self.tolerance is not None:
            return self.tolerance
        dtype = computing_dtype(self.trainer)
        return TOLERANCE[dtype] + size * torch.finfo(dtype).eps

    def _judge(self, batch: dict[str, Tensor], sampled: Tensor, mask: Tensor, size: Tensor | None = None) -> None:
        """Raise OtherPolicy if the loss's log-probabilities are not the sampler's [B, L], with the likely cause.

        size: of the drawn tokens' logits, if they are known.
        """
        ours, trainer = self.trainer.logps_of(batch), self.trainer
        gap, sizes = (ours - sampled).abs(), torch.zeros_like(ours) if size is None else size
        here = torch.stack([torch.where(mask, each.float(), 0.0).sum() for each in (gap, ours, sampled, sizes, mask)])
        difference, loss, sampler, logits, tokens = trainer.accelerator.gather(here).view(-1, 5).sum(dim=0).tolist()
        mean, allowed = difference / max(tokens, 1), self.allowed(logits / max(tokens, 1))
        if mean <= allowed:  # never if it is not a number
            return
        policy = trl_seam.policy(trainer)
        text = (
            f"{type(policy).__name__}: {'vLLM' if trainer.use_vllm else 'generate'} gives the tokens that it draws a "
            f"mean log-probability of {sampler / tokens:.4f}, the loss {loss / tokens:.4f}; they differ by {mean:.3g} "
            f"nats per token over {tokens:.0f} tokens, the tolerance is {allowed:.2g}. "
        )
        acting = ", ".join(sorted({name for _, name, _ in dropouts(policy)}))
        if acting and not trainer.args.disable_dropout:
            LOG.warning(f"{text}Dropout acts ({acting}): each forward is another policy; set disable_dropout=True")
            return
        raise OtherPolicy(f"{text}Likely cause: {self._cause(batch, ours, sampled, mask, allowed, acting)}")

    def _cause(
        self, batch: dict[str, Tensor], ours: Tensor, sampled: Tensor, mask: Tensor, allowed: float, dropout: str
    ) -> str:
        """Say what is likely behind a difference, from its pattern and the model's own forward on the same tokens."""
        trainer = self.trainer
        own = chosen_logps(own_logits(trainer, batch) / trainer.temperature, batch["completion_ids"])
        if (apart := _mean((ours - own).abs(), mask)) > allowed / 2:
            return (
                f"the model's own forward differs from the loss by {apart:.3g} nats too, so it changes its hidden "
                "states or logits after the last layer in a way that gtpo does not know. It cannot be trained here; "
                "please report the model's class"
            )
        if dropout:
            return f"dropout ({dropout}); set it to 0 in the model's config"
        if trainer.use_vllm:
            return (
                "vLLM holds other weights (stale, merged, or another base); see gtpo doctor, or sample with the "
                "trainer's own model (rollout.engine: transformers, use_vllm=False)"
            )
        whole = batch["prompt_mask"].bool().all(dim=1)
        if whole.any() and not whole.all() and _mean((ours - sampled)[whole].abs(), mask[whole]) <= allowed:
            return (
                "only rows with padding differ, so the model counts positions, or attends, from the padding on. Give "
                "prompts of equal length, or another model"
            )
        return (
            "`generate` computes with a cache, and the model's forward without one gives other logits for the same "
            "tokens. Try generation_kwargs use_cache: false, or another attn_implementation"
        )

    # -- at every step, vLLM ---------------------------------------------------------------------------------------

    def observe(self, logps: Tensor, inputs: Mapping[str, Any]) -> None:
        """Log how far the loss's log-probabilities [B, L] of a micro-batch are from vLLM's; judge each step as a whole.

        They are compared under the policy that sampled, also if several optimizer steps share a rollout. Raises
        OtherPolicy beyond the tolerance.
        """
        sampled, old, trainer = inputs.get("sampling_per_token_logps"), inputs.get("old_per_token_logps"), self.trainer
        if sampled is None:
            return
        known = loss_mask(inputs).bool() & ~sampled.isnan()
        gap = torch.where(known, (logps.detach() if old is None else old) - sampled, 0.0).abs()
        totals = torch.stack([gap.sum(), known.sum().to(gap.dtype)])
        difference, tokens = trainer.accelerator.gather(totals).view(-1, 2).sum(dim=0).tolist()
        trl_seam.log(trainer, "sampling/logp_difference", difference / max(tokens, 1))
        self._sum, self._tokens = self._sum + difference, self._tokens + tokens
        # The few tokens of a micro-batch say little.
        if not trainer.accelerator.sync_gradients:
            return
        mean, tokens, allowed = self._sum / max(self._tokens, 1.0), self._tokens, self.allowed()
        self._sum = self._tokens = 0.0
        if mean <= allowed:  # never if it is not a number
            return
        raise OtherPolicy(
            f"step {trainer.state.global_step + 1}: vLLM's log-probabilities differ from the trainer's by {mean:.4g} "
            f"nats per token over {tokens:.0f} tokens, the tolerance is {allowed:g} (rollout.logp_difference_alarm): "
            "it samples from another policy than the one that is trained. Its weights are stale, or another base: see "
            "gtpo doctor, and train on with rollout.engine: transformers"
        )


def _mean(values: Tensor, mask: Tensor) -> float:
    """Return the mean over the tokens [B, L] of a mask."""
    return float(torch.where(mask.bool(), values, 0.0).sum() / mask.sum().clamp(min=1))
