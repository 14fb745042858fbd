"""What several test files of training are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from gtpo.config import BuiltModel
from gtpo.inputs.tiny import build_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model, as a TRL user names one."""
    spec = BuiltModel(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model, tokenizer = build_tiny_model(spec, max_seq_length=96, seed=0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"
