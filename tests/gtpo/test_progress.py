"""The progress of a run on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from gtpo.run.progress import SHOWN, summary

ROW = {name: 123.456 for name, _, _ in SHOWN}

SCRIPT = """
import sys, time
from gtpo.run.progress import Progress, SHOWN
from gtpo.common.log import LOG, start_logging
start_logging()
progress = Progress(sys.argv[1], shown=True)
progress.start(0, 100000)
for step in range(1, 4):
    progress.step(step, {name: 123.456 for name, _, _ in SHOWN})
    time.sleep(0.15)
progress.stop()
"""


def on_a_terminal(title: str, columns: int) -> str:
    """Return what the script writes to a terminal of this width, control sequences removed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, title], stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert child.wait() == 0
    return written.decode()


@pytest.mark.parametrize("title", ["demo-gtpo (gtpo)", "a" * 200 + " (gtpo)"])
def test_bar_and_metrics_take_one_line_each_of_80_columns(title: str) -> None:
    import re

    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_a_terminal(title, 80)).replace("\r", "\n")
    lines = [line.rstrip() for line in shown.split("\n") if line.strip()]
    assert max(map(len, lines)) <= 80, lines
    assert any("3/100000" in line for line in lines)
    assert any(line.startswith("loss 123.4560  acc 123.46") for line in lines)
    assert not any(line.startswith("loss") and "3/100000" in line for line in lines)


def test_summary_keeps_whole_metrics_within_the_width() -> None:
    whole = summary(ROW)
    assert all(f"{label} " in whole for _, label, _ in SHOWN)
    for width in (20, 40, 80):
        short = summary(ROW, width)
        assert len(short) <= width
        assert whole.startswith(short)
        assert whole[len(short) :].startswith("  "), "cut between metrics"
    assert summary({}) == ""
