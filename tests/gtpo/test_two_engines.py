"""Two engines, one gradient: TRL on two gloo processes and verl on two Ray workers, on the same recorded rollouts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from commands import process

TRL = os.environ.get("GTPO_TRL_PYTHON", "")
pytestmark = [
    pytest.mark.verl,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not TRL, reason="GTPO_TRL_PYTHON names no Python that has TRL (make test-verl sets it)"),
]
HERE = Path(__file__).resolve().parent
PRESETS = ("gtpo", "grpo", "rsi", "entropy-band")
VERL = {"VERL_USE_EXTERNAL_MODULES": "verl_on_cpu", "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda"}


def step(*words: str, **environment: str) -> None:
    """Run one engine's step in processes of its own."""
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), "TOKENIZERS_PARALLELISM": "false"}
    process(*words, env={**os.environ, **threads, **environment}, timeout=900)


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with PRESET.pt of TRL and PRESET-verl.pt: 16 completions, two times 4 in each process."""
    folder = tmp_path_factory.mktemp("engines")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    cases = [f"{preset}:4:2" for preset in PRESETS]
    step(TRL, *torchrun, str(HERE / "step_gradients.py"), str(folder), "2", *cases)
    step(sys.executable, str(HERE / "verl_step.py"), str(folder), *PRESETS, **VERL)
    return folder


@pytest.mark.parametrize("preset", PRESETS)
def test_one_gradient(gradients: Path, preset: str) -> None:
    trl, verl = (torch.load(gradients / f"{preset}{engine}.pt") for engine in ("", "-verl"))
    assert trl.keys() == verl.keys()
    # Each parameter by itself: what is small in the whole norm counts as much.
    norm = torch.stack([gradient.norm() for gradient in trl.values()]).norm()
    apart = {name: float((verl[name] - gradient).norm() / gradient.norm()) for name, gradient in trl.items()}
    worst = max(apart, key=lambda name: apart[name])
    print(f"{preset}: gradient norm {float(norm):.4f}; verl's differs by {apart[worst]:.1e} at most, in {worst}")
    assert norm > 1e-3
    assert apart[worst] <= 1e-5


def test_presets_differ(gradients: Path) -> None:
    """What is compared depends on the preset: none of the gradients is another's."""
    found = [torch.cat([g.flatten() for g in torch.load(gradients / f"{preset}.pt").values()]) for preset in PRESETS]
    for place, first in enumerate(found):
        for second in found[place + 1 :]:
            assert (first - second).norm() > 0.01 * first.norm()
