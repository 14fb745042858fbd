"""`gtpo doctor`: the whole command on this machine, and that it notices what is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import pytest

from gtpo import doctor, fused
from gtpo.common.errors import UserError


def test_the_machine_is_described_and_the_loss_is_right_here(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "gtpo", "doctor", "--out", "report.json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["packages"]["torch"] == metadata.version("torch")
    assert {(row["preset"], row["dtype"]) for row in report["loss"]} == {
        (preset, dtype) for preset in doctor.PRESETS_CHECKED for dtype in ("float32", "bfloat16")
    }
    # Of sixteen completions the gate drops some and keeps some, or the gate would not have been tested.
    assert {row["kept"] for row in report["loss"] if row["preset"] == "gtpo"} <= set(range(4, 13))
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert "torch" in done.stdout
    assert done.stdout.count(" ok: gradients differ from float64 by ") == 8


def test_a_wrong_gradient_is_noticed(monkeypatch, tmp_path, capsys):
    honest = fused.fused_linear_gtpo_loss

    def one_percent_off(*args, **kwargs):
        result = honest(*args, **kwargs)
        return result._replace(loss=1.01 * result.loss)

    monkeypatch.setattr(fused, "fused_linear_gtpo_loss", one_percent_off)
    monkeypatch.chdir(tmp_path)
    assert not doctor.run_doctor(out=None, json_output=True)
    assert not any(row["ok"] for row in json.loads(capsys.readouterr().out)["loss"] if row["dtype"] == "float32")
    assert list(tmp_path.iterdir()) == [], "nothing is written unless asked for"


def test_a_report_that_cannot_be_written_is_refused_before_the_check(tmp_path):
    with pytest.raises(UserError, match=r"--out .*: that is a folder; name a file in it"):
        doctor.run_doctor(out=tmp_path, json_output=False)
