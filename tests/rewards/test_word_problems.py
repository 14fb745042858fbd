"""The embedded word problems: a second reading of the text gives the same answer; disjoint splits; one list."""

from __future__ import annotations

import re

import pytest

from gtpo.common.errors import UserError
from gtpo.rewards.data.word_problems import DEFAULT_COUNTS, ITEMS, LARGEST, NAMES, word_problems


def read_story(text: str) -> tuple[int, list[tuple[str, int, int]]]:
    """Read a problem as a person would: what it begins with, and (operation, first number, second number) by step."""
    begin, *sentences, _ = re.split(r"(?<=[.?]) ", text)
    steps = []
    for sentence in sentences:
        numbers = [int(n) for n in re.findall(r"\d+", sentence)]
        if "each" in sentence and len(numbers) == 2:
            steps.append(("packs", *numbers))
        elif "times as many" in sentence:
            steps.append(("times", numbers[0], 0))
        elif "equal" in sentence:
            steps.append(("share", numbers[0], 0))
        elif re.search(r"gives away|sells|loses", sentence):
            steps.append(("lose", numbers[0], 0))
        else:
            assert re.search(r"buys|gives|finds", sentence), sentence
            steps.append(("gain", numbers[0], 0))
    return int(re.findall(r"\d+", begin)[0]), steps


@pytest.mark.parametrize("split", ["train", "test", "hard"])
def test_a_second_reading_of_the_text_gives_the_answer(split):
    problems = word_problems(split)
    assert len(problems) == DEFAULT_COUNTS[split]
    for problem in problems:
        total, steps = read_story(problem.problem)
        assert len(steps) == problem.level
        assert len(steps) == 4 if split == "hard" else len(steps) in (2, 3)
        for operation, first, second in steps:
            if operation == "share":
                assert total % first == 0
            total = {
                "gain": total + first,
                "lose": total - first,
                "packs": total + first * second,
                "share": total // first,
                "times": total * first,
            }[operation]
            assert 0 < total <= LARGEST
        assert problem.answer == str(total)
        equations = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", problem.solution)
        assert len(equations) == sum(2 if operation == "packs" else 1 for operation, *_ in steps)
        for left, sign, right, result in equations:
            assert int(result) == eval(f"{left}{sign.replace('/', '//')}{right}", {"__builtins__": {}})
        assert equations[-1][3] == problem.answer


def test_splits_share_no_numbers_for_any_seed():
    def key(text: str) -> str:
        return str(read_story(text))

    for seed in range(3):
        train, test, hard = ({key(p.problem) for p in word_problems(s, 400, seed=seed)} for s in DEFAULT_COUNTS)
        assert not train & test
        assert not hard & (train | test)


def test_the_same_seed_gives_the_same_list_and_another_seed_another():
    assert word_problems("train", 50, seed=1) == word_problems("train", 50, seed=1)
    assert word_problems("train", 50, seed=1) != word_problems("train", 50, seed=2)
    assert word_problems("train", 50) == word_problems("train", 80)[:50]


def test_wording_varies_where_the_numbers_do_not():
    """Two solutions share few tokens: no word but those of the templates leads from one to the next."""
    problems = word_problems("train", 500)
    assert len({tuple(re.sub(r"\d+", "#", p.solution).split()) for p in problems}) > 400
    assert {name for name in NAMES if any(name in p.problem for p in problems)} == set(NAMES)
    assert {item for item in ITEMS if any(item in p.problem for p in problems)} == set(ITEMS)


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(UserError, match="train, test, hard"):
        word_problems("validation")  # type: ignore[arg-type]
