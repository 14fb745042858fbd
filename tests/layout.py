"""The packages as an installation holds them: rewards/ and evalkit/ inside gtpo/."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_packages(root: Path, target: Path) -> None:
    """Copy the checkout's packages into a folder that can stand on PYTHONPATH."""
    for source, name in (("gtpo", "gtpo"), ("rewards", "gtpo/rewards"), ("evalkit", "gtpo/evalkit")):
        shutil.copytree(root / source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
