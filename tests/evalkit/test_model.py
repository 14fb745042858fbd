"""What MODEL stands for, by what lies on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gtpo.common.errors import UserError
from gtpo.evalkit.engines.model_ref import fingerprint, resolve_model


def weights(folder: Path, content: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    return folder


def train_run(folder: Path, status: str = "finished", best: bool = True) -> Path:
    weights(folder / "final")
    weights(folder / "checkpoints/checkpoint-50")
    if best:
        weights(folder / "best")
    (folder / "run.json").write_text(json.dumps({"method": "gtpo", "preset": "gtpo", "status": status}))
    (folder / "config.yaml").write_text(
        "dataset: {system_instruction: Think hard.}\nmodel: {max_seq_length: 2048}\n"
        "training: {max_prompt_length: 512, max_completion_length: null}\n"
    )
    return folder


def test_a_train_run_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = train_run(tmp_path / "results/train/mine")
    for name in (str(run), "mine"):
        ref = resolve_model(name)
        assert Path(ref.source).resolve() == run / "best"
        assert (ref.name, ref.train_run, ref.method, ref.preset) == ("mine", "mine", "gtpo", "gtpo")
        assert ref.prompt is not None
        assert (ref.prompt.system, ref.max_tokens, ref.checkpoint) == ("Think hard.", 2048 - 512, "best")
    assert resolve_model("mine", checkpoint="final").source.endswith("mine/final")
    between = resolve_model("mine", checkpoint="checkpoint-50")
    assert (between.checkpoint, between.name, between.train_run) == ("checkpoint-50", "mine-checkpoint-50", "mine")
    with pytest.raises(UserError, match=r'no checkpoint "checkpoint-51"\. Did you mean "checkpoint-50"'):
        resolve_model("mine", checkpoint="checkpoint-51")
    with pytest.raises(UserError, match=r'no model "mien".*Did you mean "mine"'):
        resolve_model("mien")


def test_a_run_without_best_or_without_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(train_run(tmp_path / "run", status="running", best=False))
    ref = resolve_model(run)
    assert ref.checkpoint == "final"
    # A folder of that name beside the command is no part of the run.
    (tmp_path / "best").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"has no best/ yet \(status: running\)"):
        resolve_model(run, checkpoint="best")
    assert "is running: evaluating final/ as it is" in caplog.text


def test_adapters(tmp_path: Path) -> None:
    base = weights(tmp_path / "base")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    ref = resolve_model(str(adapter))
    assert (ref.source, ref.adapter) == (str(base), adapter)
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "gone")}))
    with pytest.raises(UserError, match=r"its base model .*gone is not there"):
        resolve_model(str(adapter))


def test_fingerprint_notices_every_part(tmp_path: Path) -> None:
    folder = weights(tmp_path / "m", bytes(3_000_000))
    before = fingerprint(folder)
    assert fingerprint(folder) == before
    for position in (0, 1_500_000, 2_999_999):
        content = bytearray(3_000_000)
        content[position] = 1
        (folder / "model.safetensors").write_bytes(content)
        assert fingerprint(folder) != before
