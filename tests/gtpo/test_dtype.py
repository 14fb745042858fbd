"""What `dtype: auto` comes to on a CPU, for training and for evaluation, and that a resumed run keeps to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from gtpo.common import hub
from gtpo.common.errors import UserError
from gtpo.config import ModelSection
from gtpo.inputs.model import compute_precision, resolve_dtype
from gtpo.runs.train_run import TrainFolder
from gtpo.train.continuation import check_same

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="of Linux")
def test_the_peak_of_memory_stays_after_it_is_freed() -> None:
    code = (
        "from gtpo.common.provenance import peak_memory; before = peak_memory(); "
        "held = b'x' * 2**27; del held; print(peak_memory() - before)"
    )
    grown = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert grown == pytest.approx(2**27, rel=0.3)


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
    with pytest.raises(UserError, match=r"was trained in float32, and model\.dtype means bfloat16 on this machine"):
        check_same(folder, 1, "bfloat16")


@pytest.mark.parametrize(
    ("rank", "dtype", "bf16"), [(4, "bfloat16", True), (4, "float32", False), (0, "bfloat16", False)]
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="of a CPU")
def test_adapters_beside_bfloat16_weights_compute_in_bfloat16_on_a_cpu(rank: int, dtype: str, bf16: bool) -> None:
    assert compute_precision(ModelSection(lora_rank=rank), dtype) == {"bf16": bf16, "fp16": False}


def test_adapters_in_bfloat16_lose_no_more_than_the_base_does() -> None:
    """Beside float32 throughout, an adapter's gradient is as far off with autocast as with float32 adapters."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
    )  # fmt: skip
    ids = torch.randint(0, 64, (4, 24), generator=torch.Generator().manual_seed(0))

    def gradient(dtype: torch.dtype, autocast: bool) -> torch.Tensor:
        torch.manual_seed(1)
        model = get_peft_model(LlamaForCausalLM(config).to(dtype), LoraConfig(r=8, target_modules="all-linear"))
        generator = torch.Generator().manual_seed(2)
        for name, weight in model.named_parameters():
            if "lora_" in name:  # not at their start, where one of the two factors is 0
                weight.data = 0.05 * torch.randn(weight.shape, generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(input_ids=ids, labels=ids).loss.backward()
        grads = [weight.grad for _, weight in model.named_parameters() if weight.grad is not None]
        assert all(grad.dtype == torch.float32 for grad in grads)
        return torch.cat([grad.double().flatten() for grad in grads])

    exact = gradient(torch.float32, False)
    found = [gradient(torch.bfloat16, autocast) for autocast in (False, True)]
    errors = [float((each - exact).norm() / exact.norm()) for each in found]
    print(errors)
    assert 0.001 < errors[0] < 0.1
    assert errors[1] < 1.25 * errors[0]
