"""The config of a training run: schema, loading, flags, the published dialect, help. Free of torch.

    read (document) -> translate (published) -> validate (load.to_config, resolve)

Each step takes a value and returns another one.

schema      TrainConfig: every key typed, ranged and documented; how many prompts and steps follow from them
keys        every key by its dotted name; the reference of `gtpo train --help-config` and docs/config.md
document    the YAML with `extends`, the command line's words over it, and where each key was set
published   the authors' own config files: their paths and values mapped to ours, each with a printed line
resolve     contradictions, and what follows from other keys: group-complete batches, 32-bit optimizer states
load        all of it: YAML and flags -> a resolved TrainConfig, or a sentence for each error; TRL's and peft's settings
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gtpo.config.load import load_config
    from gtpo.config.schema import BuiltModel, HealthSection, ModelSection, TrainConfig

__all__ = ["BuiltModel", "HealthSection", "ModelSection", "TrainConfig", "load_config"]


def __getattr__(name: str) -> Any:
    # On first use: the help of `gtpo train` needs none of it.
    if name in __all__:
        return getattr(import_module(f"gtpo.config.{'load' if name == 'load_config' else 'schema'}"), name)
    raise AttributeError(f"module 'gtpo.config' has no attribute {name!r}")
