"""The judge's law: what computes nothing earns nothing, and what changes only the look costs nothing."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.law import Case, beyond_its_value, embedded, judge, originals, problems, refused, rewritten
from bench.rewritings import LETTERS, LOOKS, REWRITINGS, WRAPPERS
from gtpo.common.files import read_jsonl
from gtpo.rewards import Verdict, Verifier
from gtpo.rewards.equality.comparing.decide import decide
from gtpo.rewards.equality.comparing.work import Work, work_left
from gtpo.rewards.equality.reading.grammar import parse
from gtpo.rewards.golds import contradiction, read_contract

COPIES = [
    ("65-4", "61", "What is 65-4?"),
    ("(x+2)(x+3)", "x^2+5x+6", "Expand $(x+2)(x+3)$."),
    ("x^2+3x+2", "(x+1)(x+2)", "Factor $x^2+3x+2$."),
    ("2x+3x", "5x", "Simplify $2x+3x$."),
    (r"(1+\sqrt{2})^2", r"3+2\sqrt{2}", r"Simplify $(1+\sqrt{2})^2$."),
    (r"\frac{84}{2}", "42", r"Simplify $\frac{84}{2}$."),
    (r"\sqrt{48}", r"4\sqrt{3}", r"Simplify $\sqrt{48}$."),
    ("2^{10}", "1024", "Compute $2^{10}$."),
    (r"\frac{x^2-1}{x-1}", "x+1", r"Simplify $\frac{x^2-1}{x-1}$."),
    ("3(2y-5)+4", "6y-11", "Write $3(2y-5)+4$ without brackets."),
]
"""(copy, gold, problem)"""
GOLDS = [
    "61", "-7", r"\frac{3}{4}", r"2\sqrt{3}", "x^2+2x+1", "(x+1)(x+2)", r"3+2\sqrt{2}", r"\frac{\pi}{6}", "(3,4)",
    "2^{n+1}", r"\frac{1}{x+1}", r"12\pi", "0.25", "y=2x+1", "10!", r"\binom{10}{3}", "[1,2)", r"1+\frac{x}{2}",
]  # fmt: skip


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(COPIES), st.lists(st.sampled_from(sorted(REWRITINGS)), min_size=0, max_size=2))
def test_no_rewriting_of_a_copy_is_paid(copy: tuple[str, str, str], rules: list[str]) -> None:
    text, gold, problem = copy
    for rule in rules:
        text = REWRITINGS[rule](text) or text
    assert decide(text, gold, problem) != "CORRECT"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(GOLDS), st.lists(st.sampled_from(sorted(LOOKS)), min_size=1, max_size=2, unique=True))
def test_no_look_costs_anything(gold: str, rules: list[str]) -> None:
    text = gold
    for rule in sorted(rules, key="bold".__eq__):  # markdown stands around TeX
        text = LOOKS[rule](text) or text
    assert decide(text, gold, "What is it?") == "CORRECT"


def test_who_guesses_the_value_has_copied_nothing(verifier: Verifier) -> None:
    guess = Case("train:2741", "all on one side", "2+1-3 - (2+1-3) = 0", "0", "What is 2+1-3?")
    copy = Case("", "equal to itself", "65-4 = 65-4", "61", "What is 65-4?")
    assert beyond_its_value([guess, copy], verifier) == [copy]


ANSWERS = [
    *COPIES,
    *((gold, gold, "What is it?") for gold in GOLDS),
    *((wrong, gold, "What is it?") for gold, wrong in pairwise(GOLDS)),
    ("60+1", "61", "What is 65-4?"),
    ("61", "61", "What is 65-4?"),
]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.sampled_from(ANSWERS), st.lists(st.sampled_from(sorted(WRAPPERS)), min_size=1, max_size=2, unique=True))
def test_a_wrapper_changes_no_verdict(answer: tuple[str, str, str], wrappers: list[str]) -> None:
    """verdict(wrap(x)) = verdict(x), in both directions, for every wrapper that is read away."""
    text, gold, problem = answer
    wrapped = text
    for wrapper in wrappers:
        wrapped = WRAPPERS[wrapper](wrapped) or wrapped
    assert decide(wrapped, gold, problem) == decide(text, gold, problem)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(ANSWERS), st.sampled_from(sorted(LETTERS)), st.booleans())
def test_a_letter_is_no_licence_to_copy(answer: tuple[str, str, str], letter: str, choice: bool) -> None:
    text, gold, problem = answer
    wrapped = LETTERS[letter](text)
    if not choice:
        assert decide(wrapped, gold, problem) == "INCORRECT"
        return
    options = " ".join(rf"\textbf{{({name})}} {gold} \qquad" for name in "ABCD")
    assert decide(wrapped, gold, f"{problem}\n{options}") == decide(text, gold, f"{problem}\n{options}")


@pytest.mark.shared
def test_the_law_on_real_problems(shared_dir: Path, verifier: Verifier) -> None:
    rows = problems(shared_dir, 6)
    base = refused(list(originals([*rows, *embedded()[:2]])), verifier)
    attacks = rewritten(base, REWRITINGS)
    assert len(attacks) > 1000
    assert [c for c, v in zip(attacks, judge(attacks, verifier), strict=True) if v is Verdict.CORRECT] == []
    looks = rewritten([Case(i, "gold", gold, gold, problem) for i, problem, gold in rows], LOOKS)
    assert [c for c, v in zip(looks, judge(looks, verifier), strict=True) if v is not Verdict.CORRECT] == []


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("61", set()), (r"\frac{3}{4}", set()), (r"2\sqrt{3}", set()), ("(x+1)^2", set()), ("x^2+2x+1", set()),
        (r"\frac{\pi}{6}", set()), (r"3.2 \times 10^5", set()), ("2^{10}", {Work.LITERAL_POWER}),
        ("60+1", {Work.SUM, Work.LIKE}),
        ("2x+3x", {Work.LIKE}), (r"2 \cdot 3", {Work.PRODUCT}), ("-(-x)", {Work.SIGN}), ("4!", {Work.FUNCTION}),
        (r"\frac{6}{8}", {Work.FRACTION}), (r"\sqrt{8}", {Work.ROOT}), (r"\sum_{k=1}^n k", {Work.BOUND}),
        ("(x^2)^3", {Work.POWER}),
    ],
)  # fmt: skip
def test_work_left(text: str, kinds: set[Work]) -> None:
    assert {kind for kind, count in work_left(parse(text)).items() if count} == kinds


def test_contracts_are_read_and_printed() -> None:
    read = read_contract(
        "List the times in increasing order. How many hours is it, to the nearest tenth? Solve for $x$."
    )
    assert str(read) == "unit: hour; order: increasing; rounded to 1 decimals; unknown: x"
    assert str(read_contract("Who won?")) == ""
    assert contradiction("How many hours is it?", r"5\text{ minutes}") == "the unit is hour, and the gold's is minute"
    assert (
        contradiction("List them in increasing order.", "3, 2, 1")
        == "the order is increasing, and the gold's is another"
    )
    assert contradiction("Find the two roots.", "1, 2, 3") == "2 answers are asked for, and the gold has 3"
    assert contradiction("How many hours is it?", "5") is None


@pytest.mark.shared
def test_no_gold_contradicts_its_contract(shared_dir: Path) -> None:
    rows = [row for name in ("math500", "aime24", "amc23") for _, row in read_jsonl(shared_dir / f"data/{name}.jsonl")]
    assert [row["id"] for row in rows if contradiction(row["problem"], str(row["answer"]))] == []
    assert sum(str(read_contract(row["problem"])) != "" for row in rows) > 150
