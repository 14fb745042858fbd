"""What ran where: package versions, hardware and commit, for run.json."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_PACKAGES = (
    "gtpo",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "vllm",
    "bitsandbytes",
    "unsloth",
)


def provenance() -> dict[str, Any]:
    """Return packages, python, hardware and git_commit."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "packages": versions,
        "python": platform.python_version(),
        "hardware": _hardware(),
        "git_commit": _git_commit(),
    }


def _hardware() -> dict[str, Any]:
    import psutil

    found: dict[str, Any] = {
        "machine": platform.machine(),
        "system": platform.system(),
        "cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return found


def _git_commit() -> str | None:
    """Return the commit of this program's checkout, None for an installed package."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
