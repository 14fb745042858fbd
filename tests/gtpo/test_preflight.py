"""What is refused before torch has loaded any weights."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gtpo.common.errors import UserError
from gtpo.config import load_config
from gtpo.plan.preflight import check_trl

ITERATIONS = {"training.num_iterations": 2}


@pytest.mark.parametrize(
    ("version", "gpu", "changes", "words"),
    [
        ("1.15.0", False, {"method": "grpo"}, "method grpo needs a GPU with TRL 1.15.0"),
        ("1.15.0", False, {"method": "grpo", **ITERATIONS}, "method grpo needs a GPU"),
        ("1.15.0", False, ITERATIONS, "training.num_iterations"),
        ("1.15.0", False, {}, None),
        ("1.15.0", False, {"method": "sft"}, None),
        ("1.15.0", True, {"method": "grpo", **ITERATIONS}, None),
        ("1.16.0", False, {"method": "grpo", **ITERATIONS}, None),
    ],
)
def test_trl_115_on_a_cpu(
    version: str, gpu: bool, changes: dict[str, Any], words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"model": {"model_name": "somewhere"}}))
    config = load_config(path, changes)
    monkeypatch.setattr(metadata, "version", lambda name: version)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu)
    if words is None:
        check_trl(config)
        return
    with pytest.raises(UserError, match=words):
        check_trl(config)
