"""metrics.jsonl: one line per logged step, with the same names for every method."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.files import write_text

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
    """Return the line of a step from what transformers' Trainer logs, metrics of the user's own included.

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
