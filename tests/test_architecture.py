"""What DESIGN fixes about the code itself: who imports whom, what start-up costs, how long a file may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("gtpo", "evalkit", "rewards")
FORBIDDEN = {"gtpo": {"evalkit", "cli"}, "evalkit": {"gtpo", "cli"}, "rewards": {"gtpo", "evalkit", "cli"}}
HEAVY = ("torch", "transformers", "trl", "vllm", "datasets", "sympy", "pandas", "scipy")


def sources(root: Path, *folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_in_one_direction(root, package):
    wrong = {
        str(path.relative_to(root)): sorted(crossing)
        for path in sources(root, package)
        if (crossing := imported_packages(path) & FORBIDDEN[package])
    }
    assert not wrong


def test_no_file_is_longer_than_one_sitting(root):
    paths = [root / "cli.py", *sources(root, *PACKAGES, "bench")]
    lengths = {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in paths}
    assert {name: lines for name, lines in lengths.items() if lines > 410} == {}


@pytest.mark.parametrize("command", [["--help"], ["train", "--help"], ["eval", "--help"], ["compare", "--help"]])
def test_help_imports_nothing_heavy(root, command):
    script = (
        "import sys, cli\n"
        "try:\n    cli.app()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *command], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().endswith("loaded: []"), done.stderr
    assert "Usage" in done.stdout
