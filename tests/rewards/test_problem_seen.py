"""The judge sees the problem: copies, unfinished computations, percentages, options, names. All examples invented."""

import re
from pathlib import Path

import pytest

from gtpo.common.files import read_jsonl
from gtpo.rewards import Verdict, Verifier, accuracy_reward
from gtpo.rewards.data.arithmetic import arithmetic_problems
from gtpo.rewards.equality.reading.problem import read_problem

IN_A_PROCESS = ("rewards/equality/",)

CORRECT, INCORRECT, UNSIMPLIFIED = Verdict.CORRECT, Verdict.INCORRECT, Verdict.UNSIMPLIFIED


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2) as shared:
        yield shared


# (prediction, gold, problem, strict, lenient): the policy table of docs/verification.md
POLICY = [
    ("65-4", "61", "What is 65-4?", UNSIMPLIFIED, UNSIMPLIFIED),
    ("(-4 + 65)", "61", "What is 65-4?", UNSIMPLIFIED, UNSIMPLIFIED),
    ("61", "61", "What is 65-4?", CORRECT, CORRECT),
    ("65-4=61", "61", "What is 3 more than 58?", CORRECT, CORRECT),
    ("60+1", "61", "What is 65-4?", UNSIMPLIFIED, CORRECT),
    ("6*7", "42", None, UNSIMPLIFIED, CORRECT),
    (r"17 \bmod 5", "2", None, UNSIMPLIFIED, CORRECT),
    (r"2^1", "2", r"Evaluate $\frac{1}{2^1} + \frac{2}{2^2} + \cdots$.", UNSIMPLIFIED, UNSIMPLIFIED),
    (r"3.2 \times 10^1", "32", None, CORRECT, CORRECT),
    (r"\sum_{k=1}^{10} k", "55", None, UNSIMPLIFIED, CORRECT),
    (r"\int_0^1 2x dx", "1", None, INCORRECT, INCORRECT),
    (r"\frac{84}{2}", "42", r"Simplify $\frac{84}{2}$.", UNSIMPLIFIED, UNSIMPLIFIED),
    ("84/2", "42", "What is 84 divided by 2?", UNSIMPLIFIED, UNSIMPLIFIED),
    ("84/2", "42", "How many legs have 21 birds?", UNSIMPLIFIED, CORRECT),
    ("84/2", "42", None, CORRECT, CORRECT),
    (r"\frac{6}{8}", r"\frac{3}{4}", "What share is left?", CORRECT, CORRECT),
    ("90:2", "45", "How many are left?", UNSIMPLIFIED, CORRECT),
    ("90 to 2", "45", "How many are left?", UNSIMPLIFIED, CORRECT),
    ("x = 90:2", "45", "How many are left?", UNSIMPLIFIED, CORRECT),
    ("(90:2, 3)", "(45, 3)", "How many are left of each?", UNSIMPLIFIED, CORRECT),
    (r"24:\frac12", "48", "How many are left?", UNSIMPLIFIED, CORRECT),
    ("24:0.5", "48", "How many are left?", UNSIMPLIFIED, CORRECT),
    ("6:8", r"\frac{3}{4}", "What share is left?", UNSIMPLIFIED, CORRECT),
    ("3:4", r"\frac{3}{4}", "What share is left?", CORRECT, CORRECT),
    ("6:8", "3:4", "What is the ratio?", CORRECT, CORRECT),
    ("48/4^{0.5}", "24", "How many are left?", UNSIMPLIFIED, CORRECT),
    ("4^{0.5}*12", "24", "How many are left?", UNSIMPLIFIED, CORRECT),
    (r"\sqrt[0.5]{4}*3", "48", "How many are left?", UNSIMPLIFIED, CORRECT),
    (r"100 \div 10", "10", "How many are left?", UNSIMPLIFIED, CORRECT),
    ("16*0.25^{0.5}", "8", "How many are left?", UNSIMPLIFIED, CORRECT),
    ("2^{1.5}", r"2\sqrt{2}", "How long is it?", CORRECT, CORRECT),
    (r"\frac{6}{8}", r"\frac{3}{4}", "What share is left, in lowest terms?", UNSIMPLIFIED, CORRECT),
    ("0.5", r"\frac{1}{2}", "Write $0.5$ as a common fraction.", UNSIMPLIFIED, UNSIMPLIFIED),
    ("(x+1)^2", "x^2+2x+1", "Expand $(x+1)^2$.", UNSIMPLIFIED, UNSIMPLIFIED),
    ("(1+x)(x+1)", "x^2+2x+1", "Expand $(x+1)^2$.", UNSIMPLIFIED, UNSIMPLIFIED),
    ("1+2x+x^2", "x^2+2x+1", "Expand $(x+1)^2$.", CORRECT, CORRECT),
    ("2x+3", "2x+3", "A line has the equation $y=2x+3$. What is its right side?", CORRECT, CORRECT),
    ("f(2) = 3", "3", "Given $f(2) = 3$, what is $f(5)$?", UNSIMPLIFIED, UNSIMPLIFIED),
    (r"\mathbf{v} \cdot \mathbf{w} = 1.", "1", r"If $\mathbf{v} \cdot \mathbf{w} = 1.$", UNSIMPLIFIED, UNSIMPLIFIED),
    ("x = 65-4", "61", None, UNSIMPLIFIED, CORRECT),
    ("x = 41 = 42", "42", None, UNSIMPLIFIED, CORRECT),
    ("41 = 42", "42", None, INCORRECT, INCORRECT),
    ("(1+2, 4)", "(3, 4)", None, UNSIMPLIFIED, CORRECT),
    (r"\sqrt{8}", r"2\sqrt{2}", "How long is the diagonal?", CORRECT, CORRECT),
    (r"\sqrt{8}", r"2\sqrt{2}", r"Simplify $\sqrt{8}$.", UNSIMPLIFIED, UNSIMPLIFIED),
    ("2^{10}", "1024", None, CORRECT, CORRECT),
    (r"60\%", "60", "What percentage of them is red?", CORRECT, CORRECT),
    (r"60\%", "60", "How many of them are red?", INCORRECT, INCORRECT),
    ("60", r"60\%", "What percentage of them is red?", CORRECT, CORRECT),
    ("0.6", "60", "What percentage of them is red?", INCORRECT, INCORRECT),
    ("12 zorks", "12", "How many zorks are there?", CORRECT, CORRECT),
    ("12 zorks", "12", None, INCORRECT, INCORRECT),
    ("5 dozen", "5", "How many dozen eggs are there?", CORRECT, CORRECT),
    ("5 dozen", "60", "How many eggs are there?", CORRECT, CORRECT),
    ("(C) 12", "C", "Pick one: (A) 10 (B) 11 (C) 12", CORRECT, CORRECT),
    ("(C) 11", "C", "Pick one: (A) 10 (B) 11 (C) 12", INCORRECT, INCORRECT),
    ("y=2, x=1", "(1,2)", "Find $(x,y)$.", CORRECT, CORRECT),
    ("q=2, p=1", "(2,1)", "Find the pair $(q,p)$.", CORRECT, CORRECT),
    ("dEn", "Ned", "Who won, Ned or Al?", INCORRECT, INCORRECT),
]


@pytest.mark.parametrize(("prediction", "gold", "problem", "strict", "lenient"), POLICY)
def test_policy(
    prediction: str, gold: str, problem: str | None, strict: Verdict, lenient: Verdict, verifier: Verifier
) -> None:
    assert verifier.verify(prediction, gold, problem=problem) is strict
    assert verifier.verify(prediction, gold, problem=problem, scoring="lenient") is lenient


@pytest.mark.parametrize("scoring", ["strict", "lenient"])
def test_copying_earns_nothing_on_the_embedded_task(scoring, verifier: Verifier) -> None:  # type: ignore[no-untyped-def]
    problems = [p for split in ("train", "test", "hard") for p in arithmetic_problems(split)]
    assert len(problems) == 3000 + 128
    problems = problems[::4]
    for form in ("{}", "({})", "${}$", "{}.", "x = {}"):
        some = problems if form == "{}" else problems[::10]
        copies = [(form.format(re.findall("What is (.*)[?]", p.problem)[0]), p.answer) for p in some]
        verdicts = verifier.verify_many(copies, [p.problem for p in some], scoring=scoring)
        assert set(verdicts) == {UNSIMPLIFIED}
    golds = verifier.verify_many([(p.answer, p.answer) for p in problems], [p.problem for p in problems])
    assert set(golds) == {CORRECT}


def test_the_reward_reads_the_problem_from_the_prompt() -> None:
    logged: dict[str, float] = {}
    prompts = [[{"role": "system", "content": "6*7"}, {"role": "user", "content": "What is half of $(x+1)^2$ + this?"}]]
    completion = "<reasoning>r</reasoning><answer>(x+1)^2</answer>"
    gold = "x^2+2x+1"
    assert accuracy_reward([completion], [gold], prompts=prompts, log_metric=logged.__setitem__) == [0.0]
    assert logged.pop("reward/paid_longer") == 0.0, "nothing was paid"
    assert logged == {"reward/unsimplified": 1.0, "reward/rejected": 0.0, "reward/timeout": 0.0}
    assert accuracy_reward([completion], [gold]) == [10.0]
    assert accuracy_reward([completion], [""], prompts=prompts) == [None]
    with pytest.raises(ValueError, match="2 prompts"):
        accuracy_reward([completion], [gold], prompts=prompts * 2)


def test_text_answers_are_text(verifier: Verifier) -> None:
    for prediction, gold, equal in [
        ("nho e", "nhoe", False), ("ix", "xi", False), (" NHOE ", "nhoe", True), ("1/2", "0.5", False),
    ]:  # fmt: skip
        assert (verifier.verify(prediction, gold, answers="text") is CORRECT) == equal


@pytest.mark.shared
def test_no_formula_of_a_real_problem_is_an_answer_but_the_gold_as_written(
    shared_dir: Path, verifier: Verifier
) -> None:
    """What remains correct is the gold, with its name or unit at most; docs/verification.md lists why."""
    pairs, problems = [], []
    for name in ("aime24", "aime25", "amc23", "math500"):
        for _, row in read_jsonl(shared_dir / f"data/{name}.jsonl"):
            for formula in re.findall(r"\$+([^$]+)\$+", row["problem"]):
                pairs.append((formula, row["answer"]))
                problems.append(row["problem"])
    verdicts = verifier.verify_many(pairs, problems)
    assert verdicts.count(UNSIMPLIFIED) > 10
    accepted = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict is CORRECT]
    bare = [
        re.sub(r"\s|\\left|\\right|[.,;:$]|\^\\circ|\^\{\\circ\}|\\\$|d(?=frac)", "", text)
        for p in accepted
        for text in p
    ]
    assert [pair for pair, a, b in zip(accepted, bare[::2], bare[1::2], strict=True) if b not in a] == []


def test_what_a_problem_asks() -> None:
    for text, percent in [
        ("What percent of 80 is 20?", True),
        ("Express $\\frac{3}{5}$ as a percent.", True),
        ("By what percentage did the price rise?", True),
        ("A shirt is 20 percent off. How much is it?", False),
        ("What is 60% of 50?", False),
        ("What is 60 percent, as a decimal?", False),
    ]:
        assert read_problem(text).asks_percent is percent, text
    assert dict(read_problem(r"Which? $\textbf{(A)}\ 3 \qquad \textbf{(B)}\ 4$").options) == {"A": "3", "B": "4"}
