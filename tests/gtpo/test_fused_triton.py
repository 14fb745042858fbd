"""The Triton kernels: on a CPU in Triton's interpreter, on a GPU as they are."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gtpo.common.packages import installed

pytestmark = pytest.mark.skipif(not installed("triton"), reason="triton is not installed")
HERE = Path(__file__).parent


def test_kernels_equal_the_reference_under_the_interpreter():
    """TRITON_INTERPRET must be set before triton is imported, so the check has a process of its own."""
    command, env = [sys.executable, HERE / "triton_checks.py"], os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "worst" in result.stdout


@pytest.mark.gpu
def test_kernels_equal_the_reference_on_a_gpu():
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, HERE / "triton_checks.py", "cuda"]
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "worst" in result.stdout


def test_a_missing_triton_is_named(monkeypatch):
    import torch

    from gtpo.kernels.one_pass import choose_backend

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match='backend "triton" needs the package triton'):
        choose_backend("triton", torch.zeros(1))
    assert choose_backend("auto", torch.zeros(1)) == "torch"
