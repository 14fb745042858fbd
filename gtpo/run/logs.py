"""What a run logs: metrics.jsonl, the table of rewards at its end, and the completions.

metrics.jsonl has one line per logged step, with the same names for every method. The completions log says what the
model wrote, and what each token and completion counted for: a parquet file per logged step
(`training.log_completions_steps`), one row per completion:

    step, group, completion_index   the step the round was sampled for; the prompt's and the completion's place in it
    prompt                          the user's turn
    tokens, weight                  the completion's tokens as text and lambda of each
    advantage, entropy, kept        A_i, <H>_i in nats, whether the entropy gate let the completion count
    reward_<name>                   one column a reward function, and reward_format, reward_accuracy; null = unscored
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gtpo.common.errors import UserError
from gtpo.common.files import write_parquet, write_text

if TYPE_CHECKING:
    from gtpo.trainer.group_statistics import Rollout

COMPLETIONS_SCHEMA = 1

RENAMED = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "kl": "kl",
    "mean_token_accuracy": "tokens/accuracy",
    "num_tokens": "tokens/seen",
    "epoch": "epoch",
    "entropy_coef": "entropy/coefficient",
    "cispo_clip_ratio": "clip_ratio/high_mean",
    "aux_loss": "router/aux_loss",
}
"""TRL's names -> ours."""

DROPPED = (
    "sampling/sampling_logp_difference/mean",
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "entropy",
    "step_time",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/clipped_ratio",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
)
"""TRL's names of what is logged under a name of ours, the same for all methods."""


def metrics_row(step: int, logs: Mapping[str, Any], method: str, *, ratios_move: bool = False) -> dict[str, Any]:
    """Return the line of a step from what transformers' Trainer logs, the user's own metrics included.

    ratios_move: several optimizer steps share a rollout, so that a ratio can be clipped.
    """
    row: dict[str, Any] = {"step": step}
    row |= {new: logs[old] for old, new in RENAMED.items() if old in logs}
    for name, value in logs.items():
        number = value is None or isinstance(value, int | float)
        if number and name not in RENAMED and name not in DROPPED:
            row.setdefault(name, value)
    if method == "sft" and "entropy" in logs:
        row["entropy/mean"] = logs["entropy"]
    if not ratios_move:
        row = {name: value for name, value in row.items() if not name.startswith("clip_ratio/")}
    return row


def append_metrics(path: Path, row: Mapping[str, Any]) -> None:
    """Append one line. A value that is not finite becomes null and is named in `nonfinite`."""
    bad = [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
    clean = {key: None if key in bad else value for key, value in row.items()}
    if bad:
        clean["nonfinite"] = bad
    with path.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(clean, allow_nan=False) + "\n")


def metrics_lines(path: Path) -> list[tuple[int, bytes]]:
    """Return (step, line) for each whole line; none where there is no file.

    A line that was being written when the run was killed is left out. Raises UserError where another is none of a
    run's.
    """
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.exists() else (), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        step = row.get("step") if isinstance(row, dict) else None
        if not isinstance(step, int):
            raise UserError(
                f"{path}:{number}: expected an object with a step, found {line[:40].decode(errors='replace')!r}"
            )
        found.append((step, line))
    return found


def drop_metrics_after(path: Path, step: int) -> None:
    """Drop the lines of later steps, and a line that was being written when the run was killed."""
    if not path.exists():
        return
    kept = [line for at, line in metrics_lines(path) if at <= step]
    write_text(path, b"".join(line + b"\n" for line in kept).decode())


class RewardRow(NamedTuple):
    """One reward function over a run; means over the first and the last logged steps."""

    name: str
    first: float
    last: float
    best: float


def reward_rows(metrics: Sequence[dict[str, Any]], window: int) -> list[RewardRow]:
    """Return one row per reward (format and accuracy first, then each function), with means over `window` lines."""
    names = [name for row in metrics[:1] for name in row if name in ("reward/format", "reward/accuracy")]
    names += [name for row in metrics[:1] for name in row if name.startswith("rewards/") and name.endswith("/mean")]
    rows = []
    for name in names:
        values = [float(row[name]) for row in metrics if row.get(name) is not None]
        if values:
            size = max(1, min(window, len(values)))
            means = [sum(values[at : at + size]) / size for at in range(len(values) - size + 1)]
            label = name.removeprefix("rewards/").removeprefix("reward/").removesuffix("/mean")
            rows.append(RewardRow(label, means[0], means[-1], max(means)))
    return rows


def reward_table(metrics_jsonl: Path, window: int, logging_steps: int = 1) -> str:
    """Return the table as text, empty where nothing was rewarded (sft).

    window: lines that a mean covers; logging_steps: steps that a line covers.
    """
    if not metrics_jsonl.exists():
        return ""
    metrics = [json.loads(line) for line in metrics_jsonl.read_text(encoding="utf-8").splitlines()]
    rows = reward_rows(metrics, window)
    if not rows:
        return ""
    width = max(len("reward"), *(len(row.name) for row in rows))
    steps = min(window, len(metrics)) * logging_steps
    lines = [f"{'reward':{width}} {'first':>8} {'last':>8} {'best':>8}   (means of {steps} steps)"]
    lines += [f"{row.name:{width}} {row.first:8.2f} {row.last:8.2f} {row.best:8.2f}" for row in rows]
    unit = "steps" if logging_steps == 1 else f"windows of {logging_steps} steps"
    for name in ("unscored", "unsimplified"):
        shares = [row[f"reward/{name}"] for row in metrics if row.get(f"reward/{name}")]
        if shares:
            lines.append(
                f"{name} completions: {sum(shares) / len(metrics):.1%}, in {len(shares)} of {len(metrics)} {unit}"
            )
    return "\n".join(lines)


# -- completions -------------------------------------------------------------------------------------------------------


def prompt_text(prompt: Any) -> str:
    """Return the last message of a conversation, or the string itself."""
    if isinstance(prompt, str):
        return prompt
    return str(prompt[-1]["content"]) if prompt else ""


def _numbers(values: Any) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.float().tolist()]


def write_completions(folder: Path, rollout: Rollout, prompts: Sequence[Any], trainer: Any) -> None:
    """Write a round of sampling as folder/step-NNNNNN.parquet, whole or not at all. prompts: of all ranks [N]."""
    import pyarrow as pa

    ids, mask, weights = rollout.ids.cpu(), rollout.mask.cpu(), rollout.weights.float().cpu()
    count, group_size = len(ids), trainer.args.num_generations
    tokens = [
        [trainer.processing_class.decode([token]) for token in row[keep].tolist()]
        for row, keep in zip(ids, mask, strict=True)
    ]
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
    for place, name in enumerate(trainer.reward_func_names):
        columns[f"reward_{name}"] = pa.array(_numbers(rollout.rewards[:, place]), pa.float32())
    columns.setdefault("reward_format", pa.array(_numbers(rollout.format), pa.float32()))
    if rollout.accuracy is not None:
        columns["reward_accuracy"] = pa.array(_numbers(rollout.accuracy), pa.float32())
    table = pa.table(columns).replace_schema_metadata({"gtpo_schema_version": str(COMPLETIONS_SCHEMA)})
    write_parquet(folder / f"step-{rollout.step:06d}.parquet", table)
