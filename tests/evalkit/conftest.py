"""A tiny random model on disk, and the command line as a real subprocess."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import command_line
from servers import Behaviour, Server

import gtpo.evalkit.engines.server as engine_module


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer decoder with random weights, a tokenizer and a chat template: real files, no knowledge."""
    from gtpo.config import BuiltModel
    from gtpo.inputs.tiny import build_tiny_model

    folder = tmp_path_factory.mktemp("models") / "tiny"
    spec = BuiltModel(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, tie_word_embeddings=False
    )
    model, tokenizer = build_tiny_model(spec, max_seq_length=256, seed=3)
    # Random weights are small: enlarged, completions differ by question, and some end early.
    model.get_input_embeddings().weight.data.mul_(5)
    model.get_output_embeddings().weight.data.mul_(10)
    model.get_output_embeddings().weight.data[tokenizer.eos_token_id] *= 1.5
    for name, weight in model.model.layers.named_parameters():
        if "norm" not in name and "gate_proj" not in name:
            weight.data.mul_(3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def page_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs of two benchmarks, two of them trained, and the page of their comparison."""
    from run_folders import RUNS, write_eval, write_train

    home = tmp_path_factory.mktemp("page")
    for i, name in enumerate(RUNS):
        method = name if name in ("grpo", "gtpo") else None
        if method:
            write_train(home / f"results/train/{name}", method=name, steps=120)
        write_eval(home / f"results/eval/{name}-1", name=name, skill=0.7 * i, seed=i, method=method, hostile=True,
                   benchmarks={"arithmetic": 80, "hard": 25}, train_run=method)  # fmt: skip
    ran = command_line("compare", *(f"{name}-1" for name in RUNS), "--html", "page.html", cwd=home, code=0)
    assert "page: page.html" in ran.stderr
    return home


@pytest.fixture(scope="session")
def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "160"}


@pytest.fixture
def gtpo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `gtpo ARGUMENTS` in this process, in a fresh folder: gtpo("eval", ..., code=2)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        return command_line(*arguments, cwd=tmp_path, code=code)

    return run


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Start HTTP servers that behave as told: serve(behaviour, **options); they are closed after the test."""
    monkeypatch.setattr(engine_module, "LONGEST_PAUSE_S", 0.02)
    servers: list[Server] = []

    def start(behaviour: Behaviour | None = None, **options: Any) -> Server:
        servers.append(Server(behaviour, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
