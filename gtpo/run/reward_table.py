"""The table of rewards per function that ends a run: where each began, where it is, how much was unscored or
unsimplified."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


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

    window: lines that a mean covers; logging_steps: steps that a line stands for.
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
