"""Where a result comes from: packages, hardware and its memory, the command, the time, the commit."""

from __future__ import annotations

import hashlib
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

# The folder that holds this program's packages: its checkout, or site-packages.
CHECKOUT = Path(__file__).resolve().parents[2]


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
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def cpu_model() -> str:
    """Return the name of this machine's processor, as its system says it."""
    return _matched(Path("/proc/cpuinfo"), r"^model name\s*:\s*(.+)$") or platform.processor() or platform.machine()


def peak_memory() -> int | None:
    """Return the peak bytes of this process: of its GPU if it has one, else resident (Linux; elsewhere None)."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    # getrusage would count what the process that started this one held.
    kilobytes = _matched(Path("/proc/self/status"), r"^VmHWM:\s*(\d+) kB")
    return 1024 * int(kilobytes) if kilobytes else None


def _matched(path: Path, pattern: str) -> str | None:
    """Return the first group of the pattern in a file of Linux; None if there is no such file or line."""
    try:
        match = re.search(pattern, path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match else None


def git_commit() -> str | None:
    """Return the commit of this program's checkout, with `+` if files are changed.

    None for an installed package, also if it is installed inside another repository (a virtual environment in a
    project's folder): that repository's commit says nothing of this program.
    """
    if not (CHECKOUT / ".git").exists():
        return None
    git = ("git", "--no-optional-locks")  # a look at the checkout writes nothing there
    try:
        commit, changed = (
            subprocess.run([*git, *words], cwd=CHECKOUT, capture_output=True, text=True, timeout=10, check=False)
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return commit.stdout.strip() + "+" * bool(changed.stdout.strip()) if commit.returncode == 0 else None


def command_line(words: Sequence[str] | None = None) -> str:
    """Return the command as it was typed, with the program's own name. words: in place of those that were typed."""
    program = Path(sys.argv[0]).name
    words = sys.argv[1:] if words is None else words
    return shlex.join([*(("python", "-m", "gtpo") if program == "__main__.py" else (program,)), *words])


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
