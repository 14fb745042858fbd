"""The Python examples of the reference pages run, and print what their comments say."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from blocks import blocks_of, expected_output

pytestmark = pytest.mark.docs


def test_the_examples_of_the_api_print_what_they_say(root, tmp_path):
    """All in one script, one after the other: torch is imported once."""
    blocks = [block for block in blocks_of(root / "docs/api.md") if block.language == "python"]
    assert len(blocks) >= 7
    assert [block.line for block in blocks if block.reason] == []
    (tmp_path / "api.py").write_text("\n".join(block.text for block in blocks))
    env = os.environ | {"DS_ACCELERATOR": "cpu"}  # DeepSpeed, where it is installed, says on stdout what it found
    done = subprocess.run(
        [sys.executable, "api.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    expected = [line for block in blocks for line in expected_output(block.text)]
    printed = done.stdout.splitlines()
    assert len(printed) == len(expected)
    assert [(a, b) for a, b in zip(printed, expected, strict=True) if b != "..." and a != b] == []
