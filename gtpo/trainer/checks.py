"""What a trainer refuses, mends or compares before its first step.

Before the first completion is sampled, so before H_ini is measured too, the trainer's own model draws a few tokens in a
padded batch, as rollouts are drawn. `generate` gives its logits before and after sampling parameters act on them. vLLM
gives log-probabilities with its completions: they are compared on those that H_ini is measured on, and at every step.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from gtpo.common.errors import UserError
from gtpo.common.hub import contiguous_head_rows
from gtpo.common.log import LOG
from gtpo.inputs.dataset import beyond_embedding
from gtpo.inputs.model import backbone, beyond_positions, count_positions, drop_leaks, dropouts
from gtpo.rewards.loading import probe_reward
from gtpo.runs.prompt import begins_twice
from gtpo.trainer import trl_seam
from gtpo.trainer.group_statistics import loss_mask, padded_batch
from gtpo.trainer.policy_head import listed, sequences, shaping

# The check takes 8 rows of at most 64 tokens, of which the last 16 are drawn.
ROWS, WIDTH, DRAWN = 8, 64, 16

# Mean difference in nats per token up to which two computations with the same weights may differ, by the coarsest
# dtype (docs/nodes.md): a pretrained model of 135 million parameters in bfloat16 differs by 0.04 from its vLLM.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def check_inputs(reward_funcs: Any, train_dataset: Any, *, prompts: int) -> None:
    """Raise ValueError if no rollout can be filled, rows lack `prompt` or have images, or a function returns no scores.

    prompts: those of one rollout, over all processes. Reward functions are called once, with two empty completions of
    the first row; models are not.
    """
    if isinstance(train_dataset, Sized) and len(train_dataset) < prompts:
        raise ValueError(
            f"GTPOTrainer: train_dataset has {len(train_dataset)} rows, and one rollout takes {prompts} prompts "
            "(per_device_train_batch_size x processes x steps_per_generation / num_generations)"
        )
    row = next(iter(train_dataset), None)
    if not isinstance(row, Mapping):
        return  # TRL refuses it with its own message
    prompt = row.get("prompt")
    messages = isinstance(prompt, list) and all(isinstance(each, Mapping) and "role" in each for each in prompt)
    if not (messages or isinstance(prompt, str)):
        raise ValueError(
            f"GTPOTrainer: the prompt of the first row is {prompt!r:.80} (its columns: {', '.join(row)}); expected a "
            "column prompt of train_dataset: text, or a list of messages with role and content (rename_column, map)"
        )
    # The loss would leave images out in silence.
    if taken := {"prompts", "completions", "completion_ids", "image", "images"} & row.keys():
        raise ValueError(
            f"GTPOTrainer: rename or remove the column {min(taken)} of train_dataset: reward functions are given "
            "prompts, completions and completion_ids of the round, and images are for other models than text models"
        )
    for function in reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]:
        # A reward model, or one that TRL refuses itself.
        if isinstance(function, str | Module) or not callable(function) or getattr(function, "probed", False):
            continue
        fault, raised = probe_reward(getattr(function, "__name__", type(function).__name__), function, row)
        if fault:
            raise ValueError(f"GTPOTrainer: {fault}")
        if raised:
            LOG.warning(f"{raised}; training stops where it raises (return None to leave one unscored)")


def written(rollout_func: Any) -> Any:
    """Return a rollout function that refuses completions of no tokens, of which TRL takes the last."""

    @functools.wraps(rollout_func)
    def checked(*args: Any, **kwargs: Any) -> Any:
        outputs = rollout_func(*args, **kwargs)
        for place, ids in enumerate(outputs.get("completion_ids") or []):
            if not len(ids):
                raise UserError(f"rollout_func: completion_ids[{place}] has no tokens; return at least an end token")
        return outputs

    return checked


class OtherPolicy(UserError, ValueError):
    """The loss would be of another policy than the one that samples."""


def prepare(trainer: Any) -> None:
    """Let the policy of a new GRPOTrainer sample from the distribution that its loss is taken of, and say what changed.

    Raises OtherPolicy for generation_kwargs of which the loss would not know, and if nothing is drawn.
    """
    first, tokenizer = next(iter(trainer.train_dataset or ()), None) or {}, trl_seam.tokenizer(trainer)
    if isinstance(prompt := first.get("prompt"), str) and begins_twice(tokenizer, prompt):
        raise ValueError(
            f"{type(trainer).__name__}: the prompt of the first row begins with {tokenizer.bos_token}, and the "
            "tokenizer puts another before it: remove it from the texts, or give messages (role and content)"
        )
    policy = trl_seam.policy(trainer)
    head = policy.get_output_embeddings()
    if backbone(policy) is policy or not hasattr(head, "weight"):
        raise OtherPolicy(
            f"{type(policy).__name__}: the loss multiplies the model's last hidden states by the weight of its head "
            f"({type(head).__name__}), and it does not have both. It cannot be trained here"
        )
    # In place: TRL's generation_config has the same list. null in a model's ends nothing.
    trainer.eos_token_ids[:] = [each for each in trainer.eos_token_ids if each is not None]
    if not trainer.use_vllm:
        asked = trainer.generation_config
        for name, why in (
            ("temperature", asked.temperature != trainer.temperature
             and f"the loss is taken at {trainer.temperature}; set the argument temperature"),
            ("do_sample", asked.do_sample is False and "completions of a prompt would all be one text"),
            ("return_dict_in_generate", asked.return_dict_in_generate and "TRL takes the ids only; remove it"),
            ("num_return_sequences", (asked.num_return_sequences or 1) > 1 and "set the argument num_generations"),
            ("num_beams", (asked.num_beams or 1) > 1 and "beams are no draws from the policy; remove it"),
        ):  # fmt: skip
            if why:
                raise OtherPolicy(f"generation_kwargs has {name} {getattr(asked, name)}: {why}")
        ends = asked.eos_token_id if isinstance(asked.eos_token_id, list) else [asked.eos_token_id]
        if asked.stop_strings or not {*ends} <= {None, *trainer.eos_token_ids}:
            raise OtherPolicy(
                "generation_kwargs (rollout) has eos_token_id or stop_strings: TRL cuts completions at the model's "
                f"end tokens ({trainer.eos_token_ids}), and what `generate` pads behind others is trained on. Set "
                "eos_token_id in the model's generation_config.json"
            )
        if found := drop_leaks(policy.generation_config, asked):
            LOG.warning(f"the model's generation_config does not act: {found} (generation_kwargs sets it on purpose)")
    if trainer.args.disable_dropout and (acting := list(dropouts(policy))):
        LOG.info(f"set to 0, as disable_dropout says: {', '.join(sorted({f'{name} {p:g}' for _, name, p in acting}))}")
        for owner, name, _ in acting:
            setattr(owner, name, 0.0)
    count_positions(policy)
    contiguous_head_rows(policy)
    if (reference := getattr(trainer, "ref_model", None)) is not None:  # of GRPO's KL term
        count_positions(trainer.accelerator.unwrap_model(reference))


def chosen_logps(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probabilities [B, L] of tokens [B, L] from logits [B, L, V]."""
    return logits.float().log_softmax(-1).gather(-1, ids[..., None])[..., 0]


class SamplerCheck:
    """Compares the sampler's log-probabilities with the loss's: before the first round, and vLLM's at every step.

    tolerance: nats per token; None: that of the dtype.
    """

    def __init__(self, trainer: Any, tolerance: float | None = None) -> None:
        self.trainer, self.tolerance = trainer, tolerance
        self._checked, self._step = False, [0.0] * 5
        # Whether it was said that sampling parameters move what vLLM samples from.
        self._told = False

    def embedded(self, rows_of_ids: Sequence[Sequence[int]]) -> None:
        """Raise OtherPolicy if an id of prompts, padding or what a tool wrote lies beyond the embedding."""
        trainer = self.trainer
        # PEFT's wrapper of trainable tokens has the embedding within.
        within = trl_seam.policy(trainer).get_input_embeddings().modules()
        rows = next(module.num_embeddings for module in within if hasattr(module, "num_embeddings"))
        largest = max((token for row in rows_of_ids for token in row), default=0)
        if fault := beyond_embedding(trl_seam.tokenizer(trainer), largest, rows):
            raise OtherPolicy(fault)

    def prompts(self, prompt_ids: Sequence[Sequence[int]]) -> None:
        """Check the ids of a round's prompts, and before the first round how the trainer's own model samples.

        Raises OtherPolicy. All processes call it.
        """
        trainer = self.trainer
        self.embedded(prompt_ids)
        if self._checked or trl_seam.mode(trainer) != "train":
            return
        self._checked = True
        length = torch.tensor([max(map(len, prompt_ids))], device=trainer.accelerator.device)
        whole = int(trainer.accelerator.gather(length).max()) + trainer.max_completion_length
        if beyond := beyond_positions(trl_seam.policy(trainer), whole):
            LOG.warning(beyond)
        if trainer.use_vllm:
            return
        with torch.random.fork_rng():
            torch.manual_seed(trainer.args.seed + trainer.accelerator.process_index)
            # Cut to different lengths, so that there is padding.
            some, longest = [], max(prompt_ids, key=len)
            for row in range(ROWS):
                ids = prompt_ids[row % len(prompt_ids)][-(WIDTH - DRAWN) :]
                some.append(ids[-max(1, len(ids) * (ROWS - row) // ROWS) :])
            self._compare(some)
            # One that has as many tokens as the run allows: positions may count otherwise far out.
            if whole > WIDTH:
                self._compare([(list(longest) * whole)[: whole - DRAWN], longest[-1:]])

    def _compare(self, prompts: Sequence[Sequence[int]]) -> None:
        """Compare log-probabilities of a few tokens that the trainer's own model draws after prompts."""
        trainer = self.trainer
        asked = copy.deepcopy(trainer.generation_config)
        asked.update(max_new_tokens=min(DRAWN, trainer.max_completion_length), return_dict_in_generate=True)
        asked.update(output_scores=True, output_logits=True)
        batch = padded_batch(trainer, prompts, [[] for _ in prompts])
        found = trl_seam.generate(trainer, batch["prompt_ids"], batch["prompt_mask"], asked)
        drawn = found.sequences[:, batch["prompt_ids"].size(1) :]
        ends = torch.isin(drawn, torch.tensor(trainer.eos_token_ids, device=drawn.device))
        mask = ends.cumsum(dim=1) - ends.long() == 0
        logits, scores = (torch.stack(each, dim=1).float() for each in (found.logits, found.scores))
        plain, shaped = (chosen_logps(each, drawn) for each in (logits / trainer.temperature, scores))
        size = logits.gather(-1, drawn[..., None])[..., 0].abs()
        batch |= {"completion_ids": drawn, "completion_mask": mask.long()}
        batch["sampling_per_token_logps"] = plain if trainer.kept_sets is None else shaped
        self.observe(trainer.logps_of(batch), batch, size)
        moved = _mean((shaped - plain).abs(), mask)
        # A penalty may do nothing to the untrained policy, and more with each step.
        known = trainer.kept_sets is not None or moved <= self.allowed(_mean(size, mask))
        if not self._told and (self.acting() or not known):
            self._tell(moved)

    def acting(self) -> dict[str, Any]:
        """Return the sampling parameters that leave another distribution than the loss is of."""
        return shaping(self.trainer) if self.trainer.kept_sets is None else {}

    def _tell(self, moved: float) -> None:
        self._told, acting = True, self.acting()
        LOG.warning(
            f"sampling parameters{f' ({listed(acting)})' if acting else ''} move the log-probability of a drawn token "
            f"by {moved:.2g} nats on average: the loss, the gate and H_ini are of the distribution without them"
        )

    def allowed(self, size: float = 0.0) -> float:
        """Return the tolerance in nats per token; logits of this mean size, made in 16 bits, add their spacing.

        Of the coarsest dtype that the trainer or its sampler computes in; a vLLM server's is taken for bfloat16.
        """
        if self.tolerance is not None:
            return self.tolerance
        trainer, half = self.trainer, {"fp16": torch.float16, "bf16": torch.bfloat16}
        dtypes = {half.get(trainer.accelerator.mixed_precision, torch.float32)}
        dtypes |= {p.dtype for p in trainer.model.parameters() if p.dtype in TOLERANCE}
        if torch.backends.cuda.matmul.allow_tf32 and torch.cuda.is_available():
            dtypes.add(torch.float16)  # TensorFloat-32 has as many digits
        if trainer.use_vllm:
            engine = getattr(trainer.vllm_generation, "llm", None)
            dtypes.add(torch.bfloat16 if engine is None else engine.llm_engine.model_config.dtype)
        coarsest = max(dtypes, key=TOLERANCE.__getitem__)
        return TOLERANCE[coarsest] + size * torch.finfo(coarsest).eps

    def _judge(self, totals: Sequence[float], batch: Mapping[str, Tensor], ours: Tensor, mask: Tensor) -> None:
        """Raise OtherPolicy, with the likely cause, if the sums of `observe` say so.

        batch: completions of which the cause is sought, with the loss's log-probabilities [B, L], and which count.
        """
        (difference, loss, sampler, size), tokens, trainer = totals[:4], max(totals[4], 1.0), self.trainer
        mean, allowed = difference / tokens, self.allowed(size / tokens)
        acting = self.acting()
        if mean <= allowed:  # never if it is not a number
            if not trainer.use_vllm or self._told:
                return
            if acting:
                self._tell(mean)
                return
            self._told, what = True, "is not corrected: the loss is exactly the paper's"
            if trainer.vllm_importance_sampling_correction:
                what = (
                    "importance weights correct, at one forward more a round. The paper's exact loss is that of "
                    "rollout.importance_sampling_correction: false (a script: vllm_importance_sampling_correction="
                    "False)"
                )
            LOG.info(
                f"vLLM's log-probabilities differ from the loss's by {mean:.2g} nats per token: rounding, which {what}"
            )
            return
        policy = trl_seam.policy(trainer)
        text = (
            f"step {trainer.state.global_step + 1}: {type(policy).__name__}: "
            f"{'vLLM' if trainer.use_vllm else 'generate'} gives the tokens that it draws a mean log-probability of "
            f"{sampler / tokens:.4f}, the loss {loss / tokens:.4f}; they differ by {mean:.3g} nats per token over "
            f"{tokens:.0f} tokens, the tolerance is {allowed:.2g} (rollout.logp_difference_alarm). "
        )
        if dropout := ", ".join(sorted({name for _, name, _ in dropouts(policy)})):
            LOG.warning(f"{text}Dropout acts ({dropout}): each forward is another policy; set disable_dropout=True")
            # Once is enough.
            self.tolerance = math.inf
            return
        # Of two completions: all logits of a micro-batch may not fit.
        inputs = {name: rows[:2] for name, rows in sequences(batch).items()}
        with torch.no_grad(), trainer.accelerator.autocast():
            logits = trainer.model_wrapped(**inputs).logits[:, -ours.size(1) - 1 : -1] / trainer.temperature
        apart = _mean((ours[:2] - chosen_logps(logits, batch["completion_ids"][:2])).abs(), mask[:2])
        # Over kept sets they differ anyway.
        if apart > allowed / 2 and trainer.kept_sets is None:
            cause = (
                f"the model's own forward differs from the loss by {apart:.3g} nats too, so it changes its hidden "
                "states or logits after the last layer in a way that gtpo does not know. It cannot be trained here; "
                "please report the model's class"
            )
        elif trainer.use_vllm:
            cause = (
                "vLLM holds other weights (stale, merged, or another base); see gtpo doctor, or sample with the "
                "trainer's own model (rollout.engine: transformers, use_vllm=False)"
            )
            if acting:
                cause = (
                    f"sampling parameters act ({listed(acting)}): vLLM's log-probabilities are of the distribution "
                    f"that they leave, and the loss's of the whole one. Remove them. If it stops then too, {cause}"
                )
        else:
            cause = (
                "without the cache of `generate` the model's forward gives other logits for the same tokens: it counts "
                "positions from the padding on (give prompts of equal length), or attends in another way (try "
                "generation_kwargs use_cache: false, or another attn_implementation)"
            )
        raise OtherPolicy(f"{text}Likely cause: {cause}")

    def observe(self, logps: Tensor, batch: Mapping[str, Any], size: Tensor | None = None) -> None:
        """Compare the loss's log-probabilities [B, L] of a micro-batch with the sampler's; judge each step as a whole.

        They are compared under the policy that sampled, also if several optimizer steps share a rollout. size: of the
        tokens' logits, of a batch that was drawn to be judged at once, and is not logged. Raises OtherPolicy beyond the
        tolerance.
        """
        sampled, old, trainer = batch.get("sampling_per_token_logps"), batch.get("old_per_token_logps"), self.trainer
        if sampled is None:
            return
        ours, known = logps.detach() if old is None else old, loss_mask(batch).bool() & ~sampled.isnan()
        values = ((ours - sampled).abs(), ours, sampled, torch.zeros_like(ours) if size is None else size, known)
        here = torch.stack([torch.where(known, each.float(), 0.0).sum() for each in values])
        sums = trainer.accelerator.gather(here).view(-1, 5).sum(dim=0).tolist()
        if size is None:
            trl_seam.log(trainer, "sampling/logp_difference", sums[0] / max(sums[4], 1.0))
        self._step = [before + now for before, now in zip(self._step, sums, strict=True)]
        # The few tokens of a micro-batch say little. Before a training begins, gradients count as synchronised.
        if size is not None or trainer.accelerator.sync_gradients:
            totals, self._step = self._step, [0.0] * 5
            self._judge(totals, batch, ours, known)


def _mean(values: Tensor, mask: Tensor) -> float:
    """Return the mean over the tokens [B, L] of a mask."""
    return float(torch.where(mask.bool(), values, 0.0).sum() / mask.sum().clamp(min=1))
