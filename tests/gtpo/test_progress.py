"""The progress of a run on a terminal of 80 columns."""

from __future__ import annotations

import io
import logging
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from gtpo.common.log import LOG
from gtpo.train import run_log
from gtpo.train.run_log import SHOWN, Progress, summary

ROW = {name: 123.456 for name, _, _ in SHOWN}


@pytest.mark.parametrize("title", ["demo-gtpo (gtpo)", "a" * 200 + " (gtpo)"])
def test_bar_and_metrics_take_one_line_each_of_80_columns(
    title: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.setattr(run_log, "stderr_console", lambda: console)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    state, shown = SimpleNamespace(global_step=0, max_steps=100000), Progress(title)
    args = SimpleNamespace(gradient_accumulation_steps=1)
    shown.on_train_begin(None, state, None)
    for state.global_step in range(1, 4):
        for doing in ("validating 9 completions", "scoring 8 completions", ""):
            shown.on_activity(doing)
            shown._bar.refresh()
        shown.on_log(args, state, None, ROW)
    shown.on_train_end()
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
    lines = [line.rstrip() for line in re.split(r"\r?\n|\r", written) if line.strip()]
    assert max(map(len, lines)) <= 80, lines
    assert any("3/100000" in line for line in lines)
    assert len(title) > 80 or any("demo-gtpo (gtpo): scoring 8 completions" in line for line in lines)
    assert any(line.startswith("loss 123.4560  acc 123.46") for line in lines)
    assert not any(line.startswith("loss") and "3/100000" in line for line in lines)
    assert all(f"{label} " in summary(ROW) for _, label, _ in SHOWN)
