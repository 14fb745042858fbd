"""The embedded task: right answers, disjoint splits, the same list everywhere."""

from __future__ import annotations

import re

import pytest

from gtpo.common.errors import UserError
from gtpo.rewards.data.arithmetic import DEFAULT_COUNTS, arithmetic_problems


def expression_of(problem: str) -> str:
    found = re.search(r"\d+(?:[+-]\d+)+", problem)
    assert found
    return found.group()


@pytest.mark.parametrize("split", ["train", "test", "hard"])
def test_answers_are_the_value_of_the_expression(split):
    problems = arithmetic_problems(split)
    assert len(problems) == DEFAULT_COUNTS[split]
    for problem in problems:
        assert int(problem.answer) == eval(expression_of(problem.problem), {"__builtins__": {}})
        assert problem.solution.endswith(f"={problem.answer}")


def test_splits_share_no_expression_for_any_seed():
    for seed in range(3):
        splits = [
            {expression_of(p.problem) for p in arithmetic_problems(s, seed=seed)} for s in ("train", "test", "hard")
        ]
        assert not splits[0] & (splits[1] | splits[2])
        assert not splits[1] & splits[2]


def test_the_same_seed_gives_the_same_list_and_another_seed_another():
    assert arithmetic_problems("train", 50, seed=1) == arithmetic_problems("train", 50, seed=1)
    assert arithmetic_problems("train", 50, seed=1) != arithmetic_problems("train", 50, seed=2)
    assert arithmetic_problems("train", 50) == arithmetic_problems("train", 80)[:50]


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(UserError, match="train, test, hard"):
        arithmetic_problems("validation")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="were asked for"):
        arithmetic_problems("test", 100_000)
