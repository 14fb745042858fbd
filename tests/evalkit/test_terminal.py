"""Tables fit the terminal they are printed on: no folded border, no column lost."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len
from run_folders import write_eval, write_lines, write_train


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


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("terminal")
    for method in ("grpo", "gtpo"):
        for seed in (1, 2, 3):
            name = f"{method}-of-a-long-name-s{seed}"
            write_train(home / f"results/train/{name}", method=method, seed=seed, steps=20)
            write_eval(home / f"results/eval/{name}", method=method, seed=seed, train_run=f"results/train/{name}",
                       benchmarks={"arithmetic": 20, "hard": 10})  # fmt: skip
    rows = [{"id": f"q{i}", "gold": "42", "completions": ["<answer>42</answer>", "41", "42", ""]} for i in range(9)]
    write_lines(home / "mine.jsonl", rows)
    return home


COMMANDS = """
import contextlib, json, sys
from gtpo import cli
for words in json.loads(sys.argv.pop()):
    sys.argv = ["gtpo", *words]
    with contextlib.suppress(SystemExit):
        cli.app()
    print("=====", flush=True)
"""
"""One process for all of them: each would import for seconds."""


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit(columns: int, home: Path) -> None:
    runs = sorted(path.name for path in (home / "results/eval").iterdir())
    commands = (
        ("compare", *runs, "--details"),
        ("compare", *runs, "--explain"),
        ("eval", "--completions", "mine.jsonl", "--k", "4", "--out", f"scored-{columns}"),
        ("eval", "--list"),
    )
    written = "\n".join(on_a_terminal(columns, "-c", COMMANDS, json.dumps(commands), cwd=home)).split("=====")
    assert len(written) == 1 + len(commands)
    for text in written[:-1]:
        lines = text.split("\n")
        assert [line for line in lines if cell_len(line) > columns] == []
        corners = [(line.count("┏"), line.count("┓")) for line in lines if "┏" in line or "┓" in line]
        assert corners == [(1, 1)] * len(corners)
        assert "…" not in "".join(lines)
        for before, row in itertools.pairwise(lines):  # every row of a table is as wide as the one above it
            if before[:1] in "┏┃┡│" and row[:1] in "┃┡│└" and before and row:
                assert cell_len(before) == cell_len(row), (before, row)
