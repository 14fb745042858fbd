"""`gtpo doctor`: the whole command on this machine, and that it notices what is broken."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata

import pytest

from gtpo.common.errors import UserError
from gtpo.doctor import command, loss, machine


@pytest.mark.slow
def test_the_self_test_passes_here(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "gtpo", "doctor", "--out", "report.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    fused, train, evaluation = report["checks"]
    assert {row["dtype"] for row in fused["numbers"]["gradients"]} == {"float32", "bfloat16"}
    # Of sixteen completions the gate drops some and keeps some, or the gate would not have been tested.
    assert {row["kept"] for row in fused["numbers"]["gradients"] if row["preset"] == "gtpo"} <= set(range(4, 13))
    assert [row["step"] for row in train["numbers"]["metrics"]] == [1, 2, 3]
    assert evaluation["numbers"]["benchmarks"]["arithmetic"]["samples"] == 16
    assert report["packages"]["torch"]["version"] == metadata.version("torch")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_wrong_gradient_is_noticed(monkeypatch):
    honest = loss.fused_linear_gtpo_loss

    def one_percent_off(*args, **kwargs):
        result = honest(*args, **kwargs)
        return result._replace(loss=1.01 * result.loss)

    monkeypatch.setattr(loss, "fused_linear_gtpo_loss", one_percent_off)
    rows = loss.check_gradients("cpu")
    assert not any(row["ok"] for row in rows if row["dtype"] == "float32")


def test_a_command_that_fails_is_reported_with_its_last_words(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "_test_loss", lambda program, folder: ("", {}))
    broken = [sys.executable, "-c", "raise SystemExit('the GPU is on fire')"]
    assert not command.run_doctor(broken, out=tmp_path / "report.json", quick=False, json_output=False)
    checks = json.loads((tmp_path / "report.json").read_text())["checks"]
    assert [check["ok"] for check in checks] == [True, False, False]
    assert "exit code 1\nthe GPU is on fire" in checks[1]["detail"]
    assert "FAILED" in capsys.readouterr().out


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.run_doctor([], out=None, quick=True, json_output=True)
    assert json.loads(capsys.readouterr().out)["checks"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_refused_before_the_test(tmp_path):
    with pytest.raises(UserError, match=r"--out .*: that is a folder; name a file in it"):
        command.run_doctor([], out=tmp_path, quick=False, json_output=False)


@pytest.mark.parametrize("package", machine.TESTED)
def test_tested_versions_are_those_of_the_constraints(root, package):
    names = ("constraints.txt", "constraints-trl115.txt", "constraints-vllm.txt")
    texts = [(root / name).read_text() for name in names]
    pattern = re.compile(rf"^{package.replace('-', '[-_]')}==(\S+)$", re.MULTILINE | re.IGNORECASE)
    assert set(machine.TESTED[package]) == {version for text in texts for version in pattern.findall(text)}


def test_a_version_outside_the_requirements_is_named(monkeypatch):
    true = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: {"trl": "1.99.0", "peft": "0.99.0"}.get(name) or true(name))
    packages = machine.describe_packages()
    assert packages["trl"]["status"] == "refused"
    assert packages["peft"]["status"] == "allowed"
    assert packages["torch"]["status"] == "tested"


def test_the_extras_of_other_environments_refuse_nothing_here(monkeypatch):
    """The extra verl holds torch below 2.12 and transformers below 5.11, in an environment of its own."""
    true = metadata.version
    untested = {"torch": "2.12.1", "transformers": "5.16.2"}
    monkeypatch.setattr(metadata, "version", lambda name: untested.get(name) or true(name))
    packages = machine.describe_packages()
    assert [packages[name]["status"] for name in untested] == ["allowed", "allowed"]
