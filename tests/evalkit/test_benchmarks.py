"""Benchmarks: the built-in ones against the real files, and files as people have them: repeats, no golds, Parquet."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_folders import write_lines

from gtpo.common.errors import UserError
from gtpo.config import TrainConfig
from gtpo.evalkit.evaluation.tasks import BENCHMARKS, checksum, find_benchmark, load_problems
from gtpo.inputs.dataset import TrainingProblems
from gtpo.rewards.completions import is_no_gold
from gtpo.rewards.golds import find_unverifiable
from gtpo.rewards.verify import Verdict, Verifier
from gtpo.runs.eval_record import read_record


@pytest.mark.shared
@pytest.mark.parametrize("name", [name for name, b in BENCHMARKS.items() if b.checksum and not b.extends])
def test_counts_golds_and_ids(name: str, shared_dir: Path) -> None:
    benchmark = BENCHMARKS[name]
    problems = load_problems(benchmark, shared_dir / "data")
    assert len(problems) == benchmark.size
    assert checksum(problems) == benchmark.checksum
    assert benchmark.ids is not None
    assert all(re.fullmatch(benchmark.ids, p.id) for p in problems)
    assert not find_unverifiable([(p.id, p.answer) for p in problems])


def test_the_embedded_benchmarks_do_not_drift() -> None:
    """A change of the generator makes another benchmark: give BENCHMARKS its new checksum on purpose."""
    for name in ("arithmetic", "arithmetic_hard"):
        assert checksum(load_problems(BENCHMARKS[name], None)) == BENCHMARKS[name].checksum


def test_fields_of_other_names(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Nested ones as verl writes them, of a benchmark and of training data; and those of recorded completions."""
    rows = [
        {"prompt": [{"role": "user", "content": f"{i} + 1?"}], "reward_model": {"ground_truth": str(i + 1)}}
        for i in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "verl.parquet")
    fields = "problem=prompt.0.content,answer=reward_model.ground_truth"
    done = gtpo("eval", "--check", "verl.parquet", "--fields", fields)
    assert "verl/1\n1 + 1?\ngold: 2" in done.stdout
    config = {"run_name": "r", "dataset": {"name": str(tmp_path / "verl.parquet"), "fields": fields}}
    problems = TrainingProblems(TrainConfig.model_validate(config)).load()
    assert {(p.problem, p.answer) for p in problems} == {(f"{i} + 1?", str(i + 1)) for i in range(3)}
    # As lighteval writes them; rows without an id are numbered.
    row = {"doc": {"choices": ["42"]}, "model_response": {"text": ["<answer>42</answer>", "3"]}}
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "own.parquet")
    fields = "gold=doc.choices.0,completions=model_response.text"
    gtpo("eval", "--completions", "own.parquet", "--fields", fields, "--out", "run")
    assert read_record(tmp_path / "run").benchmarks["own"].pass_at_k[1].mean == 0.5
    assert pq.read_table(tmp_path / "run/problems.parquet")["id"].to_pylist() == ["row 0", "row 1"]


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
