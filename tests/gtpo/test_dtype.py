"""What `dtype: auto` comes to on a CPU, for training and for evaluation, and that a resumed run keeps to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gtpo.common import hub
from gtpo.common.errors import UserError
from gtpo.config import ModelSection
from gtpo.inputs.model import compute_precision, resolve_dtype
from gtpo.runs.train_run import TrainFolder
from gtpo.train.environment import check_same

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")


@pytest.mark.parametrize(
    ("multiplies", "stored", "given", "expected"),
    [
        (True, torch.bfloat16, {"lora_rank": 4}, torch.bfloat16),
        (True, "bfloat16", {"lora_rank": 4}, torch.bfloat16),
        (False, torch.bfloat16, {"lora_rank": 4}, torch.float32),
        (True, torch.float32, {"lora_rank": 4}, torch.float32),
        (True, None, {"lora_rank": 4}, torch.float32),
        (True, torch.bfloat16, {}, torch.float32),
        (True, torch.bfloat16, {"lora_rank": 4, "load_in_4bit": True}, torch.float32),
        (True, torch.bfloat16, {"lora_rank": 4, "dtype": "float32"}, torch.float32),
        (False, torch.float32, {"dtype": "bfloat16"}, torch.bfloat16),
    ],
)
def test_auto_takes_bfloat16_where_it_is_stored_frozen_and_multiplied(
    monkeypatch: pytest.MonkeyPatch, multiplies: bool, stored: Any, given: dict[str, Any], expected: torch.dtype
) -> None:
    monkeypatch.setattr(hub, "has_bfloat16", lambda: multiplies)
    assert resolve_dtype(ModelSection(**given), SimpleNamespace(dtype=stored)) == expected


def test_a_run_is_not_resumed_in_another_dtype(tmp_path: Path) -> None:
    folder = TrainFolder(tmp_path / "run")
    folder.root.mkdir()
    check_same(folder, 1, "bfloat16")
    folder.update_run(dtype="float32")
    check_same(folder, 1, "float32")
    with pytest.raises(UserError, match="was trained with dtype float32, and it is bfloat16 here"):
        check_same(folder, 1, "bfloat16")


@pytest.mark.parametrize(
    ("rank", "dtype", "bf16"), [(4, "bfloat16", True), (4, "float32", False), (0, "bfloat16", False)]
)
def test_adapters_beside_bfloat16_weights_compute_in_bfloat16_on_a_cpu(rank: int, dtype: str, bf16: bool) -> None:
    assert compute_precision(ModelSection(lora_rank=rank), dtype) == {"bf16": bf16, "fp16": False}
