"""The test files that a change concerns, for `make check`: `python tests/changed.py` prints them.

Changed is what differs from the branch main, committed or not; on main, what is not committed. Of each changed module
these are its tests: changed test files, files named after the module, and files that import it, unless more than MOST
do (errors, files, ...): `make test` runs those.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST = 8


def changed_files() -> list[str]:
    """Return the paths that differ from main, and those that git does not know yet."""

    def git(*words: str) -> list[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()

    since = git("merge-base", "main", "HEAD") or ["HEAD"]
    return sorted({*git("diff", "--name-only", since[0]), *git("ls-files", "--others", "--exclude-standard")})


def concerned(changed: list[str], tests: dict[str, str]) -> list[str]:
    """Return the test files that changed paths concern; tests: path -> text of every test file."""
    chosen = {path for path in changed if path in tests}
    for path in (Path(path) for path in changed if path.endswith(".py") and not path.startswith("tests/")):
        *packages, name = path.with_suffix("").parts
        package = re.escape(".".join(packages))
        imports = re.compile(rf"^\s*(from|import) (\w+\.)?{package}(\.{name}\b| import .*\b{name}\b)", re.MULTILINE)
        importing = {test for test, text in tests.items() if imports.search(text)}
        chosen |= importing if len(importing) <= MOST else set()
        chosen |= {test for test in tests if Path(test).stem in (f"test_{name}", f"test_bench_{name}")}
    return sorted(chosen)


if __name__ == "__main__":
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    print("\n".join(concerned([path for path in changed_files() if (ROOT / path).exists()], texts)))
