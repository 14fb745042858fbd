"""Files of questions and completions as people have them: repeats, rows without a gold, BOMs, the types of Parquet."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_folders import write_lines

from gtpo.common.errors import UserError
from gtpo.evalkit.evaluation.tasks import find_benchmark, load_problems
from gtpo.rewards.completions import is_no_gold
from gtpo.rewards.verify import Verdict, Verifier


def test_a_benchmark_asks_each_question_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"id": f"{q}-{i}", "problem": f"What is {q}?", "answer": str(q)} for i in range(3) for q in range(2)]
    problems = load_problems(find_benchmark(str(write_lines(tmp_path / "b.jsonl", rows))), None)
    assert [p.id for p in problems] == ["0-0", "1-0"]
    assert "4 of 6 rows repeat the problem and the gold of another" in caplog.text


NO_SPACE = ("proof", "Proof", "notfound", "N/A", "n/a", "-", "None", "null", "nan", "?")
SENTINELS = ("", " ", "No answer", "not found", *NO_SPACE)


def test_golds_that_stand_for_none() -> None:
    assert all(map(is_no_gold, SENTINELS))
    for gold in ("0", "-1", "x", "E", "\\text{undefined}", "\\emptyset", "no real roots", "A"):
        assert not is_no_gold(gold)
    with Verifier(workers=1) as verifier:
        assert {verifier.verify(gold, gold) for gold in SENTINELS} == {Verdict.UNUSABLE_GOLD}
        assert verifier.verify("none", "none", answers="text") is Verdict.CORRECT


def test_rows_without_a_gold_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"problem": f"P{i}?", "answer": answer} for i, answer in enumerate(["1", None, "proof", "4"])]
    problems = load_problems(find_benchmark(str(write_lines(tmp_path / "b.jsonl", rows))), None)
    assert [(p.id, p.answer) for p in problems] == [("b/0", "1"), ("b/3", "4")]
    assert (
        f'2 rows without a gold are left out: {tmp_path}/b.jsonl:2 (""), {tmp_path}/b.jsonl:3 ("proof")' in caplog.text
    )
    with pytest.raises(UserError, match="no row has a gold answer"):
        load_problems(find_benchmark(str(write_lines(tmp_path / "none.jsonl", rows[1:3]))), None)


@pytest.mark.parametrize(
    ("column", "golds"),
    [
        (pa.array([0.1, 2.5], pa.float32()), ["0.1", "2.5"]),
        (pa.array([0.1, 3.0], pa.float64()), ["0.1", "3.0"]),
        (pa.array([Decimal("0.10"), Decimal("7.00")], pa.decimal128(6, 2)), ["0.1", "7"]),
        (pa.array([12, 7], pa.int16()), ["12", "7"]),
    ],
)
def test_numbers_of_parquet(tmp_path: Path, column: pa.Array, golds: list[str]) -> None:
    pq.write_table(pa.table({"problem": ["a?", "b?"], "answer": column}), tmp_path / "b.parquet")
    assert [p.answer for p in load_problems(find_benchmark(str(tmp_path / "b.parquet")), None)] == golds
