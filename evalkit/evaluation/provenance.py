"""Where a result comes from: the command, the time, the commit."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path


def text_hash(*parts: str | None) -> str:
    """Return 16 hex digits of some texts; None and "" differ."""
    joined = "\x00".join("\x01" if part is None else part for part in parts)
    return hashlib.sha256(joined.encode("utf-8", "replace")).hexdigest()[:16]


def file_hash(path: Path) -> str:
    """Return 16 hex digits of a file's whole content."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()[:16]


def git_commit() -> str | None:
    """Return the commit of the checkout this program runs from, `+` where files are changed; None outside one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit, changed = (
            subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=10, check=False)
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if commit.returncode != 0:
        return None
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


def command_line() -> str:
    """Return the command as it was typed, with the program's own name."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
