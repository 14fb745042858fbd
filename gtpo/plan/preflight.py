"""What can be refused before torch is imported: an absent model, a reward that does not import, unusable data."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from gtpo.config.resolve import training_source
from gtpo.config.schedule import launched_processes, require_a_rollout
from gtpo.config.schema import TrainConfig
from gtpo.inputs.dataset import load_problems, select
from gtpo.inputs.model_shape import weights_folder
from rewards.loading import load_reward
from rewards.support.log import LOG

PROBE_SECONDS = 3.0


def hub_answers() -> bool:
    """Return whether a connection to the Hub can be opened; behind a proxy that is left to its libraries.

    They retry for a minute each where it cannot. To be asked before huggingface_hub is imported, which reads
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


def is_local(config: TrainConfig) -> bool:
    """Return whether the dataset is read without the Hub."""
    source = training_source(config.dataset)
    on_hub = source.startswith(("gsm8k_", "math_")) or source in ("math500", "aime24", "aime25", "amc23")
    return not on_hub or bool(config.dataset.data_dir or os.environ.get("GTPO_DATA_DIR"))


def check_hub(config: TrainConfig) -> None:
    """Where the run needs the Hub and it does not answer, say so and go on with what is cached."""
    name = config.model.model_name
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    if offline or (is_local(config) and (name is None or Path(name).exists())):
        return
    if not hub_answers():
        LOG.warning("the Hugging Face Hub does not answer; going on with what is cached (HF_HUB_OFFLINE=1)")
        os.environ["HF_HUB_OFFLINE"] = "1"


def check_inputs(config: TrainConfig) -> None:
    """Import the rewards and read the data that lies here. Raises UserError for what cannot be trained with."""
    if config.method != "sft":
        for path in config.trainer.reward_funcs:
            load_reward(path)
    if is_local(config):
        problems, source = load_problems(config)
        rows, _ = select(problems, config, None, source)
        require_a_rollout(config, len(rows), launched_processes())


def preflight(config: TrainConfig, results: Path = Path("results")) -> None:
    """Refuse what would fail later. Raises UserError; reads local files only, and no weights."""
    if config.model.model_name is not None:
        weights_folder(config.model.model_name, results)
    check_hub(config)
    check_inputs(config)
