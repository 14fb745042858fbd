"""Benchmarks: the built-in ones against the real files, and users' own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from evalkit.evaluation.benchmarks import (
    BENCHMARKS,
    checksum,
    find_benchmark,
    find_benchmarks,
    load_problems,
    select_problems,
)
from evalkit.evaluation.settings import EvalSettings
from rewards.golds import find_unverifiable
from rewards.support.errors import UserError


@pytest.mark.shared
@pytest.mark.parametrize("name", BENCHMARKS)
def test_counts_golds_and_ids(name: str, shared_dir: Path) -> None:
    benchmark = BENCHMARKS[name]
    problems = load_problems(benchmark, shared_dir / "data")
    assert len(problems) == benchmark.count
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


def test_a_dotted_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_benchmarks.py").write_text(
        "from rewards.data.problems import Problem\ndef tiny():\n    return [Problem('a', 'What is 1 + 1?', '2')]\n"
    )
    assert load_problems(find_benchmark("my_benchmarks:tiny"), None)[0].answer == "2"
    with pytest.raises(UserError, match="no function"):
        find_benchmark("my_benchmarks:large")
    with pytest.raises(UserError, match="cannot import no_such_module"):
        find_benchmark("no_such_module:x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name: x\nsplitt: train\n", r'splitt: .*Did you mean "split"'),
        ("name: x\n", "give either file or hub"),
        ("name: [\n", "not valid YAML"),
        ("name: x\nhub: a/b\ngold: latex\n", "gold: "),
    ],
)
def test_broken_declarations(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    with pytest.raises(UserError, match=message):
        find_benchmark(str(tmp_path / "bad.yaml"))


def test_selection() -> None:
    problems = load_problems(BENCHMARKS["arithmetic"], None)
    shards = [
        select_problems("arithmetic", problems, 10, (), EvalSettings(model="m", benchmarks="b", shard=s).shard_of())
        for s in ("1/3", "2/3", "3/3")
    ]
    assert sorted(p.id for part in shards for p in part) == sorted(p.id for p in problems[:10])
    assert max(map(len, shards)) - min(map(len, shards)) == 1
    assert select_problems("arithmetic", problems, None, [problems[7].id], None) == [problems[7]]
    with pytest.raises(UserError, match='two of the benchmarks are called "amc"'):
        find_benchmarks("amc,math, amc")
