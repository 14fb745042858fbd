"""What GTPO and the GRPO baseline both see of a round of sampling: group statistics under the same names.

`GroupLoggingTrainer` observes TRL's GRPOTrainer and changes none of its numbers. It reads the rewards and ids of a
round right after scoring, before TRL shuffles the completions into micro-batches, and lets what belongs to a
completion travel as extra rows of the batch dict (`gtpo.trainer.rollout`).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer
from trl.import_utils import is_vllm_available

from gtpo.completions import group_advantages, prepare_completions
from gtpo.presets import LN2, PRESETS, Objective
from gtpo.rewards.completions import completion_text
from gtpo.rewards.format import format_score
from gtpo.trainer.adapter_sync import adapters_by_themselves
from gtpo.trainer.rollout import Rollout, Scores, to_batch
from gtpo.trainer.sampler_check import SamplerCheck, tolerance_of
from gtpo.trainer.vllm_on_cpu import reload_by_layers, without_compilation


def loss_mask(batch: Mapping[str, Any]) -> Tensor:
    """Return which tokens [B, L] the policy wrote: those of the completion, without what tools answered."""
    mask: Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def repeated_across_prompts(ids: Tensor, mask: Tensor, group: int) -> float:
    """Return the share of completions that another prompt of the rollout was given too, token for token.

    ids, mask [N, L], groups of `group` rows. Within a group equal completions are no wonder where a policy is sure.
    """
    texts = [tuple(row[keep].tolist()) for row, keep in zip(ids.cpu(), mask.cpu(), strict=True)]
    prompts: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for row, text in enumerate(texts):
        prompts[text].add(row // group)
    return sum(len(prompts[text]) > 1 for text in texts) / len(texts)


class GroupLoggingTrainer(GRPOTrainer):
    """GRPOTrainer that logs `reward/*`, `entropy/*`, `conflict/*`, `groups/*` and `completions/*`."""

    objective: Objective = PRESETS["grpo"]
    """Whose spans are logged; a subclass that trains with an objective sets its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.stopwatch: dict[str, float] = defaultdict(float)
        """Seconds spent since the last logged step, by part."""
        self.rollouts: dict[str, Rollout] = {}
        """The round of sampling in use, by mode (train, eval)."""
        self.mark_unscored: Callable[[Tensor], Tensor] = lambda rewards: rewards
        """Makes whole rows NaN where a function failed (`gtpo train`); by itself TRL's meaning of None is kept."""
        self._scores: Scores
        self.logp_tolerance: float | None = None
        """Nats per token that vLLM's log-probabilities may differ by from the trainer's; None: that of the dtype."""
        self._sampler_check: SamplerCheck | None = None
        config: Any = kwargs.get("args")
        with ExitStack() as patched:
            if is_vllm_available() and getattr(config, "use_vllm", False):
                patched.enter_context(adapters_by_themselves(config.output_dir))
                if not torch.accelerator.is_available():
                    patched.enter_context(without_compilation())
            super().__init__(*args, **kwargs)
        generation: Any = getattr(self, "vllm_generation", None)
        beside = generation is not None and self.vllm_mode == "colocate"
        if beside and self.accelerator.device.type == "cpu" and generation.adapter is None:
            reload_by_layers(generation)

    @property
    def training_mode(self) -> bool:
        """Whether the model is being trained (as opposed to evaluated)."""
        return bool(self.model is not None and self.model.training)

    def _mode(self) -> str:
        return "train" if self.training_mode else "eval"

    def _group_size(self) -> int:
        size = self.num_generations if self.training_mode else self.num_generations_eval
        assert size is not None
        return size

    # -- sampling beside the training ------------------------------------------------------------------------------

    @contextmanager
    def sampling_aside(self, seed: int) -> Iterator[None]:
        """Let `_generate` sample one completion per prompt from its own random stream.

        Random numbers, metrics, counters and times of the training are afterwards what they were.
        """
        generations, seen = self.num_generations, self.state.num_input_tokens_seen
        metrics, times = self._metrics["train"], dict(self.stopwatch)
        self.num_generations, self._metrics["train"] = 1, defaultdict(list)
        try:
            with torch.random.fork_rng():
                torch.manual_seed(seed + self.accelerator.process_index)
                yield
        finally:
            self.num_generations, self._metrics["train"] = generations, metrics
            self.state.num_input_tokens_seen = seen
            self.stopwatch.clear()
            self.stopwatch.update(times)

    def sample_texts(self, prompts: Sequence[Any], seed: int) -> list[str]:
        """Return one sampled completion per prompt, on every process; each samples its share of the prompts."""
        accelerator, world = self.accelerator, self.accelerator.num_processes
        arguments: Any = self.args
        batch = arguments.per_device_train_batch_size * arguments.steps_per_generation * world
        texts: list[str] = []
        with self.sampling_aside(seed):
            for start in range(0, len(prompts), batch):
                asked = list(prompts[start : start + batch])
                # Every rank must take part in every forward of a sharded model, so a short batch is filled up.
                filled = asked + [asked[-1]] * (-len(asked) % world)
                share = len(filled) // world
                mine = filled[accelerator.process_index * share : (accelerator.process_index + 1) * share]
                completions = self._generate(mine)[3]
                texts += gather_object([completion_text(completion) for completion in completions])[: len(asked)]
        return texts

    # -- sampling and scoring --------------------------------------------------------------------------------------

    def _generate(self, prompts: list) -> Any:
        begin = time.perf_counter()
        generated = super()._generate(prompts)
        self.stopwatch["time/generation"] += time.perf_counter() - begin
        return generated

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        begin = time.perf_counter()
        rewards = self.mark_unscored(super()._calculate_rewards(inputs, prompts, completions, completion_ids_list))
        infinite = rewards.isinf().any(dim=0).tolist()
        if any(infinite):
            names = [name for name, found in zip(self.reward_func_names, infinite, strict=True) if found]
            raise ValueError(
                f"reward {', '.join(names)} is infinite for a completion of step {self.state.global_step + 1}; "
                "return a finite number, or None to leave the completion unscored"
            )
        form = self.accelerator.gather(
            torch.tensor([format_score(completion_text(text)) for text in completions], device=rewards.device)
        )
        accuracy = self._accuracy(rewards, form)
        metrics = self._metrics[self._mode()]
        metrics["reward/format"].append(form.mean().item())
        if accuracy is not None:
            metrics["reward/accuracy"].append(accuracy.nanmean().item())
        metrics["reward/unscored"].append(rewards.isnan().all(dim=1).float().mean().item())
        self._scores = Scores(prompts=prompts, rewards=rewards, format=form, accuracy=accuracy)
        self.stopwatch["time/reward"] += time.perf_counter() - begin
        return rewards

    def _accuracy(self, rewards: Tensor, form: Tensor) -> Tensor | None:
        """Return the accuracy reward [N], from the column that holds it or as `final_reward` less the format part."""
        names = self.reward_func_names
        if "accuracy_reward" in names:
            return rewards[:, names.index("accuracy_reward")]
        if "final_reward" in names:
            return rewards[:, names.index("final_reward")] - form
        return None

    def total_rewards(self) -> Tensor:
        """Return the weighted sum of the round's rewards [N], NaN where no function gave one."""
        rewards = self._scores.rewards
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
        return total.masked_fill(rewards.isnan().all(dim=1), math.nan)

    def _advantages(self, own: Tensor, trl: Tensor) -> Tensor:
        """Hook: return the advantages [N] to train with: the objective's own, or those that TRL computed."""
        return trl

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        accelerator, group, objective = self.accelerator, self._group_size(), self.objective
        local, length = batch["completion_ids"].shape

        # A group may span ranks, so its ids are brought together before its spans are sought.
        ids = accelerator.gather(accelerator.pad_across_processes(batch["completion_ids"], dim=1))
        mask = accelerator.gather(accelerator.pad_across_processes(batch["completion_mask"], dim=1)).bool()
        mask[:, 0] = True  # TRL empties the mask of truncated completions that it leaves out
        lengths = mask.sum(dim=1)
        last = ids.gather(1, lengths[:, None] - 1)
        ends = torch.tensor([*self.eos_token_ids, self._tokenizer.pad_token_id], device=ids.device)
        truncated = ~torch.isin(last, ends).squeeze(1)
        scored = group_advantages(objective, self.total_rewards(), group)
        advantages = self._advantages(scored.advantages, accelerator.gather(batch["advantages"]))
        completions = prepare_completions(
            objective, scored._replace(advantages=advantages), ids, mask, group, truncated=truncated
        )

        mine = slice(accelerator.process_index * local, (accelerator.process_index + 1) * local)
        batch["advantages"] = advantages[mine].to(batch["advantages"].dtype)
        batch["row"] = torch.arange(len(ids), device=ids.device)[mine]
        batch |= to_batch(completions, mine, length)

        metrics = self._metrics[self._mode()]
        metrics["conflict/forward"].append(completions.forward.float().mean().item())
        metrics["conflict/backward"].append(completions.backward.float().mean().item())
        metrics["conflict/fraction"].append((completions.union.sum() / lengths.sum()).item())
        metrics["groups/zero_variance"].append(scored.zero_variance.float().mean().item())
        metrics["completions/length"].append(metrics["completions/mean_length"][-1])
        metrics["completions/repeated"].append(repeated_across_prompts(ids, mask, group))
        metrics["completions/truncated"].append(metrics["completions/clipped_ratio"][-1])
        self.rollouts[self._mode()] = Rollout(
            step=self.state.global_step + 1,
            **self._scores._asdict(),
            ids=ids,
            mask=mask,
            truncated=truncated,
            advantages=advantages,
            weights=completions.weights,
            entropy=torch.full_like(advantages, math.nan),
            keep_mask=torch.ones_like(advantages, dtype=torch.bool),
        )
        return batch

    # -- the loss --------------------------------------------------------------------------------------------------

    def _log_completions(self, rows: Tensor, entropy: Tensor, keep_mask: Tensor | None) -> None:
        """Log the entropies [B] of a micro-batch (nats, mean over each completion's tokens) and the gate's choice."""
        columns = [rows.double(), entropy.double()] + ([keep_mask.double()] if keep_mask is not None else [])
        table = self.accelerator.gather(torch.stack(columns, dim=1))
        finite = table[:, 1][~table[:, 1].isnan()]
        metrics = self._metrics[self._mode()]
        if len(finite):
            metrics["entropy/mean"].append(finite.mean().item())
            metrics["entropy/above_ln2"].append((finite > LN2).double().mean().item())
        rollout = self.rollouts[self._mode()]
        where = table[:, 0].long()
        rollout.entropy[where] = table[:, 1].to(rollout.entropy.dtype)
        if keep_mask is not None:
            metrics["gate/kept"].append(table[:, 2].mean().item())
            rollout.keep_mask[where] = table[:, 2].bool()

    def _log_mismatch(self, logps: Tensor, inputs: dict[str, Any]) -> None:
        """Log how far the trainer's log-probabilities [B, L] are from vLLM's; stop beyond the tolerance.

        They are compared under the policy that sampled, also where several optimizer steps share a rollout.
        Raises UserError there.
        """
        sampled = inputs.get("sampling_per_token_logps")
        if sampled is None:
            return
        if inputs.get("old_per_token_logps") is not None:
            logps = inputs["old_per_token_logps"]
        known = loss_mask(inputs).bool() & ~sampled.isnan()
        gap = torch.where(known, logps.detach() - sampled, 0.0).abs()
        totals = self.accelerator.gather(torch.stack([gap.sum(), known.sum().to(gap.dtype)])).view(-1, 2).sum(dim=0)
        difference, tokens = totals.tolist()
        self._metrics[self._mode()]["sampling/logp_difference"].append(difference / max(tokens, 1))
        if self._sampler_check is None:
            self._sampler_check = SamplerCheck(self.logp_tolerance or tolerance_of(self))
        self._sampler_check.observe(self.state.global_step + 1, difference, tokens)


class ObservedGRPOTrainer(GroupLoggingTrainer):
    """TRL's GRPO with the group statistics beside it: its loss and gradients are TRL's own.

    Its `conflict/*` are those that GTPO would see; they weigh nothing here.
    """

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._observed = inputs
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if kwargs.get("compute_entropy") and outputs[1] is not None:
            mask = self._observed["completion_mask"]
            entropy = (outputs[1].detach() * mask).sum(dim=1) / mask.sum(dim=1)
            self._log_completions(self._observed["row"], entropy, None)
            self._log_mismatch(outputs[0], self._observed)
        return outputs
