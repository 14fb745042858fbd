"""What ran where: package versions, hardware and commit, for run.json."""

from __future__ import annotations

import platform
from typing import Any

import torch

from gtpo.common.provenance import git_commit, package_versions

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
    versions = package_versions(*_PACKAGES)
    return {
        "python": versions.pop("python"),
        "packages": versions,
        "hardware": _hardware(),
        "git_commit": git_commit(),
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
