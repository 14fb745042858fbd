"""Draw the groups again whose rewards are all equal: none of their completions has an advantage to learn from.

What DAPO calls dynamic sampling (arXiv 2503.14476, section 3.2), with the same prompts in place of others: the order of
the data stays as it is, and a round has as many groups as without. A group that is equal after the last draw is trained
on as it is. The rewards of what is kept are not computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gtpo.completions import group_advantages
from gtpo.trainer import trl_seam


def draw_again(
    trainer: Any, rows: Sequence[Any], prompts: Sequence[Any], outputs: tuple[Any, ...], rounds: int
) -> tuple[tuple[Any, ...], Tensor]:
    """Return a round of sampling in which equal groups were drawn again, and its rewards [N, functions] over all ranks.

    rows, prompts: this rank's, one per completion. outputs: what TRL's `_generate` returned for them. All processes
    call it. Logs `groups/zero_variance_drawn`, of the first draw, and `groups/resampled`, draws again per group.
    """
    accelerator, group, local = trainer.accelerator, trainer.num_generations, len(prompts)
    prompt_ids, completion_ids, tool_mask, completions, logprobs, *rest = outputs

    def score(chosen: Sequence[int], texts: Sequence[Any], ids: Sequence[Any]) -> Tensor:
        return trainer.rewards_of([rows[i] for i in chosen], [prompts[i] for i in chosen], list(texts), list(ids))

    def equal_groups() -> Tensor:
        total = trainer.groups.total_rewards(rewards)
        return group_advantages(trainer.groups.objective, total, group).zero_variance

    rewards = score(range(local), completions, completion_ids)
    equal, drawn = equal_groups(), 0
    trl_seam.log(trainer, "groups/zero_variance_drawn", equal.float().mean().item())
    for _ in range(rounds):
        if not bool(equal.any()):
            break
        drawn += int(equal.sum()) // group
        by_rank = [part.nonzero()[:, 0].tolist() for part in equal.view(-1, local)]
        most = max(map(len, by_rank))
        mine = by_rank[accelerator.process_index]
        # Every rank takes part in every forward, with as many rows.
        chosen = (mine + [0] * most)[:most]
        with trl_seam.aside(trainer):
            _, new_ids, _, texts, new_logprobs, *_ = trainer.draw([prompts[i] for i in chosen])
        found = score(chosen, texts, new_ids).view(len(by_rank), most, -1)
        for rank, places in enumerate(by_rank):
            for k, place in enumerate(places):
                rewards[rank * local + place] = found[rank, k]
        for k, place in enumerate(mine):
            completion_ids[place], completions[place] = new_ids[k], texts[k]
            if logprobs is not None:
                logprobs[place] = new_logprobs[k]
        equal = equal_groups()
    trl_seam.log(trainer, "groups/resampled", drawn * group / len(rewards))
    # TRL has logged these two of the first draw.
    lengths = torch.tensor([len(ids) for ids in completion_ids], device=accelerator.device, dtype=torch.float32)
    ends = {*trainer.eos_token_ids, trl_seam.tokenizer(trainer).pad_token_id}
    cut = torch.tensor([float(ids[-1] not in ends) for ids in completion_ids], device=accelerator.device)
    for name, values in (("completions/mean_length", lengths), ("completions/clipped_ratio", cut)):
        trl_seam.log_instead(trainer, name, accelerator.gather(values).mean().item())
    return (prompt_ids, completion_ids, tool_mask, completions, logprobs, *rest), rewards
