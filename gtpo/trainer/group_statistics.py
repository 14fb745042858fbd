"""What GTPO and the GRPO baseline both see of a round of sampling: group statistics under the same names.

`GroupStatistics` reads the rewards and ids of a round right after scoring, before TRL shuffles the completions into
micro-batches, and lets what belongs to a completion travel as extra rows of the batch dict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from trl.trainer.utils import pad

from gtpo.completions import Completions, group_advantages, prepare_completions
from gtpo.presets import LN2, PRESETS, Objective
from gtpo.rewards.completions import completion_text, format_score
from gtpo.rewards.loading import says
from gtpo.trainer import trl_seam
from gtpo.trainer.policy_head import token_forward


def loss_mask(batch: Mapping[str, Any]) -> Tensor:
    """Return which tokens [B, L] the policy wrote: those of the completion, without what tools answered."""
    mask: Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def repeated_across_prompts(ids: Tensor, mask: Tensor, group: int) -> float:
    """Return the share of completions that another prompt of the rollout was given too, token for token.

    ids, mask [N, L], groups of `group` rows. Within a group equal completions are expected if a policy is certain.
    """
    texts = [tuple(row[keep].tolist()) for row, keep in zip(ids.cpu(), mask.cpu(), strict=True)]
    prompts = Counter(text for start in range(0, len(texts), group) for text in set(texts[start : start + group]))
    return sum(prompts[text] > 1 for text in texts) / len(texts)


IDS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
# Field of `Completions` -> key of the batch dict. TRL shuffles and splits these rows with the completions.
BATCH_ROWS = {x: f"conflict_{x}" for x in ("weights", "forward", "backward", "union")} | {"excluded": "excluded"}


@dataclass
class Rollout:
    """A round of sampling, gathered over ranks: N completions, rank-major (group = row // G), and what they earned."""

    # This rank's prompts, one per completion.
    prompts: list[Any]
    # [N, functions]; NaN if a function gave none.
    rewards: Tensor
    # Format reward [N].
    format: Tensor
    # Accuracy reward [N]; None if no function computes it.
    accuracy: Tensor | None
    # The step it was sampled for, from 1.
    step: int
    # Completion tokens [N, L].
    ids: Tensor
    # Which of them belong to the completion [N, L] bool.
    mask: Tensor
    # Completions that ended without EOS [N] bool.
    truncated: Tensor
    # A_i [N].
    advantages: Tensor
    # lambda [N, L].
    weights: Tensor
    # <H>_i [N] in nats; NaN until the completion has been through the loss.
    entropy: Tensor
    # delta_i [N] bool; True until the completion has been through the loss.
    keep_mask: Tensor
    # Whether the completions log has it.
    logged: bool = False


def without_empty_columns(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a micro-batch without the columns that none of its rows uses.

    Prompts are padded on the left and completions on the right; every tensor [B, L] is cut with them.
    """
    width = batch["completion_ids"].size(1)
    prompt = int(batch["prompt_mask"].sum(dim=1).max())
    length = max(1, int(batch["completion_mask"].sum(dim=1).max()))
    cut = dict(batch)
    for name, value in batch.items():
        if name in ("prompt_ids", "prompt_mask"):
            cut[name] = value[:, value.size(1) - prompt :]
        elif isinstance(value, Tensor) and value.dim() == 2 and value.size(1) == width:
            cut[name] = value[:, :length]
    return cut


def from_batch(batch: Mapping[str, Any]) -> Completions:
    """Return the completions of a micro-batch."""
    return Completions(
        advantages=batch["advantages"],
        **{field: batch[key] for field, key in BATCH_ROWS.items()},
        old_entropy=batch.get("behaviour_entropy"),
        old_logps=batch.get("old_per_token_logps"),
        importance_weights=batch.get("importance_sampling_ratio"),
    )


class GroupStatistics:
    """Logs `reward/*`, `entropy/*`, `conflict/*`, `groups/*` and `completions/*`.

    trainer: a GRPOBaseline, whose loss and gradients stay TRL's: the spans logged are those that GTPO would see.
    objective: of a trainer with its own loss.
    """

    def __init__(self, trainer: Any, objective: Objective | None = None) -> None:
        self.trainer = trainer
        self.objective = objective or PRESETS["grpo"]
        # Whether the objective's advantages are trained with: TRL's if each reward is normalised by itself.
        self.own_advantages = objective is not None and trainer.multi_objective_aggregation == "sum_then_normalize"
        # The round of sampling in use, by mode (train, eval).
        self.rollouts: dict[str, Rollout] = {}
        # Makes whole rows NaN if a function failed (`gtpo train`); by itself TRL's meaning of None is kept.
        self.mark_unscored: Callable[[Tensor], Tensor] = lambda rewards: rewards
        # What the round that is being scored has earned: the first fields of its Rollout.
        self._scores: dict[str, Any] = {}

    # -- sampling and scoring --------------------------------------------------------------------------------------

    def score(self, prompts: list[Any], completions: list[Any], rewards: Tensor) -> Tensor:
        """Take in the rewards [N, functions] of a round, gathered over ranks; return them, the unscored as NaN.

        prompts, completions: this rank's.
        """
        trainer = self.trainer
        rewards = self.mark_unscored(rewards)
        # The rewards are gathered already, the texts are not.
        form = trainer.accelerator.gather(
            torch.tensor([format_score(completion_text(text)) for text in completions], device=rewards.device)
        )
        accuracy = self._accuracy(rewards, form)
        trl_seam.log(trainer, "reward/format", form.mean().item())
        if accuracy is not None:
            trl_seam.log(trainer, "reward/accuracy", accuracy.nanmean().item())
        trl_seam.log(trainer, "reward/unscored", rewards.isnan().all(dim=1).float().mean().item())
        self._scores = {"prompts": prompts, "rewards": rewards, "format": form, "accuracy": accuracy}
        return rewards

    def _accuracy(self, rewards: Tensor, form: Tensor) -> Tensor | None:
        """Return the accuracy reward [N]: of the first function with `is_accuracy`; `has_format`: less that part."""
        for function, column in zip(self.trainer.reward_funcs, rewards.T, strict=True):
            if says(function, "is_accuracy"):
                return column - form if says(function, "has_format") else column
        return None

    def total_rewards(self, rewards: Tensor | None = None) -> Tensor:
        """Return the weighted sum of rewards [N, functions], by default the round's: [N], NaN if there are none."""
        rewards = self._scores["rewards"] if rewards is None else rewards
        total = (rewards * self.trainer.reward_weights.to(rewards.device)).nansum(dim=1)
        return total.masked_fill(rewards.isnan().all(dim=1), math.nan)

    def prepare(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a scored round with the conflict weights of its completions, and with the objective's advantages."""
        trainer, objective, group = self.trainer, self.objective, trl_seam.group_size(self.trainer)
        accelerator = trainer.accelerator
        local, length = batch["completion_ids"].shape

        # A group may span ranks, so its ids are brought together before its spans are sought.
        ids = accelerator.gather(accelerator.pad_across_processes(batch["completion_ids"], dim=1))
        mask = accelerator.gather(accelerator.pad_across_processes(batch["completion_mask"], dim=1)).bool()
        # TRL empties the mask of truncated completions that it leaves out.
        mask[:, 0] = True
        lengths = mask.sum(dim=1)
        last = ids.gather(1, lengths[:, None] - 1)
        ends = torch.tensor([*trainer.eos_token_ids, trl_seam.tokenizer(trainer).pad_token_id], device=ids.device)
        truncated = ~torch.isin(last, ends).squeeze(1)
        scored = group_advantages(objective, self.total_rewards(), group)
        advantages = scored.advantages if self.own_advantages else accelerator.gather(batch["advantages"])
        completions = prepare_completions(
            objective, scored._replace(advantages=advantages), ids, mask, group, truncated=truncated
        )

        mine = slice(accelerator.process_index * local, (accelerator.process_index + 1) * local)
        batch["advantages"] = advantages[mine].to(batch["advantages"].dtype)
        # Where the loss, which sees shuffled micro-batches, finds its completion in the Rollout again.
        batch["row"] = torch.arange(len(ids), device=ids.device)[mine]
        batch |= {key: getattr(completions, field)[mine] for field, key in BATCH_ROWS.items()}
        batch["conflict_weights"] = batch["conflict_weights"][:, :length]

        trl_seam.log(trainer, "conflict/forward", completions.forward.float().mean().item())
        trl_seam.log(trainer, "conflict/backward", completions.backward.float().mean().item())
        trl_seam.log(trainer, "conflict/fraction", (completions.union.sum() / lengths.sum()).item())
        trl_seam.log(trainer, "groups/zero_variance", scored.zero_variance.float().mean().item())
        trl_seam.log(trainer, "completions/repeated", repeated_across_prompts(ids, mask, group))
        self.rollouts[trl_seam.mode(trainer)] = Rollout(
            **self._scores,
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
            trl_seam.log(self.trainer, "entropy/mean", finite.mean().item())
            trl_seam.log(self.trainer, "entropy/above_ln2", (finite > LN2).double().mean().item())
        rollout = self.rollouts[trl_seam.mode(self.trainer)]
        where = table[:, 0].long()
        rollout.entropy[where] = table[:, 1].to(rollout.entropy.dtype)
        if keep_mask is not None:
            trl_seam.log(self.trainer, "gate/kept", table[:, 2].mean().item())
            rollout.keep_mask[where] = table[:, 2].bool()


def draw_again(
    trainer: Any, rows: Sequence[Any], prompts: Sequence[Any], outputs: tuple[Any, ...], rounds: int
) -> tuple[tuple[Any, ...], Tensor]:
    """Draw the groups again whose rewards are all equal: none of their completions has an advantage to learn from.

    Returns the round, and its rewards [N, functions] over all ranks. DAPO's dynamic sampling (arXiv 2503.14476, section
    3.2) draws other prompts; here the same ones are drawn, so the order of the data and the number of groups stay. A
    group that is equal after the last draw is trained on as it is.

    rows, prompts: this rank's, one per completion. outputs: what TRL's `_generate` returned for them. All processes
    call it. Logs `groups/zero_variance_drawn`, of the first draw, and `groups/resampled`, draws again per group.
    """
    accelerator, group, local = trainer.accelerator, trainer.num_generations, len(prompts)
    prompt_ids, completion_ids, tool_mask, completions, logprobs, *rest = outputs

    def equal_groups() -> Tensor:
        total = trainer.groups.total_rewards(rewards)
        return group_advantages(trainer.groups.objective, total, group).zero_variance

    rewards = trainer.rewards_of(rows, prompts, completions, completion_ids)
    equal, drawn = equal_groups(), 0
    trl_seam.log(trainer, "groups/zero_variance_drawn", equal.float().mean().item())
    for _ in range(rounds):
        if not bool(equal.any()):
            break
        drawn += int(equal.sum()) // group
        by_rank = equal.view(-1, local)
        counts, mine = by_rank.sum(dim=1, keepdim=True), by_rank[accelerator.process_index].nonzero()[:, 0].tolist()
        most = int(counts.max())
        # Every rank takes part in every forward, with as many rows.
        chosen = (mine + [0] * most)[:most]
        asked = [prompts[i] for i in chosen]
        with trl_seam.aside(trainer):
            _, new_ids, _, texts, new_logprobs, *_ = trainer.draw(asked)
        found = trainer.rewards_of([rows[i] for i in chosen], asked, texts, new_ids).view(len(by_rank), most, -1)
        rewards[equal] = found[torch.arange(most, device=found.device) < counts]
        for k, place in enumerate(mine):
            completion_ids[place], completions[place] = new_ids[k], texts[k]
            if logprobs is not None:
                logprobs[place] = new_logprobs[k]
        equal = equal_groups()
    trl_seam.log(trainer, "groups/resampled", drawn * group / len(rewards))
    # TRL has logged these two of the first draw.
    ends = {*trainer.eos_token_ids, trl_seam.tokenizer(trainer).pad_token_id}
    here = [[float(len(ids)), float(ids[-1] not in ends)] for ids in completion_ids]
    means = accelerator.gather(torch.tensor(here, device=accelerator.device)).mean(dim=0).tolist()
    for name, value in zip(("completions/mean_length", "completions/clipped_ratio"), means, strict=True):
        trl_seam.log_instead(trainer, name, value)
    return (prompt_ids, completion_ids, tool_mask, completions, logprobs, *rest), rewards


def padded(trainer: Any, rows: Sequence[Sequence[Any]], value: Any, side: str) -> Tensor:
    """Return rows of different lengths as one tensor on the trainer's device, float32 if the padding is a float."""
    kind = torch.float32 if isinstance(value, float) else torch.long
    found: Tensor = pad([torch.tensor(row, dtype=kind) for row in rows], value, side)
    return found.to(trainer.accelerator.device)


def padded_batch(trainer: Any, prompt_ids: Sequence[Any], completion_ids: Sequence[Any]) -> dict[str, Tensor]:
    """Return the ids and masks [B, .] of prompts and their completions, padded as TRL pads a round."""
    batch = {}
    for name, rows, side in (("prompt", prompt_ids, "left"), ("completion", completion_ids, "right")):
        batch[f"{name}_ids"] = padded(trainer, rows, trl_seam.tokenizer(trainer).pad_token_id, side)
        batch[f"{name}_mask"] = padded(trainer, [[1] * len(row) for row in rows], 0, side)
    return batch


def batch_statistics(trainer: Any, model: Any, batch: Mapping[str, Tensor], **options: Any) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies [B, L] of a batch's completions under the policy, without gradients.

    A forward takes as many rows as a step's, which needs more memory. options: of
    `gtpo.trainer.policy_head.token_forward`.
    """
    size, found = trainer.args.per_device_train_batch_size, []
    for start in range(0, len(batch["completion_ids"]), size):
        some = {name: batch[name][start : start + size] for name in IDS}
        with torch.no_grad():
            mask = some["completion_mask"].bool()
            found.append(token_forward(trainer, model, some, mask, lambda *of: of, **options).value)
    logps, entropies = map(torch.cat, zip(*found, strict=True))
    return logps, entropies
