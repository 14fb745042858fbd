"""bench.compare: the runs it makes up are runs that `gtpo compare` reads whole, completions included."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench import compare
from gtpo.evalkit.results.schema import SAMPLE_SCHEMA


def test_made_up_runs_are_compared(gtpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(compare, "SIZES", {"gsm8k": 4})
    for seed, method in enumerate(("grpo", "gtpo")):
        compare.write_train(tmp_path / "results/train" / method, method, seed)
        compare.write_run(tmp_path / "results/eval" / method, method, seed, "gsm8k", train_run=method)
    assert pq.read_schema(tmp_path / "results/eval/gtpo/samples/part-000000.parquet").equals(SAMPLE_SCHEMA)
    printed = gtpo("compare", "grpo", "gtpo", "--html", "page.html")
    assert "gsm8k" in printed.stdout
    assert "we find" in (tmp_path / "page.html").read_text()
