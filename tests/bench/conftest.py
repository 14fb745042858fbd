"""What the tests of bench share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gtpo.common.files import read_json


@pytest.fixture(scope="session")
def published(root: Path) -> Callable[[str], Any]:
    """Name below results/published, without its end -> what the JSON holds."""
    return lambda name: read_json(root / f"results/published/{name}.json")
