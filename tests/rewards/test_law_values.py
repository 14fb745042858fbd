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
from gtpo.rewards.equality.reading import WORDS
from gtpo.rewards.equality.reading.types import TYPES as TYPES_OF_ANSWERS


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
    """One place a type: its class says how it is read, compared and what work it leaves, and the page names it."""
    page = (Path(__file__).parents[2] / "docs/verification.md").read_text()
    assert f"`{kind.__name__}`" in page
    assert "read" in vars(kind)
    # One whose normal form is another type's needs no more.
    assert ("same" in vars(kind)) == ("parts" in vars(kind)) == dataclasses.is_dataclass(kind)
