"""`gtpo train` without a file, and `gtpo demo`: what they run is what a user could have typed."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import Mock

import pytest

from gtpo.config import load_config
from gtpo.demo import COMMANDS, run_demo
from gtpo.options import START, from_flags


@pytest.mark.parametrize("method", ["gtpo", "grpo", "sft"])
def test_flags_alone_make_a_config_that_its_file_repeats(method: str, tmp_path: Path) -> None:
    typed = {
        "model": "org/Some-Model", "data": "arithmetic", "method": method, "training.learning_rate": "2e-6",
        "data-dir": str(tmp_path), "training.lr_scheduler_kwargs.num_cycles": "2", "training.epsilon": "1e-3",
    }  # fmt: skip
    overrides = from_flags(typed)
    config = load_config(START, overrides, world_size=1)
    assert config.run_name == f"some-model-arithmetic-{method}"
    (tmp_path / "mine.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "mine.yaml", world_size=1).as_dict() == config.as_dict()


@pytest.mark.parametrize("failing", [None, 3])
def test_demo_stops_at_the_first_command_that_fails(
    failing: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = (CompletedProcess([], 5 if number == failing else 0) for number in range(len(COMMANDS)))
    run = Mock(side_effect=codes)
    monkeypatch.setattr("gtpo.demo.subprocess.run", run)
    assert run_demo(["gtpo"]) == (0 if failing is None else 5)
    ran = [tuple(word for word in call.args[0][1:] if word != "--quiet") for call in run.call_args_list]
    assert ran == list(COMMANDS[: None if failing is None else failing + 1])
    shown = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert shown == ["gtpo " + " ".join(command) for command in ran]
