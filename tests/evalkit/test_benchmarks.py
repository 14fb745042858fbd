"""Benchmarks: the built-in ones against the real files, and users' own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from gtpo.config import TrainConfig
from gtpo.evalkit.evaluation.tasks import (
    BENCHMARKS,
    checksum,
    find_benchmark,
    load_problems,
    select_problems,
)
from gtpo.inputs.dataset import TrainingProblems
from gtpo.rewards.golds import find_unverifiable
from gtpo.runs.eval_record import read_record


@pytest.mark.shared
@pytest.mark.parametrize("name", [name for name, benchmark in BENCHMARKS.items() if benchmark.checksum])
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


def test_a_file_and_a_declaration(tmp_path: Path) -> None:
    rows = [{"id": f"x{i}", "problem": "p", "answer": str(i)} for i in range(3)]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text("name: mine\nfile: set.jsonl\ncount: 3\n")
    by_file = find_benchmark(str(tmp_path / "set.jsonl"))
    by_yaml = find_benchmark(str(tmp_path / "mine.yaml"))
    assert (by_file.name, by_yaml.name) == ("set", "mine")
    assert load_problems(by_file, None) == load_problems(by_yaml, None)


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


def test_matharena_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub is out of reach here; rows as MathArena's data cards describe them."""
    import datasets

    answers = {"MathArena/aime_2026": 277, "MathArena/hmmt_feb_2026": "\\frac{7}{2}"}
    monkeypatch.delenv("GTPO_DATA_DIR", raising=False)
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda repository, config, split: [{"problem_idx": 1, "problem": "p", "answer": answers[repository]}],
    )
    for name, identifier, answer in (
        ("aime26", "aime/2026-1", "277"),
        ("hmmt_feb26", "hmmt/2026-feb-1", "\\frac{7}{2}"),
    ):
        (problem,) = load_problems(find_benchmark(name), None)
        assert (problem.id, problem.answer) == (identifier, answer)
        assert re.fullmatch(BENCHMARKS[name].ids or "", problem.id)


def test_a_file_with_golds_and_fields_of_its_own(tmp_path: Path) -> None:
    rows = [
        {"question": "one half?", "final": "so \\boxed{\\frac{1}{2}}", "hard": "Level 4", "nr": 7},
        {"question": "two?", "final": "\\boxed{2}", "hard": 1, "nr": 8},
    ]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = "fields: {problem: question, answer: final, level: hard, id: nr}\n"
    (tmp_path / "own.yaml").write_text("name: own\nfile: set.jsonl\ngold: boxed\n" + fields)
    first, second = load_problems(find_benchmark(str(tmp_path / "own.yaml")), None)
    assert (first.id, first.problem, first.answer, first.level) == ("7", "one half?", "\\frac{1}{2}", 4)
    assert second.answer == "2"


@pytest.mark.parametrize("gold", [r"\frac{1", "x^2+", "(1, 2", r"3\cdot", "2^"])
def test_a_gold_without_its_end_is_refused(gold: str) -> None:
    (failure,) = find_unverifiable([("q", gold), ("r", r"[0, 1)"), ("s", r"]-1, 3["), ("t", r"\frac{1}{2}")])
    assert failure == ("q", "verified against itself the gold answer is UNUSABLE_GOLD")


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


def test_check_prints_problems_golds_and_self_test(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [{"id": f"q{i}", "problem": f"What is {i}?", "answer": str(i) if i != 2 else " "} for i in range(5)]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = gtpo("eval", "--check", "set.jsonl")
    assert "set: 4 problems from set.jsonl" in done.stdout
    assert '1 rows without a gold are left out: set.jsonl:3 ("")' in done.stderr
    assert "q1\nWhat is 1?\ngold: 1" in done.stdout
    assert "self-test: 4 of 4 golds verify against themselves" in done.stdout


def test_selection() -> None:
    problems = load_problems(BENCHMARKS["arithmetic"], None)
    every = {"arithmetic": problems}
    assert select_problems(every, 10, ()) == {"arithmetic": problems[:10]}
    assert select_problems(every, None, [problems[7].id]) == {"arithmetic": [problems[7]]}
