"""A program of ours on a terminal of so many columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path


def on_a_terminal(columns: int, *words: str, cwd: Path) -> list[str]:
    """Run `python WORDS`; return the lines that it writes, without control sequences."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.environ.pop("COLUMNS", None)
        os.environ |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        os.execv(sys.executable, [sys.executable, *words])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    written = b""
    while True:
        try:
            read = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        written += read
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, written.decode()
    return re.split(r"\r?\n|\r", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode()))
