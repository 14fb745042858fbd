"""What GTPO and the GRPO baseline both see of a round of sampling, and H_ini, which decides GTPO's gate (Eq. 6).

`GroupStatistics` reads the rewards and ids of a round right after scoring, before TRL shuffles the completions into
micro-batches, and lets what belongs to a completion travel as extra rows of the batch dict. `GateCalibration` measures
H_ini before step 0.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl.trainer.utils import pad

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.completions import Advantages, group_advantages, keep_in_band, prepare_completions
from gtpo.entropy import SAMPLES, Calibration, calibrate_initial_entropy, describe_gate
from gtpo.objective import filter_is_active
from gtpo.presets import LN2, PRESETS, Objective
from gtpo.rewards.completions import completion_text, format_score
from gtpo.rewards.loading import says
from gtpo.trainer import trl_seam
from gtpo.trainer.policy_head import token_forward


def loss_mask(batch: Mapping[str, Any]) -> Tensor:
    """Return which tokens [B, L] the policy wrote: those of the completion, without what tools answered."""
    mask: Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def completion_means(entropies: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Return `<H>_i` [B] of the entropies [B, L] of tokens; NaN of a completion that the policy did not write."""
    mask = loss_mask(batch)
    means: Tensor = (entropies.float() * mask).sum(dim=1) / mask.sum(dim=1)
    return means


def repeated_across_prompts(ids: Tensor, mask: Tensor, group: int) -> float:
    """Return the share of completions that another prompt of the rollout was given too, token for token.

    ids, mask [N, L], groups of `group` rows. Within a group equal completions are expected if a policy is certain.
    """
    texts = [tuple(row[keep].tolist()) for row, keep in zip(ids.cpu(), mask.cpu(), strict=True)]
    prompts = Counter(text for start in range(0, len(texts), group) for text in set(texts[start : start + group]))
    return sum(prompts[text] > 1 for text in texts) / len(texts)


# Field of `Completions` -> key of the batch dict, whose rows TRL shuffles and splits with the completions.
BATCH_ROWS = {
    **{name: f"conflict_{name}" for name in ("weights", "forward", "backward", "union")},
    **{"advantages": "advantages", "excluded": "excluded", "old_entropy": "behaviour_entropy"},
    **{"old_logps": "old_per_token_logps", "importance_weights": "importance_sampling_ratio"},
}


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
        elif isinstance(value, Tensor) and value.dim() == 2 and value.size(1) == width and name != "kept_ids":
            cut[name] = value[:, :length]
    return cut


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
        # The round of sampling in use, by mode (train, eval): N completions of all ranks, group = row // G.
        #   step       that it was sampled for, from 1
        #   prompts    this rank's, one per completion
        #   rewards    [N, functions], NaN if a function gave none; format, advantages [N]
        #   ids        [N, L]; mask, weights too
        #   entropy    [N] in nats, and keep_mask [N]: NaN and True until the completion has been through the loss
        self.rollouts: dict[str, dict[str, Any]] = {}
        # prompts, rewards and format of the round that is being scored.
        self._scores: dict[str, Any] = {}

    def score(self, prompts: list[Any], completions: list[Any], rewards: Tensor) -> Tensor:
        """Take in the rewards [N, functions] of a round, gathered over ranks; return them, the unscored as NaN.

        prompts, completions: this rank's.
        """
        trainer = self.trainer
        if trainer.unscored_as_whole:
            rewards = unscored_rows(trainer, rewards)
        # The rewards are gathered already, the texts are not.
        form = trainer.accelerator.gather(
            torch.tensor([format_score(completion_text(text)) for text in completions], device=rewards.device)
        )
        trl_seam.log(trainer, "reward/format", form.mean().item())
        if (accuracy := self.accuracy(rewards, form)) is not None:
            trl_seam.log(trainer, "reward/accuracy", accuracy.nanmean().item())
        trl_seam.log(trainer, "reward/unscored", rewards.isnan().all(dim=1).float().mean().item())
        self._scores = {"prompts": prompts, "rewards": rewards, "format": form}
        return rewards

    def accuracy(self, rewards: Tensor, form: Tensor) -> Tensor | None:
        """Return the accuracy reward [N]: of the first function with `is_accuracy`; `has_format`: less that part."""
        column: Tensor
        for function, column in zip(self.trainer.reward_funcs, rewards.T, strict=True):
            if says(function, "is_accuracy"):
                return column - form if says(function, "has_format") else column
        return None

    def advantages(self, rewards: Tensor) -> Advantages:
        """Return the advantages of the weighted sums of rewards [N, functions]; unscored if all of a row are NaN.

        With `unscored_as_whole`, if any is.
        """
        total, unscored = (rewards * self.trainer.reward_weights.to(rewards.device)).nansum(dim=1), rewards.isnan()
        unscored = unscored.any(dim=1) if self.trainer.unscored_as_whole else unscored.all(dim=1)
        total = total.masked_fill(unscored, math.nan)
        return group_advantages(self.objective, total, trl_seam.group_size(self.trainer))

    def prepare(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a scored round with the conflict weights of its completions, and with the objective's advantages."""
        trainer, objective, group = self.trainer, self.objective, trl_seam.group_size(self.trainer)
        accelerator = trainer.accelerator
        local, length = batch["completion_ids"].shape

        # A group may span ranks, so its ids are brought together before its spans are sought.
        padding = trl_seam.tokenizer(trainer).pad_token_id
        ids = accelerator.gather(accelerator.pad_across_processes(batch["completion_ids"], dim=1, pad_index=padding))
        mask = accelerator.gather(accelerator.pad_across_processes(batch["completion_mask"], dim=1)).bool()
        # TRL empties the mask of truncated completions that it leaves out, which end in no padding of their own.
        whole = (ids != padding).flip(1).cumsum(dim=1).flip(1) > 0
        mask = torch.where(mask.any(dim=1, keepdim=True), mask, whole)
        mask[:, 0] = True
        lengths = mask.sum(dim=1)
        last = ids.gather(1, lengths[:, None] - 1)
        ends = torch.tensor([*trainer.eos_token_ids, padding], device=ids.device)
        truncated = ~torch.isin(last, ends).squeeze(1)
        scored = self.advantages(self._scores["rewards"])
        advantages = scored.advantages if self.own_advantages else accelerator.gather(batch["advantages"])
        completions = prepare_completions(
            objective, scored._replace(advantages=advantages), ids, mask, group, truncated=truncated
        )
        if objective.has_band:
            entropy = trainer.round_entropy(batch)
            progress, others = trainer.state.global_step / max(trainer.state.max_steps, 1), completions.excluded
            completions = keep_in_band(objective, completions, entropy, group, progress=progress)
            trl_seam.log(trainer, "entropy/round", entropy.item())
            if completions.excluded is not None:
                # Of those that nothing else has left out.
                kept = ~completions.excluded if others is None else ~completions.excluded[~others]
                trl_seam.log(trainer, "gate/in_band", kept.float().mean().item() if len(kept) else 1.0)

        mine = slice(accelerator.process_index * local, (accelerator.process_index + 1) * local)
        own = {field: value[mine] for field, value in completions._asdict().items() if value is not None}
        batch |= {BATCH_ROWS[field]: value for field, value in own.items()}
        batch["conflict_weights"] = batch["conflict_weights"][:, :length]
        # Where the loss, which sees shuffled micro-batches, finds its completion in `rollouts` again.
        batch["row"] = torch.arange(len(ids), device=ids.device)[mine]

        trl_seam.log(trainer, "conflict/forward", completions.forward.float().mean().item())
        trl_seam.log(trainer, "conflict/backward", completions.backward.float().mean().item())
        trl_seam.log(trainer, "conflict/fraction", (completions.union.sum() / lengths.sum()).item())
        trl_seam.log(trainer, "groups/zero_variance", scored.zero_variance.float().mean().item())
        trl_seam.log(trainer, "completions/repeated", repeated_across_prompts(ids, mask, group))
        self.rollouts[trl_seam.mode(trainer)] = self._scores | {
            "step": trainer.state.global_step + 1,
            "ids": ids,
            "mask": mask,
            "advantages": advantages,
            "weights": completions.weights,
            "entropy": torch.full_like(advantages, math.nan),
            "keep_mask": torch.ones_like(advantages, dtype=torch.bool),
        }
        return batch

    def log_completions(self, batch: Mapping[str, Any], entropies: Tensor, kept: Tensor | None = None) -> None:
        """Log a micro-batch's entropies, given of tokens [B, L] in nats, by completion, and the gate's choice [B]."""
        # NaN, and left out, if the policy wrote nothing of it, or TRL has emptied the mask of a truncated one.
        entropy = completion_means(entropies, batch)
        if "behaviour_entropy" in batch:
            entropy = torch.where(entropy.isnan(), entropy, batch["behaviour_entropy"])
        columns = [batch["row"], entropy, *([] if kept is None else [kept])]
        table = self.trainer.accelerator.gather(torch.stack([column.double() for column in columns], dim=1))
        rollout, where = self.rollouts[trl_seam.mode(self.trainer)], table[:, 0].long()
        rollout["entropy"][where] = table[:, 1].to(rollout["entropy"].dtype)
        if kept is not None:
            rollout["keep_mask"][where] = table[:, 2].bool()
        if len(written := table[~table[:, 1].isnan()]):
            trl_seam.log(self.trainer, "entropy/mean", written[:, 1].mean().item())
            trl_seam.log(self.trainer, "entropy/above_ln2", (written[:, 1] > LN2).double().mean().item())
            if kept is not None:
                trl_seam.log(self.trainer, "gate/kept", written[:, 2].mean().item())


def unscored_rows(trainer: Any, rewards: Tensor) -> Tensor:
    """Make all rewards [N, functions] of a completion NaN if any is. Raises UserError if more than half are."""
    # The sum of the others would be the reward of another task.
    unscored = rewards.isnan().any(dim=1)
    if unscored.float().mean() > 0.5:
        traces = (getattr(function, "first_traceback", None) for function in trainer.reward_funcs)
        trace = next(filter(None, traces), None)
        raise UserError(
            f"{int(unscored.sum())} of {len(unscored)} completions at step {trainer.state.global_step + 1} could not "
            f"be scored by {', '.join(trainer.reward_func_names)}; the run stops. "
            + (f"The first traceback:\n{trace}" if trace else "The functions returned None.")
        )
    return rewards.masked_fill(unscored[:, None], math.nan)


def draw_again(
    trainer: Any, rows: Sequence[Any], prompts: Sequence[Any], outputs: tuple[Any, ...], rounds: int
) -> Tensor:
    """Draw the groups again whose rewards are all equal: none of their completions has an advantage to learn from.

    Returns the rewards [N, functions] over all ranks. DAPO's dynamic sampling (arXiv 2503.14476, section 3.2) draws
    other prompts; here the same ones are drawn, so the order of the data and the number of groups stay. A group that is
    equal after the last draw is trained on as it is.

    rows, prompts: this rank's, one per completion. outputs: what TRL's `_generate` returned for them; its lists take
    the new completions. All processes call it. Logs `groups/zero_variance_drawn`, of the first draw, and
    `groups/resampled`, draws again per group.
    """
    accelerator, group, local = trainer.accelerator, trainer.num_generations, len(prompts)
    _, completion_ids, _, completions, logprobs, *_ = outputs
    rewards: Tensor = trainer.rewards_of(rows, prompts, completions, completion_ids)
    equal, drawn = trainer.groups.advantages(rewards).zero_variance, 0
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
        again = [prompts[i] for i in chosen]
        with trl_seam.aside(trainer):
            _, new_ids, _, texts, new_logprobs, *_ = trainer.draw(again)
        new_rewards = trainer.rewards_of([rows[i] for i in chosen], again, texts, new_ids).view(len(by_rank), most, -1)
        rewards[equal] = new_rewards[torch.arange(most, device=new_rewards.device) < counts]
        for k, place in enumerate(mine):
            completion_ids[place], completions[place] = new_ids[k], texts[k]
            if logprobs is not None:
                logprobs[place] = new_logprobs[k]
        equal = trainer.groups.advantages(rewards).zero_variance
    trl_seam.log(trainer, "groups/resampled", drawn * group / len(rewards))
    # TRL has logged these two of the first draw.
    ends = {*trainer.eos_token_ids, trl_seam.tokenizer(trainer).pad_token_id}
    here = [[float(len(ids)), float(ids[-1] not in ends)] for ids in completion_ids]
    means = accelerator.gather(torch.tensor(here, device=accelerator.device)).mean(dim=0).tolist()
    for name, value in zip(("completions/mean_length", "completions/clipped_ratio"), means, strict=True):
        trl_seam.log(trainer, name, value, instead=True)
    return rewards


def padded_batch(
    trainer: Any, prompt_ids: Sequence[Any], completion_ids: Sequence[Any], tool_mask: Any = None, logps: Any = None
) -> dict[str, Tensor]:
    """Return prompts and completions [B, .] under TRL's names, padded as TRL pads a round.

    tool_mask, logps: of the completions' tokens, if there are any; a log-probability may be None.
    """

    def padded(rows: Sequence[Sequence[Any]], value: Any, side: str = "right") -> Tensor:
        kind = torch.float32 if isinstance(value, float) else torch.long
        tensor: Tensor = pad([torch.tensor(row, dtype=kind) for row in rows], value, side)
        return tensor.to(trainer.accelerator.device)

    batch = {}
    for name, rows, side in (("prompt", prompt_ids, "left"), ("completion", completion_ids, "right")):
        batch[f"{name}_ids"] = padded(rows, trl_seam.tokenizer(trainer).pad_token_id, side)
        batch[f"{name}_mask"] = padded([[1] * len(row) for row in rows], 0, side)
    if tool_mask:
        batch["tool_mask"] = padded(tool_mask, 0)
    if logps:
        known = [[math.nan if logp is None else logp for logp in row] for row in logps]
        batch["sampling_per_token_logps"] = padded(known, math.nan)
    return batch


def batch_statistics(trainer: Any, model: Any, batch: Mapping[str, Any], **options: Any) -> dict[str, Tensor]:
    """Return `logps` and `entropies` [B, L] of a batch's completions under the policy, without gradients.

    A forward takes as many rows as a step's, which needs more memory. Under truncated sampling a batch without kept
    sets is of the policy as it is now: they are found, and returned too. options: of
    `gtpo.trainer.policy_head.token_forward`.
    """
    size, parts = trainer.args.per_device_train_batch_size, []
    columns = {name: column for name, column in batch.items() if isinstance(column, Tensor) and column.dim()}
    if trainer.kept_sets is not None and "kept_ids" not in batch:
        options["find"] = trainer.kept_sets.find
    for start in range(0, len(batch["completion_ids"]), size):
        some = {name: column[start : start + size] for name, column in columns.items()}
        with torch.no_grad():
            mask = some["completion_mask"].bool()
            parts.append(token_forward(trainer, model, some, mask, **options).value)
    return {name: pad([row for part in parts for row in part[name]]) for name in parts[0]}


# -- H_ini -------------------------------------------------------------------------------------------------------------

# Tokens of the completions that the trainer's own model samples side by side: a token takes as long for all of them as
# for one on a GPU, and their keys and values take 4 GiB of an 8B model and 0.4 of a 0.5B model.
TOKENS = 1 << 15


class GateCalibration(TrainerCallback):
    """Decides the entropy gate of a GTPOTrainer before its first step, by H_ini if the filter is `auto`.

    The checkpoints hold H_ini and the objective (trainer_state.json): a run goes on with what it began with.
    """

    def __init__(self, trainer: Any, objective: Objective) -> None:
        self.trainer, self.objective = trainer, objective
        known = trainer.args.initial_entropy
        self.calibration = None if known is None else Calibration(known)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Decide; raise ValueError if the run is resumed from a checkpoint of another objective."""
        name = type(self).__name__
        if state.global_step:
            self._resume(args, state.global_step, state.stateful_callbacks.get(name, {}).get("attributes", {}))
        self.ensure()
        known = {"objective": asdict(self.objective), "initial_entropy": self.calibration and self.calibration.record()}
        state.stateful_callbacks[name] = {"args": {}, "attributes": known}
        if self.trainer.accelerator.is_main_process:
            LOG.info(describe_gate(self.objective, self.calibration))

    def _resume(self, args: Any, step: int, state: Mapping[str, Any]) -> None:
        now = asdict(self.objective)
        if changed := [
            f"{name} {value!r}, now {now.get(name)!r}"
            for name, value in state.get("objective", {}).items()
            if value != now.get(name)
        ]:
            raise ValueError(f"GTPOTrainer: checkpoint-{step} was trained with another objective: {', '.join(changed)}")
        measured = state.get("initial_entropy")
        before = Calibration.from_record(measured) if measured else None
        if before and args.initial_entropy not in (None, before.initial_entropy):
            raise ValueError(
                f"GTPOTrainer: checkpoint-{step} was trained with initial_entropy {before.initial_entropy}, now "
                f"{args.initial_entropy}; leave initial_entropy out to go on with it"
            )
        if before and args.initial_entropy is None:
            self.calibration = before
        elif self.objective.filter == "auto" and self.calibration is None:
            LOG.warning(f"checkpoint-{step} has no H_ini; it is measured on the policy as it is now")
        steps = trl_seam.round_steps(args)
        if step % steps and step < self.trainer.state.max_steps:
            LOG.warning(
                f"resumed at step {step}, within a round of sampling that feeds {steps} steps: the rest of it is "
                "sampled again (gtpo.callbacks.ExactCheckpoints writes checkpoints at the end of a round)"
            )

    def active(self) -> bool:
        """Return whether the entropy gate filters (Eq. 6). Raises ValueError before the calibration."""
        return filter_is_active(self.objective, self.trainer.initial_entropy)

    def ensure(self) -> None:
        """Measure H_ini of the policy as it is now, if the filter is `auto` and it is not known.

        On the first training samples. Leaves random numbers, metrics and counters as they were.
        """
        if self.objective.filter != "auto" or self.calibration is not None:
            return
        trainer, begin = self.trainer, time.monotonic()
        rows: list[dict[str, Any]] = list(itertools.islice(iter(trainer.train_dataset), SAMPLES))
        batch = self.sampled_at_once(rows) * trainer.accelerator.num_processes
        with trl_seam.aside(trainer, trainer.args.seed):
            measured = calibrate_initial_entropy(self._completion_entropies, rows, batch_size=batch)
        self.calibration = measured._replace(seconds=round(time.monotonic() - begin, 1))

    def sampled_at_once(self, rows: Sequence[dict[str, Any]]) -> int:
        """Return the completions that a process samples side by side: of vLLM, which bounds its memory, all of them."""
        trainer = self.trainer
        if trainer.use_vllm:
            return len(rows)
        longest = max((str(row.get("prompt", "")) for row in rows), key=len)
        tokens: int = len(trl_seam.tokenizer(trainer)(longest)["input_ids"]) + trainer.max_completion_length
        step = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
        return max(int(step), TOKENS // tokens)

    def _completion_entropies(self, rows: Sequence[dict[str, Any]]) -> Tensor:
        """Sample one completion per row and return <H>_i [n] in nats. The rows are shared out among ranks."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        if accelerator.is_main_process:
            LOG.info(f"measuring H_ini on the untrained policy: sampling {len(rows)} completions")
        # Rollouts are made in this mode, and TRL's group size is its own in the other.
        trainer.model.train()
        with trainer.activity("calibrating", len(rows)):
            prompt_ids, completion_ids, written, _, sampled, *_ = trl_seam.sample(trainer, rows)
            batch = padded_batch(trainer, prompt_ids, completion_ids, written, sampled)
            # Of the distribution that was sampled, whatever the objective takes.
            tokens = batch_statistics(trainer, trainer.model_wrapped, batch, temperature=trainer.temperature)
            trainer.sampler.observe(tokens["logps"], batch)
        gathered: Tensor = accelerator.gather(completion_means(tokens["entropies"], batch))[: len(rows)]
        # A completion of an environment alone has no <H>_i, and does not move the mean.
        return torch.where(gathered.isnan(), gathered.nanmean(), gathered)
