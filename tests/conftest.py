"""Shared test set-up: one thread, and a stated reason for every test that this machine cannot run."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import make_once
from shapes import check_shapes

from gtpo.common.packages import installed

ROOT = Path(__file__).resolve().parent.parent

# Two torch threads on a busy two-core machine can be ten times slower than one. Subprocesses inherit this.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Before a test imports a function of the method.
check_shapes()


def _shared_dir() -> Path | None:
    candidate = Path(os.environ.get("GTPO_SHARED_DIR", ROOT.parent / "shared"))
    return candidate if (candidate / "data").is_dir() else None


def _missing(marker: str) -> str | None:
    """Return why tests with this marker cannot run here, or None if they can."""
    if marker == "shared" and _shared_dir() is None:
        return "shared material not found (set GTPO_SHARED_DIR, or lay it beside the checkout as ../shared)"
    if marker == "verl" and not installed("verl"):
        return "verl is not installed here (make test-verl)"
    if marker == "vllm" and not installed("vllm"):
        return "vLLM is not installed here (make test-vllm)"
    if marker == "docs" and not installed("mkdocs"):
        return "the documentation's tools are not installed here (make docs)"
    if marker == "gpu":
        import torch

        return None if torch.cuda.is_available() else "no CUDA device"
    if marker == "chromium" and not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "no chromium and chromedriver on the PATH"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {marker: _missing(marker) for marker in ("shared", "vllm", "verl", "docs", "gpu", "chromium")}
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    import torch

    torch.set_num_threads(1)
    make_once()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """No test cuts the power; a training waits for the disk fifty times, a third of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def _what_is_imported_is_not_garbage() -> None:
    """Every training run calls the garbage collector, which takes as long as the run to look at 600,000 objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The project's shared material (benchmark files, recorded completions, golden steps)."""
    found = _shared_dir()
    assert found is not None, "mark the test with @pytest.mark.shared"
    return found


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    """A headless Chromium of 1280 x 900 without a network, that keeps its console messages."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield browser
    browser.quit()
