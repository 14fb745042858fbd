"""What `dtype: auto` comes to on a CPU, for training and for evaluation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gtpo.common import hub
from gtpo.config import ModelSection
from gtpo.inputs.model import compute_precision, resolve_dtype

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


@pytest.mark.parametrize(
    ("rank", "dtype", "bf16"), [(4, "bfloat16", True), (4, "float32", False), (0, "bfloat16", False)]
)
def test_adapters_beside_bfloat16_weights_compute_in_bfloat16_on_a_cpu(rank: int, dtype: str, bf16: bool) -> None:
    assert compute_precision(ModelSection(lora_rank=rank), dtype) == {"bf16": bf16, "fp16": False}
