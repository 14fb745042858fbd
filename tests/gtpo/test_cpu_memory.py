"""What a process on a CPU holds of what it has freed: asked in processes of their own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from step_gradients import tiny_model
from test_train_run import PLAIN

from gtpo.common import processor
from gtpo.common.cpu_memory import HUGE_PAGES
from gtpo.config import TrainConfig
from gtpo.inputs.model_shape import shape_of_config
from gtpo.plan.memory import GIB, forecast
from gtpo.run import environment

huge_pages = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt")
    or not HUGE_PAGES.is_file()
    or "[never]" in HUGE_PAGES.read_text(encoding="utf-8"),
    reason="needs glibc and huge pages",
)

STEP = """
import re, sys
from pathlib import Path
from gtpo.common.cpu_memory import keep_large_blocks, return_large_blocks
if sys.argv[1] == "command":  # what is imported before a run allocates a tensor, from which on it is too late
    from typer.testing import CliRunner
    from gtpo.cli import app
    assert CliRunner().invoke(app, ["configs"]).exit_code == 0
    import gtpo.run.session
import torch
if sys.argv[1] == "late":
    return_large_blocks()
keep = sys.argv[2:] == ["keep"]
if keep:
    keep_large_blocks()
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
torch.ones(31 * 2**18)  # freed: from now on glibc keeps what is smaller than these 31 MB
before = held()
kept = []
for size in range(24):  # saved for a gradient: small ones between large ones, as the layers of a model give them
    large = torch.ones((20 + size % 3) * 2**18)
    # 1 MB: less than a block of its own, more than a gap in the heap. Nothing between them is what makes keeping hard.
    kept.append((large, None if keep else torch.ones(2**18)))
huge = int(re.search(r"AnonHugePages: +([0-9]+)", Path("/proc/self/smaps_rollup").read_text())[1]) / 2**10
small = [small for _, small in kept]
kept.clear()
print(held() - before, huge)
"""


def held_and_huge(*how: str, **variables: str) -> tuple[float, float]:
    """Return MB that are held after about 500 MB of tensors are freed, and MB in huge pages before."""
    done = subprocess.run(
        [sys.executable, "-c", STEP, *how], check=True, capture_output=True, env={**os.environ, **variables}
    )
    held, huge = map(float, done.stdout.split())
    return held, huge


@huge_pages
def test_what_is_freed_goes_back_and_lies_in_huge_pages() -> None:
    plain, _ = held_and_huge("late")
    held, huge = held_and_huge("command")
    assert plain > 300, "glibc keeps it otherwise"
    assert held < 50
    assert huge > 300


@huge_pages
def test_a_script_of_ones_own_gets_the_same_from_the_environment() -> None:
    """The variables that docs/laptop.md names."""
    held, huge = held_and_huge("late", THP_MEM_ALLOC_ENABLE="1", MALLOC_MMAP_THRESHOLD_="4194304")
    assert held < 50
    assert huge > 300


@huge_pages
def test_a_run_with_room_keeps_what_it_frees() -> None:
    held, _ = held_and_huge("command", "keep")
    assert held > 300
    held, _ = held_and_huge("command", "keep", MALLOC_MMAP_THRESHOLD_="4194304")
    assert held < 50, "the user's setting stays"


@pytest.mark.parametrize(("times", "kept"), [(1.9, False), (2.1, True)])
def test_room_is_twice_the_forecast(times: float, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny_model()
    loaded: Any = SimpleNamespace(model=model, dtype="float32")
    config = TrainConfig.model_validate(PLAIN)
    shape = shape_of_config(model.config.to_dict())
    assert shape is not None
    needed = forecast(config, shape, "float32").training_gib * GIB
    called: list[bool] = []
    monkeypatch.setattr(environment, "keep_large_blocks", lambda: called.append(True))
    monkeypatch.setattr(environment, "free_memory", lambda: int(times * needed))
    assert environment.settle_memory(config, loaded) is None
    assert bool(called) is kept


@huge_pages
def test_what_the_user_has_set_stays() -> None:
    """glibc's largest threshold, and pages as they come."""
    given = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30), "THP_MEM_ALLOC_ENABLE": "0"}
    held, huge = held_and_huge("command", **given)
    assert held > 300
    assert huge < 50


def test_free_memory_is_at_most_what_a_container_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "CONTAINER_LIMIT", tmp_path / "memory.max")
    without = processor.free_memory()
    assert psutil.Process().memory_info().rss < without <= psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("max\n")
    assert processor.free_memory() == pytest.approx(without, rel=0.2)
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert processor.free_memory() == 2**30
