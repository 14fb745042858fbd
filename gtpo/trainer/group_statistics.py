"""What GTPO and the GRPO baseline both see of a round of sampling: group statistics under the same names.

`GroupStatistics` observes a GRPOTrainer and changes none of its numbers; for GTPOTrainer it prepares the completions
besides. It reads the rewards and ids of a round right after scoring, before TRL shuffles the completions into
micro-batches, and lets what belongs to a completion travel as extra rows of the batch dict (`gtpo.trainer.rollout`).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import TrainerCallback

from gtpo.common.errors import UserError
from gtpo.completions import group_advantages, prepare_completions
from gtpo.presets import LN2, PRESETS, Objective
from gtpo.rewards.completions import completion_text
from gtpo.rewards.format import format_score
from gtpo.trainer.rollout import Rollout, Scores, to_batch
from gtpo.trainer.sampler_check import SamplerCheck, tolerance_of
from gtpo.trainer.trl_seam import seam_of


def loss_mask(batch: Mapping[str, Any]) -> Tensor:
    """Return which tokens [B, L] the policy wrote: those of the completion, without what tools answered."""
    mask: Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def repeated_across_prompts(ids: Tensor, mask: Tensor, group: int) -> float:
    """Return the share of completions that another prompt of the rollout was given too, token for token.

    ids, mask [N, L], groups of `group` rows. Within a group equal completions are expected where a policy is certain.
    """
    texts = [tuple(row[keep].tolist()) for row, keep in zip(ids.cpu(), mask.cpu(), strict=True)]
    prompts: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for row, text in enumerate(texts):
        prompts[text].add(row // group)
    return sum(len(prompts[text]) > 1 for text in texts) / len(texts)


class GroupStatistics(TrainerCallback):
    """Logs `reward/*`, `entropy/*`, `conflict/*`, `groups/*` and `completions/*`.

    trainer: TRL's GRPOTrainer, whose loss and gradients stay its own: the spans logged are those that GTPO would see.
    objective: of a trainer with its own loss, which calls `log_completions` itself.
    """

    def __init__(self, trainer: Any, objective: Objective | None = None) -> None:
        self.trainer, self.seam = trainer, seam_of(trainer)
        self.objective = objective or PRESETS["grpo"]
        self.own_advantages = objective is not None and trainer.multi_objective_aggregation == "sum_then_normalize"
        """Whether the objective's advantages are trained with: TRL's where each reward is normalised by itself."""
        self.stopwatch: dict[str, float] = defaultdict(float)
        """Seconds spent since the last logged step, by part."""
        self.rollouts: dict[str, Rollout] = {}
        """The round of sampling in use, by mode (train, eval)."""
        self.mark_unscored: Callable[[Tensor], Tensor] = lambda rewards: rewards
        """Makes whole rows NaN where a function failed (`gtpo train`); by itself TRL's meaning of None is kept."""
        self.logp_tolerance: float | None = None
        """Nats per token that vLLM's log-probabilities may differ by from the trainer's; None: that of the dtype."""
        self._scores: Scores
        self._observed: dict[str, Any] = {}
        self._sampler_check: SamplerCheck | None = None
        self.seam.around("generate", self._generate)
        self.seam.around("rewards", self._calculate_rewards)
        self.seam.around("round", self._round)
        if objective is None:
            self.seam.around("loss", self._loss)
            self.seam.around("statistics", self._statistics)

    @property
    def rollout(self) -> Rollout | None:
        """The round of sampling that is trained on."""
        return self.rollouts.get("train")

    @rollout.setter
    def rollout(self, rollout: Rollout) -> None:
        self.rollouts["train"] = rollout

    # -- sampling beside the training ------------------------------------------------------------------------------

    @contextmanager
    def sampling_aside(self, seed: int) -> Iterator[None]:
        """Let completions be sampled, one per prompt, from their own random stream; the training does not notice."""
        times = dict(self.stopwatch)
        try:
            with self.seam.aside(seed):
                yield
        finally:
            self.stopwatch.clear()
            self.stopwatch.update(times)

    def sample_texts(self, prompts: Sequence[Any], seed: int) -> list[str]:
        """Return one sampled completion per prompt, on every process; each samples its share of the prompts.

        The trainer's own model samples as many at once as a step samples; vLLM, which bounds its memory, all of them.
        """
        accelerator, arguments = self.trainer.accelerator, self.trainer.args
        world = accelerator.num_processes
        batch = arguments.per_device_train_batch_size * arguments.steps_per_generation * world
        if self.trainer.use_vllm:
            batch = max(batch, len(prompts))
        texts: list[str] = []
        with self.sampling_aside(seed):
            for start in range(0, len(prompts), batch):
                asked = list(prompts[start : start + batch])
                # Every rank must take part in every forward of a sharded model, so a short batch is filled up.
                filled = asked + [asked[-1]] * (-len(asked) % world)
                share = len(filled) // world
                mine = filled[accelerator.process_index * share : (accelerator.process_index + 1) * share]
                completions = self.seam.sample(mine).completions
                texts += gather_object([completion_text(completion) for completion in completions])[: len(asked)]
        return texts

    # -- sampling and scoring --------------------------------------------------------------------------------------

    def _generate(self, plain: Any, prompts: list) -> Any:
        begin = time.perf_counter()
        generated = plain(prompts)
        self.stopwatch["time/generation"] += time.perf_counter() - begin
        return generated

    def _calculate_rewards(self, plain: Any, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Tensor:
        begin, trainer = time.perf_counter(), self.trainer
        rewards = self.mark_unscored(plain(inputs, prompts, completions, ids))
        infinite = rewards.isinf().any(dim=0).tolist()
        if any(infinite):
            names = [name for name, found in zip(trainer.reward_func_names, infinite, strict=True) if found]
            raise UserError(
                f"reward {', '.join(names)} is infinite in float32 for a completion of step "
                f"{trainer.state.global_step + 1}: return numbers below 3e38, or None to leave the completion unscored"
            )
        form = trainer.accelerator.gather(
            torch.tensor([format_score(completion_text(text)) for text in completions], device=rewards.device)
        )
        accuracy = self._accuracy(rewards, form)
        self.seam.log("reward/format", form.mean().item())
        if accuracy is not None:
            self.seam.log("reward/accuracy", accuracy.nanmean().item())
        self.seam.log("reward/unscored", rewards.isnan().all(dim=1).float().mean().item())
        self._scores = Scores(prompts=prompts, rewards=rewards, format=form, accuracy=accuracy)
        self.stopwatch["time/reward"] += time.perf_counter() - begin
        return rewards

    def _accuracy(self, rewards: Tensor, form: Tensor) -> Tensor | None:
        """Return the accuracy reward [N], from the column that holds it or as `final_reward` less the format part."""
        names = self.trainer.reward_func_names
        if "accuracy_reward" in names:
            return rewards[:, names.index("accuracy_reward")]
        if "final_reward" in names:
            return rewards[:, names.index("final_reward")] - form
        return None

    def total_rewards(self) -> Tensor:
        """Return the weighted sum of the round's rewards [N], NaN where no function gave one."""
        rewards = self._scores.rewards
        total = (rewards * self.trainer.reward_weights.to(rewards.device)).nansum(dim=1)
        return total.masked_fill(rewards.isnan().all(dim=1), math.nan)

    def _round(self, plain: Any, inputs: Any) -> dict[str, Any]:
        batch: dict[str, Any] = plain(inputs)
        trainer, seam, group, objective = self.trainer, self.seam, self.seam.group_size, self.objective
        accelerator = trainer.accelerator
        local, length = batch["completion_ids"].shape

        # A group may span ranks, so its ids are brought together before its spans are sought.
        ids = accelerator.gather(accelerator.pad_across_processes(batch["completion_ids"], dim=1))
        mask = accelerator.gather(accelerator.pad_across_processes(batch["completion_mask"], dim=1)).bool()
        mask[:, 0] = True  # TRL empties the mask of truncated completions that it leaves out
        lengths = mask.sum(dim=1)
        last = ids.gather(1, lengths[:, None] - 1)
        ends = torch.tensor([*trainer.eos_token_ids, seam.tokenizer.pad_token_id], device=ids.device)
        truncated = ~torch.isin(last, ends).squeeze(1)
        scored = group_advantages(objective, self.total_rewards(), group)
        advantages = scored.advantages if self.own_advantages else accelerator.gather(batch["advantages"])
        completions = prepare_completions(
            objective, scored._replace(advantages=advantages), ids, mask, group, truncated=truncated
        )

        mine = slice(accelerator.process_index * local, (accelerator.process_index + 1) * local)
        batch["advantages"] = advantages[mine].to(batch["advantages"].dtype)
        batch["row"] = torch.arange(len(ids), device=ids.device)[mine]
        batch |= to_batch(completions, mine, length)

        seam.log("conflict/forward", completions.forward.float().mean().item())
        seam.log("conflict/backward", completions.backward.float().mean().item())
        seam.log("conflict/fraction", (completions.union.sum() / lengths.sum()).item())
        seam.log("groups/zero_variance", scored.zero_variance.float().mean().item())
        seam.log("completions/length", seam.logged("completions/mean_length"))
        seam.log("completions/repeated", repeated_across_prompts(ids, mask, group))
        seam.log("completions/truncated", seam.logged("completions/clipped_ratio"))
        self.rollouts[seam.mode] = Rollout(
            **vars(self._scores),
            step=trainer.state.global_step + 1,
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

    def log_completions(self, rows: Tensor, entropy: Tensor, keep_mask: Tensor | None) -> None:
        """Log the entropies [B] of a micro-batch (nats, mean over each completion's tokens) and the gate's choice."""
        columns = [rows.double(), entropy.double()] + ([keep_mask.double()] if keep_mask is not None else [])
        table = self.trainer.accelerator.gather(torch.stack(columns, dim=1))
        finite = table[:, 1][~table[:, 1].isnan()]
        if len(finite):
            self.seam.log("entropy/mean", finite.mean().item())
            self.seam.log("entropy/above_ln2", (finite > LN2).double().mean().item())
        rollout = self.rollouts[self.seam.mode]
        where = table[:, 0].long()
        rollout.entropy[where] = table[:, 1].to(rollout.entropy.dtype)
        if keep_mask is not None:
            self.seam.log("gate/kept", table[:, 2].mean().item())
            rollout.keep_mask[where] = table[:, 2].bool()

    def log_mismatch(self, logps: Tensor, inputs: dict[str, Any]) -> None:
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
        totals = torch.stack([gap.sum(), known.sum().to(gap.dtype)])
        difference, tokens = self.trainer.accelerator.gather(totals).view(-1, 2).sum(dim=0).tolist()
        self.seam.log("sampling/logp_difference", difference / max(tokens, 1))
        if self._sampler_check is None:
            self._sampler_check = SamplerCheck(self.logp_tolerance or tolerance_of(self.trainer))
        self._sampler_check.observe(self.trainer.state.global_step + 1, difference, tokens)

    # -- the loss of TRL's own trainer -----------------------------------------------------------------------------

    def _loss(self, plain: Any, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._observed = inputs
        loss: Tensor = plain(model, inputs)
        return loss

    def _statistics(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = plain(*args, **kwargs)
        if kwargs.get("compute_entropy") and outputs[1] is not None:
            mask = self._observed["completion_mask"]
            entropy = (outputs[1].detach() * mask).sum(dim=1) / mask.sum(dim=1)
            self.log_completions(self._observed["row"], entropy, None)
            self.log_mismatch(outputs[0], self._observed)
        return outputs
