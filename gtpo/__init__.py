"""Training with GTPO: objective, conflict weights, entropy gate, fused op, trainers, run folder.

`GTPOConfig` and `GTPOTrainer` are loaded on first use, so that reading a config imports no torch.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gtpo.trainer import GTPOConfig, GTPOTrainer

__all__ = ["GTPOConfig", "GTPOTrainer"]

__version__: str

# A script that stands in a checkout imports this folder, also if gtpo is installed: the other packages lie beside it.
if not os.path.isdir(os.path.join(os.path.dirname(__file__), "rewards")):
    __path__.append(os.path.dirname(os.path.dirname(__file__)))

# On a processor with bfloat16 it warns of a kernel that is not on this machine, though nothing that we do needs it.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("gtpo")
    if name in __all__:
        from gtpo import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module 'gtpo' has no attribute {name!r}")
