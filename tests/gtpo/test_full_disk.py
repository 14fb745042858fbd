"""A disk that is full, and a checkpoint that it damaged: one sentence each, and nothing of the run is lost."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_train_run import assert_same_run, metrics, run

import gtpo.run.session
from gtpo.common.errors import UserError

FULL = OSError(errno.ENOSPC, "No space left on device")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("place", "call"), [("write_completions", 3), ("append_metrics", 4), ("save_weights", 2)])
def test_a_full_disk_anywhere_is_one_sentence_and_the_run_goes_on(
    place: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = getattr(gtpo.run.session, place), []

    def full(*args: Any, **kwargs: Any) -> Any:
        calls.append(place)
        if len(calls) == call:
            raise FULL
        return plain(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(gtpo.run.session, place, full)
        with pytest.raises(UserError, match=r"no room on disk in .*No space left.*checkpoint-\d is whole"):
            run(tmp_path)
    folder = tmp_path / "results/train/run"
    about = json.loads((folder / "run.json").read_text())
    assert about["status"] == "failed"
    assert "no room on disk" in about["stopped_because"]
    run(tmp_path)
    assert_same_run(folder, run(tmp_path / "whole"))


def test_the_checkpoint_that_is_whole_is_the_last_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.save

    def full(value: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        if "checkpoint-12" in str(path):
            raise FULL
        plain(value, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="checkpoint-10 is whole"):
        run(tmp_path, **{"training.max_steps": 12, "training.save_total_limit": None})


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_a_damaged_checkpoint_is_named_with_what_to_do(name: str, tmp_path: Path) -> None:
    folder = run(tmp_path)
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "status": "running"}))
    damaged = folder / "checkpoints/checkpoint-6"
    with (damaged / name).open("r+b") as handle:
        handle.truncate(100)
    with pytest.raises(UserError, match=r"checkpoint-6 cannot be read \(.*Move it away"):
        run(tmp_path)
    damaged.rename(tmp_path / "away")
    expected = metrics(folder)
    run(tmp_path)
    assert metrics(folder) == expected
