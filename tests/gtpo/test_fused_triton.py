"""The Triton kernels without a GPU: run on CPU by Triton's interpreter, and compiled for Hopper by its own ptxas."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rewards.support.packages import installed

pytestmark = pytest.mark.skipif(not installed("triton"), reason="triton is not installed")
HERE = Path(__file__).parent


def run(check, **environment):
    """TRITON_INTERPRET must be set before triton is imported, so each check has a process of its own."""
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    paths = [str(HERE.parents[1]), variables.get("PYTHONPATH", "")]
    variables |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", **environment}
    result = subprocess.run(
        [sys.executable, HERE / "triton_checks.py", check], env=variables, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_kernels_equal_the_reference_under_the_interpreter():
    assert "worst" in run("interpret", TRITON_INTERPRET="1")


def test_kernels_compile_for_an_h200(tmp_path):
    assert run("compile", TRITON_CACHE_DIR=str(tmp_path)).count("bytes") == 6


def test_a_missing_triton_is_named(monkeypatch):
    import torch

    from gtpo.kernels.one_pass import choose_backend

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match='backend "triton" needs the package triton'):
        choose_backend("triton", torch.zeros(1))
    assert choose_backend("auto", torch.zeros(1)) == "torch"
