"""`gtpo train` without a file, and `gtpo demo`: what they run is what a user could have typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gtpo.config import load_config
from gtpo.config.options import START, from_flags
from gtpo.demo import COMMANDS, run_demo


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
    failing: int | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    program = tmp_path / "program.py"
    program.write_text(
        "import json, pathlib, sys\n"
        f"log = pathlib.Path({str(log)!r})\n"
        "lines = log.read_text().splitlines() if log.exists() else []\n"
        "log.write_text('\\n'.join([*lines, json.dumps(sys.argv[1:])]))\n"
        f"sys.exit(5 if len(lines) == {failing} else 0)\n"
    )
    assert run_demo([sys.executable, str(program)]) == (0 if failing is None else 5)
    ran = [tuple(word for word in json.loads(line) if word != "--quiet") for line in log.read_text().splitlines()]
    assert ran == list(COMMANDS[: None if failing is None else failing + 1])
    shown = [line.partition("] ")[2] for line in capfd.readouterr().err.splitlines() if line.startswith("[")]
    assert shown == ["gtpo " + " ".join(command) for command in ran]
