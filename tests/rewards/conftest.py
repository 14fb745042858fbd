"""What the tests of the rewards share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gtpo.rewards import Verifier


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    """Two workers, with far more time than any answer here takes."""
    with Verifier(workers=2, timeout_s=120) as shared:
        yield shared
