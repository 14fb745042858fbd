"""What can be refused before torch is imported: an absent model, a reward that does not import, unusable data."""

from __future__ import annotations

import os
from pathlib import Path

from gtpo.config.resolve import training_source
from gtpo.config.schema import TrainConfig
from gtpo.data import load_problems, select
from gtpo.shapes import weights_folder
from gtpo.steps import require_a_round
from rewards.loading import load_reward


def is_local(config: TrainConfig) -> bool:
    """Return whether the dataset is read without the Hub."""
    source = training_source(config.dataset)
    on_hub = source.startswith(("gsm8k_", "math_")) or source in ("math500", "aime24", "aime25", "amc23")
    return not on_hub or bool(config.dataset.data_dir or os.environ.get("GTPO_DATA_DIR"))


def check_inputs(config: TrainConfig) -> None:
    """Import the rewards and read the data that lies here. Raises UserError for what cannot be trained with."""
    if config.method != "sft":
        for path in config.trainer.reward_funcs:
            load_reward(path)
    if is_local(config):
        problems, source = load_problems(config)
        rows, _ = select(problems, config, None, source)
        require_a_round(config, len(rows), int(os.environ.get("WORLD_SIZE", "1")))


def preflight(config: TrainConfig, results: Path = Path("results")) -> None:
    """Refuse what would fail later. Raises UserError; reads local files only, and no weights."""
    if config.model.model_name is not None:
        weights_folder(config.model.model_name, results)
    check_inputs(config)
