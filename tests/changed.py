"""The test files that a change concerns, for `make check`: `python tests/changed.py` prints them.

Changed is what differs from the branch main, committed or not; on main, what is not committed. Of each changed module
these are its tests: changed test files, files named after the module, and files that import it. Where more than MOST
import it (errors, files, ...), those named after it alone: `make test` runs the others.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST = 8


def changed_files() -> list[str]:
    """Return the paths that differ from main, and those that git does not know yet."""

    def git(*words: str) -> list[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()

    since = git("merge-base", "main", "HEAD") or ["HEAD"]
    return sorted({*git("diff", "--name-only", since[0]), *git("ls-files", "--others", "--exclude-standard")})


def concerned(changed: list[str], tests: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the test files that changed paths concern, and what is said of those left out.

    tests: path -> text of every test file.
    """
    chosen, notes = {path for path in changed if path in tests}, []
    for path in changed:
        if not path.endswith(".py") or path.startswith("tests/"):
            continue
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        module = module if module.startswith(("gtpo", "bench")) else f"gtpo.{module}"
        package, _, name = module.rpartition(".")
        imports = re.compile(
            rf"^\s*(?:from {re.escape(module)} import|import {re.escape(module)}\b"
            rf"|from {re.escape(package)} import .*\b{name}\b)",
            re.MULTILINE,
        )
        named = {test for test in tests if Path(test).stem in (f"test_{name}", f"test_bench_{name}")}
        importing = {test for test, text in tests.items() if imports.search(text)} - named
        chosen |= named
        if len(importing) > MOST:
            notes.append(f"{path}: {len(importing)} test files import it and are left to `make test`")
        else:
            chosen |= importing
    return sorted(chosen), notes


def main() -> None:
    """Print the test files on stdout, and what is left out on stderr."""
    tests = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    chosen, notes = concerned([path for path in changed_files() if (ROOT / path).exists()], tests)
    print("\n".join(notes), file=sys.stderr, end="\n" if notes else "")
    print("\n".join(chosen))


if __name__ == "__main__":
    main()
