"""The equality policy, case by case: docs/verification.md in examples, all invented or commonplace."""

from pathlib import Path

import pytest

from gtpo.rewards.equality.comparing.decide import decide

EQUAL_IN_VALUE = ("CORRECT", "UNEVALUATED")


def test_pairs_are_equal_as_the_table_says() -> None:
    lines = Path(__file__).with_name("pairs.txt").read_text(encoding="utf-8").splitlines()
    wrong = []
    for mark, line in ((line[0], line[2:]) for line in lines if line[0] != "#"):
        first, second = line.rsplit(" | ", 1)
        ways = [(first, second), (second, first)] if mark in "=!" else [(first, second)]
        wrong += [(*way, mark) for way in ways if (decide(*way) in EQUAL_IN_VALUE) != (mark in "=>")]
    assert len(lines) > 390
    assert wrong == []


def test_boxes_that_stand_together_are_one_list() -> None:
    together = r"\boxed{3}, \boxed{4}"
    assert decide(together, "4, 3") == "CORRECT"
    assert decide(together, "4") == "INCORRECT"
    assert decide(together, "3") == "INCORRECT"
    assert decide(r"first \boxed{3} was a guess, then \boxed{4}", "3, 4") == "INCORRECT"


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("She sold 72 clips altogether.", "72"),
        ("It costs $1,250 in total", "1250"),
        ("The answer is 15 apples.", "15"),
        ("So the answer is $x = 3$.", "3"),
    ],
)
def test_a_sentence_with_one_number_gives_it(sentence: str, value: str) -> None:
    assert decide(sentence, value) == "CORRECT"


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("It is not 72 clips", "72"),
        ("Either 3 or 4 of them", "4"),
        ("The sum a+b = 1 holds here", "1"),
        ("From 3 to 5 clips", "5"),
        ("there are at least 7 clips", "7"),
        ("The answer is not 4", "4"),
    ],
)
def test_a_sentence_that_hedges_gives_nothing(sentence: str, value: str) -> None:
    assert decide(sentence, value) == "INCORRECT"


def test_small_numbers_have_no_absolute_tolerance() -> None:
    assert decide(r"\frac{1}{2^{99}}", r"2^{-99}") == "CORRECT"
    assert decide(r"\frac{\pi}{2^{99}}", r"\frac{\pi}{2^{98}}") == "INCORRECT"
    assert decide(r"\sqrt{2}\cdot\sqrt{3}-\sqrt{6}", "0") in EQUAL_IN_VALUE
    assert decide(r"10^{-50}\pi", "0") == "INCORRECT"
