"""Benchmarks: the built-in ones against the real files, and users' own."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from gtpo.config import TrainConfig
from gtpo.evalkit.evaluation.tasks import BENCHMARKS, checksum, find_benchmark, load_problems
from gtpo.inputs.dataset import TrainingProblems
from gtpo.rewards.golds import find_unverifiable
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


def test_a_declaration_of_a_hub_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub is out of reach here; rows in its layout go through the declaration's parser."""
    import datasets

    rows = [{"question": "p", "final": "so \\boxed{\\frac{1}{2}}", "difficulty": "Level 4"}]
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)) or rows)
    (tmp_path / "own.yaml").write_text(
        "name: own\nhub: someone/some-set\nconfig: main\nsplit: validation\ngold: boxed\n"
        "fields: {problem: question, answer: final, level: difficulty}\n"
    )
    (problem,) = load_problems(find_benchmark(str(tmp_path / "own.yaml")), None)
    assert asked == [(("someone/some-set", "main"), {"split": "validation"})]
    assert (problem.id, problem.problem, problem.answer, problem.level) == ("own/0", "p", "\\frac{1}{2}", 4)


def test_fields_of_other_names(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Nested ones as verl writes them, of a benchmark and of training data; and those of recorded completions."""
    rows = [
        {"prompt": [{"role": "user", "content": f"{i} + 1?"}], "reward_model": {"ground_truth": str(i + 1)}}
        for i in range(3)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "verl.parquet")
    fields = "problem=prompt.0.content,answer=reward_model.ground_truth"
    done = gtpo("eval", "--check", "verl.parquet", "--fields", fields)
    assert "verl/1\n1 + 1?\ngold: 2" in done.stdout
    config = {"run_name": "r", "dataset": {"name": str(tmp_path / "verl.parquet"), "fields": fields}}
    problems = TrainingProblems(TrainConfig.model_validate(config)).load()
    assert {(p.problem, p.answer) for p in problems} == {(f"{i} + 1?", str(i + 1)) for i in range(3)}
    (tmp_path / "own.jsonl").write_text('{"nr": 7, "label": "42", "out": "<answer>42</answer>"}\n')
    gtpo("eval", "--completions", "own.jsonl", "--fields", "id=nr,gold=label,completion=out", "--out", "run")
    assert read_record(tmp_path / "run").benchmarks["own"].pass_at_k[1].mean == 1
