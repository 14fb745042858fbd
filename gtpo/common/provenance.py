"""Where a result comes from: packages, hardware, the command, the time, the commit."""

from __future__ import annotations

import hashlib
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that holds this program's packages: its checkout, or site-packages."""


def text_hash(*parts: str | None) -> str:
    """Return 16 hex digits of some texts; None and "" differ."""
    joined = "\x00".join("\x01" if part is None else part for part in parts)
    return hashlib.sha256(joined.encode("utf-8", "replace")).hexdigest()[:16]


def file_hash(path: Path) -> str:
    """Return 16 hex digits of a file's whole content."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()[:16]


def package_versions(*packages: str) -> dict[str, str]:
    """Return the Python version, and the version of each of those packages that is installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Return the commit of this program's checkout, with `+` where files are changed.

    None for an installed package, also where it is installed inside another repository (a virtual environment in a
    project's folder): that repository's commit says nothing of this program.
    """
    if not (CHECKOUT / ".git").exists():
        return None
    try:
        commit, changed = (
            subprocess.run(["git", *words], cwd=CHECKOUT, capture_output=True, text=True, timeout=10, check=False)
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if commit.returncode != 0:
        return None
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


def command_line() -> str:
    """Return the command as it was typed, with the program's own name."""
    program = Path(sys.argv[0]).name
    return shlex.join([*(("python", "-m", "gtpo") if program == "__main__.py" else (program,)), *sys.argv[1:]])


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
