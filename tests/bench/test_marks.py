"""What the runs on a real model say follows from their records alone."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def marks(root: Path) -> Any:
    """The script beside the records, as a module of this test."""
    path = root / "results/published/real/marks.py"
    spec = importlib.util.spec_from_file_location("marks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_published_numbers_are_those_of_the_records(marks: Any) -> None:
    """Those of the null are drawn, and a processor may round a draw over a bound."""
    for name, numbers in (
        ("selection", marks.selection_of_untrained()), ("tests", marks.tests(closed=True)),
        ("afterwards", marks.afterwards()),
    ):  # fmt: skip
        written = json.loads((marks.OUT / f"{name}.json").read_text())
        assert json.loads(json.dumps(numbers, default=marks.rounded)) == written, name
    first = json.loads((marks.OUT / "null.json").read_text())
    for pairs, draws in marks.null().items():
        for draw, rates in first[pairs].items():
            assert rates == pytest.approx({key: float(value) for key, value in draws[draw].items()}, abs=1e-4)


def test_nothing_is_computed_before_the_end(marks: Any) -> None:
    with pytest.raises(SystemExit, match="not computed before the end; not recorded: "):
        marks.tests(closed=False)
