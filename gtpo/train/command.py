"""`gtpo train`: one run from its config to its folder, resumable at any moment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# Nothing about a run is sent anywhere unless the config names a tracker.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from gtpo.common.hub import check_model
from gtpo.common.log import LOG, libraries_aside
from gtpo.common.vllm_environment import quiet_vllm
from gtpo.config import TrainConfig
from gtpo.dry_run import preflight
from gtpo.runs.train_run import ENDED, RESULTS, TrainFolder
from gtpo.train.environment import Stop, check_config, trackers_write_to


def train(
    config: TrainConfig,
    *,
    json_output: bool = False,
    score_held_out: Any = None,
    results_dir: Path = RESULTS,
) -> Path:
    """Train `config` into `results_dir/train/<run_name>` and return that folder.

    score_held_out: what scores the held-out problems of `training.eval_steps`
    (`gtpo.evalkit.evaluation.summary.score_held_out`).

    The same call again resumes an interrupted run from its last whole checkpoint and leaves one that ended alone:
    run.json says whether it finished or collapsed.

    Raises UserError for what the user can fix, and KeyboardInterrupt after a clean stop asked for by a
    signal or a stop file.
    """
    choose_devices(config)
    folder = TrainFolder(results_dir / "train" / config.run_name)
    check_config(folder, config)
    if (status := folder.run().get("status")) in ENDED:
        LOG.info(f"{folder.root} is {status}; nothing to do")
        _print_result(folder, json_output)
        return folder.root

    inputs = preflight(config, results_dir)
    # A source that cannot be reached is reported before torch and the weights are loaded.
    inputs.problems.load()
    if inputs.weights:
        check_model(inputs.weights)
    if config.rollout.engine in ("auto", "vllm", "vllm_server"):
        import torch

        quiet_vllm(on_cpu=not torch.cuda.is_available())  # before TRL imports vLLM
    with Stop(folder.root) as stop, trackers_write_to(folder.root):
        with libraries_aside():
            from gtpo.train.session import TrainingRun

        run = TrainingRun(config, folder, inputs, stop, score_held_out=score_held_out)
        run.run()
    if run.main:
        _print_result(folder, json_output)
    if stop.requested:
        raise KeyboardInterrupt
    return folder.root


def choose_devices(config: TrainConfig) -> None:
    """Set CUDA_VISIBLE_DEVICES, before anything imports torch: a flag wins over the shell, which wins over a file."""
    chosen, setting = config.env.CUDA_VISIBLE_DEVICES, config.setting("env.CUDA_VISIBLE_DEVICES")
    # What started this process, such as a scheduler, knows which GPUs are free.
    shell = None if setting.is_flag else os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and shell not in (None, chosen):
        LOG.warning(f"{setting}: CUDA_VISIBLE_DEVICES={shell} of the environment wins over {chosen} (--cuda wins)")
    elif chosen is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = chosen


def _print_result(folder: TrainFolder, json_output: bool) -> None:
    if json_output:
        run = folder.run()
        keys = ("run_name", "status", "method", "step", "steps", "best", "wall_time_s")
        print(json.dumps({"run": str(folder.root)} | {key: run.get(key) for key in keys}))
