"""Laws over generated texts: one value a text, no operation left undone, no verdict moved without approval."""

import dataclasses
import itertools
import random
from pathlib import Path

import pytest

from bench.law import judge
from bench.law_values import TYPES, joints, paid_twice, texts
from bench.law_verdicts import approved, judged
from bench.law_work import FORMS, cases
from gtpo.rewards import Verdict, Verifier
from gtpo.rewards.equality.answers import Kind
from gtpo.rewards.equality.arithmetic import FUNCTIONS
from gtpo.rewards.equality.comparing.decide import decide
from gtpo.rewards.equality.reading import WORDS
from gtpo.rewards.equality.reading.types import TYPES as TYPES_OF_ANSWERS


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


def test_no_undone_operation_is_paid(verifier: Verifier) -> None:
    """For every operation that the grammar evaluates: one without a form fails here."""
    assert set(FORMS) >= set(FUNCTIONS)
    undone, done = (list(each) for each in zip(*cases(1500, 11), strict=True))
    assert {case.problem_id for case in undone} == set(FORMS)
    assert [c for c, v in zip(undone, judge(undone, verifier), strict=True) if v is Verdict.CORRECT] == []
    assert [c for c, v in zip(done, judge(done, verifier), strict=True) if v is not Verdict.CORRECT] == []


def test_every_moved_verdict_is_approved(verifier: Verifier) -> None:
    was = approved()
    assert len(was) > 1200
    now = judged(list(was), verifier)
    moved = [(was[answer], verdict, answer) for answer, verdict in now.items() if verdict != was[answer]]
    assert moved == [], "read them, then run: python -m bench.law_verdicts --approve"


def test_a_noun_that_nobody_counts_is_refused(verifier: Verifier) -> None:
    """Drawn from the table of nouns; only a general word stands for another."""
    nouns, persons = sorted(WORDS.counted), WORDS.persons | WORDS.sorts_of_persons
    pairs = [random.Random(seed).sample(nouns, 2) for seed in range(600)] + [
        *itertools.permutations(sorted(persons), 2),
        *itertools.permutations(sorted(WORDS.countable), 2),
    ]
    countable = WORDS.countable | WORDS.sorts_of_countable
    general = [
        (said in WORDS.countable and asked in countable) or (said in WORDS.persons and asked in persons)
        for said, asked in pairs
    ]
    problems = [f"How many {asked}s are there?" for _, asked in pairs]
    verdicts = verifier.verify_many([(f"5 {said}s", "5") for said, _ in pairs], problems)
    wrong = [(*pair, fits) for pair, fits, v in zip(pairs, general, verdicts, strict=True) if fits != (v == "CORRECT")]
    assert wrong == []


@pytest.mark.parametrize("kind", TYPES_OF_ANSWERS)
def test_a_type_says_what_it_leaves(kind: type[Kind]) -> None:
    """One place a type: its file says how it is read, compared and what work it leaves, and the page names it."""
    page = (Path(__file__).parents[2] / "docs/verification.md").read_text()
    assert f"`{kind.__name__}`" in page
    assert "read" in vars(kind)
    # One whose normal form is another type's needs no more.
    assert ("same" in vars(kind)) == ("parts" in vars(kind)) == dataclasses.is_dataclass(kind)


def test_a_power_of_a_matrix_is_work() -> None:
    matrix = r"\begin{pmatrix} 1 & 2 \\ 0 & 1 \end{pmatrix}"
    for k in range(2, 9):
        gold = rf"\begin{{pmatrix}} 1 & {2 * k} \\ 0 & 1 \end{{pmatrix}}"
        for text in (f"{matrix}^{k}", f"A^{{{k}}} = {matrix}^{{{k}}}", f"{matrix}" * k):
            assert decide(text, gold, f"Let $A = {matrix}$. Compute $A^{{{k}}}$.") != "CORRECT"
        assert decide(f"A^{{{k}}} = {gold}", gold, f"Let $A = {matrix}$. Compute $A^{{{k}}}$.") == "CORRECT"


ASKED = {
    "A jar holds 15 red and 27 blue marbles. How many marbles are in the jar?": [
        "There are 42 marbles in the jar.", "The jar holds 42 marbles", "The number of marbles is 42",
    ],
    "Lena has 74 cookies and gives away 32. How many cookies are left?": ["Lena has 42 cookies left.", "42 are left"],
    "Betty earns 21 dollars a day. How much does she earn in two days?": ["She earns $42", "Betty earned 42 dollars"],
    "Find the perimeter of a rectangle with sides 8 and 13.": ["So the perimeter is 42", "It is 42", "x = 42"],
}  # fmt: skip
UNSAID = """
A common mistake is|Suppose the answer is|The answer is hardly|The upper bound is|The half of it is|If it were|47 is
My first guess was|The teacher says|One might think it is|An option is|The example gives|The diagonal is|He lost|47% of
Everyone expected|The price was|An estimate is|The intermediate result is|The wrong answer is|x of|3/4 of|I doubt
Twice it is|Assume it is|The limit exceeds|The trap answer is|Nobody got|The previous answer was|It used to be
The square of the answer is|Unless it is|The answer is nearly|The book says|She gave away|The answer starts with
"""


@pytest.mark.parametrize("problem", ASKED)
def test_a_sentence_states_what_was_asked(problem: str) -> None:
    for text in ["The answer is 42.", "Thus we get 42", "In total, 42", "I get 42", *ASKED[problem]]:
        assert decide(text, "42", problem) == "CORRECT", text
    for frame in UNSAID.replace("\n", "|").strip("|").split("|"):
        assert decide(f"{frame} 42.", "42", problem) != "CORRECT", frame
    assert decide("~~42~~", "42", problem) != "CORRECT"
