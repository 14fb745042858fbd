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
from run_folders import write_eval, write_train


def on_a_terminal(columns: int, *words: str, cwd: Path) -> list[str]:
    """Run the command line on a terminal of so many columns; return its lines, without colours."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.environ.pop("COLUMNS", None)
        os.environ |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        os.execv(sys.executable, [sys.executable, "-m", "gtpo", *words])
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
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", written.decode()).split("\n")


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
    (home / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit(columns: int, home: Path) -> None:
    runs = sorted(path.name for path in (home / "results/eval").iterdir())
    for words in (
        ("compare", *runs, "--details"),
        ("compare", *runs, "--explain"),
        ("eval", "--completions", "mine.jsonl", "--k", "4", "--out", f"scored-{columns}"),
        ("eval", "--list"),
    ):
        lines = on_a_terminal(columns, *words, cwd=home)
        assert [line for line in lines if cell_len(line) > columns] == []
        corners = [(line.count("┏"), line.count("┓")) for line in lines if "┏" in line or "┓" in line]
        assert corners == [(1, 1)] * len(corners)
        assert "…" not in "".join(lines)
        for before, row in itertools.pairwise(lines):  # every row of a table is as wide as the one above it
            if before[:1] in "┏┃┡│" and row[:1] in "┃┡│└" and before and row:
                assert cell_len(before) == cell_len(row), (before, row)
        if words[-1] == "--details":
            text = " ".join(lines)
            assert all(title in text for title in ("entropy, nats", "conflict %", "best (step)", "t, df"))


def test_the_dry_run_fits(home: Path) -> None:
    """Of a large model whose tokenizer cannot be had: long notes."""
    (home / "problems.jsonl").write_text(json.dumps({"problem": "What is 2+3?", "answer": "5"}) + "\n")
    lines = on_a_terminal(80, "train", "paper/llama-gsm8k-gtpo-g8", "--data", "problems.jsonl", "--dry-run", cwd=home)
    assert [line for line in lines if cell_len(line) > 80] == []
    text = " ".join(" ".join(lines).split())
    assert "prompt lengths not checked: " in text
    assert "not known: " in text
    assert "Without --dry-run the same command starts the run." in text
