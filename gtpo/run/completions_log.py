"""The completions log: what the model wrote, and what each token and completion counted for.

One parquet file per logged step (`training.log_completions_steps`), one row per completion:

    step, group, completion_index   the step the round was sampled for; the prompt's and the completion's place in it
    prompt                          the user's turn
    tokens, weight                  the completion's tokens as text and lambda of each
    advantage, entropy, kept        A_i, <H>_i in nats, whether the entropy gate let the completion count
    reward_<name>                   one column a reward function, and reward_format, reward_accuracy; null = unscored
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from gtpo.common.files import write_parquet
from gtpo.trainer.rollout import Rollout

SCHEMA_VERSION = 1


def prompt_text(prompt: Any) -> str:
    """Return the last message of a conversation, or the string itself."""
    if isinstance(prompt, str):
        return prompt
    return str(prompt[-1]["content"]) if prompt else ""


def _numbers(values: Any) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.float().tolist()]


def completions_table(
    rollout: Rollout, prompts: Sequence[Any], names: Sequence[str], tokenizer: Any, group_size: int
) -> pa.Table:
    """Return the table of one round of sampling. prompts: of all ranks [N]; names: of the reward functions."""
    ids, mask, weights = rollout.ids.cpu(), rollout.mask.cpu(), rollout.weights.float().cpu()
    count = len(ids)
    tokens = [[tokenizer.decode([token]) for token in row[keep].tolist()] for row, keep in zip(ids, mask, strict=True)]
    columns: dict[str, Any] = {
        "step": pa.array([rollout.step] * count, pa.int64()),
        "group": pa.array([row // group_size for row in range(count)], pa.int32()),
        "completion_index": pa.array([row % group_size for row in range(count)], pa.int32()),
        "prompt": pa.array([prompt_text(prompt) for prompt in prompts], pa.string()),
        "tokens": pa.array(tokens, pa.list_(pa.string())),
        "weight": pa.array([w[keep].tolist() for w, keep in zip(weights, mask, strict=True)], pa.list_(pa.float32())),
        "advantage": pa.array(_numbers(rollout.advantages), pa.float32()),
        "entropy": pa.array(_numbers(rollout.entropy), pa.float32()),
        "kept": pa.array(rollout.keep_mask.tolist(), pa.bool_()),
    }
    for place, name in enumerate(names):
        columns[f"reward_{name}"] = pa.array(_numbers(rollout.rewards[:, place]), pa.float32())
    columns.setdefault("reward_format", pa.array(_numbers(rollout.format), pa.float32()))
    if rollout.accuracy is not None:
        columns["reward_accuracy"] = pa.array(_numbers(rollout.accuracy), pa.float32())
    return pa.table(columns).replace_schema_metadata({"gtpo_schema_version": str(SCHEMA_VERSION)})


def write_completions(folder: Path, table: pa.Table, step: int) -> Path:
    """Write `table` as folder/step-NNNNNN.parquet, whole or not at all."""
    path = folder / f"step-{step:06d}.parquet"
    write_parquet(path, table)
    return path
