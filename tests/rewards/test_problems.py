"""Loading problems: real sets, the user's files, the traps in both; and the embedded task."""

import gzip
import json
import math
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from gtpo.common.errors import UserError
from gtpo.rewards.data.arithmetic import DEFAULT_COUNTS, arithmetic_problems
from gtpo.rewards.data.problems import SOURCES, load_file, load_source, parse_level, plain_integer


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", [n for n in SOURCES if "MathArena" not in SOURCES[n].repository]
)  # of those there is no local copy
def test_real_sets(name: str, shared_dir: Path) -> None:
    problems = load_source(name, data_dir=shared_dir / "data")
    assert len(problems) == SOURCES[name].count
    assert len({p.id for p in problems}) == len(problems)
    assert [p.id for p in problems if not p.answer] == (
        ["math/train/5341", "math/train/5343"] if name == "math_train" else []
    )
    if name.startswith("math"):
        assert sum(p.level is None for p in problems) == (2 if name == "math_train" else 0)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["gsm8k_test", "math_test", "math_train", "math500"])
def test_hub_rows_give_the_same_problems(name: str, shared_dir: Path) -> None:
    """Rows rebuilt in the Hub's layout parse to the problems of the local file, gold for gold."""
    for position, problem in enumerate(load_source(name, data_dir=shared_dir / "data")):
        row = {
            "problem": problem.problem,
            "solution": problem.solution,
            "type": problem.subject,
            "subject": problem.subject,
            "level": f"Level {problem.level if problem.level is not None else '?'}",
            "unique_id": problem.id,
            "answer": problem.answer,
        }
        if name.startswith("gsm8k"):
            row |= {"question": problem.problem, "answer": f"{problem.solution}\n#### {int(problem.answer):,}"}
        assert SOURCES[name].parse(row, position) == problem


@pytest.mark.shared
def test_subsets(shared_dir: Path) -> None:
    both = load_source("math_train", data_dir=shared_dir / "data", subsets=["algebra", "Counting & Probability"])
    assert len(both) == 1744 + 771
    with pytest.raises(UserError, match=r'no subset "algebr".*Did you mean "algebra"'):
        load_source("math_train", data_dir=shared_dir / "data", subsets=["algebr"])


def test_users_file_in_three_formats(tmp_path: Path) -> None:
    rows = [{"problem": "a line separator \u2028 inside", "answer": 4}, {"problem": "p", "answer": "\\frac12"}]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n"
    (tmp_path / "own.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "own.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    table = pyarrow.Table.from_pylist([{**row, "answer": str(row["answer"])} for row in rows])
    pyarrow.parquet.write_table(table, tmp_path / "own.parquet")
    loaded = [load_source(str(tmp_path / f"own.{kind}")) for kind in ("jsonl", "jsonl.gz", "parquet")]
    assert loaded[0] == loaded[1] == loaded[2]
    assert [(p.id, p.answer) for p in loaded[0]] == [("own/0", "4"), ("own/1", "\\frac12")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ('{"problem": "p", "answer": "1"}\n{"problem": "p",\n', r"bad\.jsonl:2: not a JSON object"),
        ('{"problem": "p"}\n', r'bad\.jsonl:1: field "answer" is missing'),
        ('{"id": 1, "problem": "p", "answer": "1"}\n' * 2, r'bad\.jsonl:2: duplicate id "1", first at .*bad\.jsonl:1'),
    ],
)
def test_broken_files_name_the_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load_file(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'unknown dataset "gsm8k_tset".*Did you mean "gsm8k_test"'):
        load_source("gsm8k_tset")
    with pytest.raises(UserError, match=r"has neither aime24\.jsonl nor aime24\.parquet"):
        load_source("aime24", data_dir=tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        load_source("aime24", data_dir=tmp_path / "nowhere")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=r"cut\.parquet: not a readable Parquet file"):
        load_file(tmp_path / "cut.parquet")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"problem": "p", "answer": "1"}\n' * 50)[:30])
    with pytest.raises(UserError, match="damaged gzip"):
        load_file(tmp_path / "cut.jsonl.gz")
    with pytest.raises(UserError, match="train, test, hard"):
        arithmetic_problems("validation")
    with pytest.raises(UserError, match="were asked for"):
        arithmetic_problems("test", 100_000)


def test_small_parsers() -> None:
    for text, number in {"27.0": "27", "073": "73", "1,080": "1080", "-5": "-5", "1/2": "1/2", "3.5": "3.5"}.items():
        assert plain_integer(text) == number
    assert [parse_level(v) for v in ("Level 3", 4, "2", "Level ?", None, 10**12)] == [3, 4, 2, None, None, None]


def test_zero_is_a_value_and_nan_is_none(tmp_path: Path) -> None:
    row = {"problem": "p", "answer": "1"}
    (tmp_path / "own.jsonl").write_text(
        "".join(json.dumps(row | dict.fromkeys(("id", "cluster", "subject", "level"), v)) + "\n" for v in (0, math.nan))
    )
    first, second = load_file(tmp_path / "own.jsonl")
    assert (first.id, first.cluster, first.subject, first.level) == ("0", "0", "0", 0)
    assert (second.id, second.cluster, second.subject, second.level) == ("own/1", "", "", None)


def expression_of(problem: str) -> str:
    return re.findall(r"\d+(?:[+-]\d+)+", problem)[0]


@pytest.mark.parametrize("split", ["train", "test", "hard"])
def test_answers_are_the_value_of_the_expression(split):
    problems = arithmetic_problems(split)
    assert len(problems) == DEFAULT_COUNTS[split]
    for problem in problems:
        assert int(problem.answer) == eval(expression_of(problem.problem), {"__builtins__": {}})
        assert problem.solution.endswith(f"={problem.answer}")


def test_splits_share_no_expression_for_any_seed():
    for seed in range(3):
        train, test, hard = (
            {expression_of(p.problem) for p in arithmetic_problems(s, seed=seed)} for s in ("train", "test", "hard")
        )
        assert not train & (test | hard)
        assert not test & hard
        assert arithmetic_problems("train", 50, seed=seed) == arithmetic_problems("train", 80, seed=seed)[:50]
        assert (arithmetic_problems("train", 50, seed=seed) == arithmetic_problems("train", 50)) == (seed == 0)
