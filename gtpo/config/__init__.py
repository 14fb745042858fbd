"""The config of a training run: schema, loading, flags, the published dialect, help. Free of torch.

    read (document) -> translate (published) -> validate (load.to_config, resolve)

Each step takes a value and returns another one; the schema has every key, typed, ranged and documented.
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
