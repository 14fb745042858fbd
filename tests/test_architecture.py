"""The code's own rules: who imports whom, what start-up loads, how long a file may be, what is declared."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from house import PACKAGES, Declared, House

HEAVY = (
    "torch",
    "transformers",
    "trl",
    "vllm",
    "datasets",
    "sympy",
    "pandas",
    "scipy",
    "numpy",
    "pyarrow",
    "rich.console",
)

CHECKS: dict[str, Callable[[House], list[str]]] = {
    "every module has its room": House.homeless,
    "no import circle": House.circle,
    "imports point down": House.upward,
    "no file is longer than one sitting": House.too_long,
    "what is imported is declared": House.undeclared,
    "what is declared is imported": House.unused,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_house_is_in_order(root, check):
    assert check(House(root)) == []


def test_every_requirement_has_a_lower_bound(root):
    assert Declared(root).unbounded == []


# Each line breaks one rule in a copy of the house: the file it is added to, the line, what the check must say.
VIOLATIONS = [
    ("every module has its room", "gtpo/attic.py", "", "gtpo.attic"),
    ("no import circle", "gtpo/config/schema.py", "from gtpo.config.load import load_config", "gtpo.config.load"),
    ("no import circle", "gtpo/config/schema.py", "def late():\n    import gtpo.config.load", "gtpo.config.load"),
    (
        "imports point down",
        "gtpo/kernels/matmul.py",
        "from gtpo.run import folder",
        "gtpo.kernels imports gtpo.run.folder",
    ),
    (
        "imports point down",
        "gtpo/conflict.py",
        "def late():\n    import gtpo.presets",
        "gtpo.conflict imports gtpo.presets",
    ),
    (
        "imports point down",
        "rewards/text.py",
        "if TYPE_CHECKING:\n    from gtpo.rewards import Verifier",
        "gtpo.rewards.text imports rewards",
    ),
    (
        "imports point down",
        "gtpo/run/folder.py",
        "def late():\n    from gtpo.evalkit import metrics",
        "imports gtpo.evalkit.metrics",
    ),
    (
        "imports point down",
        "evalkit/report/tables.py",
        "import gtpo.presets",
        "gtpo.evalkit.report imports gtpo.presets",
    ),
    (
        "imports point down",
        "evalkit/metrics.py",
        "def late():\n    from gtpo import cli",
        "gtpo.evalkit.metrics imports cli",
    ),
    ("no file is longer than one sitting", "gtpo/conflict.py", "\n" * 400, "gtpo/conflict.py"),
    ("what is imported is declared", "rewards/text.py", "def late():\n    import pandas", "pandas is not declared"),
    (
        "what is imported is declared",
        "evalkit/metrics.py",
        "import torch",
        "torch is not declared for gtpo.evalkit.metrics",
    ),
    (
        "what is imported is declared",
        "evalkit/metrics.py",
        "import matplotlib",
        "matplotlib is not declared for evalkit",
    ),
    ("what is imported is declared", "gtpo/config/load.py", "import gtpo.conflict", "needs the extra `train`"),
]


@pytest.mark.parametrize(("check", "file", "line", "said"), VIOLATIONS)
def test_each_check_finds_what_it_is_for(root, tmp_path, check, file, line, said):
    house = copy_of(root, tmp_path)
    with (house / file).open("a") as handle:
        handle.write(f"\n{line}\n")
    assert said in str(CHECKS[check](House(house)))


def test_a_dependency_that_nothing_imports_is_found(root, tmp_path):
    house = copy_of(root, tmp_path)
    project = house / "pyproject.toml"
    project.write_text(project.read_text().replace('"filelock>=3.20"', '"filelock>=3.20", "leftpad"'))
    assert House(house).unused() == ["leftpad"]
    assert Declared(house).unbounded == ["leftpad"]


def copy_of(root: Path, tmp_path: Path) -> Path:
    for name in PACKAGES[:-1]:
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("cli.py", "pyproject.toml"):
        shutil.copy(root / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("command", [[], ["train"], ["eval"], ["compare"]], ids="gtpo {}".format)
def test_help_imports_nothing_heavy(root, command):
    script = (
        "import sys; from gtpo import cli\n"
        "try:\n    cli.app()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *command, "--help"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().endswith("loaded: []"), done.stderr
    assert "Usage" in done.stdout
