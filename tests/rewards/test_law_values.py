"""One text has one value: texts with several values, drawn from the reader's tables, and names among others."""

import itertools

import pytest

from bench.law_values import TYPES, joints, paid_twice, texts
from gtpo.rewards import Verdict, Verifier
from gtpo.rewards.equality.comparing.decide import decide


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2) as shared:
        yield shared


@pytest.mark.parametrize("seed", [11, 12])
def test_no_text_is_correct_for_two_values(seed: int, verifier: Verifier) -> None:
    drawn = list(texts(1500, seed))
    assert {case.kind for case in drawn} == set(TYPES)
    assert len(joints()) > 700
    assert sum(len(case.values) > 2 for case in drawn) > 200
    assert paid_twice(drawn, verifier) == []
    # A text with one of its values is read: the law does not hold because nothing is paid.
    verdicts = verifier.verify_many([(case.values[0], case.values[0]) for case in drawn], [c.problem for c in drawn])
    assert set(verdicts) == {Verdict.CORRECT}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"12, which equals 3 \cdot 4", "12"),
        ("The answer is 12, which is the area", "12"),
        ("12 since there are 3 rows of 4", "12"),
        ("The answer is $12$, which is $\\frac{24}{2}$.", "12"),
        ("12\\sqrt{3} (approximately 20.78)", "12\\sqrt{3}"),
        ("Final answer: x = 9", "x = 9"),
        ("P(-1, 8)", "(-1, 8)"),
        ("5 (five) pencils", "5"),
    ],
)
def test_one_value_said_twice_is_one(text: str, value: str) -> None:
    assert decide(text, value, "How many pencils are there?") == "CORRECT"


RACE = "Keiko, Jorge and Bruno ran a race. Keiko beat Bruno but not Jorge. Who won?"


@pytest.mark.parametrize("text", ["Jorge", "Jorge won.", "The winner is Jorge", "It was Jorge", "I think Jorge won"])
def test_a_sentence_names_one(text: str) -> None:
    assert decide(text, "Jorge", RACE) == "CORRECT"


def test_a_sentence_with_another_name_or_verb_names_nobody() -> None:
    others = [f"{a} {link} {b}" for a, b in itertools.permutations(["Keiko", "Jorge", "Bruno"], 2) for link in
              ("or", "beat", "and", "lost to", "but not")]  # fmt: skip
    for text in [*others, "Jorge lost", "Jorge disappeared", "not Jorge", "maybe Jorge"]:
        assert decide(text, "Jorge", RACE) != "CORRECT", text
