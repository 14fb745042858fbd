"""The judge's law: what computes nothing earns nothing, and what changes only the look costs nothing."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.law import Case, embedded, judge, originals, problems, refused, rewritten
from bench.rewritings import LETTERS, LOOKS, REWRITINGS, WRAPPERS
from gtpo.common.files import read_jsonl
from gtpo.rewards import Verdict, Verifier
from gtpo.rewards.equality.comparing.decide import decide
from gtpo.rewards.equality.comparing.simplified import Work, work_left
from gtpo.rewards.equality.reading.grammar import parse
from gtpo.rewards.extract import extract_answer
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


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2) as shared:
        yield shared


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
    rows = problems(shared_dir, 12)
    base = refused(list(originals([*rows, *embedded()[:8]])), verifier)
    attacks = rewritten(base, REWRITINGS)
    assert len(attacks) > 1000
    assert [c for c, v in zip(attacks, judge(attacks, verifier), strict=True) if v is Verdict.CORRECT] == []
    looks = rewritten([Case(i, "gold", gold, gold, problem) for i, problem, gold in rows], LOOKS)
    assert [c for c, v in zip(looks, judge(looks, verifier), strict=True) if v is not Verdict.CORRECT] == []


@pytest.mark.parametrize(
    ("prediction", "gold", "problem", "correct"),
    [
        ("x(x+3)+2", "(x+1)(x+2)", "Factor $x^2+3x+2$.", False),
        ("(2+x)(x+1)", "(x+1)(x+2)", "Factor $x^2+3x+2$.", True),
        ("(2x+2)(x/2+1)", "(x+1)(x+2)", "Factor $x^2+3x+2$.", False),
        ("2x+4", "2(x+2)", "Factor $2x+4$ completely.", False),
        ("x(x+5)+6", "x^2+5x+6", "Expand $(x+2)(x+3)$.", False),
        ("6+5x+x^2", "x^2+5x+6", "Expand $(x+2)(x+3)$.", True),
        ("(x+1+1)(x+3)", "x^2+5x+6", "Multiply $(x+2)(x+3)$.", False),
        ("6x-x", "5x", "Simplify $2x+3x$.", False),
        (r"(2-1+\sqrt2)^2", r"3+2\sqrt2", r"Simplify $(1+\sqrt2)^2$.", False),
        (r"2\sqrt2+3", r"3+2\sqrt2", r"Simplify $(1+\sqrt2)^2$.", True),
        ("1/8", "0.125", "Write $\\frac{2}{16}$ as a decimal.", False),
        ("5 minutes", "5", "How many hours does it take?", False),
        ("5 hours", "5", "How many hours does it take?", True),
        ("5", "5", "How many hours does it take?", True),
        ("12 cm", "12", "What is the area, in square centimeters?", False),
        ("3, 2, 1", "1, 2, 3", "List the roots in increasing order.", False),
        ("3, 2, 1", "1, 2, 3", "List the roots, separated by commas.", True),
        ("3, 2", "2, 3", "What are $a$ and $b$, respectively?", False),
        ("408.044", "408.04", "How much does it cost?", False),
        ("408.044", "408.04", "About how much does it cost? Round to the nearest cent.", True),
        ("3.33", r"\frac{10}{3}", "What is it, to the nearest hundredth?", True),
        ("3.33", r"\frac{10}{3}", "What is it?", False),
        ("8.12", "8,12", "Find all values of $x$.", False),
        ("x^2 = 25", "5, -5", "Solve for $x$: $x^2-25=0$.", False),
        ("|x| = 5", "5", "Solve for $x$.", False),
        ("x(y-2x-1)=0", "y=2x+1", "Find the equation of the line.", False),
        ("xy-2x^2-x=0", "y=2x+1", "Find the equation of the line.", False),
        ("2x-y+1=0", "y=2x+1", "Find the equation of the line.", True),
        (r"\boxed{1} or \boxed{2} or \boxed{3}", "3", "How many are there?", False),
        (r"\boxed{4} and \boxed{9}", "4, 9", "Find all values.", True),
        ("0.5", r"\frac12", "It succeeds with probability $0.5$. What is the chance of failure?", True),
        ("0.5", r"\frac12", "Write $0.5$ as a fraction.", False),
    ],
)  # fmt: skip
def test_the_contract(prediction: str, gold: str, problem: str, correct: bool) -> None:
    assert (decide(prediction, gold, problem) == "CORRECT") == correct


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("USD 18", "18"), (r"\text{(even)}", r"\text{even}"), ("The correct option is C", "C"), ("A,B, and E", "A,B,E"),
        ("A,B, and E", r"\text{A,B,E}"), ("2A_{16}", "2a_{16}"), (r"\mathbb{R} - \{2\}", r"(-\infty,2)\cup(2,\infty)"),
        ("0x1F", "1F_{16}"), ("one half", r"\frac12"), ("two thirds", r"\frac23"), ("five million", "5000000"),
        ("forty-two", "42"), ("three hundred and five", "305"), (r"1+2+\cdots+n", r"1+2+\ldots+n"),
        (r"\sum_{k=1}^{10}k=55", "55"),
    ],
)  # fmt: skip
def test_other_ways_to_say_it(prediction: str, gold: str) -> None:
    assert decide(prediction, gold) == "CORRECT"


@pytest.mark.parametrize(
    "text",
    ["I doubt that it is 42", "the number after 42", "twice as many as 42", "I doubt the answer is 42", "third 42",
     "It is the number after 42", "He has as many as 42",
     "forty", "forty-twelve", "2a_5", "nobody thinks it was 42"],
)  # fmt: skip
def test_what_is_no_statement_of_42(text: str) -> None:
    assert decide(text, "42") == "INCORRECT"


def test_a_name_in_a_sentence(verifier: Verifier) -> None:
    asked = "Who won, Evelyn or Al?"
    assert verifier.verify("The answer is Evelyn", "Evelyn", problem=asked) is Verdict.CORRECT
    assert verifier.verify("The answer is Al", "Evelyn", problem=asked) is Verdict.INCORRECT


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


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        (r"\boxed{7}\mathbin{-}0\mathbin{-}0", "7", False),
        (r"\boxed{24} minus 0", "24", False),
        (r"\boxed{1}\frac{2}{2}+4-5", "1", False),
        (r"\{0+\boxed{28}\}", "28", False),
        (r"<b>\boxed{4}+4-4</b>", "4", False),
        (r"\left( \boxed{1} - \frac{1}{\cos 23^\circ} \right)", "1", False),
        (r"i^4 (g(x) = \boxed{3})", "3", False),
        (r"\sqrt{\boxed{4}}", "4", False),
        (r"\frac{\boxed{4}}{2}", "4", False),
        (r"\boxed{(\boxed{54}+0)}", "54", False),
        (r"\boxed{\boxed{54}}", "54", True),
        (r"\boxed{0}+|-0|+0", "0", False),
        (r"\boxed{10}-0 plus zero", "10", False),
        (r"(\sqrt[\boxed{3}]{10})^3 - 7", "3", False),
        (r"It is \boxed{8}-3+3.", "8", False),
        (r"It is \boxed{8} - as shown above", "8", True),
        (r"It is 3 times \boxed{8}", "8", True),
        (r"(\boxed{4})", "4", True),
        (r"x \in (\boxed{4}, 5)", "4", True),
        (r"\textbf{\boxed{4}}", "4", True),
        (r"\boxed{3} \times 10^2", "300", True),
        (r"\boxed{45}^\circ", "45", True),
        (r"5+2=\boxed{7}", "7", True),
        (r"Step 2 - \boxed{5}", "5", True),
        (r"\boxed{5} - as shown above", "5", True),
        (r"- \boxed{5}", "5", True),
    ],
)
def test_a_box_that_is_an_operand_is_no_answer(verifier: Verifier, answer: str, gold: str, right: bool) -> None:
    assert (verifier.verify(answer, gold) == Verdict.CORRECT) is right
    extracted = extract_answer(f"<answer>{answer}</answer>", "strict")
    assert (verifier.verify(extracted, gold) == Verdict.CORRECT) is right


def test_a_statement_of_the_problem_stays_one_behind_a_lead_in(verifier: Verifier) -> None:
    problem = r"In triangle $ABC,$ $AB = 3$ and $AC = 6.$ Find $\overline{AD}.$"
    for lead in "", "It is ", "so it's ", "We get that ":
        assert verifier.verify(f"{lead}AB = 3.", "3", problem=problem) != Verdict.CORRECT
        assert verifier.verify(f"{lead}AD = 3.", "3", problem=problem) == Verdict.CORRECT


@pytest.mark.parametrize(
    ("answer", "gold", "problem", "right"),
    [
        (r"0.\overline{5} : 1", r"\dfrac{5}{9}", r"Express $0.\overline{5}$ as a common fraction.", False),
        ("5:9", r"\dfrac{5}{9}", "What is the ratio?", True),
        ("2.5:1", "2.5", "What is the ratio?", True),
        (
            r"\begin{pmatrix} 0.2 \times 10^1 & 1 \end{pmatrix} \begin{pmatrix} 3 \\ 1 \end{pmatrix}",
            "7",
            r"Compute $\begin{pmatrix} 2 & 1 \end{pmatrix} \begin{pmatrix} 3 \\ 1 \end{pmatrix}$.",
            False,
        ),
        (
            r"\begin{pmatrix} 1 \\ 2 \end{pmatrix} + \begin{pmatrix} 3 \\ 4 \end{pmatrix}",
            r"\begin{pmatrix} 4 \\ 6 \end{pmatrix}",
            "Find the sum.",
            False,
        ),
        (
            r"\begin{pmatrix} 0.4 \times 10^1 \\ 6 \end{pmatrix}",
            r"\begin{pmatrix} 4 \\ 6 \end{pmatrix}",
            "Find the sum.",
            True,
        ),
        (r"40\mathrm{ min}", r"40\text{ min}", "How many minutes does it take?", True),
        (r"\boxed{AB=9, CD=4}", "AB=9, CD=4", "Suppose that $AB=9, CD=4$ or not.", True),
        (r"\{2^2\}", "4", r"Suppose that $3 + x \equiv 2^2 \pmod{3^3}$. What is $x$?", False),
        (r"\frac{4}{2}^2", "4", r"Suppose that $3 + x \equiv 2^2 \pmod{3^3}$. What is $x$?", False),
        (r"40 \mathrm{sec}", r"40\text{ sec}", "How many seconds does it take?", True),
        (r"because y \in [0,\pi]", r"[0,\pi]", r"For which $y \in [0,\pi]$ does it hold?", False),
        (r"because \therefore f(x) = 2", "2", "If $f(x) = 2$ for all $x$, what is $f(x + 2)$?", False),
        (r"\therefore f(x + 2) = 2", "2", "If $f(x) = 2$ for all $x$, what is $f(x + 2)$?", True),
    ],
)
def test_what_the_law_found(verifier: Verifier, answer: str, gold: str, problem: str, right: bool) -> None:
    assert (verifier.verify(answer, gold, problem=problem) == Verdict.CORRECT) is right
