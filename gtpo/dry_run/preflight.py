"""What can be refused before torch is imported: an absent model, a reward that does not import, unusable data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.packages import installed, require
from gtpo.common.vllm_environment import LORA_RANKS
from gtpo.config import TrainConfig
from gtpo.inputs.dataset import TrainingProblems, to_row
from gtpo.inputs.model_shape import find_weights
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.data.problems import SOURCES
from gtpo.rewards.loading import load_rewards, probe_reward
from gtpo.runs.train_run import RESULTS

# Optimizers of the package bitsandbytes.
BITSANDBYTES = re.compile(r"adamw_8bit|.*(bnb|paged|lion|ademamix)")


class RunInputs(NamedTuple):
    """What a run starts from, found once per start."""

    weights: str
    """From `find_weights`."""
    problems: TrainingProblems


def is_local(problems: TrainingProblems) -> bool:
    """Return whether the dataset is read without the Hub."""
    on_hub = problems.source in SOURCES
    return not on_hub or bool(problems.config.dataset.data_dir or os.environ.get("GTPO_DATA_DIR"))


def check_inputs(config: TrainConfig) -> TrainingProblems:
    """Import the rewards and read the data that is local. Raises UserError for what cannot be trained with."""
    problems = TrainingProblems(config)
    local = is_local(problems)
    calls = config.trainer.reward_calls()
    try:
        functions = [] if config.method == "sft" else load_rewards(calls, config.trainer.reward_weights).functions
    except UserError as error:
        key, _, fault = str(error).partition(" ")
        # The fault of a function begins with its path.
        if not key.startswith("trainer."):
            key, fault = "trainer.reward_funcs", str(error)
        raise UserError(f"{config.setting(key)} {fault}") from error
    # The real first row, if it can be had: a reward may read any of its columns.
    rows = problems.select(None)[0] if local else []
    row = rows[0] if rows else to_row(Problem(id="1", problem="1 + 1", answer="2"), config)
    for (path, _), function in zip(calls, functions, strict=False):
        probe = probe_reward(path, function, row)
        if probe.fault:
            raise UserError(f"{config.setting('trainer.reward_funcs')}: {probe.fault}")
        # It may dislike only an empty completion.
        if probe.raised:
            LOG.warning(f"{probe.raised}; completions on which it raises are unscored")
    return problems


def check_trl(config: TrainConfig) -> None:
    """Refuse on a CPU what TRL 1.15 computes with a kernel for GPUs. Raises UserError."""
    # By its version only: importing TRL takes seconds.
    if not metadata.version("trl").startswith("1.15."):
        return
    if config.method == "grpo":
        what = "method grpo"
    elif config.method == "gtpo" and not config.training.one_step_per_rollout:
        what = "several optimizer steps per rollout (training.num_iterations, training.steps_per_generation)"
    else:
        return
    import torch

    if not torch.accelerator.is_available():
        raise UserError(
            f"{what} needs a GPU with TRL {metadata.version('trl')}, which computes log-probabilities with a kernel "
            "for GPUs; TRL 1.16 has no such limit: pip install 'trl>=1.16,<1.17'"
        )


def check_sampler(config: TrainConfig) -> None:
    """Refuse an adapter that vLLM could not take by itself, as far as the config says. Raises UserError."""
    model, engine = config.model, config.rollout.engine
    if config.method == "sft" or not model.lora_rank or engine not in ("vllm", "vllm_server"):
        return
    if model.lora_rank > LORA_RANKS[-1]:
        raise UserError(
            f"model.lora_rank {model.lora_rank}: vLLM takes adapters up to rank {LORA_RANKS[-1]}; lower it, or set "
            "rollout.engine: transformers"
        )
    if model.load_in_4bit and engine == "vllm_server":
        raise UserError(
            "rollout.engine vllm_server with model.load_in_4bit: a vLLM server reads no 4-bit weights, and would "
            "sample from another base than the one that is trained on. Set rollout.engine: vllm (in this process) or "
            "transformers, or model.load_in_4bit: false"
        )


def needed_packages(config: TrainConfig) -> Iterator[tuple[str, str, str]]:
    """Yield (what needs it, package, extra) for the optional packages without which the run would fail."""
    model, optimizer = config.model, config.training.optimizer
    if model.load_in_4bit:
        yield "model.load_in_4bit", "bitsandbytes", "bitsandbytes"
    if optimizer in ("adamw_torch_4bit", "adamw_torch_8bit"):
        yield f"training.optimizer {optimizer}", "torchao", "torchao"
    elif BITSANDBYTES.match(optimizer):
        yield f"training.optimizer {optimizer}", "bitsandbytes", "bitsandbytes"
    if model.backend == "unsloth":
        yield "model.backend unsloth", "unsloth", "unsloth"
    if config.method != "sft" and config.rollout.engine in ("vllm", "vllm_server"):
        yield f"rollout.engine {config.rollout.engine}", "vllm", "vllm"


def preflight(config: TrainConfig, results: Path = RESULTS) -> RunInputs:
    """Refuse what would fail later. Raises UserError; reads local files only, and no weights."""
    for purpose, package, extra in needed_packages(config):
        require(purpose, package, extra=extra)
    for name in config.training.report_to:
        if not installed(name):
            without = f"so this run is not reported to it (pip install {name}); metrics.jsonl has everything"
            LOG.warning(f"{config.setting('training.report_to')} {name}: not installed, {without}")
    check_trl(config)
    check_sampler(config)
    return RunInputs(find_weights(config.model, results), check_inputs(config))
