"""metrics.jsonl: one line per logged step, with the same names for every method."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewards.support.files import write_text

RENAMED = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "kl": "kl",
    "mean_token_accuracy": "tokens/accuracy",
    "num_tokens": "tokens/seen",
    "epoch": "epoch",
    "sampling/sampling_logp_difference/mean": "sampling/logp_difference",
    "entropy_coef": "entropy/coefficient",
}
"""TRL's names -> ours."""

KEPT_PREFIXES = (
    "reward/",
    "entropy/",
    "gate/",
    "conflict/",
    "groups/",
    "completions/",
    "rewards/",
    "time/",
    "sampling/logp",
)
"""Names with these prefixes are kept as they are."""

CLIPPED = ("clip_ratio/region_mean", "cispo_clip_ratio")
"""TRL's names for the share of tokens whose ratio was clipped, ours being `clipped`."""

_DROPPED = ("completions/m", "completions/clipped")
"""TRL's own length and truncation metrics, which GroupStatistics logs under one name for all methods."""


def metrics_row(step: int, logs: Mapping[str, Any], method: str, *, ratios_move: bool = False) -> dict[str, Any]:
    """Return the line of a step from what transformers' Trainer logs.

    ratios_move: several optimiser steps share a rollout, so that a ratio can be clipped.
    """
    row: dict[str, Any] = {"step": step}
    row |= {new: logs[old] for old, new in RENAMED.items() if old in logs}
    row |= {k: v for k, v in logs.items() if k.startswith(KEPT_PREFIXES) and not k.startswith(_DROPPED)}
    clipped = [logs[name] for name in CLIPPED if name in logs]
    if ratios_move and clipped:
        row["clipped"] = clipped[0]
    if method == "sft" and "entropy" in logs:
        row["entropy/mean"] = logs["entropy"]
    return row


def append_metrics(path: Path, row: Mapping[str, Any]) -> None:
    """Append one line. A value that is not finite becomes null and is named in `nonfinite`."""
    bad = [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
    clean = {key: None if key in bad else value for key, value in row.items()}
    if bad:
        clean["nonfinite"] = bad
    with path.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(clean, allow_nan=False) + "\n")


def drop_metrics_after(path: Path, step: int) -> None:
    """Drop the lines of later steps, and a line that was being written when the run was killed."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["step"] <= step:
            kept.append(line)
    write_text(path, b"".join(line + b"\n" for line in kept).decode())
