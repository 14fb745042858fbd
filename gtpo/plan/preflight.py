"""What can be refused before torch is imported: an absent model, a reward that does not import, unusable data."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from gtpo.config.schema import TrainConfig
from gtpo.inputs.dataset import TrainingProblems
from gtpo.inputs.model_shape import Weights, find_weights
from rewards.data.problems import SOURCES
from rewards.loading import load_reward
from rewards.support.log import LOG

PROBE_SECONDS = 3.0


class RunInputs(NamedTuple):
    """What a run starts from, found once per start."""

    weights: Weights
    problems: TrainingProblems


def hub_answers() -> bool:
    """Return whether a connection to the Hub can be opened; behind a proxy that is left to its libraries.

    They retry for a minute each where it cannot. Must be called before huggingface_hub is imported, which reads
    HF_HUB_OFFLINE once.
    """
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
    try:
        socket.create_connection((endpoint.hostname or "", port), timeout=PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def is_local(problems: TrainingProblems) -> bool:
    """Return whether the dataset is read without the Hub."""
    on_hub = problems.source in SOURCES
    return not on_hub or bool(problems.config.dataset.data_dir or os.environ.get("GTPO_DATA_DIR"))


def check_inputs(config: TrainConfig) -> TrainingProblems:
    """Import the rewards and read the data that is local. Raises UserError for what cannot be trained with.

    Where the run needs the Hub and it does not answer, a warning says so, and the libraries use what is cached.
    """
    problems, name = TrainingProblems(config), config.model.model_name
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    local = is_local(problems)
    if not (offline or (local and (name is None or Path(name).exists())) or hub_answers()):
        LOG.warning("the Hugging Face Hub does not answer; using what is cached (HF_HUB_OFFLINE=1)")
        os.environ["HF_HUB_OFFLINE"] = "1"
    if config.method != "sft":
        for path in config.trainer.reward_funcs:
            load_reward(path)
    if local:
        problems.select(None)
    return problems


def preflight(config: TrainConfig, results: Path = Path("results")) -> RunInputs:
    """Refuse what would fail later. Raises UserError; reads local files only, and no weights."""
    return RunInputs(find_weights(config.model, results), check_inputs(config))
