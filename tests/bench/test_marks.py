"""What the runs on a real model say: the measures, and the marks from records alone."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


def write_run(out: Path, name: str, tokens: float, seed: int) -> None:
    """Write a record of a run whose 40 steps have about `tokens` tokens a completion."""
    lengths = tokens * np.exp(np.random.default_rng(seed).normal(0, 0.05, 40))
    rows = [{"step": step + 1, "tokens": float(length)} for step, length in enumerate(lengths) for _ in range(16)]
    pq.write_table(pa.Table.from_pylist(rows), out / f"{name}.parquet")
    (out / f"{name}.json").write_text(json.dumps({"run": name, "processor": "x"}))


def test_marks_from_records(tmp_path: Path, marks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """(b) three times as long as (a), (d) as (c): shown after Holm; (c) is (a). Before the end nothing is computed."""
    (tmp_path / "records").symlink_to(marks.OUT.parent / "records")
    monkeypatch.setattr(marks, "OUT", tmp_path / "arms")
    marks.OUT.mkdir()
    lengths = {"a": 40, "b": 120, "c": 40, "d": 110, "e": 90, "f": 30}
    for number, name in enumerate(marks.order()[:-1]):
        write_run(marks.OUT, name, lengths[name[0]] * (1 + 0.1 * int(name[3:])), number)
    assert {*marks.gather().values()} == {640}
    with pytest.raises(SystemExit, match=f"not recorded: {marks.order()[-1]}$"):
        marks.tests(closed=False)
    found = marks.tests(closed=True)
    assert found["not run"] == [marks.order()[-1]]
    assert [found[key]["held"] for key in ("b - a", "d - c", "c - a", "e", "f")] == [True] * 5
    assert found["c - a"]["equivalent"]
    assert found["b - a"]["mean, 95 %"][0] == pytest.approx(np.log(3), abs=0.05)


def test_the_published_null(marks: Any) -> None:
    first = json.loads((marks.OUT / "null.json").read_text())
    for pairs, found in marks.null().items():
        for draw, rates in first[pairs].items():
            assert rates == pytest.approx({key: float(value) for key, value in found[draw].items()}, abs=1e-4)


def test_the_published_look_afterwards(marks: Any) -> None:
    written = json.loads((marks.OUT / "afterwards.json").read_text())
    assert json.loads(json.dumps(marks.afterwards(), default=marks.rounded)) == written
