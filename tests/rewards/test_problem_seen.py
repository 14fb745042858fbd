"""The judge sees the problem: copies, unfinished computations, percentages, options, names. And the tables of verdicts.

All examples are invented or commonplace.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gtpo.common.files import read_jsonl
from gtpo.rewards import Verdict, Verifier, accuracy_reward
from gtpo.rewards.data.arithmetic import arithmetic_problems
from gtpo.rewards.equality.comparing.decide import decide
from gtpo.rewards.extract import extract_answer

IN_A_PROCESS = ("rewards/equality/",)

CORRECT, INCORRECT, UNSIMPLIFIED = Verdict.CORRECT, Verdict.INCORRECT, Verdict.UNSIMPLIFIED
MARKS = {"+": CORRECT, "-": INCORRECT, "~": UNSIMPLIFIED}


def lines_of(table: str) -> list[str]:
    return Path(__file__).with_name(f"{table}.txt").read_text(encoding="utf-8").splitlines()


def test_policy(verifier: Verifier) -> None:
    """The policy table of docs/verification.md."""
    policy = [line for line in lines_of("policy") if line[0] != "#"]
    rows = [(line[0], line[1], *line[3:].removesuffix(" |").split(" | ")) for line in policy]
    assert len(rows) > 55
    for at, scoring in enumerate(("strict", "lenient")):
        pairs, problems = [(row[2], row[3]) for row in rows], [row[4] if row[4:] else None for row in rows]
        verdicts = verifier.verify_many(pairs, problems, scoring=scoring)
        assert [row for row, verdict in zip(rows, verdicts, strict=True) if verdict is not MARKS[row[at]]] == []


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
    pairs = [("nho e", "nhoe"), ("ix", "xi"), (" NHOE ", "nhoe"), ("1/2", "0.5")]
    assert verifier.verify_many(pairs, answers="text") == [INCORRECT, INCORRECT, CORRECT, INCORRECT]


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


def cases() -> Iterator[tuple[str, str, str, Verdict]]:
    """Yield (problem, gold, answer, verdict) of each line that begins with a mark."""
    problem = gold = ""
    for line in lines_of("answers"):
        mark, text = line[:1], line[2:].replace("⏎", "\n")
        if mark == "?":
            problem = text
        elif mark == "=":
            gold = text
        elif mark in MARKS:
            yield problem, gold, text, MARKS[mark]


def test_the_table(verifier: Verifier) -> None:
    table = list(cases())
    # An answer with a box is judged within answer tags too: a box that is an operand is no answer there either.
    tagged = [(p, g, extract_answer(f"<answer>{text}</answer>") or "", v) for p, g, text, v in table if "boxed" in text]
    assert len(table) > 950
    assert len(tagged) > 30
    table += tagged
    verdicts = verifier.verify_many([(case[2], case[1]) for case in table], [case[0] or None for case in table])
    assert [(*c, str(v)) for c, v in zip(table, verdicts, strict=True) if v is not c[3]] == []


def test_pairs_are_equal_as_the_table_says() -> None:
    lines, wrong = lines_of("pairs"), []
    for mark, line in ((line[0], line[2:]) for line in lines if line[0] != "#"):
        first, second = line.rsplit(" | ", 1)
        ways = [(first, second), (second, first)] if mark in "=!" else [(first, second)]
        wrong += [(*way, mark) for way in ways if (decide(*way) in ("CORRECT", "UNEVALUATED")) != (mark in "=>")]
    assert len(lines) > 390
    assert wrong == []


@pytest.mark.parametrize("term", [r"\lfloor \frac{n}{<k>} \rfloor", r"\lceil \frac{n}{<k>} \rceil", r"n \bmod <k>"])
def test_integer_parts_are_compared_far_out(term: str) -> None:
    for k, other in itertools.permutations((3, 4, 5, 7, 9, 10, 100), 2):
        assert decide(term.replace("<k>", str(k)), term.replace("<k>", str(other))) == "INCORRECT"
    for k in (3, 10, 100):
        own = term.replace("<k>", str(k))
        assert decide(f"-{own}", own) == "INCORRECT"
        assert decide(f"{own} + 1", f"1 + {own}") == "CORRECT"
        assert decide(f"y = {own}", f"{own} = y") == "CORRECT"
