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


def test_policy(verifier: Verifier) -> None:
    """The policy table of docs/verification.md."""
    marks = {"+": CORRECT, "-": INCORRECT, "~": UNSIMPLIFIED}
    table = Path(__file__).with_name("policy.txt").read_text(encoding="utf-8").splitlines()
    rows = [(line[0], line[1], *line[3:].removesuffix(" |").split(" | ")) for line in table if line[0] != "#"]
    assert len(rows) > 55
    for at, scoring in enumerate(("strict", "lenient")):
        pairs, problems = [(row[2], row[3]) for row in rows], [row[4] if row[4:] else None for row in rows]
        verdicts = verifier.verify_many(pairs, problems, scoring=scoring)
        assert [row for row, verdict in zip(rows, verdicts, strict=True) if verdict is not marks[row[at]]] == []


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
