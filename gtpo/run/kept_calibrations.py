"""H_ini in run.json, and kept for the next start from the same policy: measuring takes minutes on a real model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from gtpo.common.files import read_json_object, write_json
from gtpo.common.log import LOG
from gtpo.entropy import Calibration
from gtpo.run.folder import TrainFolder
from gtpo.trainer.adapter_sync import whole_tensor
from gtpo.trainer.calibration import CalibrationFile

FILE = ".initial_entropy.json"
"""In the folder of the runs."""
STRIDES = 4096
"""Numbers of each weight that tell one model from another."""


def policy_key(trainer: Any) -> str:
    """Return a checksum of what H_ini depends on: weights, prompts, and how completions are drawn."""
    drawn = {
        "prompts": trainer.gate.prompts(),
        "template": getattr(trainer.processing_class, "chat_template", None),
        "temperature": trainer.temperature,
        "longest": trainer.max_completion_length,
        "seed": trainer.args.seed,
        "vllm": trainer.use_vllm,
        "batch": trainer.gate.sampled_at_once(trainer.gate.prompts()),
    }
    found = hashlib.sha256(json.dumps(drawn, sort_keys=True, default=str).encode())
    for name, weight in trainer.model.named_parameters():
        some = whole_tensor(weight).flatten()[:: max(1, weight.numel() // STRIDES)].contiguous().cpu()
        found.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + some.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class CalibrationRecord(CalibrationFile):
    """H_ini and the gate's decision in run.json; with a trainer, H_ini also beside the runs, for later ones.

    Of one process only: several could disagree on the file beside the runs.
    """

    def __init__(self, folder: TrainFolder, trainer: Any = None) -> None:
        super().__init__(folder.run_json)
        self.folder, self.kept = folder, folder.root.parent / FILE
        self.trainer = trainer if trainer is not None and trainer.accelerator.num_processes == 1 else None

    def _known(self) -> dict[str, Any]:
        """Return the records of the runs beside this one, by policy."""
        return read_json_object(self.kept) if self.kept.is_file() else {}

    def load(self, *, resumed: bool) -> Calibration | None:
        """Return what run.json holds: the folder is one run's, also where it stopped before its first checkpoint."""
        stored = self.folder.run().get("initial_entropy")
        if stored is None and not resumed and self.trainer is not None:
            known = self._known()
            if known and (stored := known.get(policy_key(self.trainer))) is not None:
                self.folder.update_run(initial_entropy=stored)
                LOG.info("H_ini was measured by an earlier run of the same model, data, prompt and temperature")
        return None if stored is None else Calibration.from_record(stored)

    def store(self, calibration: Calibration) -> None:
        """Put H_ini into run.json."""
        self.folder.update_run(initial_entropy=calibration.record())
        if self.trainer is not None and not self.trainer.state.global_step:
            write_json(self.kept, {**self._known(), policy_key(self.trainer): calibration.record()})

    def decided(self, gate: Mapping[str, Any]) -> None:
        """Note the gate's decision in run.json."""
        self.folder.update_run(gate=dict(gate))
